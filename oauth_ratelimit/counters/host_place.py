"""The place of a host's file: where a configuration says, or where workers with one parent count for one service.

A worker holds a shared lock on a second file for as long as it uses the first. Locks show whether a file is in use, not
process ids: those of one container mean nothing in the next.
"""

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from oauth_ratelimit.process.identity import has_ended, identity_of

LAYOUT = 6  # of the tables; raised with every change of them
MEMBERS = "-members"
LOCK, WAL, SHM, BELL = "-lock", "-wal", "-shm", "-bell"
FILES = ("", WAL, SHM, LOCK, BELL)
KEPT_S = 600.0  # time for which a file waits for workers: all may be replaced before others have had a request
LEAST_SIZE = 64 * 2**20  # bytes of a file system: a smaller one is soon full of rows and their log
OTHERS = stat.S_IWGRP | stat.S_IWOTH
_IN_MEMORY = "/dev/shm"


FileId = tuple[int, int]
"""Device and inode."""


class UnusableFile(Exception):
    """The file cannot be used. The message is the reason."""


class HostPlace(NamedTuple):
    """Path of a host's file. The file holds ``identity``, and only processes with the same one count in it."""

    path: str
    identity: str
    is_named: bool = False  # True if a configuration names the path, so that the file stays

    def beside(self, suffix: str) -> "HostPlace":
        """Return a place with another name."""
        return self._replace(path=self.path + suffix)


def named_place(path: str, service: Sequence[str]) -> HostPlace:
    """Return the place that a configuration names, for one service."""
    return HostPlace(path, json.dumps(service), is_named=True)


def place_of(service: Sequence[str], *, parent: str) -> HostPlace:
    """Return the place for the processes of a service with this one's user, and a parent of this identity."""
    found = [LAYOUT, boot_id(), parent, os.geteuid(), *service]
    identity = json.dumps(found)
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    bases = filter(None, (_IN_MEMORY, os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()))
    directories = [Path(base) / f"oauth_ratelimit-{os.geteuid()}" for base in bases]
    usable = filter(_is_usable, directories)
    return HostPlace(str(next(usable, directories[-1]) / name), identity)


def boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _is_usable(directory: Path) -> bool:
    """Return whether a directory is ours or can be made, and has room."""
    try:
        check_directory(directory.parent)
        found = os.statvfs(directory.parent)
        if 0 < found.f_blocks * found.f_frsize < LEAST_SIZE:  # 0 if it has no limit
            return False
        return _is_ours(directory) if os.path.lexists(directory) else os.access(directory.parent, os.W_OK | os.X_OK)
    except (OSError, UnusableFile):
        return False


def check_directory(directory: Path) -> None:
    """Raise ``UnusableFile`` if other users can replace files in a directory."""
    found = directory.stat()
    is_open = found.st_mode & OTHERS and not found.st_mode & stat.S_ISVTX
    if is_open or found.st_uid not in (0, os.geteuid()):
        raise UnusableFile("other users can change its directory")


def check_files(path: str, *names: str) -> None:
    """Raise ``UnusableFile`` if another user can replace or change a file, or has planted it."""
    check_directory(Path(path).parent)
    for name in (path, *names):
        with suppress(FileNotFoundError, NotADirectoryError):
            check_file(name, os.lstat(name))


