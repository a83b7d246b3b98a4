"""The host table: rows that requests and the sync cycle change."""

import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from oauth_ratelimit.counters.host import Host
from oauth_ratelimit.counters.table import READ_ALL, HostTable, Written

DUE_S = 100.0
NAMES = ("ann", "bob", "total")


class Row(NamedTuple):
    """Columns of ``READ_ALL``."""

    hits: bytes
    change: int
    unsent: bytes | None
    held: bytes | None
    taken: bytes | None
    writer_count: int
    is_asked: int
    due: float
    urgent: float | None


def a_table(*names: str, max_keys: int = 100) -> HostTable:
    table = HostTable(Host(), max_keys=max_keys)
    with table.host.locked():
        for name in names:
            table.insert(name, now_s=0.0, due_s=DUE_S)
    return table


def rows_of(table: HostTable, names: Sequence[str] = NAMES) -> dict[str, Row]:
    with table.host.locked():
        return {name: Row(*table.read(READ_ALL, name)) for name in names}


def after_hit(name: str, row: Row, **values: object) -> Written:
    """Return a row with one more hit, whose bytes are the number of hits."""
    return name, row.change, {"hits": (int.from_bytes(row.hits) + 1).to_bytes(8), **values}


def write(table: HostTable, rows: dict[str, Row]) -> bool:
    with table.host.locked():
        return table.write([after_hit(name, row) for name, row in rows.items()])


def hits_of(table: HostTable, names: Sequence[str] = NAMES) -> list[int]:
    return [int.from_bytes(row.hits) for row in rows_of(table, names).values()]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_request_is_written_to_all_of_its_rows(count: int) -> None:
    """In each of them other columns may be new. All others stay."""
    table = a_table(*NAMES)
    before = rows_of(table)
    new: dict[str, dict[str, Any]] = {
        "ann": {"hits": b"hits of ann", "unsent": b"unsent", "due": 5.0},
        "bob": {"hits": b"hits of bob", "held": b"held"},
        "total": {"due": 7.0, "urgent": 6.0},
    }
    names = NAMES[:count]
    with table.host.locked():
        assert table.write([(name, before[name].change, new[name]) for name in names])
    expected = {
        name: row._replace(**new[name], is_asked=1, change=row.change + 1) if name in names else row
        for name, row in before.items()
    }
    assert expected == rows_of(table)


@pytest.mark.parametrize("changed", NAMES)
def test_request_is_written_nowhere_if_one_of_its_rows_has_changed(changed: str) -> None:
    table = a_table(*NAMES)
    read = rows_of(table)
    assert write(table, rows_of(table, [changed]))
    before = rows_of(table)
    assert not write(table, read)
    assert before == rows_of(table)
    assert write(table, before)
    assert [1 + (name == changed) for name in NAMES] == hits_of(table)


@pytest.mark.parametrize("gone", NAMES)
def test_request_is_written_nowhere_if_one_of_its_rows_is_gone(gone: str) -> None:
    table = a_table(*NAMES)
    read = rows_of(table)
    with table.host.transaction():
        table.delete([gone])
    assert not write(table, read)
    assert [0, 0] == hits_of(table, [name for name in NAMES if name != gone])


def test_row_that_the_cycle_has_stored_is_read_again_by_a_request() -> None:
    table = a_table("ann")
    read = rows_of(table, ["ann"])
    with table.host.transaction():
        table.store(["due"], [(DUE_S, "ann")])
    assert not write(table, read)


def test_cycle_has_rows_in_the_order_that_it_names_them() -> None:
    """It makes room by forgetting first those that were asked for last longest ago."""
    table, names = a_table(*NAMES), ["total", "nobody", "ann", "bob"]
    with table.host.transaction():
        assert ["total", "ann", "bob"] == [row[1] for row in table.load(names)]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_cycle_that_is_interrupted_has_changed_nothing(interruption: type[BaseException]) -> None:
    table = a_table(*NAMES)
    before = rows_of(table)
    with pytest.raises(interruption), table.host.transaction():
        table.delete(["ann"])
        table.insert("carl", now_s=0.0, due_s=DUE_S)
        table.ask("bob", 1.0)
        raise interruption
    assert (before, 3) == (rows_of(table), table.key_count())
    assert write(table, before)


