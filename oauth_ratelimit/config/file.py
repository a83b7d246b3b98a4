"""The content of the configuration file, which may be huge, missing or no file at all."""

import errno
import os
import stat
from pathlib import Path

from oauth_ratelimit.config.errors import without_address
from oauth_ratelimit.errors import ConfigError

MAX_FILE_BYTES = 1_000_000  # some ten thousand clients; YAML takes seconds to parse beyond that

ABSOLUTE = "an absolute one such as /etc/myauth/ratelimit.yaml works from everywhere"

Stamp = tuple[int, ...]
"""What the status of a file says. It differs if the file has changed."""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp in a file's status."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, Stamp]:
    """Return a file's content and its stamp.

    Raises ``ConfigError`` if it cannot be read, is no regular file or is too large.
    """
    try:
        return _read(path)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
    name = without_address(os.fspath(path))  # an address may be given in place of a path
    where = "" if Path(name).is_absolute() else f"; the path is relative to {Path.cwd()}, {ABSOLUTE}"
    raise ConfigError([f"cannot be read: {reason}{where}"], source=name)


def _read(path: str | os.PathLike[str]) -> tuple[bytes, Stamp]:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES} bytes")
    return content, stamp_of(status)


def permission_warning(path: str | os.PathLike[str]) -> str | None:
    """Return a warning if every user of the machine may change a file's content, else None."""
    try:
        is_open = Path(path).stat().st_mode & stat.S_IWOTH
    except (OSError, ValueError):
        return None
    return "any user of this machine may change this file, and so all limits; chmod o-w" if is_open else None
