"""One client in one scope: its limits and its keys, and the decision about a request."""

import math
import threading
from collections.abc import Sequence
from operator import itemgetter

from oauth_ratelimit.core.cached_denial import CachedDenial
from oauth_ratelimit.core.decision import Decision, LimitDenial
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies, Limits
from oauth_ratelimit.core.tier import Content, Tier, extend_horizons
from oauth_ratelimit.core.window import ROUNDING_S
from oauth_ratelimit.counters.bucket import Bucket
from oauth_ratelimit.counters.due_queue import Due, DueQueue
from oauth_ratelimit.counters.key import NO_HORIZONS, KeyState, SharingState
from oauth_ratelimit.counters.rules import ClientRules

CLIENT_TOTAL = "client_total"


class ClientState:
    """One client in one scope: its limits and its keys. There is one in a process, so each document has one state.

    All methods but ``apply`` need the lock, and ``exempt_all`` a state that nobody else has.
    """

    def __init__(
        self,
        client_id: str,
        policies: ClientPolicies,
        now_s: float,
        *,
        configured_id: str,
        queue: DueQueue,
        sharing: SharingState,
        endpoint: str = TOKEN_ENDPOINT,
        grant_type: str | None = None,
    ) -> None:
        self.client_id = client_id  # in its storable form
        self.configured_id = configured_id  # as the configuration names it
        self.endpoint = endpoint
        self.grant_type = grant_type  # None for all that are not counted apart
        self.queue = queue
        self.sharing = sharing
        self.scope = None if policies.scope is None else storable_name(policies.scope)
        self.lock = threading.Lock()  # guards the counters of all keys, and ``denials``
        self.keys: dict[str | None, KeyState] = {}  # by username, None for grants without a user
        self.former: dict[str | None, KeyState] = {}  # those without a request since the policies last changed
        self.total: KeyState | None = None  # of all users together, if they are limited
        self.known_total: KeyState | None = None  # the same, kept in case that the limit comes back
        self.denials: dict[KeyState, CachedDenial] = {}  # to repeat; few keys have one, so it is not in the key
        # Seconds for which a frame can matter, by series, and the longest. Never shorter than before, because hits of
        # former tiers may be unsent.
        self.horizons, self.horizon_s = NO_HORIZONS, 0
        self.is_gone = False  # the registry has dropped this state, so that no key may be added
        self.rules = ClientRules.of(policies._replace(limits=Limits()))
        self.apply(policies, now_s)

    def apply(self, policies: ClientPolicies, now_s: float) -> None:
        """Apply new policies. Each key follows with its next request."""
        with self.lock:
            self.rules = ClientRules.of(policies)
            self.horizons = extend_horizons(self.horizons, self.rules.horizons)
            self.horizon_s = max(self.horizons.values(), default=0)
            self.former = {**self.former, **self.keys}
            self.keys = {}
            self._change_total(now_s)

    def _change_total(self, now_s: float) -> None:
        if not self.rules.total:
            self.total = None
            return
        if self.known_total is None:
            scope = CLIENT_TOTAL if self.scope is None else f"{self.scope}/{CLIENT_TOTAL}"
            self.known_total = KeyState(self, None, scope, self.rules.total, now_s)
        elif self.known_total.change_tiers(self.rules.total, now_s):
            self.queue.add_urgent(self.known_total)
        self.total = self.known_total

    def exempt_all(self) -> None:
        """Admit every request uncounted."""
        self.rules = ClientRules(self.rules.mode, False, self.rules.exempt or Decision(self.rules.mode), (), (), ())

    def add_key(self, username: str | None, now_s: float) -> KeyState:
        """Add a limited key that is not in ``keys``."""
        tiers = self.rules.own_tiers(username)
        key = self.former.pop(username, None)
        if key is None:
            key = KeyState(self, username, self.scope, tiers, now_s)
        elif key.change_tiers(tiers, now_s):
            self.queue.add_urgent(key)
        self.keys[username] = key
        return key

    def admit_surely(self, key: KeyState, now_s: float, cost: int) -> tuple[Content, ...]:
        """Count a request that is surely within its limits and makes no key urgent.

        Returns what its windows hold then; nothing if it takes ``decide`` to say, also if a key is to be queued first.
        """
        total = self.total
        if not key.is_dirty or key in self.denials or (total is not None and not total.is_dirty):
            return ()
        counted = key.first.count_surely(now_s, cost)
        if total is None or not counted:
            return counted
        if not (counted_in_total := total.first.count_surely(now_s, cost)):
            _count(key.buckets(), -cost)  # taken back
            return ()
        return counted + counted_in_total

    def decide(self, key: KeyState | None, now_s: float, cost: int, can_reuse: bool) -> Decision:
        """Decide about a request by the estimates, and count it where it counts; or repeat a denial.

        A key of None has no limits of its own.
        """
        holder = key or self.total
        if holder is not None and holder in self.denials and cost == 1:
            cached = self.denials[holder]
            if repeated := cached.repeat(now_s, self._counted(key), can_reuse):
                if not holder.is_dirty:
                    self._mark_dirty(holder)
                return repeated
        buckets = self._buckets(key, now_s) + self._buckets(self.total, now_s)
        for bucket in buckets:
            if bucket.denies(now_s, cost):
                return self._deny(key, buckets, now_s, cost, can_reuse)
        counted = _count(buckets, cost)
        for each in (key, self.total):
            if each is not None:
                self.denials.pop(each, None)
                if not each.is_urgent and each.has_reached_alert:
                    self.queue.add_urgent(each)
        return Decision(self.rules.mode, now_s, self.rules.tiers_of(key), counted)

    def _buckets(self, key: KeyState | None, now_s: float) -> tuple[Bucket, ...]:
        """Return the buckets of a key, in the frames of ``now_s``, and queue it."""
        if key is None:
            return ()
        self._mark_dirty(key)
        key.advance(now_s)
        return key.buckets()

    def _mark_dirty(self, key: KeyState) -> None:
        if not key.is_dirty:
            self.queue.add(key)
            if key.due is Due.NEW and key.is_urgent_when_new:
                self.queue.add_urgent(key)

    def _counted(self, key: KeyState | None) -> tuple[Content, ...]:
        """Return the content of the windows of the keys that a request concerns."""
        return (key.counted() if key else ()) + (self.total.counted() if self.total else ())

    def _deny(
        self, key: KeyState | None, buckets: Sequence[Bucket], now_s: float, cost: int, can_reuse: bool
    ) -> Decision:
        """Describe a denial, and count the request where it counts all the same.

        A dry run beside enforced policies denies nothing, so the request counts in those. Reuse counts nowhere.
        """
        tiers = self.rules.tiers_of(key)
        checked = list(zip(tiers, buckets, strict=True))
        over = [tier for tier, bucket in checked if bucket.denies(now_s, cost)]
        is_enforced = any(tier.is_enforced for tier in over)
        admitting = [bucket for tier, bucket in checked if tier.is_enforced and not is_enforced]
        counting = [bucket for bucket in buckets if bucket.tier.count_denied and bucket not in admitting]
        if can_reuse and _reuses(over):
            counting = []
        _count(counting, cost)
        denial = _describe(checked, over, now_s=now_s, cost=cost)
        _count(admitting, cost)  # afterwards, or it would describe the denial of the next request
        decision = Decision(self.rules.mode, now_s, tiers, tuple(bucket.content for bucket in buckets), denial)
        decision.can_reuse = can_reuse
        holder = key or self.total
        is_lasting = not can_reuse or len({tier.reuses for tier in tiers}) == 1  # with time, other limits may deny
        if holder is not None and cost == 1 and is_lasting and not counting and not admitting:
            self.denials[holder] = CachedDenial(decision, now_s + denial.retry_after_s - ROUNDING_S)
        return decision

    def preview(self, key: KeyState | None, now_s: float, cost: int) -> Decision:
        """Decide as ``decide`` does, and count nothing."""
        buckets, tiers = self._buckets(key, now_s) + self._buckets(self.total, now_s), self.rules.tiers_of(key)
        checked = list(zip(tiers, buckets, strict=True))
        over = [tier for tier, bucket in checked if bucket.denies(now_s, cost)]
        denial = _describe(checked, over, now_s=now_s, cost=cost) if over else None
        return Decision(self.rules.mode, now_s, tiers, tuple(bucket.content for bucket in buckets), denial)

    def count(self, key: KeyState, now_s: float) -> None:
        """Count a request that was admitted before. If a dry run denies it, other dry runs do not count it, either."""
        buckets = self._buckets(key, now_s)
        is_over = any(bucket.denies(now_s, 1) for bucket in buckets if not bucket.tier.is_enforced)
        for bucket in buckets:
            if not is_over or bucket.tier.is_enforced or bucket.tier.count_denied:
                bucket.count(1)
        if key.has_reached_alert:
            self.queue.add_urgent(key)

    def forget(self, key: KeyState) -> bool:
        """Drop a settled key, and return whether it was one that counts towards the number of keys.

        The total counts towards no number, and is kept while it is limited.
        """
        if key is self.total or not key.is_settled or key.due is Due.FORGOTTEN:
            return False
        key.due = Due.FORGOTTEN
        self.denials.pop(key, None)
        if key is self.known_total:
            self.known_total = None
            return False
        self.keys.pop(key.username, None)
        self.former.pop(key.username, None)
        return True

    def all_keys(self) -> list[KeyState]:
        """Return all keys, those of former policies included."""
        return [*self.keys.values(), *self.former.values(), *filter(None, [self.known_total])]

    def retire(self, now_s: float) -> bool:
        """Mark the client as dropped if nothing is lost by it, and return whether it is."""
        total = self.known_total
        if self.keys or self.former or (total is not None and not (total.is_settled and total.is_empty(now_s))):
            return False
        self.is_gone = True
        if total is not None:
            total.due = Due.FORGOTTEN
        self.total = self.known_total = None
        return True


