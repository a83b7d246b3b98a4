"""The simulated fleet beside real limiters."""

import heapq
import math
import random
from collections import Counter as Counts
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.replay.accuracy import Tally
from oauth_ratelimit.replay.algorithms import SlidingWindowCounter
from oauth_ratelimit.replay.fleet import SEED, URGENT_DELAY_US, Fleet, FleetKey, FleetPlan, Sharing
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.reservation import Reservations

BEGIN_S = 1_700_000_000
SECOND = 1_000_000
WINDOW = Window(60, 10)
BURSTS = [BEGIN_S + 7 * burst + n / 16 for burst in range(40) for n in range((5 * burst) % 11)]
STEADY = [BEGIN_S + n * 0.875 for n in range(300)]
SPARSE = [BEGIN_S + n * n % 397 + 5 * n for n in range(150)]


def a_fleet(
    instance_count: int,
    *,
    interval_s: float = 1.0,
    sharing: Sharing = Sharing.FLUSH,
    limit: int = 10,
    estimator: Estimator = Estimator.SLIDING,
    window: Window = WINDOW,
) -> Fleet:
    """Return a fleet with a tally of its own."""
    plan = FleetPlan(instance_count, interval_s, sharing)
    return Fleet(plan, Tally(), limit=limit, window=window, estimator=estimator)


def in_us(times: Sequence[float]) -> list[int]:
    """Return seconds as microseconds, in order."""
    return sorted(round(at_s * SECOND) for at_s in times)


@given(
    gaps=st.lists(st.integers(0, 120), max_size=80),
    interval_s=st.sampled_from([0.01, 0.2, 1.0, 30.0]),
    sharing=st.sampled_from(Sharing),
    estimator=st.sampled_from(Estimator),
    frame_count=st.sampled_from([1, 2, 5, 6, 10]),
    limit=st.integers(1, 9),
)
def test_fleet_of_one_decides_as_the_estimator(
    gaps: Sequence[int], interval_s: float, sharing: Sharing, estimator: Estimator, frame_count: int, limit: int
) -> None:
    times = in_us([BEGIN_S + sum(gaps[: n + 1]) / 8 for n in range(len(gaps))])  # eighths are exact as floats
    window = Window(60, frame_count)
    fleet = a_fleet(1, interval_s=interval_s, sharing=sharing, estimator=estimator, window=window, limit=limit)
    assert SlidingWindowCounter(limit, window, estimator).decide(times) == FleetKey(fleet).decide(times)


class Clock:
    """Clock of a replay."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def add(tally: Tally, report: CycleReport | None) -> None:
    """Add the operations of a cycle."""
    if report is not None:
        tally.operations += report.flushed_count + report.conflict_count + report.pulled_count
        tally.conflicts += report.conflict_count


def decide_by_limiters(fleet: Fleet, times: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the decisions of limiters with the draws, phases and ticks of a fleet, and tally their operations.

    Operations of reservations are not counted, because their reports are not accessible.
    """
    clock, plan = Clock(), fleet.plan
    store = MemoryStore(clock)  # marks carry the time of the clock
    reserve = Reservations.reserve

    def counted(*args: Any, **kwargs: Any) -> Any:
        fleet.tally.waits += 1
        return reserve(*args, **kwargs)

    monkeypatch.setattr(Reservations, "reserve", counted)
    near_limit = "reserve" if plan.sharing is Sharing.RESERVE else "flush"
    settings = load_config(
        {
            "mode": "enforce",
            "limits": {"client": [{"limit": fleet.tier.limit, "window": WINDOW.window_s}]},
            "sync": {"interval": plan.interval_s, "near_limit": near_limit, "deadline": 1},
        }
    )
    limiters = [Limiter(settings, store, clock=clock) for _ in range(plan.instance_count)]
    draws = random.Random(SEED)
    for _ in fleet.phases_us:
        draws.random()
    due = [(fleet.next_cycle_us(index, times[0] - 1), index) for index in range(plan.instance_count)]
    heapq.heapify(due)
    urgent_us = [0] * plan.instance_count

    def plan_urgent(index: int, at_us: int) -> None:
        next_s = limiters[index].next_urgent_s
        if fleet.flushes_early and next_s < math.inf:
            run_us = (at_us if next_s < 0 else max(at_us, round(next_s * SECOND))) + URGENT_DELAY_US
            if not 0 < urgent_us[index] <= run_us:
                urgent_us[index] = run_us
                heapq.heappush(due, (run_us, index))

    decisions = []
    for at_us in times:
        while due[0][0] <= at_us:
            run_us, index = heapq.heappop(due)
            clock.now_s = run_us / SECOND
            if fleet.next_cycle_us(index, run_us - 1) == run_us:
                add(fleet.tally, limiters[index].sync())
                heapq.heappush(due, (fleet.next_cycle_us(index, run_us), index))
            elif urgent_us[index] == run_us:
                urgent_us[index] = 0
                add(fleet.tally, limiters[index].sync_urgent())
            plan_urgent(index, run_us)
        clock.now_s = at_us / SECOND
        index = int(draws.random() * plan.instance_count)
        decisions.append(limiters[index].check("client").allowed)
        plan_urgent(index, at_us)
    for limiter in limiters:
        limiter.close()
    return decisions


