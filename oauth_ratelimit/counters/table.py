"""The host table: the counters of all keys, in SQLite.

A row belongs to a key. It holds the hits that decisions use, and of them those that no document has yet. A request
reads its rows, decides, and writes them back in one statement, which applies only if none of them has changed
meanwhile. So a request counts in all of its limits or in none, and whatever ends the process leaves the state before
the statement or after it. The sync cycle changes rows in transactions.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from math import inf
from operator import itemgetter
from typing import Any

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.counters.host import LOST, Host, HostLocked
from oauth_ratelimit.counters.host_place import UnusableFile
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

MAX_WAITING = 20_000  # rows whose hits wait for a later cycle: an end has seconds to flush them
FEWEST_FREE = 0.95  # of the rows allowed: from here on the sync cycle makes room
ROOMY_RATIO = 0.9  # until here
LISTED = 1000  # rows at once: requests wait for the end
DAMAGES = ValueError, TypeError, LookupError, OverflowError, RecursionError
"""Exceptions that unpacking a damaged row may raise."""


READ_HITS = "SELECT hits, change FROM rows WHERE name = ?"
READ_ALL = "SELECT hits, change, unsent, held, taken, writer_count, is_asked, due, urgent FROM rows WHERE name = ?"
"""Statements that read a row for requests: ``READ_ALL`` where held ones are counted apart."""


Written = tuple[str, int, dict[str, Any]]
"""Row as a request leaves it: its name, the change that was read, and new values by column."""

_OF_SYNC = (
    "name, hits, unsent, writer_count, is_asked, due, urgent, requested, held, attempt, "
    "version, mark, is_stale, read, known, newest, horizons, prunable"
)
SYNC_COLUMNS = tuple(_OF_SYNC.split(", "))
"""Columns that the sync cycle reads and writes."""


class HostTable:
    """Rows of a host.

    All methods need the lock of the host, but those that say otherwise. ``insert`` and ``write`` raise ``HostLocked``.
    """

    def __init__(self, host: Host, *, max_keys: int) -> None:
        self.host = host
        self.max_keys = max_keys
        self.waiting_count = 0  # rows whose hits wait for a later cycle, roughly

    def drop_damaged(self, name: str, exc: Exception) -> None:
        """Delete a row that cannot be unpacked, and log it. Raises ``HostLocked``: who finds it next tries again."""
        self.host.run("DELETE FROM rows WHERE name = ?", (name,))
        facts = {"key": logged_name(f"{name}"), "reason": f"{type(exc).__name__}: {exc}", "effect": LOST}
        self.host.later(partial(log.error, "host_row_damaged", **facts))

    def read(self, statement: str, name: str) -> Any:
        """Return the row that a statement finds, None if there is none."""
        try:
            return self.host.run(statement, (name,)).fetchone()
        except HostLocked:  # a reader waits only for a process that repairs the file after another one was killed
            self.host.count_alone(UnusableFile("another process holds its lock"))
            return None

    def insert(
        self, name: str, *, now_s: float, due_s: float, urgent_s: float | None = None, has_room: bool = False
    ) -> None:
        """Add an empty row, unless there is one or, without ``has_room``, no room for it."""
        added = (
            "INSERT OR IGNORE INTO rows (name, requested, due, urgent) SELECT ?, ?, ?, ? FROM host WHERE key_count < ?"
        )
        most = inf if has_room else 0 if self.host.is_nearly_full else self.max_keys
        self.host.run(added, (name, now_s, due_s, urgent_s, most))
        if urgent_s is not None:
            self.host.wake()

    def write(self, rows: Sequence[Written]) -> bool:
        """Write rows if none of them has changed since it was read, and return whether they were written."""
        values: list[Any] = []
        columns: tuple[tuple[str, ...], ...] = ()
        is_urgent = False
        for name, change, new in rows:
            values += (name, change, *new.values())
            columns += (tuple(new),)
            is_urgent = is_urgent or "urgent" in new
        statement, in_order = _update(columns)
        is_written = self.host.run(statement, in_order(values)).rowcount == len(rows)
        if is_written and is_urgent:
            self.host.wake()
        return is_written

    def delete_unused(self, name: str, change: int) -> bool:
        """Delete a row that has not changed since it was read, unless more of it is needed than its hits.

        Returns whether it was deleted.
        """
        unused = (
            "DELETE FROM rows WHERE name = ? AND change = ? AND writer_count = 0 AND unsent IS NULL AND taken IS NULL "
            "AND attempt IS NULL"
        )
        return self.host.run(unused, (name, change)).rowcount == 1

    def ask(self, name: str, due_s: float) -> None:
        """Note a request that is counted nowhere, so that the next cycle looks at the document; unless it is locked."""
        asked = "UPDATE rows SET is_asked = 1, due = min(due, ?), change = change + 1 WHERE name = ?"
        with suppress(sqlite3.Error):
            self.host.connection.execute(asked, (due_s, name))

    def load(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return ``change`` and ``SYNC_COLUMNS`` of the rows that exist, in the order of the names."""
        marks = ", ".join("?" * len(names))
        selected = f"SELECT change, {_OF_SYNC} FROM rows WHERE name IN ({marks})"
        rows = {row[1]: row for row in self.host.connection.execute(selected, names)}
        return [rows[name] for name in names if name in rows]

    def changes(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Return the rows that exist, each with the number of its last change."""
        marks = ", ".join("?" * len(names))
        return self.host.connection.execute(f"SELECT name, change FROM rows WHERE name IN ({marks})", names).fetchall()

    def store(self, columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write some columns of rows that exist: the values of each, and its name."""
        assigned = ", ".join(f"{column} = ?" for column in columns)
        self.host.connection.executemany(f"UPDATE rows SET {assigned}, change = change + 1 WHERE name = ?", rows)

    def delete(self, names: Iterable[str]) -> None:
        self.host.connection.executemany("DELETE FROM rows WHERE name = ?", ((name,) for name in names))

    def due_names(self, until_s: float, *, hits_until_s: float) -> list[str]:
        """Return the rows that are due, those with hits also if they are due later."""
        taken = "SELECT name FROM rows WHERE due <= ? AND (due <= ? OR unsent IS NOT NULL) ORDER BY due"
        return self._names(taken, max(until_s, hits_until_s), until_s)

    def unsent_names(self) -> list[str]:
        """Return the rows with hits that no document is known to hold. Looks at all rows."""
        return self._names("SELECT name FROM rows WHERE unsent IS NOT NULL OR attempt IS NOT NULL")

    def urgent_names(self, until_s: float) -> list[str]:
        """Return the rows that are to be synchronised at once."""
        return self._names("SELECT name FROM rows WHERE urgent <= ? ORDER BY urgent", until_s)

    def next_s(self, column: str) -> float:
        """Return the earliest time in a column, infinity without one. Takes the lock."""
        with self.host.locked():
            found = self.host.connection.execute(
                f"SELECT min({column}) FROM rows WHERE {column} IS NOT NULL"
            ).fetchone()
        return inf if found[0] is None else found[0]

    def all_names(
        self, after_s: float = -inf, until_s: float = inf, *, only_clean: bool = False
    ) -> Iterator[list[str]]:
        """Yield all rows, or those that are due in a time, part by part in this order. Takes the lock for each part.

        With ``only_clean``, those without hits to send.
        """
        clean = " AND unsent IS NULL AND attempt IS NULL" if only_clean else ""
        part = (
            "SELECT due, rowid, name FROM rows"
            f" WHERE (due, rowid) > (?, ?) AND due <= ?{clean} ORDER BY due, rowid LIMIT ?"
        )
        last: tuple[float, int] = (after_s, 0)
        while True:
            with self.host.locked():
                found = self.host.connection.execute(part, (*last, until_s, LISTED)).fetchall()
            if not found:
                return
            last = found[-1][:2]
            yield [name for *_, name in found]

    def key_count(self) -> int:
        count: int = self.host.connection.execute("SELECT key_count FROM host").fetchone()[0]
        return count

    def excess_count(self) -> int:
        """Return the number of rows to forget, to make room for new ones."""
        count = self.key_count()
        if self.host.is_nearly_full:
            return count - int(count * ROOMY_RATIO)
        return 0 if count < self.max_keys * FEWEST_FREE else count - int(self.max_keys * ROOMY_RATIO)

    def count_waiting(self, now_s: float, until_s: float) -> int:
        """Count the rows whose hits wait for a later cycle."""
        waiting = "SELECT 1 FROM rows WHERE due > ? AND due <= ? AND unsent IS NOT NULL LIMIT ?"
        counted = f"SELECT count(*) FROM ({waiting})"
        self.waiting_count = self.host.connection.execute(counted, (now_s, until_s, MAX_WAITING)).fetchone()[0]
        return self.waiting_count

    def end_waiting(self, now_s: float, until_s: float) -> None:
        """Have the next cycle take the rows whose hits wait. Takes the lock, several times if there are many."""
        waiting = "SELECT rowid FROM rows WHERE due > ? AND due <= ? AND unsent IS NOT NULL LIMIT ?"
        ended = f"UPDATE rows SET due = ?, change = change + 1 WHERE rowid IN ({waiting})"
        count = LISTED
        while count == LISTED:
            with self.host.transaction():
                count = self.host.connection.execute(ended, (now_s, now_s, until_s, LISTED)).rowcount

    def _names(self, statement: str, *values: float) -> list[str]:
        return [name for (name,) in self.host.connection.execute(statement, values)]


@lru_cache(maxsize=100)
def _update(columns: tuple[tuple[str, ...], ...]) -> tuple[str, Callable[[Sequence[Any]], Sequence[Any]]]:
    """Return the statement for rows with these new values each, and a function that puts its arguments in order.

    They are name, change and values by row. Python 3.12 before 3.12.4 takes their numbers for names, and warns.
    """
    cases: dict[str, str] = {}  # by column
    names, unchanged, place = [], [], 0
    for of_row in columns:
        names.append(f"?{place}")
        unchanged.append(f"(SELECT change FROM rows WHERE name = ?{place}) = ?{place + 1}")
        for value_place, column in enumerate(of_row, start=place + 2):
            cases[column] = cases.get(column, "") + f" WHEN ?{place} THEN ?{value_place}"
        place += 2 + len(of_row)
    if len(columns) == 1:
        assigned = ", ".join(f"{column} = ?{value_place}" for value_place, column in enumerate(cases, start=2))
        concerned = "name = ?0 AND change = ?1"
    else:
        assigned = ", ".join(f"{column} = CASE name{case} ELSE {column} END" for column, case in cases.items())
        concerned = f"name IN ({', '.join(names)}) AND {' AND '.join(unchanged)}"
    numbered = f"UPDATE rows SET {assigned}, is_asked = 1, change = change + 1 WHERE {concerned}"
    return re.sub(r"\?\d+", "?", numbered), itemgetter(*map(int, re.findall(r"\?(\d+)", numbered)))
