"""The host table: the counters of all keys, in SQLite.

A row belongs to a key. It holds the hits that decisions use, and of them those that no document has yet. A request
reads its rows, decides, and writes them back in one statement, which applies only if none of them has changed
meanwhile. So a request counts in all of its limits or in none, and whatever ends the process leaves the state before
the statement or after it. The sync cycle changes rows in transactions. The rows are in memory, or in
a file that several processes count in.
"""

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import inf
from typing import Any

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.counters.host_file import Bell, FileConnection, FileId, HostFile, is_busy, nap, open_in_memory
from oauth_ratelimit.counters.host_place import LAYOUT, HostPlace, Membership, UnusableFile
from oauth_ratelimit.counters.term import TERM_SCHEMA, Term, TermOver
from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.process.fork import hold_over_fork
from oauth_ratelimit.process.identity import has_ended, identity_of
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

MAX_WAITING = 20_000  # rows whose hits wait for a later cycle: an end has seconds to flush them
FEWEST_FREE = 0.95  # of the rows allowed: from here on the sync cycle makes room
ROOMY_RATIO = 0.9  # until here
LISTED = 1000  # rows at once: requests wait for the end
LOCK_WAIT_S = 0.05  # longest wait of a request for the file's lock, that for other threads included
CYCLE_WAIT_S = 1.0  # longest wait of the sync cycle
CHECK_S = 60.0  # longest time that a guess is expected to be checked; one that is lost is released after it
STUCK_S = 10.0  # after which a file whose lock each cycle has found taken is not used any more
LOST = "hits in it that were not sent are lost"

_SCHEMA = f"""
CREATE TABLE rows (
    name TEXT PRIMARY KEY,                    -- client, user and scope, as JSON
    hits BLOB NOT NULL DEFAULT x'',           -- hits that decisions use, with the horizons of their series
    unsent BLOB,                              -- of them, those that are in no write; NULL if there are none
    change INTEGER NOT NULL DEFAULT (random() >> 2),  -- raised with each change; from another number on if made anew
    writer_count INTEGER NOT NULL DEFAULT 0,  -- instances that write the document, this one included; 0: never read
    is_asked INTEGER NOT NULL DEFAULT 0,      -- a request came since the last cycle that took the row
    due REAL NOT NULL,                        -- when a full cycle takes it; times go by a clock that is never set
    urgent REAL,                              -- when it is synchronised at once; NULL: not before ``due``
    requested REAL NOT NULL,                  -- time of the last cycle that found a request, by the limiter's clock
    taken BLOB,                               -- hits that were taken back, because the server failed; NULL if none
    held BLOB,                                -- hits of ``hits`` whose response is not known yet; NULL if none
    attempt TEXT,                             -- the write that is under way, or whose outcome is unknown, as JSON
    version INTEGER,                          -- of the document as last known; NULL without one, or if it was not read
    mark INTEGER,                             -- number of this writer's last write in it
    is_stale INTEGER NOT NULL DEFAULT 0,      -- it has probably changed, so it is read before the next write
    read REAL,                                -- time of the last read; NULL if it was never read, or must be
    known REAL,                               -- time at which the last read or write has shown the hits of others
    newest INTEGER NOT NULL DEFAULT 0,        -- start of the newest frame in it, that of a write under way included
    horizons BLOB NOT NULL DEFAULT x'',       -- of its series
    prunable TEXT                             -- parts of it that the next writes remove, as JSON
);
CREATE INDEX due ON rows (due);
CREATE INDEX urgent ON rows (urgent) WHERE urgent IS NOT NULL;
CREATE TABLE guesses (       -- passwords and secrets that are being checked
    id INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,      -- process that checks it
    since REAL NOT NULL,      -- by the clock that is never set
    rows TEXT NOT NULL        -- where it counts: names, each with its frames, as JSON
);
CREATE TABLE host (
    key_count INTEGER NOT NULL,
    layout INTEGER NOT NULL,
    user_id INTEGER,
    boot_id TEXT,
    identity TEXT,
    overrides BLOB,       -- those that a process has read last; NULL if none has
    overrides_read REAL,  -- when they were known to be the present ones, by the clock that is never set
    {TERM_SCHEMA}
);
INSERT INTO host (key_count, layout) VALUES (0, {LAYOUT});
CREATE TRIGGER one_more AFTER INSERT ON rows BEGIN UPDATE host SET key_count = key_count + 1; END;
CREATE TRIGGER one_less AFTER DELETE ON rows BEGIN UPDATE host SET key_count = key_count - 1; END;
"""
DAMAGES = ValueError, TypeError, LookupError, OverflowError, RecursionError
"""Exceptions that unpacking a damaged row may raise."""