@pytest.mark.parametrize("times", (BURSTS, STEADY, SPARSE), ids=("bursts", "steady", "sparse"))
@pytest.mark.parametrize("sharing", Sharing, ids=lambda sharing: sharing.value)
def test_simulated_instances_decide_and_count_as_limiters_do(
    times: Sequence[float], sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = in_us(times)
    real, simulated = a_fleet(3, sharing=sharing), a_fleet(3, sharing=sharing)
    decisions = list(FleetKey(simulated).decide(moments))
    assert decide_by_limiters(real, moments, monkeypatch) == decisions
    assert {True, False} == set(decisions)
    assert real.tally.waits == simulated.tally.waits
    if sharing is not Sharing.RESERVE:
        assert real.tally == simulated.tally


@given(st.lists(st.integers(0, 90), min_size=1, max_size=120), st.integers(1, 5), st.sampled_from(Sharing))
def test_document_holds_every_admitted_hit_exactly_once(
    gaps: Sequence[int], instance_count: int, sharing: Sharing
) -> None:
    times = in_us([BEGIN_S + sum(gaps[: n + 1]) / 8 for n in range(len(gaps))])
    key = FleetKey(a_fleet(instance_count, sharing=sharing, limit=20))
    decisions = key.decide(times)
    key.finish()
    expected = Counts(
        at_us // SECOND // WINDOW.frame_s * WINDOW.frame_s for at_us, ok in zip(times, decisions, strict=True) if ok
    )
    since_s = times[-1] / SECOND - WINDOW.window_s
    assert {at: n for at, n in expected.items() if at >= since_s} == {
        at: n for at, n in key.frames.items() if at >= since_s
    }


@pytest.mark.parametrize(("limit", "conflicts"), [(10_000, 1), (100, 0)], ids=("loses once", "reads first"))
def test_second_writer_of_a_key_loses_the_race_once_unless_the_limit_is_small(limit: int, conflicts: int) -> None:
    fleet = a_fleet(2, sharing=Sharing.INTERVAL, limit=limit)
    key = FleetKey(fleet)
    key.decide([BEGIN_S * SECOND] * 20)
    key.finish()
    assert conflicts == fleet.tally.conflicts
    assert 20 == sum(key.frames.values())


def test_quiet_key_causes_no_more_operations() -> None:
    fleet = a_fleet(2, limit=100)
    key = FleetKey(fleet)
    key.decide([BEGIN_S * SECOND] * 2)
    key.finish()
    operations = fleet.tally.operations
    assert 2 <= operations < 20
    key.finish()
    assert operations == fleet.tally.operations


@pytest.mark.parametrize(
    ("sharing", "expected"), ((Sharing.FLUSH, False), (Sharing.RESERVE, True)), ids=("flush", "reserve")
)
def test_requests_wait_only_with_reserve(sharing: Sharing, expected: bool) -> None:
    fleet = a_fleet(3, sharing=sharing)
    FleetKey(fleet).decide(in_us(STEADY))
    assert expected == (fleet.tally.waits > 0)


def test_shorter_interval_admits_less_over_the_limit() -> None:
    times = in_us(STEADY)
    fleets = [a_fleet(10, interval_s=interval_s, sharing=Sharing.INTERVAL) for interval_s in (0.1, 1.0, 10.0)]
    admitted = [sum(FleetKey(fleet).decide(times)) for fleet in fleets]
    assert sorted(admitted) == admitted
    assert admitted[0] < admitted[-1]
