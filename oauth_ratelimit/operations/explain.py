"""Why a client is limited like that: everything that decides about one client and user at one place."""

import enum
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.overrides import LimitKind, Origin
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies
from oauth_ratelimit.counters.client_state import CLIENT_TOTAL
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record, duration, origin_data, usage_data
from oauth_ratelimit.operations.suggestions import unknown_client_hint
from oauth_ratelimit.store.base import Snapshot

OTHERS_SHOWN = 5
OTHERS_READ = 20_000  # documents, about a second


class ForecastKind(enum.StrEnum):
    """What would become of the next request."""

    ADMITTED = "admitted"
    WOULD_BE_DENIED = "would-be-denied"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would become of the next request, and why.

    Args:
        kind: What.
        text: Both, for people.
    """

    kind: ForecastKind
    text: str


class LimitExplanation:
    """One client and user at one place, and all that decides about them.

    Args:
        desk: What the operator works with.
        client_id: The client.
        username: The user as the operator names it, None for grants without a user.
        grant_type: The grant type, None if it does not matter.
        endpoint: Where the request comes in.
    """

    def __init__(
        self,
        context: OperatorContext,
        client_id: str,
        *,
        username: str | None,
        grant_type: str | None = None,
        endpoint: str = TOKEN_ENDPOINT,
    ) -> None:
        self.context = context
        self.client_id = client_id
        self.username = None if username is None else context.names.typed(username)
        self.at: dict[str, Any] = {"endpoint": endpoint, "grant_type": grant_type}
        self.found: ClientPolicies = context.policies.matching(client_id, **self.at)
        stored = storable_name(client_id)
        total = CLIENT_TOTAL if self.found.scope is None else f"{self.found.scope}/{CLIENT_TOTAL}"
        self.keys = {
            LimitKind.CLIENT if username is None else LimitKind.USER: Key(stored, self.username, self.found.scope),
            LimitKind.CLIENT_TOTAL: Key(stored, None, total),
        }
        self._documents = dict(context.documents.of_keys(list(self.keys.values())))

    def usages(self) -> Iterator[tuple[LimitUsage, Origin]]:
        """Yield where the request stands in each limit that applies, and where that limit comes from."""
        usages = UsageReader(self.context.policies)
        for kind, key in self.keys.items():
            layer = self.context.origins.of_limits(self.client_id, kind, **self.at)
            for usage in usages.of(key, self._documents.get(key), self.context.now_s):
                yield usage, layer

    def forecast(self, usages: Iterable[LimitUsage]) -> Forecast:
        """Return what would become of the next request."""
        if self.trust_origin:
            return Forecast(ForecastKind.ADMITTED, "admitted: trusted")
        waiting = [usage for usage in usages if usage.retry_after_s > 0]
        if not waiting:
            return Forecast(ForecastKind.ADMITTED, "admitted")
        last = max(waiting, key=lambda usage: usage.retry_after_s)
        when = f"over {last.policy.name} for {duration(last.retry_after_s)}"
        if any(usage.mode == "enforce" for usage in waiting):
            return Forecast(ForecastKind.DENIED, f"denied: {when}")
        return Forecast(ForecastKind.WOULD_BE_DENIED, f"admitted, would be denied: {when}")

    def instance_count(self) -> int:
        """Return how many instances have lately sent hits for this client and user."""
        snapshots = [self._documents.get(key) for key in self.keys.values()]
        writers = {name for snapshot in snapshots if snapshot for name in _recent(snapshot, self.context.now_s)}
        return len(writers)

    def others(self) -> list[LimitUsage]:
        """Return who uses up the total of the client beside this user, most of it first."""
        if not self.found.limits.client_total:
            return []
        ours = set(self.keys.values())
        usages = UsageReader(self.context.policies)
        widest: list[LimitUsage] = []
        for key, snapshot in self.context.documents.of_client(storable_name(self.client_id), at_most=OTHERS_READ):
            if key not in ours and key.scope == self.found.scope:
                widest += usages.of(key, snapshot, self.context.now_s)[:1]  # the widest window comes first
        busy = [usage for usage in widest if usage.estimate > 0]
        return heapq.nlargest(OTHERS_SHOWN, busy, key=attrgetter("estimate"))

    @property
    def mode_origin(self) -> Origin:
        """Where the mode comes from."""
        return self.context.origins.of_mode(self.client_id, **self.at)

    @property
    def trust_origin(self) -> Origin | None:
        """What makes the client trusted, None if nothing does."""
        return self.context.origins.of_trust(self.client_id)

    @property
    def canary(self) -> str:
        """What the canary has to do with it."""
        canary = self.context.policies.canary
        if canary is None:
            return "none"
        if self.found.is_canary:
            return "inside: enforced where the mode says so"
        if canary.instances:
            return f"only on instances {', '.join(canary.instances)}; elsewhere a dry run"
        is_inside = canary.has_client(self.client_id, instance="")
        return "does not matter: the client has a mode of its own" if is_inside else "outside: a dry run"

    def data(self, *, known: Callable[[], set[str]] | None = None) -> Record:
        """Return all of it, for programs.

        Args:
            known: Returns the clients that an unknown one may have been mistyped for, where somebody keeps them;
                otherwise they are looked up.
        """
        usages = list(self.usages())
        forecast = self.forecast(usage for usage, _ in usages)
        trust = self.trust_origin
        return {
            "client_id": self.client_id,
            "username": self.username,
            "scope": self.found.scope,
            "trusted": trust and origin_data(trust),
            "mode": self.found.mode.value,
            "mode_origin": origin_data(self.mode_origin),
            "is_canary": self.found.is_canary,
            "forecast": {"kind": forecast.kind.value, "text": forecast.text},
            "instance_count": self.instance_count(),
            "limits": [{**usage_data(usage), "origin": origin_data(layer)} for usage, layer in usages],
            "others": list(map(usage_data, self.others())),
            "hint": unknown_client_hint(self.context, self.client_id, known=known),
        }


def _recent(snapshot: Snapshot, now_s: float) -> list[str]:
    """Return the instances whose mark in a document is not older than its oldest frame; a mark is a time."""
    starts = [start_s for frames in snapshot.hits.values() for start_s in frames]
    oldest_ms = min(starts, default=now_s) * 1000
    return [name for name, flush_id in snapshot.writers.items() if flush_id >= oldest_ms]