def _count(buckets: Sequence[Bucket], cost: int) -> tuple[Content, ...]:
    counted: tuple[Content, ...] = ()
    for bucket in buckets:
        counted += (bucket.count(cost),)
    return counted


def _reuses(over: Sequence[Tier]) -> bool:
    """Return True if all tiers that deny a request have ``on_limit: reuse``; of enforced ones, if there are any."""
    return all(tier.reuses for tier in [tier for tier in over if tier.is_enforced] or over)


def _describe(checked: Sequence[tuple[Tier, Bucket]], over: Sequence[Tier], *, now_s: float, cost: int) -> LimitDenial:
    """Describe a denial by the limit that admits the request last. If an enforced one denies, only those matter."""
    is_enforced = any(tier.is_enforced for tier in over)
    concerned = [(tier, bucket) for tier, bucket in checked if tier.is_enforced or not is_enforced]
    retry_after_s, last = 0.0, concerned[0]
    while True:  # until all of them admit the request at the same moment
        later_s, slowest = max(
            ((each[1].retry_after_s(now_s, cost=cost, later_s=retry_after_s), each) for each in concerned),
            key=itemgetter(0),
        )
        if later_s <= retry_after_s:
            break
        retry_after_s, last = later_s, slowest
        if math.isinf(later_s):
            break
    tier, bucket = last
    return LimitDenial(
        policy=tier.policy,
        mode=tier.mode,
        is_enforced=is_enforced,
        remaining=max(0, math.floor(min(tier.limit - bucket.estimate(now_s) for tier, bucket in concerned))),
        at_s=now_s,
        retry_after_s=retry_after_s,
        reset_after_s=bucket.reset_after_s(now_s),
        reuses=_reuses(over),
    )
