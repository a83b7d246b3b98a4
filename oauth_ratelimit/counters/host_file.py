"""The file of a host table: how it is opened, checked and put aside.

SQLite's locks belong to a process and a file, so the file is never opened past SQLite, and a connection never crosses a
fork: SQLite in a child would take its parent's locks for its own, and take none.
"""

import fcntl
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from urllib.parse import quote

from oauth_ratelimit.counters.bell import Bell
from oauth_ratelimit.counters.host_place import (
    LAYOUT,
    LOCK,
    SHM,
    WAL,
    FileId,
    HostPlace,
    Membership,
    UnusableFile,
    boot_id,
    check_files,
    id_at,
    lock,
)
from oauth_ratelimit.counters.schema import AFTER_BOOT, SCHEMA, code_of, is_busy, nap, patiently
from oauth_ratelimit.counters.term import damage
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

FREE_S = 0.03  # longest wait of a process that finds the file ready: another one may be stopped while it opens it
CLOSING_S = 0.2  # longest wait for a process that is about to have closed the file, and has removed its log already
OPENING_S = 0.5  # longest wait for other processes that open the file: who gives up counts alone for a cycle
FIRST_PAUSE_S = 2.0  # before a file is opened that has failed again when it had just been: it cannot be written
SPELL_S = 60.0  # longest such pause, and time of use after which it begins anew
ROOM = 8 * 2**20  # bytes that must be free before a file that was full is used again; a quarter if there are few
GROWTH_RATIO = 1 / 4  # of the file: so much room is kept for the time until the next cycle
MAX_LOG_PAGES = 1000  # of the write-ahead log, from which on a request checkpoints: cycles are too slow
MAX_LOG_SIZE = 4096 * MAX_LOG_PAGES  # to which it is cut when it is begun anew
ENDLESS_LOG_SIZE = 16 * MAX_LOG_SIZE  # from which on it has to be begun anew, unless no checkpoint gets on
STUCK_S = 10.0  # after which a file is not used any more whose lock is taken, or whose log cannot be begun anew
LOG_REMOVED = "its log or index was removed while processes counted in it"
LOG_ENDLESS = "its log grows for ever: a process was probably stopped while it read the file"
ALONE = "this process counts alone: each such process admits the limits once more"


class OpenedByAnother(UnusableFile):
    """Another process makes, checks or replaces the file."""


class FileConnection(sqlite3.Connection):
    """Connection to a file."""

    path: str
    file_id: FileId
    log_ids: tuple[FileId | None, ...]  # of the log and its index: who opens others does not share the lock
    process_id: int  # that has opened it
    bell: Bell

    def close(self) -> None:
        super().close()
        self.bell.close()
        _connections.discard(self)  # a child that is forked from now on may open the file


_connections: "weakref.WeakSet[FileConnection]" = weakref.WeakSet()  # those inherited from a parent included


