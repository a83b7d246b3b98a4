"""Rows and files of a host that cannot be read any more: they cost their own hits, and no other work of the process."""

import os
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import FLAG_BITS
from oauth_ratelimit.counters import host
from testbed.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.limiters import limiter_of, locked, stored_hits

PAGE_SIZE = 4096
LIMITS = {"client": [{"limit": 10, "window": "600s"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ratelimit.db"


@pytest.fixture
def limiter(faulty: FaultyStore, clock: Clock, path: Path) -> Iterator[Limiter]:
    """A limiter that has stored a hit of each of two clients."""
    with closing(limiter_of({"host": str(path), "limits": LIMITS}, faulty, clock=clock)) as limiter:
        limiter.check("bad")
        limiter.check("good")
        limiter.sync()
        yield limiter


def stored(faulty: FaultyStore, client_id: str) -> int:
    return stored_hits(faulty.inner, Key(client_id, None))


def damage(path: Path, column: str, value: object) -> None:
    """Change a row as a page does that is overwritten."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE rows SET {column} = ? WHERE name LIKE '%bad%'", (value,))


DAMAGES = [
    ("hits", b"\1" * 13),
    ("hits", b"\xff" * 80),
    ("hits", b"\0" * 80),
    ("hits", "text"),
    ("hits", array("q", [6 << FLAG_BITS, 60, 0, 9, 1]).tobytes()),  # counts are missing
    ("hits", array("q", [0, 60, 0, 1, 1]).tobytes()),  # frames of no length
    ("unsent", b"\1" * 13),
    ("unsent", b"\xff" * 72),
    ("unsent", b"\0" * 72),
    ("held", b"\1" * 13),
    ("attempt", "{"),
    ("attempt", "[1, 2]"),
    ("attempt", '[1, 1, "", null, 60, true, null, 0]'),
    ("attempt", '["x", 1, "", 1.0, 60, true, null, 0]'),
    ("attempt", '[1, 1, "", 1.0, 60, true, 1, null]'),
    ("attempt", '[9223372036854775808, 1, "", 1.0, 60, true, null, 0]'),
    ("horizons", b"\1" * 13),
    ("prunable", "[1]"),
    ("requested", b"\1"),
    ("version", b"\1"),
    ("newest", ""),
    ("prunable", "[" * 100_000),
]


@pytest.mark.parametrize(("column", "value"), DAMAGES, ids=[f"{column} {value!r}"[:20] for column, value in DAMAGES])
def test_row_that_cannot_be_unpacked_is_deleted_and_keeps_no_other_from_being_sent(
    limiter: Limiter, faulty: FaultyStore, path: Path, column: str, value: object
) -> None:
    limiter.check("bad")
    limiter.check("good")
    damage(path, column, value)
    with capture_logs() as logs:
        assert limiter.sync().error is None
        assert limiter.sync().error is None
    assert (1, 2) == (stored(faulty, "bad"), stored(faulty, "good"))
    assert ["host_row_damaged"] == [entry["event"] for entry in logs]

    assert limiter.check("bad").allowed
    limiter.sync()
    assert 2 == stored(faulty, "bad")


NOT_CELLS = [("unsent", b"\1" * 13), ("unsent", b"\0" * 8), ("held", "text"), ("held", b"\0" * 8), ("urgent", "text")]
NOT_HITS = [b"\1" * 13, b"\0" * 80, (b"\1" + b"\0" * 7) * 3 + b"\xfc" + b"\xff" * 7 + b"\0" * 8]


@pytest.mark.parametrize(("column", "value"), [*(("hits", value) for value in NOT_HITS), *NOT_CELLS], ids=str)
def test_request_of_a_damaged_row_begins_a_new_one(limiter: Limiter, path: Path, column: str, value: object) -> None:
    damage(path, column, value)
    with capture_logs() as logs:
        assert 9 == limiter.check("bad").remaining
        assert 8 == limiter.check("bad").remaining
    assert ["host_row_damaged"] == [entry["event"] for entry in logs]


@pytest.mark.parametrize("column", ["hits", "held", "taken"])
@pytest.mark.parametrize("step", ["take_back", "release", "confirm", "look"])
def test_step_of_a_held_request_whose_row_is_damaged_meanwhile_fails_nothing(
    limiter: Limiter, path: Path, step: str, column: str
) -> None:
    _, held = limiter.hold("bad")
    damage(path, column, b"\1" * 13)
    with capture_logs() as logs:
        if step == "look":
            assert limiter.peek_known(Key("bad", None), ignores_held=True).allowed
        else:
            getattr(limiter, step)(held)
        assert limiter.sync().error is None
    assert {"host_row_damaged"} >= {entry["event"] for entry in logs}
    assert limiter.check("bad").allowed


def test_request_of_a_damaged_row_counts_alone_while_the_file_is_locked(limiter: Limiter, path: Path) -> None:
    damage(path, "hits", b"\1" * 13)
    with locked(path):
        assert [10, 9] == [limiter.peek("bad").remaining, limiter.check("bad").remaining]
    assert limiter.host.problem == "a row is damaged, and another process holds its lock"
    limiter.sync()
    assert (None, 9) == (limiter.host.problem, limiter.check("bad").remaining)


def test_last_flush_sends_all_but_what_is_damaged(limiter: Limiter, faulty: FaultyStore, path: Path) -> None:
    limiter.check("bad")
    limiter.check("good")
    damage(path, "unsent", b"\1")
    limiter.close()
    assert (1, 2) == (stored(faulty, "bad"), stored(faulty, "good"))


def overwrite(path: Path) -> None:
    """Overwrite all pages but the first one, after a change that has others read them again."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE host SET term = term")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(PAGE_SIZE)
        file.write(b"\xff" * (size - PAGE_SIZE))


def test_cycle_reports_a_damaged_file_and_the_next_one_works_with_another(
    limiter: Limiter, faulty: FaultyStore, path: Path
) -> None:
    overwrite(path)
    assert "file of the host" in str(limiter.sync().error)
    assert limiter.sync().error is None
    limiter.check("good")
    limiter.sync()
    assert 2 == stored(faulty, "good")
    assert Path(f"{path}.damaged").exists()


def test_damaged_file_that_was_replaced_is_given_up(limiter: Limiter, faulty: FaultyStore, path: Path) -> None:
    overwrite(path)
    path.unlink()
    with capture_logs() as logs:
        assert limiter.sync().error is None
        limiter.check("good")
        assert limiter.sync().error is None
    assert 2 == stored(faulty, "good")
    assert 1 == [entry["event"] for entry in logs].count("host_file_unusable")


def test_damaged_file_does_not_keep_a_process_from_ending(limiter: Limiter, path: Path) -> None:
    overwrite(path)
    with capture_logs() as logs:
        limiter.close()
    assert ["flush_failed", "host_file_unusable"] == sorted(entry["event"] for entry in logs)


def test_text_of_a_row_that_is_not_utf_8_concerns_no_other_row(
    limiter: Limiter, faulty: FaultyStore, path: Path
) -> None:
    limiter.check("good")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE rows SET prunable = CAST(x'ff' AS TEXT) WHERE name LIKE '%bad%'")
    assert limiter.sync().error is None
    assert (None, 2) == (limiter.host.problem, stored(faulty, "good"))


@pytest.mark.parametrize("column", ["hits", "held", "unsent"])
def test_request_that_waits_for_the_lock_is_written_although_its_row_was_damaged(
    limiter: Limiter, faulty: FaultyStore, path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(host, "LOCK_WAIT_S", 0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        limiter.check("bad")
        other.execute("ROLLBACK")
    damage(path, column, b"\0")
    assert limiter.check("good").allowed
    assert limiter.sync().error is None
    limiter.sync()
    assert (2, 2) == (stored(faulty, "bad"), stored(faulty, "good"))


@pytest.mark.parametrize(
    "measurement", ["garbage", "[1, 2]", "[1, null, null, null, null, null]", "[1, 1, 1, 1, NaN, 1]", 5]
)
def test_damaged_measurement_of_the_clock_is_measured_anew(
    limiter: Limiter, faulty: FaultyStore, clock: Clock, path: Path, measurement: object
) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE host SET clock = ?", (measurement,))
    with closing(limiter_of({"host": str(path), "limits": LIMITS}, faulty, clock=clock)) as second:
        assert second.check("good").allowed
        assert second.sync().error is None
        assert 0.0 == second.clock_offset_s
        assert limiter.sync().error is None
    assert 2 == stored(faulty, "good")


def test_directory_that_became_a_file_ends_no_cycle(limiter: Limiter, faulty: FaultyStore, path: Path) -> None:
    limiter.check("good")
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.touch()
    assert limiter.sync().error is None
    assert 2 == stored(faulty, "good")


@pytest.mark.parametrize("column", ["writer", "writer_count", "term", "holder", "beat", "synced", "progress"])
def test_file_whose_table_of_the_host_is_damaged_is_replaced(
    limiter: Limiter, faulty: FaultyStore, path: Path, column: str
) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE host SET {column} = ?", (b"x",))
    with capture_logs() as logs:
        limiter.sync()
        assert limiter.sync().error is None
    assert ["host_file_damaged"] == [entry["event"] for entry in logs if entry["event"] == "host_file_damaged"]
    limiter.check("good")
    assert limiter.sync().error is None
    assert (None, 2) == (limiter.host.problem, stored(faulty, "good"))
