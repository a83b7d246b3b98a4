"""Failures that several instances count together."""

import time

import pytest
from structlog.testing import capture_logs

from testbed.clock import Clock
from testbed.mongod import free_port
from tests.support.guarded import CLIENT_LIMIT
from tests.support.guards import a_guard, fail, lockout_of, password, secret

ALICE = password()


def test_failures_of_other_processes_count(mongo_uri: str, clock: Clock) -> None:
    """A process that has not seen a failure of a key lets one more pass, and knows of the others then."""
    with a_guard(clock, mongo_uri) as first, a_guard(clock, mongo_uri) as second:
        fail(first, ALICE)
        first.run()
        assert lockout_of(first, ALICE) is not None
        assert lockout_of(second, ALICE) is None

        fail(second, ALICE, 1)
        second.run()

        lockout = lockout_of(second, ALICE)
        assert lockout is not None
        assert (False, ALICE[0]) == (lockout.decision.allowed, lockout.key)


def test_failures_are_urgent(mongo_uri: str, clock: Clock) -> None:
    """Processes learn of them between two full cycles, of the first one and of each further one."""
    with a_guard(clock, mongo_uri) as first, a_guard(clock, mongo_uri) as second:
        for each in (first, first, second):
            fail(each, ALICE, 1)
            assert each.limiter is not None
            each.limiter.sync_urgent()

        assert lockout_of(second, ALICE) is not None


def test_process_that_starts_knows_the_latest_failures(mongo_uri: str, clock: Clock) -> None:
    """Else each new one would let a guess pass, and servers start new ones after some number of requests."""
    with a_guard(clock, mongo_uri) as former, a_guard(clock, mongo_uri) as fresh:
        fail(former, ALICE)
        fail(former, secret(), CLIENT_LIMIT)
        former.run()
        fresh.preload(1000)

        assert lockout_of(fresh, ALICE) is not None
        assert lockout_of(fresh, secret()) is not None


@pytest.mark.usefixtures("quick_ending")
def test_unreachable_mongodb_leaves_denials_to_each_process(clock: Clock) -> None:
    """Each denies by what it has counted itself; what never arrives is logged at the end."""
    uri = f"mongodb://127.0.0.1:{free_port()}/nowhere"
    with capture_logs() as logs, a_guard(clock, store={"uri": uri, "timeout": "50ms"}) as own:
        fail(own, ALICE)
        begun_s = time.monotonic()
        assert lockout_of(own, ALICE) is not None
        assert time.monotonic() - begun_s < 1
        own.run()
        assert lockout_of(own, ALICE) is not None

    assert {"flush_failed", "hits_undelivered"} <= {line["event"] for line in logs}
