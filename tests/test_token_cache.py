"""Revocations between processes that keep tokens."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.config.settings import ReuseSettings
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.heartbeats import RevocationNotices
from oauth_ratelimit.token_cache import KeptToken, TokenCache
from testbed.clock import Clock
from testbed.oauth_server.database import BATCH_JOBS

MAX_AGE_S = 300.0
REQUEST = b"digest"
REUSE = {"limit": 5, "window": 9, "on_limit": "reuse"}


def let_pass(seconds: int, clock: Clock, connection: Connection) -> None:
    """Let time pass here, and at MongoDB for the notices that it has."""
    clock.advance(seconds)
    moved = {"$set": {"at": {"$subtract": ["$at", 1000 * seconds]}}}
    connection.collection(STATISTICS).update_many({"_id.revocation": {"$exists": True}}, [moved])


Keep = Callable[..., None]


@pytest.fixture
def keep(clock: Clock, connection: Connection) -> Keep:
    """Keeps a token of each client in a cache; a second passes before and after."""

    def keep_tokens(cache: TokenCache, *client_ids: str) -> None:
        let_pass(1, clock, connection)
        for client_id in client_ids:
            issue = cache.begin(client_id, REQUEST)
            assert issue is not None
            cache.end(issue, KeptToken(issue.begun_s, b"{}", 3600.0))
        let_pass(1, clock, connection)

    return keep_tokens


def kept_by(cache: TokenCache, *client_ids: str) -> set[str]:
    return {client_id for client_id in client_ids if cache._clients[client_id].tokens}


@pytest.fixture
def open_cache(mongo_uri: str, clock: Clock) -> Iterator[Callable[[], TokenCache]]:
    """Opens the caches of processes that share a database, long after their limits were changed."""
    with ExitStack() as undo:

        def opened() -> TokenCache:
            notices = RevocationNotices(undo.enter_context(closing(Connection(mongo_uri))))
            may_reuse = {"a", "b", *(f"client-{number}" for number in range(1500))}.__contains__
            cache = TokenCache(partial(ReuseSettings, MAX_AGE_S), may_reuse=may_reuse, notices=notices, clock=clock)
            clock.advance(MAX_AGE_S)
            return cache

        yield opened


def announced(connection: Connection) -> set[str]:
    found = connection.collection(STATISTICS).find({"_id.revocation": {"$exists": True}})
    return {notice["_id"]["revocation"] for notice in found}


def test_revocations_of_many_clients_take_reuse_from_nobody_else(
    open_cache: Callable[[], TokenCache], keep: Keep
) -> None:
    here, there = open_cache(), open_cache()
    keep(there, "a", "b")
    with capture_logs() as logs:
        for number in range(1500):
            here.revoke(f"client-{number}")
        here.revoke("a")
        here.run()
        there.run()
    assert {"b"} == kept_by(there, "a", "b")
    assert [] == logs


def test_more_revocations_than_are_remembered_drop_all_tokens_and_are_logged_once(
    open_cache: Callable[[], TokenCache], keep: Keep, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.token_cache.MAX_REVOKED", 20)
    here, there = open_cache(), open_cache()
    keep(there, "a", "b")
    with capture_logs() as logs:
        for number in range(50):
            here.revoke(f"client-{number}")
    here.run()
    there.run()
    assert (set(), 21) == (kept_by(there, "a", "b"), len(announced(connection)))
    assert ["revocations_left_out"] == [entry["event"] for entry in logs]


def test_client_without_a_reuse_limit_is_announced_only_soon_after_a_change(
    open_cache: Callable[[], TokenCache], keep: Keep, connection: Connection, clock: Clock
) -> None:
    """Other processes may go by the former limits."""
    cache = open_cache()
    keep(cache, "other")
    cache.revoke("other")
    cache.run()
    assert (set(), set()) == (announced(connection), kept_by(cache, "other"))
    cache.note_change()
    for client_id in ("one", "two"):
        cache.revoke(client_id)
        clock.advance(MAX_AGE_S)
    cache.run()
    assert {"one"} == announced(connection)


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), StoreRejected("no right"), None], ids=repr)
def test_revocation_that_cannot_be_announced_keeps_no_other_from_being_read(
    open_cache: Callable[[], TokenCache], keep: Keep, connection: Connection, error: Exception | None
) -> None:
    """Also if one document alone is refused. It is announced as soon as it can be."""
    here, there = open_cache(), open_cache()
    keep(here, "b")
    there.revoke("b")
    there.run()
    here.revoke("a")
    notices: Any = here._notices
    announce = notices.announce
    notices.announce = Mock(side_effect=error, return_value={"a": "error (121)"})
    for _ in range(2):
        with pytest.raises(StoreRejected if error is None else type(error)):
            here.run()
    assert (set(), {"b"}) == (kept_by(here, "b"), announced(connection))
    notices.announce = announce
    here.run()
    assert {"a", "b"} == announced(connection)


def test_revocation_is_announced_although_others_cannot_be_read(
    open_cache: Callable[[], TokenCache], keep: Keep, connection: Connection
) -> None:
    here = open_cache()
    keep(here, "b")
    here.revoke("a")
    notices: Any = here._notices
    notices.read = Mock(side_effect=StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable):
        here.run()
    assert {"a"} == announced(connection)


def test_last_revocations_are_announced_at_the_end(
    open_cache: Callable[[], TokenCache], connection: Connection
) -> None:
    cache = open_cache()
    cache.revoke("a")
    cache.close(Deadline())
    assert {"a"} == announced(connection)


@pytest.mark.parametrize("pause_s", [0, 40])
@pytest.mark.parametrize("is_unused", [False, True])
def test_client_that_revokes_a_token_keeps_the_next_one(
    open_cache: Callable[[], TokenCache],
    keep: Keep,
    connection: Connection,
    clock: Clock,
    pause_s: int,
    is_unused: bool,
) -> None:
    """At every process of its application, although the notice stays for two hours."""
    here, there = open_cache(), open_cache()
    keep(here, "a")
    here.revoke("a")
    if is_unused:
        here.purge()
    here.run()
    let_pass(pause_s, clock, connection)
    for cache in (here, there):
        keep(cache, "a")
        for _ in range(3):
            cache.run()
        assert {"a"} == kept_by(cache, "a")


def test_token_that_was_issued_before_the_notice_of_a_revocation_is_kept(
    open_cache: Callable[[], TokenCache], keep: Keep, clock: Clock
) -> None:
    """Where the application knows of the revocation: ``is_token_active`` has had the former token dropped."""
    here, there = open_cache(), open_cache()
    keep(there, "a", "b")
    for client_id in ("a", "b"):
        here.revoke(client_id)
    keep(there, "a")
    here.run()
    there.run()
    assert {"a"} == kept_by(there, "a", "b")


def test_notice_is_read_although_one_of_this_process_has_replaced_it(
    open_cache: Callable[[], TokenCache], keep: Keep
) -> None:
    here, there = open_cache(), open_cache()
    here.revoke("a")
    keep(here, "a")
    there.revoke("a")
    notices: Any = here._notices
    announce = notices.announce

    def announce_later(ages_s: Any) -> Any:
        there.run()
        return announce(ages_s)

    notices.announce = announce_later
    here.run()
    here.run()
    assert set() == kept_by(here, "a")


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_clock_of_mongodb_that_is_set_hides_no_revocation(
    open_cache: Callable[[], TokenCache], keep: Keep, connection: Connection, clock: Clock, seconds: int
) -> None:
    """Such as that of another member, after a failover."""
    here, there = open_cache(), open_cache()
    keep(there, "a", "b")
    for _ in range(2):
        there.run()
    here.revoke("a")
    here.run()
    let_pass(seconds, Clock(), connection)
    there.run()
    assert {"b"} == kept_by(there, "a", "b")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"limits": {"client": [REUSE]}}, True),
        ({"limits": {"client_total": [{**REUSE, "mode": "dry-run"}]}}, True),
        ({"grants": {"client_credentials": {"limits": {"client": [REUSE]}}}}, True),
        ({"clients": {"batch-jobs": {"limits": {"client": [REUSE]}}}}, True),
        ({"clients": {"other": {"limits": {"client": [REUSE]}}}}, False),
        ({"limits": {"client": ["5/minute"]}}, False),
    ],
    ids=str,
)
def test_clients_with_a_reuse_limit_may_have_tokens_kept(config: dict[str, Any], expected: bool) -> None:
    """Whatever the mode: it may be another one in other processes."""
    assert expected is load_config({"mode": "off", **config}).policies.may_reuse(BATCH_JOBS.client_id)
