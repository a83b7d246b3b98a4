"""The comparison of ways to share a limit: each way works as it is described."""

import random
from collections.abc import Sequence

import pytest

from benchmarks.scaling import changed, simulated
from benchmarks.shapes import BEGIN_S, LIMIT, PARTITION_S, Load, Request
from benchmarks.sharing import MEASURES, WAYS, Ours, measured


def a_load(times: Sequence[float], *, instance_count: int, cut: frozenset[int] = frozenset()) -> Load:
    """Return requests of one client to random instances."""
    rng = random.Random(3)
    return Load("a load", LIMIT, [Request(at_s, "client", rng.randrange(instance_count)) for at_s in times], cut)


def results(way: str, load: Load, instance_count: int) -> dict[str, float]:
    """Return what is measured of a way."""
    values = measured(WAYS[way](load, instance_count), load)
    return {measure: value for measure, (value, _) in zip(MEASURES, values, strict=True)}


FLOOD = [BEGIN_S + n / 20 for n in range(1200)]


@pytest.mark.parametrize("way", WAYS)
def test_single_instance_denies_nobody_far_below_the_limit(way: str) -> None:
    found = results(way, a_load([BEGIN_S + n * 2.0 for n in range(60)], instance_count=1), 1)
    assert 0 == found["allow"] == found["deny"]
    assert 1 == found["fairness"]


@pytest.mark.parametrize("way", WAYS)
def test_instances_together_deny_most_of_a_flood(way: str) -> None:
    found = results(way, a_load(FLOOD, instance_count=3), 3)
    assert 1 <= found["overshoot"] < 2.5


@pytest.mark.parametrize(
    ("way", "expected"), [("default", 0), ("strict", 0), ("after gubernator, GLOBAL", 0), ("limits, moving window", 1)]
)
def test_requests_wait_only_for_a_central_store(way: str, expected: int) -> None:
    assert expected == results(way, a_load(FLOOD, instance_count=3), 3)["waited"]


def test_moving_window_of_limits_is_exact() -> None:
    found = results("limits, moving window", a_load(FLOOD, instance_count=3), 3)
    assert (0, 1.0) == (found["allow"], found["overshoot"])


@pytest.mark.parametrize("way", ["default", "limits, moving window", "after Kong, sync_rate 1 s"])
def test_instance_that_is_cut_off_admits_more(way: str) -> None:
    times = [PARTITION_S[0] + n / 100 for n in range(900)]
    whole, cut = (a_load(times, instance_count=2, cut=parts) for parts in (frozenset[int](), frozenset({0})))
    assert results(way, whole, 2)["overshoot"] < results(way, cut, 2)["overshoot"]


@pytest.mark.parametrize(
    ("setting", "limit"), [("alert at 0.1 %", 4000), ("collects for 100 ms", 100), ("reads from 10 % used", 100)]
)
def test_constants_are_replaced_for_one_simulation(setting: str, limit: int) -> None:
    times = [round(at_s * 1_000_000) for at_s in FLOOD]

    def operations() -> int:
        return simulated([times], limit, 60, 10).operations

    before = operations()
    with changed(setting):
        assert before != operations()
    assert before == operations()


def test_fleet_counts_the_marks_that_instances_leave() -> None:
    load = a_load(FLOOD, instance_count=5)
    way = Ours(load, 5)
    measured(way, load)
    assert 5 == way.most_marks
