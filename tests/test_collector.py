"""
Full garbage collections come when the configuration says so.
"""

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.collector import NEVER, FullCollections
from oauth_ratelimit.config import load_config
from oauth_ratelimit.observe.observer import Observer
from oauth_ratelimit.overlay import LiveSettings
from oauth_ratelimit.worker import Worker
from tests.helpers import Clock

FOUND = (600, 9, 8)  # what no Python has by itself
INTERVAL_S = 60.0


class Node:
    """
    What refers to itself.
    """

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    """
    Thresholds that somebody has chosen, and those from before afterwards.
    """
    before = gc.get_threshold()
    gc.set_threshold(*FOUND)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def collections(clock: Clock) -> FullCollections:
    """
    Those of one application.
    """
    return FullCollections(clock=clock)


@pytest.fixture
def no_other() -> Iterator[None]:
    """
    No collection but those asked for: while another thread's is under way, Python would ignore them.
    """
    gc.disable()
    yield
    gc.enable()


def found() -> bool:
    """
    Return whether the thresholds are those that were found.
    """
    return gc.get_threshold() == as_kept(FOUND)


def taken() -> bool:
    """
    Return whether the third threshold is ours, and the others are those that were found.
    """
    return gc.get_threshold() == as_kept((*FOUND[:2], NEVER))


def as_kept(thresholds: tuple[int, int, int]) -> tuple[int, int, int]:
    """
    Return what Python makes of thresholds: the incremental collector of 3.14.0 to 3.14.4 ignores the third one.
    """
    now = gc.get_threshold()
    gc.set_threshold(*thresholds)
    kept = gc.get_threshold()
    gc.set_threshold(*now)
    return kept


def old_cycle() -> "weakref.ref[Node]":
    """
    Return what tells whether a reference cycle that only a full collection finds is still there.
    """
    node = Node()
    gc.collect()  # nothing is young afterwards
    return weakref.ref(node)


def a_worker(clock: Clock, configuration: dict[str, Any], *changes: dict[str, Any]) -> Worker:
    """
    Return a worker that gets one change of its configuration with each tick.
    """
    later = iter([load_config(change) for change in changes])
    live = LiveSettings(load_config(configuration), lambda: next(later, None))
    return Worker(live, observer=Observer(is_grant=bool), clock=clock)


def test_without_an_interval(collections: FullCollections) -> None:
    """
    Nothing is touched, neither by a run nor at the end.
    """
    collections.run(None)
    assert found()
    gc.set_threshold(*FOUND[:2], NEVER)  # another application's
    collections.run(None)
    collections.close()

    assert taken()


def test_with_an_interval(collections: FullCollections) -> None:
    """
    Full collections are put off, those of young objects are not; at the end all is as it was.
    """
    collections.run(INTERVAL_S)
    assert taken()
    collections.run(INTERVAL_S)
    assert taken()
    collections.close()

    assert found()


@pytest.mark.usefixtures("no_other")
def test_interval_has_passed(collections: FullCollections, clock: Clock) -> None:
    """
    A reference cycle that is old goes when the interval is over, and not before; each time anew. A collector that is
    switched off stays so.
    """
    collections.run(INTERVAL_S)
    for _ in range(2):
        cycle = old_cycle()
        clock.advance(INTERVAL_S - 1.0)
        collections.run(INTERVAL_S)
        assert cycle() is not None
        clock.advance(1.0)
        collections.run(INTERVAL_S)
        assert cycle() is None
    assert not gc.isenabled()


def test_many_objects_in_between(collections: FullCollections) -> None:
    """
    However many objects come and stay, no full collection comes by itself.
    """
    generations: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        generations.append(info["generation"])

    gc.collect()
    gc.freeze()
    gc.collect()  # finds nothing: one would only come after a quarter of what this has found
    gc.set_threshold(10, 2, 1)
    collections.run(INTERVAL_S)
    gc.callbacks.append(note)
    kept = [[number] for number in range(10_000)]
    gc.callbacks.remove(note)
    gc.unfreeze()
    collections.close()

    assert 10_000 == len(kept)
    assert generations
    assert 2 not in generations


