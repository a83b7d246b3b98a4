"""Guesses: passwords and secrets that are being checked, so that others settle those of a process that was killed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from oauth_ratelimit.counters.host import Host, HostLocked
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

    def forget(self, number: int) -> bool:
        """Forget a guess that was noted, and return whether it was there."""
        with suppress(HostLocked):
            return self._host.run("DELETE FROM guesses WHERE id = ?", (number,)).rowcount == 1
        return False

    def lost(self) -> list[tuple[int, str]]:
        """Return the guesses of processes that have ended, or that have not settled them in time. Takes the lock."""
        with self._host.locked():
            found = self._host.run("SELECT id, rows, owner, since FROM guesses", ()).fetchall()
        now_s = self._host.monotonic()
        lost = [each for each in found if not 0 <= now_s - each[3] <= 2 * CHECK_S or has_ended(each[2])]
        return [(number, rows) for number, rows, *_ in lost]
