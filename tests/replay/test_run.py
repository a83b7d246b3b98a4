"""The same rows through every contender."""

import random
from collections.abc import Sequence
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.replay.formats import Row
from oauth_ratelimit.replay.run import ALGORITHMS, COMMON, EXACT_LOG, Contender, Rate, Replay

SECOND = 1_000_000
BEGIN_US = 1_700_000_000 * SECOND
RATE = Rate(5, 60)
ALL = [Contender(name) for name in COMMON] + [Contender(one.value, count) for one in Estimator for count in (1, 10)]


def some_rows(count: int = 3000, *, seed: int = 1) -> list[Row]:
    """Return rows of some busy and many quiet keys."""
    rng = random.Random(seed)
    at_us, rows = BEGIN_US, []
    for _ in range(count):
        at_us += int(rng.expovariate(1) * SECOND)
        rows.append(Row(at_us, f"client-{int(rng.paretovariate(0.7)) % 300}", rng.choice([None, "ann", "bob"])))
    return rows


def cut(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    """Return rows in batches."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def tallies(batches: Sequence[Sequence[Row]], contenders: Sequence[Contender] = ALL, rate: Rate = RATE) -> list[object]:
    """Return the counts of each contender."""
    replay = Replay(rate, contenders)
    replay.run(batches)
    return [asdict(result.tally) for result in replay.results]


def test_every_contender_gets_every_row() -> None:
    replay = Replay(RATE, ALL)
    replay.run(cut(some_rows(), 500))
    assert {3000} == {result.tally.requests for result in replay.results}
    exact = replay.results[0]
    assert EXACT_LOG == exact.contender.algorithm
    assert (0, 0, RATE.limit) == (exact.tally.wrongly_allowed, exact.tally.wrongly_denied, exact.tally.peak)
    never_wrong = {EXACT_LOG, Estimator.STRICT}
    assert never_wrong <= {one.contender.algorithm for one in replay.results if not one.tally.wrongly_allowed}


def test_observed_replay_gives_the_same_numbers() -> None:
    watched = Replay(RATE, ALL, on_decisions=lambda *_: None)
    watched.run(cut(some_rows(), 200))
    assert [asdict(result.tally) for result in watched.results] == tallies(cut(some_rows(), 200))


@given(st.integers(1, 12))
def test_bucket_smaller_than_the_limit_denies_even_rare_keys(burst: int) -> None:
    rows = [Row(BEGIN_US, "a")] * 5
    (tally,) = tallies([rows], [Contender("token-bucket")], Rate(5, 60, burst))
    assert min(5, burst) == tally["admitted"]  # type: ignore[index]


def test_limit_is_per_user_and_for_the_client_without_one() -> None:
    rows = [Row(BEGIN_US + n, "a", user) for n, user in enumerate(["x", "y", None] * 7)]
    for tally in tallies([rows]):
        assert 15 <= tally["admitted"]  # type: ignore[index]
    assert 15 == tallies([rows])[0]["admitted"]  # type: ignore[index]


def test_each_request_waits_if_the_counter_is_in_the_database() -> None:
    (tally,) = tallies([some_rows()], [Contender("gcra", asks_database=True)])
    assert (3000, 3000) == (tally["operations"], tally["waits"])  # type: ignore[index]


def test_our_algorithms_have_the_names_of_the_configuration() -> None:
    assert ALGORITHMS == (*COMMON, *Estimator)
