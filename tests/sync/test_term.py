"""Limiters that count in one file: one at a time synchronises it."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Change, WriteResult
from testbed.clock import Clock
from tests.support.faulty_store import FaultyStore

KEY = Key("app", None)
PATIENCE_S = 7.0  # the store's timeout and two intervals

Start = Callable[[], Limiter]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ratelimit.db"


@pytest.fixture
def start(faulty: FaultyStore, clock: Clock, path: Path) -> Start:
    limits = {"client": [{"limit": 1000, "window": "600s"}]}
    content = {"mode": "enforce", "host": str(path), "limits": limits, "store": {"timeout": "5s"}}
    return lambda: Limiter(load_config(content), faulty, clock=clock, monotonic=clock)


def stored(faulty: FaultyStore) -> int:
    found = faulty.inner.read([KEY])
    return sum(sum(frames.values()) for snapshot in found.values() for frames in snapshot.hits.values())


def request(limiter: Limiter, count: int) -> None:
    for _ in range(count):
        limiter.check("app")


def test_one_synchronises_the_hits_of_all_as_one_writer(start: Start, faulty: FaultyStore) -> None:
    here, there = start(), start()
    assert not here.sync().is_elsewhere
    request(here, 2)
    request(there, 3)

    assert there.sync().is_elsewhere
    assert there.sync_urgent() is None
    assert 0 == stored(faulty)
    here.sync()
    assert 5 == stored(faulty)
    assert 1 == len(faulty.inner.read([KEY])[KEY].writers)


def test_another_takes_over_at_once_from_one_that_resigns(start: Start, faulty: FaultyStore) -> None:
    here, there = start(), start()
    here.sync()
    request(there, 1)
    here.close()

    there.sync()
    assert 1 == stored(faulty)


def test_another_takes_over_from_one_that_shows_no_sign(start: Start, faulty: FaultyStore, clock: Clock) -> None:
    here, there = start(), start()
    here.sync()
    request(there, 1)

    clock.advance(PATIENCE_S)
    assert there.sync().is_elsewhere
    clock.advance(0.1)
    assert not there.sync().is_elsewhere
    assert here.sync().is_elsewhere
    assert 1 == stored(faulty)


@pytest.mark.parametrize("is_applied", [True, False])
def test_one_that_was_stopped_in_a_write_changes_nothing_when_it_comes_back(
    start: Start, faulty: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_applied: bool
) -> None:
    """The other one finds out what became of the write, or repeats it before the late one arrives."""
    here, there = start(), start()
    here.sync()
    request(here, 2)
    write = faulty.compare_and_set

    def stop_meanwhile(writer: str, changes: Sequence[Change]) -> WriteResult:
        monkeypatch.undo()
        result = write(writer, changes) if is_applied else None
        clock.advance(PATIENCE_S + 0.1)
        request(there, 3)
        assert not there.sync().is_elsewhere
        return result or write(writer, changes)

    monkeypatch.setattr(faulty, "compare_and_set", stop_meanwhile)
    assert here.sync().is_elsewhere
    request(here, 1)
    there.sync()
    there.sync()

    assert 6 == stored(faulty)
    assert here.sync().is_elsewhere


def test_process_that_leaves_a_file_has_sent_its_hits(start: Start, faulty: FaultyStore, path: Path) -> None:
    """The path names another file by now, in which others count already. From then on it counts there."""
    here, there = start(), start()
    here.sync()
    request(here, 2)
    request(there, 3)
    path.unlink()
    other = start()
    request(other, 4)
    other.sync()

    there.sync()
    here.sync()
    there.sync()
    assert 2 + 3 + 4 == stored(faulty)
    request(here, 1)
    request(there, 1)
    assert 1000 - 4 - 3 == start().check("app").remaining


def test_request_is_denied_while_another_process_has_the_lock(start: Start, path: Path) -> None:
    limiter = start()
    request(limiter, 1000)
    limiter.sync()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not limiter.check("app").allowed
