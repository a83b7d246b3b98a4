"""Explanation of a decision: everything that decides about one client and user at one endpoint."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import Any

from oauth_ratelimit.core.denial_record import Where
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Origin
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies, LimitKind, OnLimit
from oauth_ratelimit.core.statistics import HOUR_S
from oauth_ratelimit.counters.rules import total_scope, user_total_key
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import Record, canary_text, duration, origin_data, short, usage_data
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.denials import of_client

REUSED = "gets the token that the client has, is denied only if there is none that fits (on_limit: reuse)"
WOULD_REUSE = "admitted, would get the token that the client has (on_limit: reuse)"
GUARD_SWITCH = (
    "To let an address in: guard.trusted_addresses in the configuration file. To let in what a client passes on: trust "
    "add CLIENT --reason TEXT. To deny no guess: guard.mode: dry-run in that file, or mode set dry-run --reason TEXT, "
    "after which no limit denies. reset changes nothing of it."
)
LOCKED_OUT = "The guard denies everybody at {addresses} now, requests of this client, too."
MAX_RECORDS = 100
MEASURED = ("estimate", "used_ratio", "remaining", "retry_after_s", "reset_after_s")  # null without shared counters


def keys_of(client_id: str, username: str | None, scope: str | None) -> dict[LimitKind, Key]:
    """Return the keys that a request counts for, by the kind of their limits."""
    stored, kind = storable_name(client_id), LimitKind.CLIENT if username is None else LimitKind.USER
    keys = {kind: Key(stored, username, scope), LimitKind.CLIENT_TOTAL: Key(stored, None, total_scope(scope))}
    return keys if username is None else {**keys, LimitKind.USER_TOTAL: user_total_key(username)}


def guess_texts(guessers: Mapping[str | None, int]) -> list[str]:
    """Return who guessed, most first, by the names in records of the guard: an address, or a user with addresses."""
    found = defaultdict[str, Counter[str]](Counter)
    for guesser, count in guessers.items():
        address, _, name = (guesser or "").partition(" ")
        found[f"{short(name)} from " if name else address][address if name else ""] += count
    texts = []
    for who, addresses in sorted(found.items(), key=lambda item: -item[1].total()):
        more = len(addresses) - 1
        others = f" and {more:,} other address{'es' if more > 1 else ''}" if more else ""
        texts.append(f"{who}{addresses.most_common(1)[0][0]}{others}")
    return texts


def guesses_under(context: OperatorContext, client_id: str, last_s: float = HOUR_S) -> list[str]:
    """Return who guessed passwords or secrets under an id and was denied lately, as ``guess_texts`` does."""
    span, conditions = (context.now_s - last_s, context.now_s), of_client(client_id)
    counts = Counter[str | None]()
    for each in context.stores.denials.between(*span, conditions, where=Where.GUARD, at_most=MAX_RECORDS):
        counts[each.denial.username] += each.request_count
    return guess_texts(counts)


class LimitExplanation:
    """Limits, usage, mode and trust of one client and user at one endpoint.

    The username is as the operator types it. None is for grants without a user,
    and as the grant type for those that are not counted apart.
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
        self.username = None if username is None else context.pseudonyms.typed(username)
        self._request: dict[str, Any] = {"endpoint": endpoint, "grant_type": grant_type}
        self.matched: ClientPolicies = context.policies.matching(client_id, **self._request)
        self.keys = keys_of(client_id, self.username, self.matched.scope)
        self._snapshots: dict[Key, Snapshot] = {}
        if context.is_shared:
            self._snapshots |= context.stores.documents.of_keys(list(self.keys.values()))

    @cached_property
    def usages(self) -> list[tuple[LimitUsage, Origin]]:
        reader, matched = UsageReader(self.context.policies), self.matched
        of_client = {policy.name: policy.mode or matched.mode for policy in matched.limits.user_total}
        found = []
        for kind, key in self.keys.items():
            origin = self.context.origins.of_limits(self.client_id, kind, **self._request)
            for usage in reader.of(key, self._snapshots.get(key), self.context.now_s):
                if kind is not LimitKind.USER_TOTAL:
                    found.append((usage, origin))
                elif usage.policy.name in of_client and not matched.trusted:  # its mode is that of the client
                    found.append((usage._replace(mode=of_client[usage.policy.name]), origin))
        return found

    def forecast(self) -> tuple[str, str]:
        """Return what the next request is, and the reason in words.

        It is ``admitted``, ``would-be-denied``, ``denied`` or, if only limits with reuse are exceeded, ``reused``.
        """
        if self.trust_origin:
            return "admitted", "admitted: trusted"
        exceeded = [usage for usage, _ in self.usages if usage.retry_after_s > 0]
        if not exceeded:
            return "admitted", "admitted"
        denying = [usage for usage in exceeded if usage.mode is Mode.ENFORCE]
        firm = [usage for usage in denying or exceeded if usage.policy.on_limit is not OnLimit.REUSE]
        last = max(firm or denying or exceeded, key=attrgetter("retry_after_s"))
        reason = f"over the limit {last.policy.name} for another {duration(last.retry_after_s)}"
        if denying and (text := self._of_instances):
            reason += f" ({text})"
        if not firm:
            return "reused" if denying else "would-be-denied", f"{REUSED if denying else WOULD_REUSE}: {reason}"
        if denying:
            return "denied", f"denied: {reason}"
        return "would-be-denied", f"admitted, would be denied: {reason}"

    @property
    def mode_origin(self) -> Origin:
        return self.context.origins.of_mode(self.client_id, **self._request)

    @property
    def trust_origin(self) -> Origin | None:
        """The rule or override that makes the client trusted; None if it is not."""
        return self.context.origins.of_trust(self.client_id)

    @property
    def canary(self) -> str:
        """The canary, and whether this client is in it."""
        policies, text = self.context.policies, canary_text(self.context.policies.canary)
        if policies.canary is None or policies.mode is not Mode.ENFORCE:
            return text
        if policies.canary.instances:
            return self._of_instances or f"{text}, not for this client: it has a mode of its own"
        return f"{text}, {'with' if self.matched.is_canary else 'without'} this client"

    @property
    def _of_instances(self) -> str:
        """The instances that deny the client, if a canary names some; empty if all do, or none."""
        canary = self.context.policies.canary
        is_by_instance = canary and canary.instances and self.matched.is_canary
        return f"{canary_text(canary)}; the others make a dry run" if is_by_instance else ""

    def data(self) -> Record:
        kind, text = self.forecast()
        trust = self.trust_origin
        is_shared = self.context.is_shared
        unknown = {} if is_shared else dict.fromkeys(MEASURED)
        return {
            "client_id": self.client_id,
            "username": self.username,
            "scope": self.matched.scope,
            "trusted": trust and origin_data(trust),
            "mode": self.matched.mode.value,
            "mode_origin": origin_data(self.mode_origin),
            "is_canary": self.matched.is_canary,
            "forecast": {"kind": kind, "text": text} if is_shared or trust else None,
            "limits": [
                {**usage_data(usage), **unknown, "origin": origin_data(origin)} for usage, origin in self.usages
            ],
        }
