"""The same rows through every contender."""

import random
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.replay.fleet import FleetPlan
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
    """Return what each contender did."""
    replay = Replay(rate, contenders)
    replay.run(batches)
    return [asdict(entry.tally) for entry in replay.entries]


def test_every_contender_gets_every_row() -> None:
    """All decide about the same number of requests, and the exact log is never wrong."""
    replay = Replay(RATE, ALL)
    replay.run(cut(some_rows(), 500))
    assert {3000} == {entry.tally.requests for entry in replay.entries}
    exact = replay.entries[0]
    assert EXACT_LOG == exact.contender.algorithm
    assert (0, 0, RATE.limit) == (exact.tally.wrongly_allowed, exact.tally.wrongly_denied, exact.tally.peak)
    assert all(entry.tally.wrongly_allowed for entry in replay.entries[1:])


@pytest.mark.parametrize("size", (1, 70, 3000))
def test_batches(size: int) -> None:
    """How rows are cut into batches does not matter, nor that quiet keys are decided late and idle ones forgotten."""
    assert tallies(cut(some_rows(), 500)) == tallies(cut(some_rows(), size))


def test_quiet_keys() -> None:
    """What is remembered of keys with few requests gives the same as deciding about each at once, as for somebody who
    watches.
    """
    watched = Replay(RATE, ALL, watch=lambda *_: None)
    watched.run(cut(some_rows(), 200))
    assert [asdict(entry.tally) for entry in watched.entries] == tallies(cut(some_rows(), 200))


@given(st.integers(1, 12))
def test_small_burst(burst: int) -> None:
    """A bucket that holds less than the limit denies even keys with few requests."""
    rows = [Row(BEGIN_US, "a")] * 5
    (tally,) = tallies([rows], [Contender("token-bucket")], Rate(5, 60, burst))
    assert min(5, burst) == tally["admitted"]  # type: ignore[index]


def test_users() -> None:
    """Each user of a client has the limit, and so has the client without one."""
    rows = [Row(BEGIN_US + n, "a", user) for n, user in enumerate(["x", "y", None] * 7)]
    for tally in tallies([rows]):
        assert 15 <= tally["admitted"]  # type: ignore[index]
    assert 15 == tallies([rows])[0]["admitted"]  # type: ignore[index]


def test_more_frames_are_more_accurate() -> None:
    """Errors shrink with the number of frames."""
    contenders = [Contender("sliding", count) for count in (1, 2, 6, 60)]
    replay = Replay(RATE, contenders)
    replay.run(cut(some_rows(20_000), 5000))
    wrong = [entry.tally.wrongly_allowed + entry.tally.wrongly_denied for entry in replay.entries]
    assert all(coarse > fine for coarse, fine in pairwise(wrong))


def test_shared_counter() -> None:
    """Where the counter is in the database, each request waits for it."""
    (tally,) = tallies([some_rows()], [Contender("gcra", asks_database=True)])
    assert (3000, 3000) == (tally["operations"], tally["waits"])  # type: ignore[index]


def test_fleet_beside_the_others() -> None:
    """A fleet of one decides as the estimator alone does, and tells what it does in the database."""
    alone, fleet = tallies(
        cut(some_rows(), 500), [Contender("sliding", 10), Contender("sliding", 10, FleetPlan(1, 1.0))]
    )
    same = ("requests", "admitted", "wrongly_allowed", "wrongly_denied", "peak")
    assert [alone[name] for name in same] == [fleet[name] for name in same]  # type: ignore[index]
    assert (0, True) == (alone["operations"], fleet["operations"] > 3000)  # type: ignore[index]


def test_again() -> None:
    """The same rows give the same numbers, fleets included."""
    contenders = [Contender("sliding", 10, FleetPlan(10, 1.0))]
    assert tallies(cut(some_rows(500), 100), contenders) == tallies(cut(some_rows(500), 100), contenders)


def test_names() -> None:
    """Our algorithms are the estimators, by the names of the configuration."""
    assert ALGORITHMS == (*COMMON, "sliding", "proportional")
