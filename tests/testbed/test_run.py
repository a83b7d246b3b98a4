"""The same rows through every contender."""

import random

import pytest

from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.traffic.formats import Recording, Row
from testbed.comparison.accuracy import ContenderCounts
from testbed.comparison.algorithms import COMMON
from testbed.comparison.run import EXACT_LOG, Contender, FleetPlan, Rate, Replay, in_batches
from testbed.trace import SHIPPED

SECOND = 1_000_000
BEGIN_US = 1_700_000_000 * SECOND
RATE = Rate(5, 60)
ALL = [Contender(name) for name in COMMON] + [Contender(one.value, count) for one in Estimator for count in (1, 10)]


def some_rows() -> list[Row]:
    rng = random.Random(1)
    at_us, rows = BEGIN_US, []
    for _ in range(3000):
        at_us += int(rng.expovariate(1) * SECOND)
        rows.append(Row(at_us, f"client-{int(rng.paretovariate(0.7)) % 300}", rng.choice([None, "ann", "bob"])))
    return rows


def replayed(rows: list[Row], *contenders: Contender) -> list[ContenderCounts]:
    replay = Replay(RATE, contenders)
    replay.run(rows[start : start + 500] for start in range(0, len(rows), 500))
    return [result.tally for result in replay.results]


@pytest.mark.slow
def test_every_contender_gets_every_row_and_errs_as_it_is_known_to() -> None:
    tallies = dict(zip(ALL, replayed(some_rows(), *ALL), strict=True))
    assert {3000} == {tally.requests for tally in tallies.values()}
    exact = tallies[Contender(EXACT_LOG)]
    assert (0, 0, RATE.limit) == (exact.wrongly_allowed, exact.wrongly_denied, exact.peak)
    assert {EXACT_LOG, Estimator.STRICT} <= {one.algorithm for one, tally in tallies.items() if tally.peak <= 5}
    for estimator in Estimator:
        coarse, fine = (tallies[Contender(estimator.value, count)] for count in (1, 10))
        assert fine.wrongly_allowed + fine.wrongly_denied < coarse.wrongly_allowed + coarse.wrongly_denied


def test_instances_err_more_than_one_and_cost_operations() -> None:
    rows = [Row(BEGIN_US + n * SECOND // 8, "busy", "ann") for n in range(1000)]
    one, several = replayed(rows, Contender("sliding", 10), Contender("sliding", 10, FleetPlan(10, 1.0)))
    assert one.peak <= several.peak
    assert 0 == one.operations
    assert several.operations > len(rows) / 10


def test_limit_is_per_user_and_for_the_client_without_one() -> None:
    rows = [Row(BEGIN_US + n, "a", user) for n, user in enumerate(["x", "y", None] * 7)]
    assert {15} == {tally.admitted for tally in replayed(rows, Contender(EXACT_LOG), Contender("sliding", 10))}


@pytest.mark.slow
def test_recorded_traffic_of_the_demo_gives_the_documented_numbers() -> None:
    replay = Replay(Rate(10, 60), [Contender("fixed-window"), Contender("sliding", 10), Contender("strict", 10)])
    with Recording(str(SHIPPED)).opened() as (_, rows):
        replay.run(in_batches(rows))
    fixed, sliding, strict = (result.tally for result in replay.results)
    assert (30_969, 20, "2.125") == (fixed.requests, fixed.peak, f"{fixed.percent(fixed.wrongly_allowed):.3f}")
    assert (14, 60, 12) == (sliding.wrongly_allowed, sliding.wrongly_denied, sliding.peak)
    assert (0, 117, 10) == (strict.wrongly_allowed, strict.wrongly_denied, strict.peak)
