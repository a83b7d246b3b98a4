"""The demo's own books: what each caller was answered, as the callers saw it."""

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from demo.cast import TRUSTED, Caller

WOULD_DENY_HEADER = "Demo-Would-Deny"  # on answers that enforce would have denied

Key = tuple[str, str | None]


class Outcome(StrEnum):
    """What became of a request. Only allowed ones are counted against a limit."""

    ALLOWED = "allowed"
    WOULD_DENY = "would_deny"
    DENIED = "denied"
    TRUSTED = "trusted"

    @property
    def is_over(self) -> bool:
        """Whether the request was over a limit."""
        return self in (Outcome.WOULD_DENY, Outcome.DENIED)


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one client's requests.

    Attributes:
        client_id: The client.
        grant_type: The grant that it used.
        user_count: How many users it asked for.
        request_count: All its requests.
        over_count: Those over a limit.
        over_users: Users of whom at least one request was over a limit.
        is_trusted: Whether it is a trusted client.
    """

    client_id: str
    grant_type: str
    user_count: int
    request_count: int
    over_count: int
    over_users: int
    is_trusted: bool


class Tally:
    """Counts outcomes per caller. Any number of threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: Counter[tuple[Caller, Outcome]] = Counter()

    def add(self, caller: Caller, outcome: Outcome) -> None:
        """Note one answer."""
        with self._lock:
            self._outcomes[caller, outcome] += 1

    def total(self, *outcomes: Outcome) -> int:
        """Return how many requests had one of the outcomes; without any, how many there were."""
        return sum(count for (_, outcome), count in self._items() if not outcomes or outcome in outcomes)

    def counted(self) -> Counter[Key]:
        """Return per client and user how many requests the limiter must have counted."""
        counted: Counter[Key] = Counter()
        for (caller, outcome), count in self._items():
            if outcome is Outcome.ALLOWED:
                counted[caller.key] += count
        return counted

    def lines(self) -> list[Line]:
        """Return one line per client, the machines first, the trusted one last."""
        clients: dict[str, list[tuple[Caller, Outcome, int]]] = {}
        for (caller, outcome), count in self._items():
            clients.setdefault(caller.client_id, []).append((caller, outcome, count))
        lines = [_line(client_id, entries) for client_id, entries in clients.items()]
        return sorted(lines, key=lambda line: (line.is_trusted, line.grant_type, line.client_id))

    def _items(self) -> list[tuple[tuple[Caller, Outcome], int]]:
        with self._lock:
            return list(self._outcomes.items())


def _line(client_id: str, entries: list[tuple[Caller, Outcome, int]]) -> Line:
    users = {caller.user for caller, _, _ in entries if caller.user}
    return Line(
        client_id=client_id,
        grant_type=entries[0][0].grant_type,
        user_count=len(users),
        request_count=sum(count for _, _, count in entries),
        over_count=sum(count for _, outcome, count in entries if outcome.is_over),
        over_users=len({caller.user for caller, outcome, _ in entries if caller.user and outcome.is_over}),
        is_trusted=client_id == TRUSTED,
    )
