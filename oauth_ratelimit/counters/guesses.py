"""Guesses: passwords and secrets that are being checked, so that others settle those of a process that was killed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from oauth_ratelimit.counters.host import Host, HostLocked
from oauth_ratelimit.counters.table import DAMAGES
from oauth_ratelimit.process.identity import has_ended

CHECK_S = 60.0  # longest time that a guess is expected to be checked; one that is lost is released after it


class Guesses:
    """Guesses of all processes of a host. All methods need its lock, but ``lost``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def note(self, rows: Sequence[tuple[str, Mapping[int, int]]], *, former_id: int | None = None) -> int | None:
        """Note where a guess is going to count, and return its number. None if nobody shares the rows, or without lock.

        For each row these are the start of a frame for each series, by its number. A former note of it is forgotten.
        """
        noted = "INSERT INTO guesses (owner, since, rows) VALUES (?, ?, ?)"
        if former_id is not None:
            self.forget(former_id)
        with suppress(HostLocked):
            if self._host.is_file and rows:
                places = json.dumps([(name, list(starts.items())) for name, starts in rows])
                return self._host.run(noted, (self._host.identity, self._host.monotonic(), places)).lastrowid
        return None

    def forget(self, number: int, owner: str | None = None) -> bool:
        """Forget a guess that a process has noted, by default this one, and return whether it was there."""
        noted = "DELETE FROM guesses WHERE id = ? AND owner = ?"  # in a new file the number may be another guess's
        with suppress(HostLocked):
            return self._host.run(noted, (number, owner or self._host.identity)).rowcount == 1
        return False

    def lost(self) -> list[tuple[int, str, str]]:
        """Return the guesses of processes that have ended, or that have not settled them in time. Takes the lock."""
        with self._host.locked():
            found = self._host.run("SELECT id, owner, rows, since FROM guesses", ()).fetchall()
        now_s = self._host.monotonic()
        return [each[:3] for each in found if _is_lost(each[1], each[3], now_s)]


def _is_lost(owner: str, since_s: float, now_s: float) -> bool:
    try:
        return not 0 <= now_s - since_s <= 2 * CHECK_S or has_ended(owner)
    except (AttributeError, *DAMAGES):
        return True
