"""Failures that several instances count together."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pymongo.database import Database
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.core.failed_auth import FailureKey, password_keys, secret_keys
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.guard import Alarm, Guard, Guess
from oauth_ratelimit.store.factory import open_stores
from tests.support.guarded import CLIENT_LIMIT, USER_LIMIT, guard
from tests.support.helpers import Clock
from tests.support.mongod import free_port

ALICE = password_keys("mobile-app", ("alice",), ("192.0.2.7",), is_public=True)


def fail(guard: Guard, keys: list[FailureKey] = ALICE, *, count: int = USER_LIMIT) -> None:
    """Guess wrong as often as this."""
    for _ in range(count):
        guess = guard.reserve(keys)
        if not isinstance(guess, Alarm):
            guard.settle(guess, failed=keys)


def alarm_of(guard: Guard, keys: list[FailureKey] = ALICE) -> Alarm | None:
    """Return the alarm that denies a guess, None if it may be checked."""
    found = guard.reserve(keys)
    if isinstance(found, Alarm):
        return found
    guard.settle(found)
    return None


@contextmanager
def a_guard(mongo_uri: str | None, clock: Clock, *, peer_count: int = 1, **more: Any) -> Iterator[Guard]:
    """Yield the guard of one process."""
    store = {} if mongo_uri is None else {"store": {"uri": mongo_uri}}
    settings = load_config({**guard(), **store, **more})
    stores = open_stores(settings.store)
    found = Guard(settings, stores and stores.failures, clock=clock, peer_count=lambda: peer_count)
    try:
        yield found
    finally:
        found.close()
        if stores is not None:
            stores.close()


def test_failures_of_other_processes_count(mongo_uri: str, clock: Clock) -> None:
    """A process that has not seen a failure of a key lets one more pass, and knows of the others then."""
    with a_guard(mongo_uri, clock) as first, a_guard(mongo_uri, clock) as second:
        fail(first)
        first.run()
        assert alarm_of(first) is not None
        assert alarm_of(second) is None

        fail(second, count=1)
        second.run()

        alarm = alarm_of(second)
        assert alarm is not None
        assert (False, ALICE[0]) == (alarm.decision.allowed, alarm.key)


def test_failures_are_urgent(mongo_uri: str, clock: Clock) -> None:
    """Processes learn of them between two full cycles, of the first one and of each further one."""
    with a_guard(mongo_uri, clock) as first, a_guard(mongo_uri, clock) as second:
        for each in (first, first, second):
            fail(each, count=1)
            assert each.limiter is not None
            each.limiter.sync_urgent()

        assert alarm_of(second) is not None


@pytest.mark.parametrize(("peer_count", "checked_count"), [(1, USER_LIMIT), (2, 1), (50, 1)])
def test_guesses_at_a_password_leave_room_for_those_of_other_processes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, peer_count: int, checked_count: int
) -> None:
    """Each process checks its share at the same time, and one at least. Secrets of clients do not wait."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.0)
    secret = secret_keys("web-shop", ("192.0.2.7",))
    with a_guard(None, clock, peer_count=peer_count) as own:
        passwords = [own.reserve(ALICE) for _ in range(USER_LIMIT)]
        secrets = [own.reserve(secret) for _ in range(CLIENT_LIMIT)]

    assert checked_count == sum(isinstance(found, Guess) for found in passwords)
    assert all(isinstance(found, Guess) for found in secrets)


def test_failures_that_others_cannot_know_yet_leave_less_room(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they are sent, others may have as many. One guess may always be checked."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.0)
    limits = {"user": [{"limit": 10, "window": 600}]}
    with a_guard(None, clock, peer_count=2, guard={"mode": "enforce", "limits": limits}) as own:
        fail(own, count=4)
        before = [own.reserve(ALICE) for _ in range(2)]
        own.run()
        after = [own.reserve(ALICE) for _ in range(3)]

    assert [Guess, Alarm] == [type(found) for found in before]
    assert [Guess, Guess, Alarm] == [type(found) for found in after]


def test_guess_that_was_lost_takes_no_room_for_ever(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a request that was interrupted."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.0)
    with a_guard(None, clock, peer_count=50) as own:
        own.reserve(ALICE)
        assert alarm_of(own) is not None
        monkeypatch.setattr("oauth_ratelimit.guard.CHECK_S", 0.0)
        assert alarm_of(own) is None


def test_right_password_makes_room_at_once(clock: Clock) -> None:
    """With many processes each checks one at a time."""
    with a_guard(None, clock, peer_count=50) as own:
        for _ in range(3 * USER_LIMIT):
            assert alarm_of(own) is None


def test_namespace_names_the_collection(mongo_uri: str, mongo_database: Database[dict[str, Any]], clock: Clock) -> None:
    """Failures have a collection of their own, kept apart by namespace as the others are."""
    settings = {"store": {"uri": mongo_uri, "namespace": "acme"}}
    with a_guard(None, clock, **settings) as own:
        fail(own, [*ALICE, *secret_keys("web-shop", ("192.0.2.7",))], count=1)
        own.run()

    assert 3 == mongo_database["acme_ratelimit_failures"].count_documents({})


@pytest.mark.usefixtures("quick_ending")
def test_unreachable_mongodb_leaves_denials_to_each_process(clock: Clock) -> None:
    """Without MongoDB each process denies by what it has counted itself; what never arrives is said at the end."""
    uri = f"mongodb://127.0.0.1:{free_port()}/nowhere"
    settings = {"store": {"uri": uri, "timeout": "50ms"}}
    with capture_logs() as logs, a_guard(None, clock, **settings) as own:
        fail(own)
        begun_s = time.monotonic()
        assert alarm_of(own) is not None
        assert time.monotonic() - begun_s < 1
        own.run()
        assert alarm_of(own) is not None

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
def test_guard_is_on_where_its_mode_says_so(clock: Clock, more: dict[str, Any], is_on: bool) -> None:
    """It is on where its own mode says so, unless everything is off; while it is off it counts nothing."""
    with a_guard(None, clock, **more) as own:
        with capture_logs() as logs:
            fail(own, count=100)
        assert is_on is own.is_on is own.is_watching("192.0.2.7") is bool(logs)


def test_ceiling_of_dry_run_denies_nobody(clock: Clock) -> None:
    """A dry run of everything denies nobody, by the guard neither."""
    with a_guard(None, clock) as own:
        fail(own)
        found = load_config(guard())
        own.reconfigure(replace(found, policies=replace(found.policies, ceiling=Mode.DRY_RUN)))
        with capture_logs() as logs:
            assert alarm_of(own) is None

    assert ["request_would_be_denied"] == [line["event"] for line in logs]


def test_reload_switches_the_guard_and_keeps_counts(clock: Clock) -> None:
    """A reload switches it on and off, and what was counted stays."""
    with a_guard(None, clock, guard={"mode": "off"}) as own:
        own.reconfigure(load_config(guard()))
        fail(own)
        own.reconfigure(load_config(guard(mode="off")))
        assert alarm_of(own) is None
        own.reconfigure(load_config(guard()))
        assert alarm_of(own) is not None