def id_at(path: str) -> FileId | None:
    """Return the file that a path names, None without one."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def check_file(name: str, found: os.stat_result) -> None:
    """Raise ``UnusableFile`` if another user can change a file, or has planted it."""
    if not stat.S_ISREG(found.st_mode):
        raise UnusableFile(f"{name} is not a regular file")
    if found.st_uid != os.geteuid():
        raise UnusableFile(f"{name} belongs to user {found.st_uid}")
    if found.st_mode & OTHERS:
        raise UnusableFile(f"other users can write to {name}")


def _is_ours(directory: Path) -> bool:
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def is_same(descriptor: int, path: str) -> bool:
    """Return whether a path names the file that is open."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock, and return False if another process has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Membership:
    """Lock that says that a process uses a file, so that others neither remove it nor take over what it does."""

    def __init__(self, place: HostPlace) -> None:
        self._place = place
        self._path = place.path
        self._descriptor: int | None = None
        self._close: Callable[[], object] = lambda: None

    def join(self, until_s: float) -> "Membership":
        """Take the lock unless this process has it, and return the membership: a new one if the file was removed.

        In a directory of our own, remove the files that nobody uses. ``until_s`` is when to give up. Raises
        ``UnusableFile`` or ``OSError`` if the directory cannot be used.
        """
        directory = Path(self._path).parent
        if not self._place.is_named:
            with suppress(FileExistsError):
                directory.mkdir(0o700)
            if not _is_ours(directory):
                raise UnusableFile(f"{directory} is not a directory of this user alone")
        if self._descriptor is not None and is_same(self._descriptor, self._path + MEMBERS):
            return self
        joined = self._joined(until_s)
        for members in () if self._place.is_named else directory.glob(f"*{MEMBERS}"):
            with suppress(OSError):
                _remove_if_unused(str(members))
        return joined

    def stay(self) -> None:
        """Show that the files are in use, to who removes those that are old. Called with each cycle."""
        for suffix in (MEMBERS, *FILES) if self._descriptor is not None else ():
            with suppress(OSError):
                os.utime(self._path + suffix, follow_symlinks=False)

    def _joined(self, until_s: float) -> "Membership":
        check_directory(Path(self._path).parent)
        while True:
            joined = Membership(self._place)
            if joined._lock():
                return joined
            joined.forget()
            if time.monotonic() > until_s:
                raise UnusableFile("another process removes it")
            time.sleep(0.001)

    def _lock(self) -> bool:
        """Take the lock, and return False if the file is removed meanwhile."""
        path = self._path + MEMBERS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._close = close = weakref.finalize(self, os.close, descriptor)  # before the lock, in case of Ctrl-C
        close.atexit = False  # the last flush, in another exit handler, needs it
        self._descriptor = descriptor
        check_file(path, os.fstat(descriptor))
        return lock(descriptor, fcntl.LOCK_SH) and is_same(descriptor, path)

    def is_last(self) -> bool:
        """Return True if no other process uses the file but those that are stopped.

        Of processes that end one after the other, exactly one gets True.
        """
        if self._descriptor is None:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        is_last = lock(self._descriptor)
        if is_last:  # others may join meanwhile
            lock(self._descriptor, fcntl.LOCK_SH)
        return is_last or _are_stopped(self._descriptor)

    def leave(self) -> None:
        """Release the lock. The file waits for other processes for a while."""
        self.stay()
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a child that was forked below Python has it open, too
        self.forget()

    def forget(self) -> None:
        """Close what is open. In a forked child this leaves the lock to its parent."""
        self._close()
        self._descriptor = None


def _are_stopped(descriptor: int) -> bool:
    """Return True if all processes that have a lock on a file were stopped by a signal, as far as the system shows."""
    found = os.fstat(descriptor)
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with suppress(OSError):
        locks = map(str.split, Path("/proc/locks").read_text().splitlines())
        holders = [int(each[4]) for each in locks if each[1] == "FLOCK" and each[5] == name]
        return bool(holders) and all(has_ended(identity_of(pid), or_is_stopped=True) for pid in holders)
    return False


def _remove_if_unused(members: str) -> None:
    """Remove a file that no process has used for long enough."""
    descriptor = os.open(members, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_old = time.time() - os.fstat(descriptor).st_mtime >= KEPT_S
        if is_old and lock(descriptor):  # only then: a process that ends would take this one for another worker
            path = members.removesuffix(MEMBERS)
            for each in (path, f"{path}.damaged"):
                for suffix in FILES:
                    Path(each + suffix).unlink(missing_ok=True)
            Path(members).unlink()
    finally:
        os.close(descriptor)
