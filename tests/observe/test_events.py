"""Log events about denials: how many there are, however many keys are denied."""

from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.failed_auth import FailureKind
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.observe.events import MAX_KEYS, DenialEvents
from testbed.clock import Clock
from tests.support.decisions import a_denial

DENIED, SUPPRESSED = "request_denied", "denial_events_suppressed"
FLOOD = 2 * MAX_KEYS + 1

Log = list[Any]


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


def values(events: Log, event: str, name: str) -> list[Any]:
    return [entry[name] for entry in events if entry["event"] == event]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"mode": "enforce"}, (DENIED, "enforce", False)),
        ({"mode": "enforce", "canary": {"percent": 100}}, (DENIED, "enforce", True)),
        ({"mode": "enforce", "canary": {"percent": 0}}, ("request_would_be_denied", "dry-run", False)),
        ({"mode": "dry-run"}, ("request_would_be_denied", "dry-run", False)),
    ],
    ids=["no canary", "in the share", "outside the share", "dry run"],
)
def test_event_has_the_mode_and_the_canary(
    config: dict[str, Any], expected: tuple[str, str, bool], events: Log
) -> None:
    limiter = Limiter(load_config({"limits": {"client": ["1/minute"]}, **config}), clock=Clock())
    limiter.check("app")
    limiter.check("app")
    limiter.close()

    [entry] = events
    assert expected == (entry["event"], entry["mode"], entry["canary"])
    assert ("decision_id" in entry) is (entry["event"] == DENIED)


def test_flood_of_one_client_leaves_room_for_others(limiter: Limiter, events: Log) -> None:
    """A client gets a quarter of the budget."""
    for number in range(20):
        deny(limiter, "loud", f"user-{number}")
    deny(limiter, "quiet")

    assert ["loud", "loud", "quiet"] == values(events, DENIED, "client_id")


def test_suppressed_events_are_logged_once_after_the_minute(limiter: Limiter, clock: Clock, events: Log) -> None:
    """The entry names the clients that flooded most."""
    for client_id in ("a", "b", "c", "d"):
        for number in range(5 if client_id == "a" else 4):
            deny(limiter, client_id, f"user-{number}")
    limiter.sync()
    assert [] == values(events, SUPPRESSED, "suppressed_count")
    clock.advance(60.0)
    limiter.sync()
    limiter.sync()

    assert [{"suppressed_count": 9, "per_minute": 8, "by_client": {"a": 3, "b": 2, "c": 2, "d": 2}}] == [
        {key: entry[key] for key in ("suppressed_count", "per_minute", "by_client")}
        for entry in events
        if entry["event"] == SUPPRESSED
    ]


def test_next_minute_has_a_budget_of_its_own(limiter: Limiter, clock: Clock, events: Log) -> None:
    """The next event of a key counts all that were suppressed since its last one."""
    for number in range(3):
        deny(limiter, "app", f"user-{number}", times=5)
    clock.advance(60.0)
    deny(limiter, "app", "user-2")

    assert ["user-0", "user-1", "user-2"] == values(events, DENIED, "username")
    assert 5 == values(events, DENIED, "suppressed_count")[-1]


def test_flood_of_guesses_leaves_room_for_denied_tokens(limiter: Limiter, clock: Clock, events: Log) -> None:
    """Denials by the guard have a budget of their own. Those beyond it are counted, and have no id and no record."""
    denials = [a_denial() for _ in range(20)]
    for number, denial in enumerate(denials):
        limiter.denial_events.report(
            f"app-{number}",
            "192.0.2.1",
            scope=FailureKind.USER.scope,
            grant_type=None,
            decision=denial,
            is_canary=False,
            now_s=clock(),
        )
    deny(limiter, "quiet")
    limiter.close()
    assert 8 == sum(denial.decision_id is not None for denial in denials)

    assert [*["failures:user"] * 8, None] == values(events, DENIED, "scope")
    assert [12] == values(events, SUPPRESSED, "suppressed_count")


def test_reload_ends_suppression_and_keeps_its_count(limiter: Limiter, events: Log) -> None:
    """The denial may have another reason now, so it is logged again."""
    changed = {"mode": "enforce", "limits": {"user": ["1/hour"]}, "trusted_clients": ["other"]}
    deny(limiter, "app", "alice", times=4)
    for mode in ("dry-run", "enforce"):
        limiter.reconfigure(load_config({**changed, "mode": mode}))
    deny(limiter, "app", "alice", times=3)
    limiter.reconfigure(load_config(changed))
    deny(limiter, "app", "alice")

    assert [0, 3, 2] == values(events, DENIED, "suppressed_count")


def test_first_denial_after_a_dry_run_does_not_count_what_the_dry_run_admitted(limiter: Limiter, events: Log) -> None:
    changed = {"limits": {"user": ["1/hour"]}}
    limiter.reconfigure(load_config({**changed, "mode": "dry-run"}))
    deny(limiter, "app", "alice", times=9)
    limiter.reconfigure(load_config({**changed, "mode": "enforce"}))
    deny(limiter, "app", "alice", times=4)
    limiter.reconfigure(load_config({**changed, "mode": "dry-run"}))
    deny(limiter, "app", "alice")

    assert [0] == values(events, DENIED, "suppressed_count")
    assert [0, 8] == values(events, "request_would_be_denied", "suppressed_count")


def test_reload_with_a_larger_budget_takes_effect_at_once(limiter: Limiter, events: Log) -> None:
    limiter.reconfigure(load_config({"mode": "enforce", "limits": {"user": ["1/hour"]}, "events": {"per_minute": 400}}))
    for number in range(99):
        deny(limiter, "app", f"user-{number}")

    assert 99 == len(values(events, DENIED, "username"))


@pytest.mark.parametrize(
    ("denials", "early"),
    [
        ([(0.0, 4.2), (4.9, 1.0), (5.8, 1.0)], [False, True, True]),
        ([(0.0, 4.2), (5.1, 1.0), (6.2, 1.0)], [False, False, False]),
        ([(0.0, 30.0), (0.01, 30.0), (0.06, 30.0)], [False, False, True]),
        ([(0.0, 90.0), (70.0, 20.0), (89.0, 1.0)], [False, True, True]),
        ([(0.0, 90.0), (10.0, 5.0), (20.0, 5.0)], [False, True, False]),
        ([(0.0, float("inf")), (0.9, float("inf")), (2.0, float("inf"))], [False, True, False]),
    ],
    ids=["early", "as it was asked", "at the same time", "after the next event", "as it was asked last", "never"],
)
def test_denial_is_early_until_the_seconds_of_the_last_answer_are_over(
    denials: list[tuple[float, float]], early: list[bool]
) -> None:
    """That is asked of the same client and user only, and in a dry run of nobody."""
    events = DenialEvents(1)

    def report(username: str, at_s: float, retry_after_s: float, mode: Mode = Mode.ENFORCE) -> bool:
        decision = a_denial(retry_after_s=retry_after_s, mode=mode)
        facts = {"scope": None, "grant_type": None, "is_canary": False}
        return events.report("app", username, decision=decision, now_s=1e9 + at_s, **facts)

    found = [
        (report("alice", *denial), report(f"user-{denial[0]}", *denial), report("bob", *denial, Mode.DRY_RUN))
        for denial in denials
    ]

    assert [(is_early, False, False) for is_early in early] == found


def test_infinite_delay_is_null_because_json_has_no_number_for_it(limiter: Limiter, events: Log) -> None:
    """A request that costs more than its limit is never admitted."""
    limiter.check("app", cost=2)

    assert [None] == values(events, DENIED, "retry_after_s")