class HostFile:
    """A file that processes of one user on one machine count in.

    ``problem`` is why it is not used, None while it is. ``opening`` is held by a thread that opens it beside requests,
    and over a fork. ``later`` has something called once no lock is held.
    """

    def __init__(self, place: HostPlace, later: Callable[[Callable[[], object]], None]) -> None:
        self.path = place.path
        self.problem: str | None = None
        self.opening = threading.Lock()
        self._later = later
        self._identity = place.identity
        self.membership = Membership(place)
        self._damaged: tuple[FileId, str] | None = None  # to be put aside before the path is opened again; the reason
        self._was_full = False
        self._checkpointed = (-1, 0.0)  # pages of a large log that are in the file, and since when it is so many
        self._reason: str | None = None  # the problem that was logged last, until the file is used for good
        self._used_s = -inf  # time at which it was opened after a problem
        self._pause_s = 0.0  # for which it was not tried after the last failure; twice as long after the next one
        self._retry_s = -inf  # end of it
        self._given_up: FileId | None = None  # a file that was used and may have hits that were not sent

    def open(self, *, was_stuck: bool = False) -> FileConnection | None:
        """Return a connection, None if the file cannot be used, which is logged once.

        It waits for other processes that open it, too, but not for one that writes to it. A file that was given up
        because of its lock is used again when that is free.
        """
        if time.monotonic() < self._retry_s:
            return None
        until_s = time.monotonic() + OPENING_S
        try:
            self.membership = self.membership.join(until_s)
            connection, self._damaged = self._connect(until_s), None
            try:
                if self._was_full:  # where one row fits the next one may not, and the counts would begin anew each time
                    self._check_room(connection)
                if was_stuck:
                    _check_free(connection)
            except BaseException:
                connection.close()
                raise
        except (UnusableFile, OSError, sqlite3.Error) as exc:
            self.note_problem(exc)
            return None
        if self.problem is not None:
            self.problem = self._given_up = None
            self._used_s = time.monotonic()
        self._note_used()
        return connection

    def _note_used(self) -> None:
        """Log that the file is used again, after it has been for as long as the last pause."""
        if self._reason is not None and time.monotonic() - self._used_s >= self._pause_s:
            self._later(partial(log.info, "host_file_used", path=self.path, former_problem=self._reason))
            self._reason = None

    def _check_room(self, connection: FileConnection) -> None:
        """Raise ``UnusableFile`` if the file system is nearly full, but for room in the file itself."""
        free, total = _space(self.path)
        if free + _size(connection)[1] < min(ROOM, total // 4):
            raise UnusableFile("its file system is full")
        self._was_full = False

    def is_nearly_full(self, connection: FileConnection) -> bool:
        """Return whether new rows may fill the file system before rows are forgotten.

        Not if others have filled it: without room for new rows nobody would be limited, who counts alone is.
        """
        size, unused = _size(connection)
        with suppress(OSError):  # a file that was removed grows no more
            log_size = Path(self.path + WAL).stat().st_size
            free = _space(self.path)[0] + unused
            needed = max(0, MAX_LOG_SIZE - log_size) + GROWTH_RATIO * size
            return bool(free < needed < size)
        return False

    def open_given_up(self) -> FileConnection | None:
        """Return a connection to look at a file that was given up after an error, if no other process uses it."""
        if self._given_up is None or self._given_up != id_at(self.path) or not self.is_last():
            return None
        connection = sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True, factory=FileConnection)
        connection.path, connection.file_id, connection.process_id = self.path, self._given_up, os.getpid()
        connection.bell = Bell()
        return connection

    def note_problem(self, exc: Exception, connection: FileConnection | None = None) -> None:
        """Log why the file is not used, once for each reason."""
        if connection is not None:
            self._given_up = connection.file_id
            if code_of(exc) == sqlite3.SQLITE_CORRUPT:
                self._damaged = connection.file_id, "it is damaged"
            self._was_full = code_of(exc) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
            now_s = time.monotonic()
            is_again = now_s - self._used_s < SPELL_S
            self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, SPELL_S) if is_again else 0.0
            self._retry_s = now_s + self._pause_s
        reason = f"{exc}" if isinstance(exc, UnusableFile) else f"{type(exc).__name__}: {exc}"
        if reason != self._reason:
            self._later(partial(log.error, "host_file_unusable", path=self.path, reason=reason, effect=ALONE))
        self.problem = self._reason = reason

    def leave(self) -> None:
        """Let other processes remove the file, if no configuration names it."""
        self.membership.leave()

    def stay(self, connection: FileConnection) -> bool:
        """Show that the file is in use, with each cycle. Return False if other processes count in another one by now.

        Without its log they would, so that all have to meet in a new file. Raises ``UnusableFile`` if the file is
        locked, and ``sqlite3.Error`` if it is damaged.
        """
        if not self.is_file_of(connection):
            return False
        if connection.log_ids != self._log_ids():
            self._damaged = connection.file_id, LOG_REMOVED
            return False
        self.membership.stay()
        self._note_used()
        _check_free(connection)
        if self._has_endless_log(connection):
            self._damaged = connection.file_id, LOG_ENDLESS
        return self._damaged is None

    def _has_endless_log(self, connection: FileConnection) -> bool:
        """Return whether no checkpoint has got on in a large log for too long, so that it only grows."""
        former, self._checkpointed = self._checkpointed, (-1, 0.0)
        with suppress(OSError):  # it was removed just now
            if Path(self.path + WAL).stat().st_size > ENDLESS_LOG_SIZE:
                _, count, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                now_s = time.monotonic()
                self._checkpointed = former if done == former[0] else (done, now_s)
                return bool(done < count and now_s - self._checkpointed[1] >= STUCK_S)
        return False

    def is_last(self) -> bool:
        """Return True if no other process uses the file that runs. Of processes that end, exactly one gets True."""
        with suppress(UnusableFile, OSError), self._alone(time.monotonic() + OPENING_S):
            return self.membership.is_last()
        return self.membership.is_last()

    def leave_to_parent(self) -> None:
        """In a forked child, forget what the parent has open."""
        self.opening = threading.Lock()
        self.membership.forget()

    def is_file_of(self, connection: FileConnection) -> bool:
        """Return True unless the path names another file by now, or none."""
        return id_at(self.path) == connection.file_id

    @contextmanager
    def _alone(self, until_s: float) -> Iterator[None]:
        """Let one process at a time make, check or replace the file."""
        check_files(self.path, *(self.path + suffix for suffix in (LOCK, WAL, SHM)))
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path + LOCK, flags, 0o600)
        try:
            while not lock(descriptor):
                if time.monotonic() > until_s:
                    raise OpenedByAnother("another process has been opening it for too long")
                nap()
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has it open, too
            os.close(descriptor)

    def _connect(self, until_s: float) -> FileConnection:
        """Return a connection. Who waits for others tries again and again whether the file is ready by now."""
        while True:
            try:
                with self._alone(min(until_s, time.monotonic() + FREE_S)):
                    return self._connect_alone(until_s)
            except OpenedByAnother:
                with suppress(UnusableFile, OSError, sqlite3.Error):
                    return self._connect_to_file(-inf, is_alone=False)
                if time.monotonic() > until_s:
                    raise

    def _connect_alone(self, until_s: float) -> FileConnection:
        file_id = id_at(self.path)
        try:
            return self._connect_to_file(until_s)
        except sqlite3.DatabaseError as exc:
            if code_of(exc) != sqlite3.SQLITE_CORRUPT:  # a file that is no database is not ours to rename
                raise
            if file_id == id_at(self.path):
                self._put_aside(str(exc))
            return self._connect_to_file(until_s)

    def _connect_to_file(self, until_s: float, *, is_alone: bool = True) -> FileConnection:
        """Return a connection. Raises ``UnusableFile`` without ``is_alone`` if the file is not ready."""
        is_new = is_alone and id_at(self.path) is None
        if is_new:
            for suffix in (WAL, SHM):  # of a file that was removed
                Path(self.path + suffix).unlink(missing_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        file_id = id_at(self.path)
        if file_id is None:
            raise UnusableFile("it is not there")
        if any(each.file_id == file_id and each.process_id != os.getpid() for each in _connections):
            raise UnusableFile("the process that this one was forked from had it open")
        if self._damaged is not None and self._damaged[0] == file_id:
            raise damage(self._damaged[1])
        if not is_new and self._has_lost_log(min(until_s, time.monotonic() + CLOSING_S)):
            raise damage(LOG_REMOVED)
        connection = FileConnection(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        connection.text_factory = _text
        connection.path, connection.file_id, connection.process_id = self.path, file_id, os.getpid()
        connection.bell = Bell()
        try:
            connection.bell = Bell(self.path)
            self._prepare(connection, until_s, is_alone=is_alone)
            check_files(self.path, self.path + WAL, self.path + SHM)  # SQLite has made them, or found planted ones
            if id_at(self.path) != file_id:
                raise UnusableFile("it was replaced while it was opened")
            connection.log_ids = self._log_ids()
        except BaseException:
            connection.close()
            raise
        _connections.add(connection)
        return connection

    def _has_lost_log(self, until_s: float) -> bool:
        """Return whether a process has our file open, but its log or index is not there.

        It could be one that is about to have opened or closed it.
        """
        while None in self._log_ids():
            with closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as connection:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # it needs no index
                try:
                    connection.execute("BEGIN EXCLUSIVE")
                except sqlite3.OperationalError as exc:
                    if not is_busy(exc):
                        raise
                else:
                    return False
            if time.monotonic() > until_s:
                return self._is_ours()
            nap()
        return False

    def _is_ours(self) -> bool:
        """Return whether a file whose log was removed is not another service's, nor another application's."""
        with closing(sqlite3.connect(f"file:{quote(self.path)}?immutable=1", uri=True)) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return connection.execute("SELECT identity FROM host").fetchone() in ((self._identity,), (None,))
        return os.lstat(self.path).st_size > 0  # all that it holds was in the log

    def _log_ids(self) -> tuple[FileId | None, ...]:
        return tuple(id_at(self.path + suffix) for suffix in (WAL, SHM))

    def _prepare(self, connection: sqlite3.Connection, until_s: float, *, is_alone: bool) -> None:
        """Create the tables if there are none, check whose they are, and write to them unless another process does."""
        patiently(connection, "PRAGMA synchronous = OFF", until_s)
        if patiently(connection, f"PRAGMA journal_mode{' = WAL' if is_alone else ''}", until_s) != "wal":
            raise UnusableFile("its file system has no shared memory")
        connection.execute(f"PRAGMA wal_autocheckpoint = {MAX_LOG_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_SIZE}")
        if is_alone and not patiently(connection, "SELECT count(*) FROM sqlite_master", until_s):
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
        if all(self._checked(connection)):  # one statement: a process that is stopped between two would hold up others
            with suppress(UnusableFile):
                patiently(connection, "UPDATE host SET user_id = user_id", -inf)
            return
        patiently(connection, "BEGIN IMMEDIATE", until_s)
        _, is_of_boot = self._checked(connection)  # again: without ``is_alone`` another process may have been faster
        for statement in () if is_of_boot else AFTER_BOOT:
            connection.execute(statement)
        owned = "UPDATE host SET user_id = ?, boot_id = ?, identity = ?"
        connection.execute(owned, (os.geteuid(), boot_id(), self._identity))
        connection.execute("COMMIT")

    def _checked(self, connection: sqlite3.Connection) -> tuple[bool, bool]:
        """Return whether the file was used, and since the machine started. Raises ``UnusableFile`` if by others."""
        try:
            owner = connection.execute("SELECT layout, user_id, boot_id, identity FROM host").fetchone()
        except sqlite3.OperationalError as exc:
            if code_of(exc) != sqlite3.SQLITE_ERROR:
                raise
            owner = None
        layout, user_id, former_boot_id, identity = owner or (None, None, None, None)
        if layout != LAYOUT:
            raise UnusableFile(f"its layout is {layout or 'unknown'}, this version needs {LAYOUT}; name another file")
        if user_id not in (None, os.geteuid()):
            raise UnusableFile(f"it was made by user {user_id}")
        if user_id is not None and identity != self._identity:
            raise UnusableFile("it is another service's")
        return user_id is not None, former_boot_id == boot_id()

    def _put_aside(self, reason: str) -> None:
        """Rename a damaged file. Processes that have it open find out with their next cycle."""
        for suffix in ("", SHM) if reason == LOG_ENDLESS else ("", WAL, SHM):  # who makes the next file removes it
            with suppress(FileNotFoundError):
                Path(self.path + suffix).replace(f"{self.path}.damaged{suffix}")
        facts = {"path": self.path, "reason": reason, "renamed_to": f"{self.path}.damaged"}
        self._later(partial(log.error, "host_file_damaged", **facts))


def _text(stored: bytes) -> str:
    """Return a text of a row. One that is damaged is found where it is used."""
    return stored.decode(errors="replace")


def _check_free(connection: FileConnection) -> None:
    """Raise ``UnusableFile`` if another process holds the lock for longer than one that counts a request."""
    patiently(connection, "BEGIN IMMEDIATE", time.monotonic() + FREE_S)
    connection.execute("COMMIT")


def _size(connection: FileConnection) -> tuple[int, int]:
    """Return the bytes of a file, and those of them that no row uses."""
    names = "page_count", "freelist_count", "page_size"
    count, unused, page_size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return count * page_size, unused * page_size


def _space(path: str) -> tuple[float, float]:
    """Return the bytes of a file system that are free, and all; infinite without a limit, as of a tmpfs of size 0."""
    found = os.statvfs(Path(path).parent)
    return (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize) if found.f_blocks else (inf, inf)
