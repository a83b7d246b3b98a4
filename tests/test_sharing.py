"""The comparison of ways to share a limit: each way works as it is described."""

import random
from collections.abc import Sequence
from contextlib import closing

import pytest

from benchmarks.rivals import ON_REDIS
from benchmarks.scaling import changed, simulated
from benchmarks.shapes import BEGIN_S, LIMIT, PARTITION_S, WINDOW_S, Load, Request
from benchmarks.sharing import MEASURES, WAYS, Ours, available, measured


def marked(*ways: str) -> list[object]:
    """Return ways as parameters, those on Redis with the mark of the tests that need it."""
    return [pytest.param(way, marks=[pytest.mark.redis] if way in ON_REDIS else []) for way in ways]


def a_load(times: Sequence[float], *, instance_count: int, cut: frozenset[int] = frozenset()) -> Load:
    """Return requests of one client to random instances."""
    rng = random.Random(3)
    return Load("a load", LIMIT, [Request(at_s, "client", rng.randrange(instance_count)) for at_s in times], cut)


def results(way: str, load: Load, instance_count: int) -> dict[str, float]:
    """Return what is measured of a way."""
    values = measured(WAYS[way](load, instance_count), load)
    return {measure: value for measure, (value, _) in zip(MEASURES, values, strict=True)}


FLOOD = [BEGIN_S + n / 20 for n in range(1200)]


@pytest.mark.parametrize("way", marked(*WAYS))
def test_single_instance_denies_nobody_far_below_the_limit(way: str) -> None:
    found = results(way, a_load([BEGIN_S + n * 2.0 for n in range(60)], instance_count=1), 1)
    assert 0 == found["allow"] == found["deny"]
    assert 1 == found["fairness"]


@pytest.mark.parametrize("way", marked(*WAYS))
def test_instances_together_deny_most_of_a_flood(way: str) -> None:
    found = results(way, a_load(FLOOD, instance_count=3), 3)
    assert 1 <= found["overshoot"] < 2.5


@pytest.mark.parametrize("way", marked("default", "strict", "after gubernator, GLOBAL", *ON_REDIS))
def test_requests_wait_only_for_a_central_store(way: str) -> None:
    assert (way in ON_REDIS) == results(way, a_load(FLOOD, instance_count=3), 3)["waited"]


@pytest.mark.redis
def test_moving_window_of_limits_is_exact() -> None:
    times = [BEGIN_S + n * 0.0511 for n in range(3000)]  # no two are a window apart
    found = results("limits, moving window", a_load(times, instance_count=3), 3)
    assert (0, 0, 1.0) == (found["allow"], found["deny"], found["overshoot"])


@pytest.mark.redis
def test_counters_of_limits_fade_in_compressed_time() -> None:
    way = WAYS["limits, sliding counter"](a_load([BEGIN_S], instance_count=1), 1)

    def admitted(after_s: float) -> int:
        return sum(way.check("client", 0, BEGIN_S + after_s) for _ in range(LIMIT + 10))

    with closing(way):
        assert LIMIT == admitted(0)
        assert 26 == admitted(WINDOW_S + 15.3)  # 100 hits count as 74.5
        assert 25 == admitted(WINDOW_S + 30.3)
        assert 75 == admitted(2 * WINDOW_S + 30.3)  # 51 hits count as 25.2
        assert LIMIT == admitted(4 * WINDOW_S + 30.3)


def test_missing_redis_server_is_named_and_the_other_ways_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert WAYS.keys() - ON_REDIS.keys() == available().keys()
    expected = (
        "redis-server is not installed, so these are not measured: limits, moving window; limits, sliding counter"
    )
    assert [expected] == capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("way", marked("default", "limits, moving window", "after Kong, sync_rate 1 s"))
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
