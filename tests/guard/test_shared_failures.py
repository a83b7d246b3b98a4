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
def a_guard(mongo_uri: str | None, clock: Clock, **more: Any) -> Iterator[Guard]:
    """Yield the guard of one process."""
    store = {} if mongo_uri is None else {"store": {"uri": mongo_uri}}
    settings = load_config({**guard(), **store, **more})
    stores = open_stores(settings.store)
    found = Guard(settings, stores and stores.failures, clock=clock)
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


def test_passwords_of_one_user_are_checked_one_at_a_time_and_secrets_are_not(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else several processes would check as many each before they learn of a wrong one."""
    other = password_keys("mobile-app", ("bob",), ("192.0.2.7",), is_public=True)
    secret = secret_keys("web-shop", ("192.0.2.7",))
    with a_guard(None, clock) as own:
        first = own.reserve(ALICE)
        assert isinstance(first, Guess)
        waited_s: list[float] = []
        monkeypatch.setattr(own._settled, "wait", lambda left_s: waited_s.append(left_s) or own.settle(first))

        beside = [own.reserve(keys) for keys in (other, *(secret for _ in range(CLIENT_LIMIT)))]
        assert [] == waited_s
        second = own.reserve(ALICE)

    assert {Guess} == {type(found) for found in (second, *beside)}
    assert 1 == len(waited_s)


def test_password_does_not_wait_for_another_one_for_ever(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that takes long, or whose end was lost, denies nobody up to the limit."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.01)
    with a_guard(None, clock) as own:
        found = [own.reserve(ALICE) for _ in range(USER_LIMIT + 1)]

    assert [Guess] * USER_LIMIT + [Alarm] == [type(each) for each in found]


def test_process_that_starts_knows_the_latest_failures(mongo_uri: str, clock: Clock) -> None:
    """Else each new one would let a guess pass, and servers start new ones after some number of requests."""
    secret = secret_keys("web-shop", ("192.0.2.7",))
    with a_guard(mongo_uri, clock) as former, a_guard(mongo_uri, clock) as fresh:
        fail(former)
        fail(former, secret, count=CLIENT_LIMIT)
        former.run()
        fresh.preload(1000)

        assert alarm_of(fresh) is not None
        assert alarm_of(fresh, secret) is not None


def test_guess_that_was_lost_takes_no_room_for_ever(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a request that was interrupted."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.0)
    with a_guard(None, clock) as own:
        for _ in range(USER_LIMIT):
            own.reserve(ALICE)
        assert alarm_of(own) is not None
        monkeypatch.setattr("oauth_ratelimit.guard.CHECK_S", 0.0)
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
