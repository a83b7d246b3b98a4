"""Counts of the demo: the answers as the callers received them, and the hits that MongoDB holds."""

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pymongo.collection import Collection

from testbed.trace import TRUSTED, Caller

Key = tuple[str, str | None]


class Outcome(StrEnum):
    """Decision about a request, as its answer shows. Only allowed requests count against a limit."""

    ALLOWED = "allowed"
    WOULD_DENY = "would_deny"
    REUSED = "reused"
    ISSUED = "issued"
    """A new token above a limit, because the server had none that fits."""

    DENIED = "denied"
    TRUSTED = "trusted"

    @property
    def has_new_token(self) -> bool:
        """True if the server has issued a token."""
        return self not in (Outcome.REUSED, Outcome.DENIED)

    @property
    def is_over(self) -> bool:
        """True if the request exceeded a limit."""
        return self not in (Outcome.ALLOWED, Outcome.TRUSTED)


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """Requests of one client.

    Attributes:
        client_id: The client.
        grant_type: The grant that it uses.
        user_count: Its users.
        request_count: All its requests.
        new_count: New tokens.
        denied_count: Requests that were denied, or would have been.
        reused_count: Requests that got a token again.
        over_users: Users with at least one request over a limit.
        is_trusted: Whether it is a trusted client.
    """

    client_id: str
    grant_type: str
    user_count: int
    request_count: int
    new_count: int
    denied_count: int
    reused_count: int
    over_users: int
    is_trusted: bool


class Tally:
    """Outcomes per caller. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the attributes below
        self._outcomes: Counter[tuple[Caller, Outcome]] = Counter()
        self._new: set[tuple[Key, str]] = set()
        self._reused: set[tuple[Key, str]] = set()

    def add(self, caller: Caller, outcome: Outcome, token: str | None) -> None:
        """Count an answer."""
        with self._lock:
            self._outcomes[caller, outcome] += 1
            if token is not None:
                (self._reused if outcome is Outcome.REUSED else self._new).add((caller.key, token))

    def foreign_count(self) -> int:
        """Return the number of tokens that a client got again and had not got before."""
        return len(self._reused - self._new)

    def total(self, *outcomes: Outcome) -> int:
        """Return the number of requests with one of the outcomes, or of all requests."""
        return sum(count for (_, outcome), count in self._items() if not outcomes or outcome in outcomes)

    def counted(self) -> Counter[Key]:
        """Return the hits that the limiter must have counted, per client and user."""
        counted: Counter[Key] = Counter()
        for (caller, outcome), count in self._items():
            if outcome is Outcome.ALLOWED:
                counted[caller.key] += count
        return counted

    def clients(self) -> list[ClientSummary]:
        """Return a summary per client: clients without users first, trusted clients last."""
        clients: dict[str, list[tuple[Caller, Outcome, int]]] = {}
        for (caller, outcome), count in self._items():
            clients.setdefault(caller.client_id, []).append((caller, outcome, count))
        summaries = [_summary(client_id, entries) for client_id, entries in clients.items()]
        return sorted(summaries, key=lambda client: (client.is_trusted, client.grant_type, client.client_id))

    def _items(self) -> list[tuple[tuple[Caller, Outcome], int]]:
        with self._lock:
            return list(self._outcomes.items())


def _summary(client_id: str, entries: list[tuple[Caller, Outcome, int]]) -> ClientSummary:
    return ClientSummary(
        client_id=client_id,
        grant_type=entries[0][0].grant_type,
        user_count=len({caller.user for caller, _, _ in entries if caller.user}),
        request_count=sum(count for _, _, count in entries),
        new_count=sum(count for _, outcome, count in entries if outcome.has_new_token),
        denied_count=sum(count for _, outcome, count in entries if outcome in (Outcome.DENIED, Outcome.WOULD_DENY)),
        reused_count=sum(count for _, outcome, count in entries if outcome is Outcome.REUSED),
        over_users=len({caller.user for caller, outcome, _ in entries if caller.user and outcome.is_over}),
        is_trusted=client_id == TRUSTED,
    )


def read_counts(documents: "Collection[dict[str, Any]]") -> Counter[Key]:
    """Return the hits in MongoDB per client and user, read without the limiter's code.

    Each request counts once in every tier. The widest tier still has all its frames: they expire after an hour.
    """
    counts: Counter[Key] = Counter()
    for document in documents.find():
        tiers = document["requestCounters"]
        widest = max(tiers, key=int)
        identity = document["_id"]
        counts[identity["clientId"], identity["username"]] += sum(tiers[widest].values())
    return counts
