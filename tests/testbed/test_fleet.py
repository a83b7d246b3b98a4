"""Limiters on one store in memory, in the time of a recording."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.window import Estimator
from testbed.counting_fleet import CountingFleet

BEGIN_S, WINDOW_S = 1_700_000_000, 60
SHAPES = {
    "bursts": [BEGIN_S + 7 * burst + n / 16 for burst in range(40) for n in range((5 * burst) % 11)],
    "sparse": sorted(BEGIN_S + n * n % 397 + 5 * n for n in range(150)),
}


def a_fleet(
    instance_count: int, *, limit: int = 10, estimator: str = "sliding", shares: bool = True, interval: str = "1s"
) -> CountingFleet:
    policy = {"limit": limit, "window": WINDOW_S, "estimator": estimator}
    settings = load_config({"mode": "enforce", "limits": {"client": [policy]}, "sync": {"interval": interval}})
    return CountingFleet(settings, instance_count, shares=shares)


def decisions_of(fleet: CountingFleet, times: Sequence[float]) -> list[bool]:
    decisions = [fleet.check("client", at_s=at_s).allowed for at_s in times]
    fleet.close()
    return decisions


@given(st.lists(st.integers(0, 120), max_size=60), st.sampled_from(Estimator), st.integers(1, 9))
def test_instance_that_shares_with_nobody_decides_as_one_without_a_store(
    gaps: Sequence[int], estimator: Estimator, limit: int
) -> None:
    times = [BEGIN_S + at / 8 for at in accumulate(gaps)]  # exact as floats
    shared, alone = (a_fleet(1, limit=limit, estimator=estimator, shares=shares) for shares in (True, False))
    assert decisions_of(alone, times) == decisions_of(shared, times)


@pytest.mark.slow
@pytest.mark.parametrize("times", SHAPES.values(), ids=SHAPES)
def test_cycles_that_are_left_out_would_have_done_nothing(
    times: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = a_fleet(3)
    decisions = decisions_of(sparse, times)
    monkeypatch.setattr(Limiter, "next_due_s", BEGIN_S)
    dense = a_fleet(3)
    assert decisions == decisions_of(dense, times)
    assert sparse.store.operations == dense.store.operations
    assert sparse.store.conflicts == dense.store.conflicts


def test_one_cycle_runs_in_each_interval_that_is_no_exact_float(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, times = a_fleet(1, interval="200ms"), [0.0]

    def sync(_limiter: Limiter, **_: bool) -> None:
        assert fleet.now_s > times[-1] + 0.1  # else it may run for ever
        times.append(fleet.now_s)

    monkeypatch.setattr(Limiter, "sync", sync)
    monkeypatch.setattr(Limiter, "next_due_s", BEGIN_S)
    decisions_of(fleet, [BEGIN_S, BEGIN_S + 20])
    assert len(times[1:]) == 100


@pytest.mark.slow
def test_instances_together_admit_little_more_than_one() -> None:
    times = [BEGIN_S + n / 4 for n in range(1000)]
    alone, several = (sum(decisions_of(a_fleet(count, limit=100), times)) for count in (1, 5))
    assert alone <= several <= 1.1 * alone
    apart = sum(decisions_of(a_fleet(5, limit=100, shares=False), times))
    assert apart > 2 * several


def test_instance_without_requests_goes_on_reading_a_key_that_is_nearly_used_up() -> None:
    fleet, counts = a_fleet(2), []
    for number in range(9):
        fleet.check("client", at_s=BEGIN_S + number / 8, instance=number % 2)
    for passed_s in (5, 50):
        fleet.check("other", at_s=BEGIN_S + passed_s)
        counts.append(fleet.store.read_count)
    assert counts[1] - counts[0] >= 6