@pytest.mark.usefixtures("no_other")
def test_threshold_that_somebody_sets_meanwhile(collections: FullCollections, clock: Clock) -> None:
    """
    The next run takes over from that one, without the interval beginning anew, and the end gives that one back.
    """
    gc.set_threshold(700, 10, 10)
    collections.run(INTERVAL_S)
    clock.advance(INTERVAL_S)
    gc.set_threshold(*FOUND)
    cycle = old_cycle()
    collections.run(INTERVAL_S)
    assert taken()
    assert cycle() is None
    collections.close()

    assert found()


@pytest.mark.usefixtures("no_other")
def test_while_another_thread_collects(
    collections: FullCollections, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Python collects nothing then, so it is done with the next run.
    """
    collections.run(INTERVAL_S)
    clock.advance(INTERVAL_S)
    cycle = old_cycle()
    with monkeypatch.context() as patched:
        patched.setattr(gc, "collect", lambda: 0)
        collections.run(INTERVAL_S)
    assert cycle() is not None
    collections.run(INTERVAL_S)

    assert cycle() is None


def test_threshold_that_somebody_sets_at_the_end(collections: FullCollections) -> None:
    """
    What somebody has set since the last run stays.
    """
    collections.run(INTERVAL_S)
    gc.set_threshold(1, 2, 3)
    collections.close()

    assert as_kept((1, 2, 3)) == gc.get_threshold()


@pytest.mark.parametrize("runs_between", [True, False], ids=("a run between", "at once"))
@pytest.mark.parametrize("first", [0, 1], ids=("first one stops first", "second one stops first"))
def test_two_applications_in_one_process(clock: Clock, *, first: int, runs_between: bool) -> None:
    """
    While one is left its run puts collections off; when both have stopped, Python decides again.
    """
    both = [FullCollections(clock=clock) for _ in range(2)]
    for collections in both:
        collections.run(INTERVAL_S)
    both.pop(first).close()
    if runs_between:
        both[0].run(INTERVAL_S)
        assert taken()
    both[0].close()

    assert found()


def test_run_that_comes_after_the_end(collections: FullCollections) -> None:
    """
    A tick that was kept waiting does not take over what nobody would give back.
    """
    collections.run(INTERVAL_S)
    collections.close()
    collections.run(INTERVAL_S)

    assert found()


def test_worker_with_the_key(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It holds from the start of a process's background work, before any cycle, to its end.
    """
    worker = a_worker(clock, {"gc_interval": "1d"})
    monkeypatch.setattr(worker._scheduler, "start", lambda: None)
    worker.start()
    assert taken()
    worker.stop()

    assert found()


def test_fork(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    In a child of the process, where no background work collects anything, Python decides.
    """
    worker = a_worker(clock, {"gc_interval": "1d"})
    monkeypatch.setattr(worker._scheduler, "start", lambda: None)
    worker.start()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if found() else 1)
    _, status = os.waitpid(pid, 0)
    assert taken()
    worker.stop()

    assert 0 == os.waitstatus_to_exitcode(status)


def test_worker_without_the_key(clock: Clock) -> None:
    """
    Python decides.
    """
    worker = a_worker(clock, {})
    worker.start()
    worker._tick(None)
    assert found()
    worker.stop()

    assert found()


def test_reload(clock: Clock) -> None:
    """
    A changed configuration switches it on and off, without a restart.
    """
    worker = a_worker(clock, {}, {"gc_interval": "1h"}, {})
    with capture_logs() as logs:
        worker._tick(None)
        assert taken()
        worker._tick(None)
        assert found()
        worker.stop()

    assert [False, False] == [line["restart_needed"] for line in logs if line["event"] == "config_reloaded"]
