"""Failures that several instances count together."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.core.failed_auth import AuthAttempt, FailureKey
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.store.factory import open_stores
from tests.guard.guarded import ELSEWHERE, HOME, USER_LIMIT, guard, guarded, password_of, session_from
from tests.support.flows import TIMEOUT_S
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import Clock, wait_until
from tests.support.mongod import free_port

AUTH = ("web-shop", "web-shop-secret-of-the-demo-0123456789")
ALICE = AuthAttempt(("web-shop",), ("alice",), "192.0.2.7")
ALICE_KEY: FailureKey = next(ALICE.user_keys("web-shop"))


def documents(mongo_uri: str, collection: str) -> list[dict[str, Any]]:
    """Return everything in a collection."""
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with client:
        return list(client.get_default_database()[collection].find())


def failure_count(mongo_uri: str) -> int:
    """Return how many failures MongoDB holds, of whomever."""
    counters = (found["requestCounters"] for found in documents(mongo_uri, "ratelimit_failures"))
    return sum(sum(frames.values()) for each in counters for frames in each.values())


@contextmanager
def a_guard(mongo_uri: str | None, clock: Clock, **more: Any) -> Iterator[Guard]:
    """Yield the guard of one process."""
    store = {} if mongo_uri is None else {"store": {"uri": mongo_uri}}
    settings = load_config({**guard(), **store, **more})
    stores = open_stores(settings.store)
    found = Guard(settings, stores and stores.failures, clock=clock)
    try:
        yield found
    finally:
        found.close(is_failing=mongo_uri is None)
        if stores is not None:
            stores.close()


def test_two_servers(database: Path, mongo_uri: str) -> None:
    """What is guessed at one server counts at the other; the real user, elsewhere, comes in at both."""
    form = {"grant_type": "password", "username": "alice", "password": "wrong"}
    env = {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri}
    app = "tests.guard.guard_app:app"
    with (
        Gunicorn(app, env=env) as first,
        Gunicorn(app, env=env) as second,
        session_from(HOME) as stranger,
        session_from(ELSEWHERE) as user,
    ):

        def guess(url: str) -> int:
            return stranger.post(f"{url}/token", data=form, auth=AUTH, timeout=TIMEOUT_S).status_code

        guesses = [guess(first.url) for _ in range(USER_LIMIT - 1)] + [guess(second.url)]
        wait_until(lambda: guess(first.url) == 429 == guess(second.url), "both servers deny")
        own = {**form, "password": password_of("alice")}
        found = [
            user.post(f"{url}/token", data=own, auth=AUTH, timeout=TIMEOUT_S).status_code
            for url in (first.url, second.url)
        ]
        wait_until(lambda: documents(mongo_uri, "ratelimits"), "tokens are counted")
        # Both may deny by what they know of each other before they have sent everything of their own.
        wait_until(lambda: failure_count(mongo_uri) >= USER_LIMIT, "failures are counted")
        (counted,) = documents(mongo_uri, "ratelimit_failures")

    assert [400] * USER_LIMIT == guesses
    assert [200, 200] == found
    assert {"clientId": "web-shop", "username": "127.0.0.1 alice", "scope": "failures:passed_on"} == counted["_id"]
    assert USER_LIMIT <= sum(counted["requestCounters"]["60"].values()) <= 2 * USER_LIMIT
    (tokens,) = documents(mongo_uri, "ratelimits")
    assert {"clientId": "web-shop", "username": "alice"} == tokens["_id"]


def test_counts_of_others(mongo_uri: str, clock: Clock) -> None:
    """A process that has not seen a failure of a key lets one more pass, and knows of the others then."""
    with a_guard(mongo_uri, clock) as first, a_guard(mongo_uri, clock) as second:
        first.count([ALICE_KEY] * USER_LIMIT)
        first.run()
        assert first.look(ALICE) is not None
        assert second.look(ALICE) is None

        second.count([ALICE_KEY])
        second.run()

        alarm = second.look(ALICE)
        assert alarm is not None
        assert (False, ALICE_KEY) == (alarm.decision.allowed, alarm.key)


def test_collection_of_a_namespace(mongo_uri: str, clock: Clock) -> None:
    """Failures have a collection of their own, kept apart by namespace as the others are."""
    settings = {"store": {"uri": mongo_uri, "namespace": "acme"}}
    with a_guard(None, clock, **settings) as own:
        own.count(ALICE.targets())
        own.run()

    assert 4 == len(documents(mongo_uri, "acme_ratelimit_failures"))


def test_database_that_is_away(clock: Clock) -> None:
    """Without MongoDB each process denies by what it has counted itself; what never arrives is said at the end."""
    uri = f"mongodb://127.0.0.1:{free_port()}/nowhere"
    settings = {"store": {"uri": uri, "timeout": "50ms"}}
    with capture_logs() as logs, a_guard(None, clock, **settings) as own:
        own.count([ALICE_KEY] * USER_LIMIT)
        begun_s = time.monotonic()
        assert own.look(ALICE) is not None
        assert time.monotonic() - begun_s < 1
        own.run()
        assert own.look(ALICE) is not None

    assert {"flush_failed", "hits_undelivered"} <= {line["event"] for line in logs}


@pytest.mark.parametrize(
    ("more", "is_on"),
    [
        ({}, True),
        ({"guard": {"mode": "off"}}, False),
        ({"mode": "off"}, False),
        ({"enabled": False}, False),
        ({"guard": {"mode": "dry-run"}, "mode": "dry-run"}, True),
    ],
    ids=str,
)
def test_switch(clock: Clock, more: dict[str, Any], is_on: bool) -> None:
    """It is on where its own mode says so, unless everything is off; while it is off it counts nothing."""
    with a_guard(None, clock, **more) as own:
        own.count([ALICE_KEY] * 100)
        assert is_on is own.is_on is own.is_watching("192.0.2.7") is (own.look(ALICE) is not None)


def test_dry_run_that_an_operator_has_asked_for(clock: Clock) -> None:
    """Who asks for a dry run of everything wants nobody denied, by the guard neither."""
    with a_guard(None, clock) as own:
        own.count([ALICE_KEY] * USER_LIMIT)
        found = load_config(guard())
        own.reconfigure(replace(found, policies=replace(found.policies, ceiling=Mode.DRY_RUN)))
        alarm = own.look(ALICE)

    assert alarm is not None
    assert (True, True) == (alarm.decision.allowed, alarm.decision.would_deny)


def test_switched_on_later(clock: Clock) -> None:
    """A reload switches it on and off, and what was counted stays."""
    with a_guard(None, clock, guard={"mode": "off"}) as own:
        own.reconfigure(load_config(guard()))
        own.count([ALICE_KEY] * USER_LIMIT)
        own.reconfigure(load_config(guard(mode="off")))
        assert own.look(ALICE) is None
        own.reconfigure(load_config(guard()))
        assert own.look(ALICE) is not None


def test_hashed_names(mongo_uri: str, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names are hashed, no claimed name stands in MongoDB or in the log."""
    monkeypatch.setenv("SOME_KEY", "k" * 64)
    settings = {
        **guard(),
        "store": {"uri": mongo_uri},
        "privacy": {"user_names": "hashed", "keys": [{"env": "SOME_KEY"}]},
    }
    with capture_logs() as logs, guarded(database, settings) as server:
        assert [400] * USER_LIMIT + [429] == [server.login("Alice").status_code for _ in range(USER_LIMIT + 1)]

    (counted,) = documents(mongo_uri, "ratelimit_failures")
    address, _, name = counted["_id"]["username"].partition(" ")
    assert "127.0.0.1" == address
    assert len(name) > 30
    assert "alice" not in str([counted, logs]).lower()
