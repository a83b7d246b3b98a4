"""Denials that giving out a token again would have spared, estimated from the statistics."""

from collections.abc import Iterable, Iterator

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import NO_REQUESTS, ClientMinute, Tally


class ReuseShares:
    """Share of each client's requests over a limit that reuse answered, or would have answered in a dry run."""

    def __init__(self, kind: LimitKind) -> None:
        self._kind = kind
        self._tallies: dict[str, Tally] = {}

    def add(self, minute: ClientMinute) -> None:
        tally = minute.tally(None if self._kind is LimitKind.CLIENT_TOTAL else "client")
        self._tallies[minute.client_id] = self._tallies.get(minute.client_id, NO_REQUESTS) + tally

    def noting(self, minutes: Iterable[ClientMinute]) -> Iterator[ClientMinute]:
        """Yield minutes, and add each."""
        for minute in minutes:
            self.add(minute)
            yield minute

    def spared(self, client_id: str, denied: int) -> int | None:
        """Return how many denials of a client reuse would have spared.

        None if that is not known: for a limit per user, and for a client that was over no limit so far.
        """
        tally = self._tallies.get(client_id, NO_REQUESTS)
        if self._kind is LimitKind.USER or not tally.over:
            return None
        return round(denied * (tally.reused + tally.would_reuse) / tally.over)
