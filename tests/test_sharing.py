"""The comparison of ways to share a limit: each way works as it is described."""

import random
from collections.abc import Sequence

import pytest

from benchmarks.rivals import ON_REDIS
from benchmarks.scaling import changed
from benchmarks.shapes import BEGIN_S, LIMIT, PARTITION_S, Load, Request
from benchmarks.sharing import WAYS, measured

FLOOD = [BEGIN_S + n / 20 for n in range(1200)]


def each_of(*ways: str) -> pytest.MarkDecorator:
    params = [pytest.param(way, marks=[pytest.mark.redis] if way in ON_REDIS else []) for way in ways]
    return pytest.mark.parametrize("way", params)


def results(
    way: str, times: Sequence[float], *, instances: int, limit: int = LIMIT, cut: frozenset[int] = frozenset()
) -> dict[str, float]:
    rng = random.Random(3)
    load = Load("a load", limit, [Request(at_s, "client", rng.randrange(instances)) for at_s in times], cut)
    return {measure: value for measure, (value, _) in measured(WAYS[way](load, instances), load).items()}


@each_of(*WAYS)
def test_each_way_limits_a_flood_and_nobody_far_below_the_limit(way: str) -> None:
    """A way on Redis makes each request wait, and a moving window of several instances is exact."""
    few = results(way, [BEGIN_S + n * 2.0 for n in range(60)], instances=1)
    assert 0 == few["allow"] == few["deny"]
    flood = results(way, FLOOD, instances=3)
    assert 1 <= flood["overshoot"] < 2.5
    if way in ON_REDIS:
        assert (1, 0, 0, 1.0) == (flood["waited"], flood["allow"], flood["deny"], flood["overshoot"])
    elif way in ("default", "strict"):
        assert 0 == flood["waited"]


@each_of("default", "limits, moving window", "after Kong, sync_rate 1 s")
def test_instance_that_is_cut_off_admits_more(way: str) -> None:
    times = [PARTITION_S[0] + n / 100 for n in range(900)]
    whole, cut = (results(way, times, instances=2, cut=parts) for parts in (frozenset[int](), frozenset({0})))
    assert whole["overshoot"] < cut["overshoot"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "limit"), [("alert at 0.1 %", 4000), ("collects for 100 ms", 100), ("reads from 10 % used", 100)]
)
def test_constant_of_a_setting_is_changed_and_restored(setting: str, limit: int) -> None:
    def operations() -> float:
        return results("default", FLOOD[:400], instances=10, limit=limit)["operations"]

    before = operations()
    with changed(setting):
        assert before != operations()
    assert before == operations()
