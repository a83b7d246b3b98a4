"""The host: the workers that count in the same rows, and this process's connection to them.

The rows are in memory, or in a file that several processes count in: each statement of a request takes the file's lock
for itself, the sync cycle changes rows in transactions. One of the processes at a time synchronises the rows.
"""

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any

from oauth_ratelimit.counters.bell import Bell
from oauth_ratelimit.counters.host_file import STUCK_S, FileConnection, HostFile
from oauth_ratelimit.counters.host_place import FileId, HostPlace, Membership, UnusableFile
from oauth_ratelimit.counters.schema import is_busy, nap, open_in_memory
from oauth_ratelimit.counters.term import Term, TermOver
from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.process.fork import hold_over_fork
from oauth_ratelimit.process.identity import identity_of
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

LOCK_WAIT_S = 0.05  # longest wait of a request for the file's lock, that for other threads included
CYCLE_WAIT_S = 1.0  # longest wait of the sync cycle
LOST = "hits in it that were not sent are lost"

_inherited: list[sqlite3.Connection] = []  # of parent processes: closing one could wait for a thread that is not here


class HostLocked(Exception):
    """Another process has held the file's lock for too long."""


class Host:
    """Connection to the rows of this process, or of all processes that have one path.

    ``term`` is this process's part in the election of the one that synchronises the rows, and their name in documents.

    Requests hold the lock with ``locked`` or ``own_lock``, the sync cycle with ``change``. A file that cannot be used
    is replaced by memory; no method raises for it. ``run`` raises ``HostLocked``, and ``change`` raises ``TermOver``.

    A process that synchronises the rows is given up after ``patience_s`` without a sign of it. ``monotonic`` returns
    the time of a clock that is never set, in seconds.
    """

    def __init__(
        self,
        *,
        place: HostPlace | None = None,
        patience_s: float = inf,
        monotonic: Callable[[], float] = uptime_s,
    ) -> None:
        self._patience_s = patience_s
        self.max_writer_count = 1  # the largest number of instances seen on one key, this one included
        self.monotonic = monotonic
        self.lock_timeout_count = 0  # requests that did not get the file's lock, since the last cycle
        self._file = None if place is None else HostFile(place, self.later)
        self._membership: Membership | None = None  # of a file that was left
        self._start_closed()
        if self._file is not None:  # before the connection's lock, as in ``follow_file``
            hold_over_fork(self._file, lambda file: file.opening)
        hold_over_fork(self, lambda host: host.lock, Host._close_before_fork)

    def _start_closed(self) -> None:
        self.lock = threading.Lock()  # guards the connection, and what is postponed
        self._later: deque[Callable[[], object]] = deque()  # calls once the lock is free
        self.postponed: deque[Any] = deque()  # what requests could not write, because the file was locked
        self.term, self._bell = Term(), Bell()
        self._is_open = False
        self.connection: sqlite3.Connection
        self._connected: FileConnection | None = None  # the connection, if it is one to the file
        self._term_of: FileId | None = None  # the file that the term is of; None for memory
        self._taken_s = 0.0  # time from which on requests may wait for the file's lock: opening it may take longer
        self._until_s = 0.0  # time until which the request that has the lock waits for that of the file
        self.is_nearly_full = False  # the file system has no room for further rows
        self._stuck_since_s: float | None = None  # cycles have found the file's lock taken, and never free since
        self._was_stuck = False  # the file was given up because of its lock
        self.identity = identity_of()  # of this process
        self._process_id = os.getpid()  # last: other threads go by it

    @property
    def problem(self) -> str | None:
        """Reason that the file is not used; None while it is, or without one."""
        return None if self._file is None else self._file.problem

    @property
    def is_file(self) -> bool:
        """True while the rows are in a file."""
        return self._connected is not None

    @property
    def name(self) -> str | None:
        """Name of the rows that several processes count in, None while they are in memory."""
        return self.term.writer or None if self.is_file else None

    @property
    def clock(self) -> str | None:
        """The host's last measurement of the store's clock, at the last call of ``lead`` or ``read_clock``."""
        return None if self._file is None else self.term.clock  # that of rows that were left may be old

    def read_clock(self) -> str | None:
        """Return the host's last measurement of the store's clock, None without one. Takes the lock."""
        with self.locked(), suppress(HostLocked):
            self.term.clock = (self.run("SELECT clock FROM host", ()).fetchone() or (None,))[0]
        return self.clock

    def note_overrides(self, packed: bytes) -> bool:
        """Keep the present overrides for processes that start later; return False without the file's lock.

        Takes the lock.
        """
        with self.locked(), suppress(HostLocked):
            self.run("UPDATE host SET overrides = ?, overrides_read = ?", (packed, self.monotonic()))
            return True
        return False

    def overrides(self) -> tuple[bytes, float] | None:
        """Return the overrides that a process of the host has read last, and the seconds since. Takes the lock."""
        with self.locked(), suppress(HostLocked):
            found = self.run("SELECT overrides, overrides_read FROM host", ()).fetchone()
            if found and found[1] is not None:
                return found[0], self.monotonic() - found[1]
        return None

    def own_lock(self) -> threading.Lock:
        """Return the lock, in a forked child a new one. With ``begin`` and ``call_later`` it does what ``locked`` does.

        That costs no generator, and a lock's own block releases it whatever Ctrl-C interrupts.
        """
        if self._process_id != os.getpid():
            self.leave_to_parent()
        return self.lock

    @contextmanager
    def locked(self, wait_s: float | None = None) -> Iterator[None]:
        """Hold the lock for a request, which waits for it and the file's lock as long as this at most."""
        begun_s = time.monotonic()
        with self.own_lock():
            self.begin(begun_s, wait_s)
            yield
        self.call_later()

    def begin(self, begun_s: float, wait_s: float | None = None) -> None:
        """Begin a request that has begun to wait at a time of ``time.monotonic``. The lock is held."""
        if not self._is_open:
            self._take(None if self._file is None else self._file.open())
        self._until_s = max(begun_s, self._taken_s) + (LOCK_WAIT_S if wait_s is None else wait_s)
        if self.connection.in_transaction:  # of a cycle that Ctrl-C has ended between two instructions
            self.connection.rollback()

    def later(self, call: Callable[[], object]) -> None:
        """Have something called once the lock is free, such as a log, which may block."""
        self._later.append(call)

    def call_later(self) -> None:
        """Call what was to be called once the lock is free."""
        while self._later:
            with suppress(IndexError):  # another thread was faster
                self._later.popleft()()

    def spare_s(self) -> float:
        """Return the seconds for which the request may still wait for the file's lock."""
        return self._until_s - time.monotonic()

    def run(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """Run a statement of a request. After an error of the file it runs in memory."""
        while True:
            try:
                return self.connection.execute(statement, values)
            except sqlite3.Error as exc:
                if self._connected is None:
                    raise
                if not is_busy(exc):
                    self.count_alone(exc)
                elif self.spare_s() <= 0:
                    raise HostLocked from None
                else:
                    nap()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the lock for the sync cycle, whose changes apply together or, after an error or Ctrl-C, not at all."""
        deadline_s = time.monotonic() + CYCLE_WAIT_S
        while True:
            with self.locked():
                try:
                    self.connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as exc:
                    if time.monotonic() >= deadline_s or not is_busy(exc):
                        raise
                else:
                    try:
                        yield
                        self.connection.execute("COMMIT")
                    except BaseException:
                        self.connection.rollback()
                        raise
                    return
            nap()  # with the lock free for requests

    @contextmanager
    def change(self, progress: int | None, clock: str | None) -> Iterator[None]:
        """Hold the lock for the process that synchronises the rows. Raises ``TermOver`` if it is another one by now.

        ``progress`` is how far the state of the store has come that the changes go by, and ``clock`` the measurement.
        """
        try:
            with self.transaction():
                self.term.keep(self.connection, self.monotonic(), progress, clock)
                yield
        except TermOver:
            self.wake()  # the thread that waits must not take what others ring for
            raise

    def note_error(self, exc: sqlite3.Error) -> None:
        """Count alone after an error of the file other than its lock, until a cycle can open it. Takes the lock."""
        if self._connected is not None and not is_busy(exc):
            with self.lock:
                self.count_alone(exc)
            self.call_later()

    def count_alone(self, exc: Exception) -> None:
        """Count in memory from now on, because the file cannot be used. The lock is held."""
        if self._file is not None:
            self._file.note_problem(exc, self._connected)
        elif self._connected is not None:
            facts = {"path": self._connected.path, "reason": f"{exc}", "effect": LOST}
            self.later(partial(log.error, "host_file_unusable", **facts))
        self._take(None)

    def lead(self, *, is_alone: bool = False, is_ending: bool = False) -> bool:
        """Synchronise the rows and checkpoint from now on, unless another process does. Return whether this one does.

        With ``is_alone`` no other process is there; with ``is_ending`` this one is about to end. Takes the lock.
        """
        was_held = self.term.is_held
        try:
            # At first without the file's lock: most processes look at the term with each urgent key.
            if self.may_lead(is_alone=is_alone, is_ending=is_ending):
                with self.transaction():
                    self._claim(is_alone=is_alone, is_ending=is_ending, only_looks=False)
            if self.term.is_held and self._connected is not None:
                with self.locked():
                    self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except BaseException as exc:
            self.term.is_held = False  # the claim may be rolled back, and another process may make it
            if is_busy(exc):
                return False
            raise
        self.max_writer_count = self.term.writer_count
        if self.term.is_held is not was_held:
            self.wake()  # the thread that waits listens to others now, or not any more
        return self.term.is_held

    def may_lead(self, *, is_alone: bool = False, is_ending: bool = False) -> bool:
        """Return whether no other process synchronises the rows. Takes the lock."""
        with self.locked():
            return self._claim(is_alone=is_alone, is_ending=is_ending, only_looks=True)

    def _claim(self, *, is_alone: bool, is_ending: bool, only_looks: bool) -> bool:
        return self.term.claim(
            self.connection,
            self.monotonic(),
            patience_s=-inf if is_alone else self._patience_s,
            writer_count=self.max_writer_count,
            is_ending=is_ending,
            only_looks=only_looks,
        )

    def is_last(self) -> bool:
        """Return True if no other process counts in these rows that runs. Of those that end, exactly one gets True."""
        if self._membership is not None:
            return self._membership.is_last()
        return self._connected is None or self._file is None or self._file.is_last()

    def resign(self) -> None:
        """Leave the rows to another process, unless the file cannot be written. Takes the lock."""
        with suppress(sqlite3.Error), self.transaction():
            self.term.resign(self.connection)

    def wait(self, timeout_s: float | None) -> None:
        """Block until a row becomes urgent, ``wake`` is called, or the time is over. Takes no lock.

        While another process synchronises the rows, only ``wake`` ends it.
        """
        self._bell.wait(timeout_s, hears_others=self.term.is_held)

    def clear_wake(self) -> None:
        """Forget that ``wait`` was ended: rows that become urgent from now on end it again. The lock is held."""
        if self.term.is_held:
            self._bell.clear()

    def wake(self) -> None:
        """End the waiting of another thread. Takes no lock."""
        self._bell.ring()

    def close(self) -> None:
        """Close the file, if there is one. Takes the lock."""
        with self.lock:
            self._close_file()
            if self._file is not None:
                self._file.leave()

    def follow_file(self) -> "Host | None":
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
                    left = self._with(self.connection, self._connected)
                    left.term, left._bell, left._term_of = self.term, self._bell, self._term_of
                    left._membership = None if self._connected is None else membership
                    self._connected, self._is_open = None, False
                self._take(connected)
        self.call_later()
        return left

    def given_up(self) -> "Host | None":
        """Return the rows of a file that was given up after an error and that no other process uses, to look at."""
        connection = None
        if self._file is not None and self._connected is None:
            with suppress(OSError):
                connection = self._file.open_given_up()
        return None if connection is None else self._with(connection, connection)

    def _with(self, connection: sqlite3.Connection, connected: FileConnection | None) -> "Host":
        """Return the host of other rows."""
        host = Host(patience_s=self._patience_s, monotonic=self.monotonic)
        host.connection, host._connected, host._is_open = connection, connected, True
        return host

    def _can_stay(self, file: HostFile, connected: FileConnection) -> bool:
        """Return whether the file can still be used."""
        try:
            if not file.stay(connected):
                return False
            self.is_nearly_full = file.is_nearly_full(connected)
        except (UnusableFile, OSError, sqlite3.Error) as exc:
            now_s = time.monotonic()
            self._stuck_since_s = self._stuck_since_s or now_s
            is_locked = isinstance(exc, UnusableFile) or is_busy(exc)
            if is_locked and now_s - self._stuck_since_s < STUCK_S:
                return True
            self._was_stuck = is_locked
            self.count_alone(exc)
            return False
        self._stuck_since_s = None
        return True

    def _take(self, connected: FileConnection | None) -> None:
        """Use a connection to the file, None for memory, in place of the present one."""
        is_in_memory = self._is_open and self._connected is None
        self._bell.ring()  # the thread that waits listens to the other one from now on
        self._close_file()
        if connected is not None:
            if self._term_of != connected.file_id:
                self.term = Term()
            self.connection = self._connected = connected
            self._bell, self._term_of = connected.bell, connected.file_id
        elif not is_in_memory:
            self.connection = open_in_memory()
            self.term, self._bell, self._term_of = Term(), Bell(), None
        self._is_open, self._taken_s, self.is_nearly_full, self._stuck_since_s = True, time.monotonic(), False, None

    def _close_before_fork(self) -> None:
        """Close the file, so that no connection crosses the fork, unless it could not be opened again.

        Then the child keeps the connection and never uses it.
        """
        with suppress(OSError):
            if self._file is not None and self._connected is not None and self._file.is_file_of(self._connected):
                self._close_file()

    def _close_file(self) -> None:
        """Close the file. The next request opens it again."""
        if self._connected is not None:
            self._is_open = False
            with suppress(sqlite3.Error):
                self._connected.close()
            self._connected = None

    def leave_to_parent(self) -> bool:
        """In a forked child, take rows of its own, and return whether it is one. Python may not know of a fork."""
        if self._process_id == os.getpid():
            return False
        if self._is_open:
            _inherited.append(self.connection)
        self._bell.close()
        if self._file is not None:
            self._file.leave_to_parent()
        self._start_closed()
        return True
