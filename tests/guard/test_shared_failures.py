"""Failures that several instances count together."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.core.failed_auth import AuthAttempt, FailureKey
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.store.factory import open_stores
from tests.support.guarded import USER_LIMIT, documents, guard
from tests.support.helpers import Clock
from tests.support.mongod import free_port

ALICE = AuthAttempt(("web-shop",), ("alice",), "192.0.2.7")
ALICE_KEY: FailureKey = next(ALICE.user_keys("web-shop"))


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
        first.count([ALICE_KEY] * USER_LIMIT)
        first.run()
        assert first.look(ALICE) is not None
        assert second.look(ALICE) is None

        second.count([ALICE_KEY])
        second.run()

        alarm = second.look(ALICE)
        assert alarm is not None
        assert (False, ALICE_KEY) == (alarm.decision.allowed, alarm.key)


def test_namespace_names_the_collection(mongo_uri: str, clock: Clock) -> None:
    """Failures have a collection of their own, kept apart by namespace as the others are."""
    settings = {"store": {"uri": mongo_uri, "namespace": "acme"}}
    with a_guard(None, clock, **settings) as own:
        own.count(ALICE.targets())
        own.run()

    assert 4 == len(documents(mongo_uri, "acme_ratelimit_failures"))


def test_unreachable_mongodb_leaves_denials_to_each_process(clock: Clock) -> None:
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
def test_guard_is_on_where_its_mode_says_so(clock: Clock, more: dict[str, Any], is_on: bool) -> None:
    """It is on where its own mode says so, unless everything is off; while it is off it counts nothing."""
    with a_guard(None, clock, **more) as own:
        own.count([ALICE_KEY] * 100)
        assert is_on is own.is_on is own.is_watching("192.0.2.7") is (own.look(ALICE) is not None)


def test_ceiling_of_dry_run_denies_nobody(clock: Clock) -> None:
    """Who asks for a dry run of everything wants nobody denied, by the guard neither."""
    with a_guard(None, clock) as own:
        own.count([ALICE_KEY] * USER_LIMIT)
        found = load_config(guard())
        own.reconfigure(replace(found, policies=replace(found.policies, ceiling=Mode.DRY_RUN)))
        alarm = own.look(ALICE)

    assert alarm is not None
    assert (True, True) == (alarm.decision.allowed, alarm.decision.would_deny)


def test_reload_switches_the_guard_and_keeps_counts(clock: Clock) -> None:
    """A reload switches it on and off, and what was counted stays."""
    with a_guard(None, clock, guard={"mode": "off"}) as own:
        own.reconfigure(load_config(guard()))
        own.count([ALICE_KEY] * USER_LIMIT)
        own.reconfigure(load_config(guard(mode="off")))
        assert own.look(ALICE) is None
        own.reconfigure(load_config(guard()))
        assert own.look(ALICE) is not None