def test_cycle_undoes_what_an_interrupted_one_has_left() -> None:
    """Ctrl-C may come between two instructions, even before the one that undoes."""
    table = a_table(*NAMES)
    for hold in (table.host.locked, table.host.transaction):
        table.host.connection.execute("BEGIN IMMEDIATE")
        table.delete(NAMES)
        with hold():
            table.ask("bob", 1.0)
        assert [0, 1, 0] == [row.is_asked for row in rows_of(table).values()]


def names_of(table: HostTable) -> list[str]:
    return [name for name in ("ann", "bob", "carl", "dan") if table.read(READ_ALL, name)]


def test_rows_are_added_while_there_is_room() -> None:
    table = a_table("ann", "ann", "bob", "carl", max_keys=2)
    with table.host.transaction():
        assert (["ann", "bob"], 2) == (names_of(table), table.key_count())
        table.delete(["ann", "nobody"])
        table.insert("carl", now_s=0.0, due_s=DUE_S)
        table.insert("dan", now_s=0.0, due_s=DUE_S)
        assert (["bob", "carl"], 2) == (names_of(table), table.key_count())


@pytest.mark.parametrize(("count", "excess"), [(94, 0), (95, 5), (100, 10)])
def test_room_is_made_before_the_table_is_full(count: int, excess: int) -> None:
    table = a_table(*map(str, range(count)))
    assert excess == table.excess_count()


def test_all_rows_are_listed_once_although_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.counters.table.LISTED", 3)
    table = HostTable(Host(), max_keys=100)
    with table.host.locked():
        for number in range(10):
            table.insert(str(number), now_s=0.0, due_s=number // 4)
    found = []
    for part in table.all_names():
        found += part
        with table.host.locked():
            table.delete(part[:-1])
            table.insert(f"new-{len(found)}", now_s=0.0, due_s=-1.0)
    assert list("0123456789") == found


def test_rows_that_wait_are_due_at_once_after_a_change_of_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests do not wait until all are."""
    monkeypatch.setattr("oauth_ratelimit.counters.table.LISTED", 3)
    names = [str(number) for number in range(10)]
    table = a_table(*names)
    with table.host.transaction():
        table.store(["unsent"], [(b"hits", name) for name in names[1:]])
    table.end_waiting(5.0, DUE_S)
    with table.host.locked():
        assert names[1:] == sorted(table.due_names(5.0, hits_until_s=5.0))


@pytest.mark.parametrize("is_new", [True, False])
def test_row_that_becomes_urgent_ends_the_waiting(*, is_new: bool) -> None:
    table = a_table("ann")
    row = rows_of(table, ["ann"])["ann"]
    with table.host.locked():
        if is_new:
            table.insert("bob", now_s=0.0, due_s=DUE_S, urgent_s=5.0)
        else:
            table.write([after_hit("ann", row, urgent=5.0)])
    began_s = time.monotonic()
    table.host.wait(10.0)
    assert time.monotonic() - began_s < 10
    assert 5.0 == table.next_s("urgent")


def test_urgent_rows_are_taken_when_it_is_time_the_most_urgent_first() -> None:
    table = a_table("dan")
    with table.host.locked():
        for name, urgent_s in (("ann", 7.0), ("bob", 6.0), ("carl", 5.0)):
            table.insert(name, now_s=0.0, due_s=DUE_S, urgent_s=urgent_s)
        found = [table.urgent_names(now_s) for now_s in (4.9, 5.0, 7.0)]
    assert [[], ["carl"], ["carl", "bob", "ann"]] == found


def test_threads_that_read_and_write_at_different_times_lose_no_hit() -> None:
    """Between both, another process could have written, too."""
    table, count = a_table(*NAMES), 200

    def hit(names: Sequence[str]) -> None:
        for _ in range(count):
            while not write(table, rows_of(table, names)):
                pass

    in_threads(lambda: hit(NAMES), lambda: hit(["ann", "total"]), lambda: hit(["total"]), lambda: hit(["bob", "total"]))
    assert [2 * count, 2 * count, 4 * count] == hits_of(table)


def in_threads(*targets: object) -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=target) for target in targets]  # type: ignore[arg-type]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)


def test_table_that_a_process_leaves_is_not_changed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table("ann")
    parents: sqlite3.Connection = table.host.connection
    monkeypatch.setattr("os.getpid", lambda: -1)
    with table.host.locked():
        assert table.read(READ_ALL, "ann") is None
        table.insert("bob", now_s=0.0, due_s=DUE_S)
    assert [("ann",)] == parents.execute("SELECT name FROM rows").fetchall()
