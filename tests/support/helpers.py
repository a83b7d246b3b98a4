"""A clock, a way to wait, and MongoDB URIs for tests."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

Seen = TypeVar("Seen")


class Clock:
    """A clock that a test moves. Callable like ``time.time``.

    It starts in the future, so that MongoDB does not expire what a test has just written.
    """

    def __init__(self, now_s: float = 2_000_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Move the clock."""
        self.now_s += duration_s


def wait_until(
    predicate: Callable[[], Seen | None],
    what: str,
    timeout_s: float = 60.0,
    *,
    error: Callable[[str], Exception] = AssertionError,
) -> Seen:
    """Return the predicate's value as soon as it is true; fail when the time is up.

    Args:
        predicate: Called every few milliseconds. It raises if waiting is in vain.
        what: The awaited state, for the message.
        timeout_s: Seconds of real time, enough for a busy machine.
        error: Returns the exception to raise when the time is up.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() > deadline_s:
            raise error(f"not within {timeout_s:g} s: {what}")
        # The state changes in another thread or process, which cannot wake this one.
        time.sleep(0.005)


def with_database(uri: str, name: str) -> str:
    """Return the MongoDB URI with another database."""
    return urlunsplit(urlsplit(uri)._replace(path=f"/{name}"))


def patient(uri: str) -> str:
    """Return the MongoDB URI with long timeouts, for a busy machine."""
    parts = urlsplit(uri)
    waits = "&".join(f"{name}TimeoutMS=60000" for name in ("connect", "serverSelection", "socket"))
    return urlunsplit(parts._replace(query=f"{parts.query}&{waits}".lstrip("&")))


def is_running(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
