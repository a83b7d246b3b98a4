"""
benchmarks.ways: cycles race each other where they overlap, answers are late where they are to be, each time the same.
"""

from functools import partial

import pytest

from benchmarks.accuracy import Clock, Request
from benchmarks.turns import Turns
from benchmarks.ways import WAYS, Way, measure

BEGIN_S = 807_256_800.0
HOT = [Request(BEGIN_S + number / 8, "hot") for number in range(80)]
STEADY = [Request(BEGIN_S + number / 40, f"key {number % 20}") for number in range(600)]
BURSTS = [Request(BEGIN_S + 20 * (number // 40) + number % 40 / 1000, f"key {number // 40}") for number in range(120)]


def way(name: str) -> Way:
    """Return a way by its name."""
    (found,) = [way for way in WAYS if way.name == name]
    return found


def test_turns() -> None:
    """Who waits less goes on first, on a clock that says when."""
    clock, said = Clock(0.0), []
    turns = Turns(clock, most=2)

    def part(name: str, duration_s: float) -> None:
        for _ in range(2):
            turns.wait(duration_s)
            said.append((name, clock.now_s))

    turns.play([(1.0, partial(part, "slow", 3.0)), (2.0, partial(part, "fast", 1.0))])
    assert [("fast", 3.0), ("slow", 4.0), ("fast", 4.0), ("slow", 7.0)] == said
    turns.play([(8.0, partial(part, "alone", 1.0))])
    assert [("alone", 8.0), ("alone", 8.0)] == said[4:]
    turns.close()


def test_turns_with_an_error() -> None:
    """What goes wrong in a part is not lost, and the others end all the same."""
    turns = Turns(Clock(0.0), most=2)
    ended = []
    with pytest.raises(ZeroDivisionError):
        turns.play([(0.0, lambda: 1 // 0), (0.0, partial(ended.append, "other"))])
    assert ["other"] == ended
    turns.close()


@pytest.mark.parametrize("each", WAYS, ids=lambda way: way.name)
def test_same_again(each: Way) -> None:
    """The same trace gives the same numbers again, and costs something."""
    first, second = (measure(each, HOT[:30]) for _ in range(2))
    assert first[0] == second[0]
    assert (first[1].conflict_count, first[1].wait_count) == (second[1].conflict_count, second[1].wait_count)
    assert first[0].operations > first[1].conflict_count
    assert (first[1].wait_count > 0) is each.name.startswith("reserve")


def test_races_on_a_hot_key() -> None:
    """
    Instances that write the same key at the same instant lose races to each other, those at their own phase hardly.
    """
    names = ("T = 1 s, no early flush", "aligned, no early flush")
    apart, aligned = (measure(way(name), HOT)[1].conflict_count for name in names)
    assert aligned > apart


def test_all_flush_then_all_pull() -> None:
    """Who pulls when all have flushed knows more, for more reads."""
    names = ("aligned, no early flush", "aligned, all flush, then all pull, no early flush")
    at_once, (tally, cycles) = (measure(way(name), STEADY) for name in names)
    assert tally.wrongly_allowed < at_once[0].wrongly_allowed
    assert cycles.conflict_count < at_once[1].conflict_count
    assert tally.operations > at_once[0].operations


def test_missed_deadlines() -> None:
    """A burst that is asked about too late is decided on what is known, so more is let through."""
    names = ("reserve", "reserve, half of the deadlines missed", "reserve, every deadline missed")
    kept, half, missed = (measure(way(name), BURSTS)[0].wrongly_allowed for name in names)
    assert kept < half < missed