_inherited: list[sqlite3.Connection] = []  # of parent processes: closing one could wait for a thread that is not here


READ_HITS = "SELECT hits, change FROM rows WHERE name = ?"
READ_ALL = "SELECT hits, change, unsent, held, taken, writer_count, is_asked, due, urgent FROM rows WHERE name = ?"
"""Statements that read what requests need of a row, without a store and with one."""


Written = tuple[str, int, dict[str, Any]]
"""Row as a request leaves it: its name, the change that was read, and new values by column."""

_OF_SYNC = (
    "name, hits, unsent, writer_count, is_asked, due, urgent, requested, held, attempt, "
    "version, mark, is_stale, read, known, newest, horizons, prunable"
)
SYNC_COLUMNS = tuple(_OF_SYNC.split(", "))
"""Columns that the sync cycle reads and writes."""


class HostLocked(Exception):
    """Another process has held the file's lock for too long."""


class HostTable:
    """Counters of this process, or of all processes that have one path.

    ``term`` is this process's part in the election of the one that synchronises the rows, and their name in documents.

    Requests hold the lock with ``locked``, the sync cycle with ``change``; all other methods need it held, but those
    that say otherwise. A file that cannot be used is replaced by memory; no method raises for it. ``insert`` and
    ``write`` raise ``HostLocked``, and ``change`` raises ``TermOver``.

    A process that synchronises the rows is given up after ``patience_s`` without a sign of it. ``monotonic`` returns
    the time of a clock that is never set, in seconds.
    """

    def __init__(
        self,
        *,
        max_keys: int,
        place: HostPlace | None = None,
        patience_s: float = inf,
        monotonic: Callable[[], float] = uptime_s,
    ) -> None:
        self.max_keys = max_keys
        self._patience_s = patience_s
        self.max_writer_count = 1  # the largest number of instances seen on one key, this one included
        self.monotonic = monotonic
        self.waiting_count = 0  # rows whose hits wait for a later cycle, roughly
        self.lock_timeout_count = 0  # requests that did not get the file's lock, since the last cycle
        self._file = None if place is None else HostFile(place, _SCHEMA)
        self._membership: Membership | None = None  # of a file that was left
        self._start_closed()
        if self._file is not None:  # before the connection's lock, as in ``follow_file``
            hold_over_fork(self._file, lambda file: file.opening)
        hold_over_fork(self, lambda table: table.lock, HostTable._close_before_fork)

    def _start_closed(self) -> None:
        self.lock = threading.Lock()  # guards the connection, and what is postponed
        self._later: deque[Callable[[], object]] = deque()  # calls once the lock is free
        self.postponed: deque[Any] = deque()  # what requests could not write, because the file was locked
        self.term, self._bell = Term(), Bell()
        self._is_open = False
        self._connection: sqlite3.Connection
        self._connected: FileConnection | None = None  # the connection, if it is one to the file
        self._term_of: FileId | None = None  # the file that the term is of; None for memory
        self._until_s = 0.0  # time until which the request that has the lock waits for that of the file
        self.is_nearly_full = False  # the file system has no room for further rows
        self._stuck_since_s: float | None = None  # cycles have found the file's lock taken, and never free since
        self._was_stuck = False  # the file was given up because of its lock
        self._identity = identity_of()
        self._process_id = os.getpid()  # last: other threads go by it

    @property
    def problem(self) -> str | None:
        """Reason that the file is not used; None while it is, or without one."""
        return None if self._file is None else self._file.problem

    def leave_to_parent(self) -> bool:
        """In a forked child, take a table of its own, and return whether it is one. Python may not know of a fork."""
        if self._process_id == os.getpid():
            return False
        if self._is_open:
            _inherited.append(self._connection)
        self._bell.close()
        if self._file is not None:
            self._file.leave_to_parent()
        self._start_closed()
        return True

    def _take(self, connected: FileConnection | None) -> None:
        """Use a connection to the file, None for memory, in place of the present one."""
        is_in_memory = self._is_open and self._connected is None
        self._bell.ring()  # whoever waits listens to the other one from now on
        self._close_file()
        if connected is not None:
            if self._term_of != connected.file_id:
                self.term = Term()
            self._connection = self._connected = connected
            self._bell, self._term_of = connected.bell, connected.file_id
        elif not is_in_memory:
            self._connection = open_in_memory(_SCHEMA)
            self.term, self._bell, self._term_of = Term(), Bell(), None
        self._is_open, self.is_nearly_full, self._stuck_since_s = True, False, None

    def _close_before_fork(self) -> None:
        """Close the file, so that no connection crosses the fork, unless it could not be opened again.

        Then the child keeps the connection and never uses it.
        """
        if self._file is not None and self._connected is not None and self._file.is_file_of(self._connected):
            self._close_file()

    def _close_file(self) -> None:
        """Close the file. The next request opens it again."""
        if self._connected is not None:
            self._is_open = False
            with suppress(sqlite3.Error):
                self._connected.close()
            self._connected = None

    @property
    def is_file(self) -> bool:
        """True while the rows are in a file."""
        return self._connected is not None

    @property
    def clock(self) -> str | None:
        """The host's last measurement of the store's clock, at the last call of ``lead`` or ``read_clock``."""
        return None if self._file is None else self.term.clock  # that of rows that were left may be old

    def read_clock(self) -> str | None:
        """Return the host's last measurement of the store's clock, None without one. Takes the lock."""
        with self.locked(), suppress(HostLocked):
            self.term.clock = self._run("SELECT clock FROM host", ()).fetchone()[0]
        return self.clock

    def note_overrides(self, packed: bytes) -> bool:
        """Keep the present overrides for processes that start later; return False without the file's lock.

        Takes the lock.
        """
        with self.locked(), suppress(HostLocked):
            self._run("UPDATE host SET overrides = ?, overrides_read = ?", (packed, self.monotonic()))
            return True
        return False

    def overrides(self) -> tuple[bytes, float] | None:
        """Return the overrides that a process of the host has read last, and the seconds since. Takes the lock."""
        with self.locked(), suppress(HostLocked):
            packed, read_s = self._run("SELECT overrides, overrides_read FROM host", ()).fetchone()
            return None if read_s is None else (packed, self.monotonic() - read_s)
        return None

    def lead(self, *, is_alone: bool = False, is_ending: bool = False) -> bool:
        """Synchronise the rows from now on unless another process does, and return whether this one does.

        With ``is_alone`` no other process is there; with ``is_ending`` this one is about to end. Who synchronises a
        file also checkpoints. Takes the lock.
        """
        was_held, patience_s = self.term.is_held, -inf if is_alone else self._patience_s
        try:
            # At first without the file's lock: most processes look at the term with each urgent key.
            for lock, only_looks in ((self.locked, True), (self.transaction, False)):
                with lock():
                    may_lead = self.term.claim(
                        self._connection,
                        self.monotonic(),
                        patience_s=patience_s,
                        writer_count=self.max_writer_count,
                        is_ending=is_ending,
                        only_looks=only_looks,
                    )
                if not may_lead:
                    break
            if self.term.is_held and self._connected is not None:
                with self.locked():
                    self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError as exc:
            if is_busy(exc):
                return False
            raise
        self.max_writer_count = self.term.writer_count
        if self.term.is_held is not was_held:
            self.wake()  # the thread that waits listens to others now, or not any more
        return self.term.is_held

    def is_last(self) -> bool:
        """Return True if no other process counts in these rows that runs. Of those that end, exactly one is told so."""
        if self._membership is not None:
            return self._membership.is_last()
        return self._connected is None or self._file is None or self._file.is_last()

    def resign(self) -> None:
        """Leave the rows to another process, unless the file cannot be written. Takes the lock."""
        with suppress(sqlite3.Error), self.transaction():
            self.term.resign(self._connection)

    def close(self) -> None:
        """Close the file, if there is one. Takes the lock."""
        with self.lock:
            self._close_file()
            if self._file is not None:
                self._file.leave()

    def follow_file(self) -> "HostTable | None":
        """Look after the file before a cycle: use the one that the path names now. Takes the lock.

        Returns the rows that were in use until then, if they are others: hits in them may not have been sent.
        """
        if self._file is None or self._process_id != os.getpid():
            return None
        with self._file.opening:
            with self.lock:
                if not self._is_open or (self._connected is not None and self._can_stay(self._file, self._connected)):
                    return None
            membership = self._file.membership
            connected = self._file.open(was_stuck=self._was_stuck)  # waits, so requests go on meanwhile
            self._was_stuck = self._was_stuck and connected is None
            with self.lock:
                is_same = self._connected is None and connected is None
                left = None
                if self._is_open and not is_same:
                    left = self._with(self._connection, self._connected)
                    left.term, left._bell, left._term_of = self.term, self._bell, self._term_of
                    left._membership = None if self._connected is None else membership
                    self._connected, self._is_open = None, False
                self._take(connected)
        return left

    def given_up(self) -> "HostTable | None":
        """Return the rows of a file that was given up after an error and that no other process uses, to look at."""
        connection = None
        if self._file is not None and self._connected is None:
            connection = self._file.open_given_up()
        return None if connection is None else self._with(connection, connection)

    def _with(self, connection: sqlite3.Connection, connected: FileConnection | None) -> "HostTable":
        """Return a table of other rows."""
        table = HostTable(max_keys=self.max_keys, patience_s=self._patience_s, monotonic=self.monotonic)
        table._connection, table._connected, table._is_open = connection, connected, True
        return table

    def _can_stay(self, file: HostFile, connected: FileConnection) -> bool:
        """Return whether the file can still be used."""
        if not file.is_file_of(connected):
            return False
        file.stay()
        try:
            connected.execute("BEGIN IMMEDIATE")
            connected.execute("COMMIT")
            self.is_nearly_full = file.is_nearly_full(connected)
        except sqlite3.Error as exc:
            now_s = time.monotonic()
            self._stuck_since_s = self._stuck_since_s or now_s
            if is_busy(exc) and now_s - self._stuck_since_s < STUCK_S:
                return True
            self._was_stuck = is_busy(exc)
            self._count_alone(exc)
            return False
        self._stuck_since_s = None
        return True

    def _count_alone(self, exc: Exception) -> None:
        if self._file is not None:
            self._file.note_problem(exc, self._connected)
        elif self._connected is not None:
            log.error("host_file_unusable", path=self._connected.path, reason=f"{exc}", effect=LOST)
        self._take(None)

    def note_error(self, exc: sqlite3.Error) -> None:
        """Count alone after an error of the file other than its lock, until a cycle can open it. Takes the lock."""
        if self._connected is not None and not is_busy(exc):
            with self.lock:
                self._count_alone(exc)

    def drop_damaged(self, name: str, exc: Exception) -> None:
        """Delete a row that cannot be unpacked, and log it. Raises ``HostLocked``: who finds it next tries again."""
        self._run("DELETE FROM rows WHERE name = ?", (name,))
        log.error("host_row_damaged", key=logged_name(f"{name}"), reason=f"{type(exc).__name__}: {exc}", effect=LOST)

    @contextmanager
    def locked(self, wait_s: float | None = None) -> Iterator[None]:
        """Hold the lock for a request, which waits for it and the file's lock as long as this at most."""
        begun_s = time.monotonic()
        with self.own_lock():
            self.begin(begun_s, wait_s)
            yield
        self.call_later()

    def own_lock(self) -> threading.Lock:
        """Return the lock, in a forked child a new one: ``locked`` without the cost of a generator begins with it.

        Only a lock's own block releases it whatever Ctrl-C interrupts.
        """
        if self._process_id != os.getpid():
            self.leave_to_parent()
        return self.lock

    def begin(self, begun_s: float, wait_s: float | None = None) -> None:
        """Begin a request that has begun to wait at a time of ``time.monotonic``. The lock is held."""
        self._until_s = begun_s + (LOCK_WAIT_S if wait_s is None else wait_s)
        if not self._is_open:
            self._take(None if self._file is None else self._file.open())
        if self._connection.in_transaction:  # of a cycle that Ctrl-C has ended between two instructions
            self._connection.rollback()

    def later(self, call: Callable[[], object]) -> None:
        """Have something called once the lock is free, such as a log, which may block."""
        self._later.append(call)

    def call_later(self) -> None:
        """Call what was to be called once the lock is free."""
        while self._later:
            with suppress(IndexError):  # another thread was faster
                self._later.popleft()()

    def _run(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """Run a statement of a request. After an error of the file it runs in memory."""
        while True:
            try:
                return self._connection.execute(statement, values)
            except sqlite3.Error as exc:
                if self._connected is None:
                    raise
                if not is_busy(exc):
                    self._count_alone(exc)
                elif self.spare_s() <= 0:
                    raise HostLocked from None
                else:
                    nap()

    def spare_s(self) -> float:
        """Return the seconds for which the request may still wait for the file's lock."""
        return self._until_s - time.monotonic()

    def read(self, statement: str, name: str) -> Any:
        """Return the row that a statement finds, None if there is none."""
        try:
            return self._run(statement, (name,)).fetchone()
        except HostLocked:  # a reader waits only for a process that repairs the file after another one was killed
            self._count_alone(UnusableFile("another process holds its lock"))
            return None

    def insert(
        self, name: str, *, now_s: float, due_s: float, urgent_s: float | None = None, has_room: bool = False
    ) -> None:
        """Add an empty row, unless there is one or, without ``has_room``, no room for it."""
        added = (
            "INSERT OR IGNORE INTO rows (name, requested, due, urgent) SELECT ?, ?, ?, ? FROM host WHERE key_count < ?"
        )
        most = inf if has_room else 0 if self.is_nearly_full else self.max_keys
        self._run(added, (name, now_s, due_s, urgent_s, most))
        if urgent_s is not None:
            self.wake()

    def write(self, rows: Sequence[Written]) -> bool:
        """Write rows if none of them has changed since it was read, and return whether they were written."""
        values: list[Any] = []
        columns: tuple[tuple[str, ...], ...] = ()
        is_urgent = False
        for name, change, new in rows:
            values += (name, change, *new.values())
            columns += (tuple(new),)
            is_urgent = is_urgent or "urgent" in new
        is_written = self._run(_update(columns), values).rowcount == len(rows)
        if is_written and is_urgent:
            self.wake()
        return is_written

    def delete_unused(self, name: str, change: int) -> bool:
        """Delete a row that has not changed since it was read, unless more of it is needed than its hits.

        Returns whether it was deleted.
        """
        unused = (
            "DELETE FROM rows WHERE name = ? AND change = ? AND writer_count = 0 AND unsent IS NULL AND taken IS NULL "
            "AND attempt IS NULL"
        )
        return self._run(unused, (name, change)).rowcount == 1

    def note_guess(self, rows: str) -> int | None:
        """Note where a guess counts, for others if this process is killed meanwhile. None if nobody shares the rows."""
        noted = "INSERT INTO guesses (owner, since, rows) VALUES (?, ?, ?)"
        with suppress(HostLocked):
            if self._connected is not None:
                return self._run(noted, (self._identity, self.monotonic(), rows)).lastrowid
        return None

    def forget_guess(self, guess_id: int | None) -> bool:
        """Forget a guess that was noted, and return whether it was there."""
        with suppress(HostLocked):
            return guess_id is not None and self._run("DELETE FROM guesses WHERE id = ?", (guess_id,)).rowcount == 1
        return False

    def lost_guesses(self) -> list[tuple[int, str]]:
        """Return the guesses of processes that have ended, or that have not settled them in time. Takes the lock."""
        with self.locked():
            found = self._connection.execute("SELECT id, rows, owner, since FROM guesses").fetchall()
        now_s = self.monotonic()
        lost = [each for each in found if not 0 <= now_s - each[3] <= 2 * CHECK_S or has_ended(each[2])]
        return [(guess_id, rows) for guess_id, rows, *_ in lost]

    def ask(self, name: str, due_s: float) -> None:
        """Note a request that is counted nowhere, so that the next cycle looks at the document; unless it is locked."""
        asked = "UPDATE rows SET is_asked = 1, due = min(due, ?), change = change + 1 WHERE name = ?"
        with suppress(sqlite3.Error):
            self._connection.execute(asked, (due_s, name))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock for the sync cycle, whose changes apply together or, after an error or Ctrl-C, not at all."""
        deadline_s = time.monotonic() + CYCLE_WAIT_S
        while True:
            with self.locked():
                try:
                    if self._has_begun(is_last_try=time.monotonic() >= deadline_s):
                        yield
                        self._connection.execute("COMMIT")
                        return
                except BaseException:
                    self._connection.rollback()
                    raise
            nap()  # with the lock free for requests

    @contextmanager
    def change(self, progress: int | None, clock: str | None) -> Iterator[None]:
        """Hold the lock for the process that synchronises the rows. Raises ``TermOver`` if it is another one by now.

        ``progress`` is how far the state of the store has come that the changes go by, and ``clock`` the measurement.
        """
        try:
            with self.transaction():
                self.term.keep(self._connection, self.monotonic(), progress, clock)
                yield
        except TermOver:
            self.wake()  # the thread that waits must not take what others ring for
            raise

    def _has_begun(self, *, is_last_try: bool) -> bool:
        """Begin a transaction, and return False if another process has the file's lock."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if is_last_try or not is_busy(exc):
                raise
            return False
        return True

    def load(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return ``change`` and ``SYNC_COLUMNS`` of the rows that exist, in the order of the names."""
        marks = ", ".join("?" * len(names))
        selected = f"SELECT change, {_OF_SYNC} FROM rows WHERE name IN ({marks})"
        rows = {row[1]: row for row in self._connection.execute(selected, names)}
        return [rows[name] for name in names if name in rows]

    def changes(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Return the rows that exist, each with the number of its last change."""
        marks = ", ".join("?" * len(names))
        return self._connection.execute(f"SELECT name, change FROM rows WHERE name IN ({marks})", names).fetchall()

    def store(self, columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write some columns of rows that exist: the name of each, and its values."""
        assigned = ", ".join(f"{column} = ?{place}" for place, column in enumerate(columns, start=2))
        self._connection.executemany(f"UPDATE rows SET {assigned}, change = change + 1 WHERE name = ?1", rows)

    def delete(self, names: Iterable[str]) -> None:
        self._connection.executemany("DELETE FROM rows WHERE name = ?", ((name,) for name in names))

    def due_names(self, until_s: float, *, hits_until_s: float) -> list[str]:
        """Return the rows that are due, those with hits also if they are due later."""
        taken = "SELECT name FROM rows WHERE due <= ? AND (due <= ? OR unsent IS NOT NULL) ORDER BY due"
        return self._names(taken, max(until_s, hits_until_s), until_s)

    def unsent_names(self) -> list[str]:
        """Return the rows with hits that no document is known to hold. Looks at all rows."""
        return self._names("SELECT name FROM rows WHERE unsent IS NOT NULL OR attempt IS NOT NULL")

    def urgent_names(self, until_s: float) -> list[str]:
        """Return the rows that are to be synchronised at once. A row that becomes urgent later wakes ``wait`` again."""
        if self.term.is_held:
            self._bell.silence()
        return self._names("SELECT name FROM rows WHERE urgent <= ? ORDER BY urgent", until_s)

    def next_s(self, column: str) -> float:
        """Return the earliest time in a column, infinity without one. Takes the lock."""
        with self.locked():
            found = self._connection.execute(f"SELECT min({column}) FROM rows WHERE {column} IS NOT NULL").fetchone()
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
            with self.locked():
                found = self._connection.execute(part, (*last, until_s, LISTED)).fetchall()
            if not found:
                return
            last = found[-1][:2]
            yield [name for *_, name in found]

    def key_count(self) -> int:
        count: int = self._connection.execute("SELECT key_count FROM host").fetchone()[0]
        return count

    def excess_count(self) -> int:
        """Return the number of rows to forget, to make room for new ones."""
        count = self.key_count()
        if self.is_nearly_full:
            return count - int(count * ROOMY_RATIO)
        return 0 if count < self.max_keys * FEWEST_FREE else count - int(self.max_keys * ROOMY_RATIO)

    def count_waiting(self, now_s: float, until_s: float) -> int:
        """Count the rows whose hits wait for a later cycle."""
        waiting = "SELECT 1 FROM rows WHERE due > ? AND due <= ? AND unsent IS NOT NULL LIMIT ?"
        counted = f"SELECT count(*) FROM ({waiting})"
        self.waiting_count = self._connection.execute(counted, (now_s, until_s, MAX_WAITING)).fetchone()[0]
        return self.waiting_count

    def end_waiting(self, now_s: float, until_s: float) -> None:
        """Have the next cycle take the rows whose hits wait. Takes the lock, several times if there are many."""
        waiting = "SELECT rowid FROM rows WHERE due > ? AND due <= ? AND unsent IS NOT NULL LIMIT ?"
        ended = f"UPDATE rows SET due = ?, change = change + 1 WHERE rowid IN ({waiting})"
        count = LISTED
        while count == LISTED:
            with self.transaction():
                count = self._connection.execute(ended, (now_s, now_s, until_s, LISTED)).rowcount

    def _names(self, statement: str, *values: float) -> list[str]:
        return [name for (name,) in self._connection.execute(statement, values)]

    def wait(self, timeout_s: float | None) -> None:
        """Block until a row becomes urgent, ``wake`` is called, or the time is over. Takes no lock.

        While another process synchronises the rows, only ``wake`` ends it.
        """
        self._bell.wait(timeout_s, hears_others=self.term.is_held)

    def wake(self) -> None:
        """End the waiting of another thread. Takes no lock."""
        self._bell.ring()


@lru_cache(maxsize=100)
def _update(columns: tuple[tuple[str, ...], ...]) -> str:
    """Return the statement for rows with these new values each. Its arguments are name, change and values by row."""
    cases: dict[str, str] = {}  # by column
    names, unchanged, place = [], [], 1
    for of_row in columns:
        names.append(f"?{place}")
        unchanged.append(f"(SELECT change FROM rows WHERE name = ?{place}) = ?{place + 1}")
        for value_place, column in enumerate(of_row, start=place + 2):
            cases[column] = cases.get(column, "") + f" WHEN ?{place} THEN ?{value_place}"
        place += 2 + len(of_row)
    if len(columns) == 1:
        assigned = ", ".join(f"{column} = ?{value_place}" for value_place, column in enumerate(cases, start=3))
        concerned = "name = ?1 AND change = ?2"
    else:
        assigned = ", ".join(f"{column} = CASE name{case} ELSE {column} END" for column, case in cases.items())
        concerned = f"name IN ({', '.join(names)}) AND {' AND '.join(unchanged)}"
    return f"UPDATE rows SET {assigned}, is_asked = 1, change = change + 1 WHERE {concerned}"
