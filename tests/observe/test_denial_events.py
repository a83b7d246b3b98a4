"""How much is logged about denials, however many keys are denied."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.failed_auth import FailureKind
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.observe.events import MAX_KEYS, EventBudget
from tests.support.helpers import Clock

DENIED, SUPPRESSED = "request_denied", "denial_events_suppressed"


@pytest.fixture
def limiter(clock: Clock) -> Iterator[Limiter]:
    """A limiter that admits one request per key, and logs eight denials a minute."""
    limits = {"client": ["1/hour"], "user": ["1/hour"]}
    limiter = Limiter(load_config({"mode": "enforce", "limits": limits, "events": {"per_minute": 8}}), clock=clock)
    yield limiter
    limiter.close()


def deny(limiter: Limiter, client_id: str, username: str | None = None, *, times: int = 1) -> list[str | None]:
    """Have requests of a key denied, and return their ids."""
    while not limiter.peek(client_id, username).would_deny:
        limiter.check(client_id, username)
    return [limiter.check(client_id, username).decision_id for _ in range(times)]


def count(logs: list[Any]) -> dict[str, int]:
    """Return how often each event was logged."""
    return dict(Counter(entry["event"] for entry in logs))


FLOOD = 2 * MAX_KEYS + 1


@pytest.mark.no_cover
def test_flood_over_many_keys(clock: Clock) -> None:
    """A flood over more keys than are remembered logs what the budget allows, and how much was left out."""
    limiter = Limiter(load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}}), clock=clock)
    with capture_logs() as logs:
        for number in range(FLOOD):
            limiter.check(f"app-{number % 10}", f"user-{number}", cost=2)
        assert {DENIED: 300} == count(logs)
        clock.advance(60.0)
        limiter.sync()
    limiter.close()

    assert {DENIED: 300, SUPPRESSED: 1} == count(logs)
    assert FLOOD - 300 == logs[-1]["suppressed_count"]


def test_flood_of_one_client(limiter: Limiter) -> None:
    """A client that floods gets a quarter of the budget, so that the others are still heard of."""
    with capture_logs() as logs:
        for number in range(20):
            deny(limiter, "loud", f"user-{number}")
        deny(limiter, "quiet")

    assert ["loud", "loud", "quiet"] == [entry["client_id"] for entry in logs]


def test_what_was_left_out_is_told(limiter: Limiter, clock: Clock) -> None:
    """The total comes with the next sync cycle after the minute, once, with the clients that flooded most."""
    with capture_logs() as logs:
        for client_id in ("a", "b", "c", "d"):
            for number in range(5 if client_id == "a" else 4):
                deny(limiter, client_id, f"user-{number}")
        limiter.sync()
        assert {DENIED: 8} == count(logs)
        clock.advance(60.0)
        limiter.sync()
        limiter.sync()

    assert [{"suppressed_count": 9, "per_minute": 8, "by_client": {"a": 3, "b": 2, "c": 2, "d": 2}}] == [
        {key: entry[key] for key in ("suppressed_count", "per_minute", "by_client")}
        for entry in logs
        if entry["event"] == SUPPRESSED
    ]


def test_what_was_left_out_is_told_at_the_end(limiter: Limiter) -> None:
    """A limiter that is closed does not keep its count to itself."""
    for number in range(3):
        deny(limiter, "app", f"user-{number}")
    with capture_logs() as logs:
        limiter.close()

    assert [1] == [entry["suppressed_count"] for entry in logs if entry["event"] == SUPPRESSED]


def test_two_threads_at_the_end_of_a_minute() -> None:
    """When two threads find that a minute is over, one of them tells what was left out."""
    budget = EventBudget(1)
    for _ in range(3):
        budget.take("app", 0.0)

    class Overtaken:
        def __enter__(self) -> None:
            budget._turning = threading.Lock()
            budget.turn(60.0)  # what the other thread does

        def __exit__(self, *_: object) -> None:
            pass

    budget._turning = Overtaken()  # type: ignore[assignment]
    with capture_logs() as logs:
        budget.turn(60.0)

    assert [2] == [entry["suppressed_count"] for entry in logs]


def test_late_thread_at_the_end_of_a_minute() -> None:
    """A thread that still counts in the minute that is being told keeps nobody from telling it."""
    budget = EventBudget(1)

    class Late(int):
        def __lt__(self, other: object) -> bool:
            suppressed.setdefault("late", 1)  # what the other thread does
            return int(self) < int(str(other))

    for number in range(10):
        budget.take(f"app-{number}", 0.0)
    suppressed = budget._minute.suppressed
    suppressed.update({f"app-{number}": Late(number) for number in range(1, 10)})
    with capture_logs() as logs:
        budget.turn(60.0)

    assert [{f"app-{number}": number for number in range(5, 10)}] == [entry["by_client"] for entry in logs]


def test_next_minute(limiter: Limiter, clock: Clock) -> None:
    """The next minute has a budget of its own, and the next event of a key counts all that were left out of it."""
    with capture_logs() as logs:
        for number in range(3):
            deny(limiter, "app", f"user-{number}", times=5)
        clock.advance(60.0)
        deny(limiter, "app", "user-2")

    assert ["user-0", "user-1", "user-2"] == [entry["username"] for entry in logs if entry["event"] == DENIED]
    assert 5 == logs[-1]["suppressed_count"]


def test_ids_of_what_was_left_out(limiter: Limiter) -> None:
    """Every denial has an id of its own, also those that nothing is logged of."""
    ids = [name for number in range(5) for name in deny(limiter, "app", f"user-{number}", times=4)]

    assert None not in ids
    assert len(ids) == len(set(ids))


def test_flood_of_guesses(limiter: Limiter) -> None:
    """Alarms of the guard have a budget of their own: a flood of them uses up no line of the denials of tokens."""
    alarm = FullDecision(False, True, Mode.ENFORCE)
    with capture_logs() as logs:
        for number in range(20):
            limiter.denial_events.report(
                f"app-{number}",
                "192.0.2.1",
                scope=FailureKind.USER.scope,
                grant_type=None,
                decision=alarm,
                is_canary=False,
                now_s=limiter._clock(),
            )
        deny(limiter, "quiet")
        limiter.close()

    assert [*["failures:user"] * 8, None] == [entry["scope"] for entry in logs if entry["event"] == DENIED]
    assert [12] == [entry["suppressed_count"] for entry in logs if entry["event"] == SUPPRESSED]


def test_larger_budget_at_run_time(limiter: Limiter) -> None:
    """A configuration that allows more does so at once."""
    settings = load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}, "events": {"per_minute": 400}})
    with capture_logs() as logs:
        limiter.reconfigure(settings)
        for number in range(99):
            deny(limiter, "app", f"user-{number}")

    assert {DENIED: 99} == count(logs)


def test_left_out_across_a_reload(limiter: Limiter) -> None:
    """
    After a change of the configuration a denial is said again, with the number of those left out since the last event.
    """
    changed = {"mode": "enforce", "limits": {"user": ["1/hour"]}, "trusted_clients": ["other"]}
    with capture_logs() as logs:
        deny(limiter, "app", "alice", times=4)
        for mode in ("dry-run", "enforce"):
            limiter.reconfigure(load_config({**changed, "mode": mode}))
        deny(limiter, "app", "alice", times=3)
        limiter.reconfigure(load_config(changed))
        deny(limiter, "app", "alice")

    assert [0, 3, 2] == [entry["suppressed_count"] for entry in logs if entry["event"] == DENIED]


def test_wait_for_ever_as_json(limiter: Limiter, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that costs more than its limit is told to wait for ever, which JSON has no number for."""
    structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory())
    try:
        limiter.check("app", cost=2)
    finally:
        structlog.reset_defaults()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    event = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (DENIED, None) == (event["event"], event["retry_after_s"])
