"""Writes that compare this writer's own mark: each rule of theirs is needed."""

import pytest

from tests.simulation.configs import WIDE, Config, Limit
from tests.simulation.test_short_histories import ScriptedFleet, ask_each, fleet, started
from tests.support.simulated_mongo import Fate

__all__ = ["fleet"]

NARROW = Config({"user": (Limit(200, 60, 6),), "client": ()})


def test_write_that_arrives_after_others_have_written_counts_once(fleet: ScriptedFleet) -> None:
    """The version has moved on, but not the mark, so it may still arrive."""
    here, there = started(fleet, WIDE)
    ask_each((there, here, there))
    fleet.send(here, Fate.HELD, hits=1)
    ask_each((there,))
    fleet.send(here, Fate.LOST)
    fleet.server.release(0)

    fleet.assert_exact()


@pytest.mark.parametrize("fate", (Fate.HELD, Fate.UNANSWERED, Fate.LOST))
def test_write_is_repeated_by_version(fleet: ScriptedFleet, fate: Fate) -> None:
    here, there = started(fleet, WIDE)
    ask_each((there, here, there))
    for _ in range(3):
        fleet.send(here, fate, Fate.HELD, hits=1)
        ask_each((there,))
        here.sync(urgent=False)
        while fleet.server.held:
            fleet.server.release(-1)

    fleet.assert_exact()


def test_document_stays_as_long_as_a_window_needs_it_that_has_become_wider_since(fleet: ScriptedFleet) -> None:
    here, there = started(fleet, NARROW)
    ask_each((there, here))
    there.reconfigure(WIDE)
    ask_each((there,))
    fleet.true_s += 500.0
    ask_each((here,))
    fleet.true_s += 200.0
    fleet.server.expire()
    for _ in range(2):
        there.limiter.peek("shop", "ann")
        there.sync(urgent=False)
    assert 200 - 1 == there.limiter.peek("shop", "ann").remaining


def test_mark_that_was_over_is_kept_if_its_writer_has_come_back_since(fleet: ScriptedFleet) -> None:
    """What is removed by a write was over when the document was read, so nobody may have written it since."""
    here, there = started(fleet, NARROW)
    ask_each((there, here, there))
    fleet.true_s += 200.0
    ask_each((here,))
    fleet.send(there, Fate.UNANSWERED, hits=1)
    fleet.true_s += 1.0
    ask_each((here, there))

    fleet.assert_exact()


def test_mark_that_was_over_is_kept_if_its_writer_comes_back_before_a_write_is_repeated(fleet: ScriptedFleet) -> None:
    """The first try removed nothing, so it could compare the mark. The repeated one removes what was read as over."""
    here, there, third = started(fleet, NARROW, count=3)
    ask_each((there, here, there))
    fleet.fates = [Fate.LOST]
    ask_each((here,))
    fleet.true_s += 200.0
    ask_each((third,))
    there.ask("shop", "ann", 1)
    fleet.fates = [Fate.UNANSWERED]
    fleet.meanwhile["update"] = lambda: there.sync(urgent=False)
    ask_each((here, there))

    fleet.assert_exact()
