"""A place is one client at one endpoint: its policies, and its keys."""

import math
import threading
from collections.abc import Sequence
from operator import itemgetter

from oauth_ratelimit.core.decision import Admission, CachedDenial, Decision, FullDecision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, ClientPolicies, Limits, Policy
from oauth_ratelimit.core.tier import Tier, tiers_of
from oauth_ratelimit.core.window import ROUNDING_S, Estimator, Window
from oauth_ratelimit.counters.bucket import Bucket
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from oauth_ratelimit.counters.key_state import FORGOTTEN, KeyState


def over_limit(buckets: Sequence[Bucket], now_s: float, cost: int) -> list[Bucket]:
    """Return the buckets that do not admit a request."""
    return [bucket for bucket in buckets if bucket.estimate(now_s) > bucket.tier.limit - cost]


def describe_admission(buckets: Sequence[Bucket], now_s: float) -> FullDecision:
    """Describe a request that all buckets admit: the one with least left is told of."""
    room, nearest = min(((bucket.tier.limit - bucket.estimate(now_s), bucket) for bucket in buckets), key=itemgetter(0))
    tier = nearest.tier
    return FullDecision(
        allowed=True,
        would_deny=False,
        mode=tier.mode,
        rule=tier.policy,
        remaining=int(room),
        reset_after_s=nearest.reset_after_s(now_s),
    )


def describe_denial(buckets: Sequence[Bucket], over: Sequence[Bucket], now_s: float, *, cost: int) -> FullDecision:
    """Describe a request that is over the limit of some buckets: it fits when all that can deny it admit it at once."""
    denied = any(bucket.tier.is_enforced for bucket in over)
    concerned = [bucket for bucket in buckets if bucket.tier.is_enforced or not denied]
    retry_after_s, last = 0.0, over[0]
    while True:
        later_s, bucket = max(
            ((bucket.retry_after_s(now_s, cost=cost, later_s=retry_after_s), bucket) for bucket in concerned),
            key=itemgetter(0),
        )
        if later_s <= retry_after_s:
            break
        retry_after_s, last = later_s, bucket
        if math.isinf(later_s):
            break
    return FullDecision(
        allowed=not denied,
        would_deny=True,
        mode=last.tier.mode,
        rule=last.tier.policy,
        remaining=max(0, math.floor(min(bucket.tier.limit - bucket.estimate(now_s) for bucket in concerned))),
        reset_after_s=last.reset_after_s(now_s),
        retry_after_s=retry_after_s,
    )


CLIENT_TOTAL = "client_total"
# Of the kind that is always decided exactly, where it is left out.
UNLIMITED = Tier(Policy("unlimited", MAX_LIMIT, Window(1, 1), Estimator.PROPORTIONAL), Mode.OFF)


class ClientState:
    """One client at one endpoint: its policies and its keys.

    Attributes:
        lock: Guards ``keys``, ``former``, both totals and the buckets of their states.
        configured_id: The client's id as the configuration may name it: not cut, if it could stand there.
        exempt: The answer to every request, if nothing is to be decided.
        blank: Stands for every user where users are not limited, so that they take no memory.
        keys: By user name, None for grants without a user.
        former: Keys that requests have not asked for since the policies last changed.
        total: All users together, if that is limited.
        former_total: The same, if it is not limited any more. A document has one state only, so it is used again if the
            limit comes back.
        total_buckets: Its buckets.
        horizon_s: How long a frame can matter, from its start.
        is_gone: Whether this place was forgotten, so that no key may be added: its client has another, or none.
        is_canary: Whether the client is in the share that a canary enforces.
        notices: Tells the sync cycle.
        reserves: Whether the store is asked before the last requests of a quota, and about keys that are new here.
    """

    __slots__ = (
        "blank",
        "client_id",
        "client_tiers",
        "configured_id",
        "dirty_queue",
        "exempt",
        "former",
        "former_total",
        "horizon_s",
        "is_canary",
        "is_gone",
        "keys",
        "lock",
        "mode",
        "reserves",
        "scope",
        "total",
        "total_buckets",
        "total_tiers",
        "user_tiers",
    )

    def __init__(
        self, client_id: str, policies: ClientPolicies, now_s: float, *, dirty_queue: DirtyQueue, reserves: bool = False
    ) -> None:
        self.client_id = self.configured_id = client_id
        self.dirty_queue = dirty_queue
        self.reserves = reserves
        self.scope = None if policies.scope is None else storable_name(policies.scope)
        self.lock = threading.Lock()
        self.keys: dict[str | None, KeyState] = {}
        self.former: dict[str | None, KeyState] = {}
        self.total: KeyState | None = None
        self.former_total: KeyState | None = None
        self.total_buckets: tuple[Bucket, ...] = ()
        self.horizon_s = 0
        self.is_gone = False
        self.blank = KeyState(self, None, None, (UNLIMITED,), now_s)
        self.blank.is_dirty = True  # keeps it off every list
        self.apply(policies, now_s)

    def apply(self, policies: ClientPolicies, now_s: float) -> None:
        """Take over new policies. Keys follow when a request asks for them."""
        limits, mode = policies.limits, policies.mode
        self.mode = mode
        self.is_canary = policies.is_canary
        exempt: Decision | None = None
        if policies.trusted or mode is Mode.OFF or limits == Limits():
            exempt = FullDecision(True, False, mode, trusted=policies.trusted)
        with self.lock:
            self.exempt = exempt
            alone = not limits.client_total
            self.user_tiers = tiers_of(limits.user, mode, alone=alone)
            self.client_tiers = tiers_of(limits.client, mode, alone=alone)
            self.total_tiers = tiers_of(limits.client_total, mode)
            tiers = (*self.user_tiers, *self.client_tiers, *self.total_tiers)
            # Never shorter than before: hits counted under a wider window are still to be sent.
            self.horizon_s = max(self.horizon_s, *(tier.window_s + tier.frame_s for tier in tiers), 0)
            if self.former:
                self.former.update(self.keys)
            else:
                self.former = self.keys
            self.keys = {}
            total = self.total or self.former_total
            if total is not None and self.total_tiers:
                total.change_tiers(self.total_tiers, now_s)
            elif self.total_tiers:
                scope = CLIENT_TOTAL if self.scope is None else f"{self.scope}/{CLIENT_TOTAL}"
                total = self._new_key(None, scope, self.total_tiers, now_s)
            self.total, self.former_total = (total, None) if self.total_tiers else (None, total)
            self.total_buckets = self.total.buckets if self.total else ()

    def add_key(self, username: str | None, now_s: float) -> KeyState:
        """
        Return the state of a key that is not in ``keys``, after putting it there unless it has no limits. The lock is
        held by the caller.
        """
        tiers = self.client_tiers if username is None else self.user_tiers
        if not tiers:
            return self.blank
        state = self.former.pop(username, None)
        if state is None:
            state = self._new_key(username, self.scope, tiers, now_s)
        else:
            state.change_tiers(tiers, now_s)
        self.keys[username] = state
        return state

    def _new_key(self, username: str | None, scope: str | None, tiers: tuple[Tier, ...], now_s: float) -> KeyState:
        state = KeyState(self, username, scope, tiers, now_s)
        if self.reserves:
            for bucket in state.buckets:
                bucket.distrust()
        return state

    def is_near_limit(self, state: KeyState) -> bool:
        """Whether the store should be asked before a request is decided. The lock is held by the caller."""
        return state.is_near_limit or (self.total is not None and self.total.is_near_limit)

    def decide(self, state: KeyState, now_s: float, cost: int) -> Decision:
        """
        Look at every bucket that a request concerns, and count it where it counts. The lock is held by the caller.
        """
        total, others = self.total, state.others
        if not state.is_dirty:
            self.dirty_queue.mark_dirty(state)
        if total is not None:
            others = others + self.total_buckets if others else self.total_buckets
            if not total.is_dirty:
                self.dirty_queue.mark_dirty(total)
        if now_s >= state.frame_end_s:
            state.turn(now_s)
        first = state.full + cost
        if first > state.ceiling:
            return self._decide_exactly(state, now_s, cost=cost)
        admission: Admission | None = None
        for bucket in others:
            if now_s >= bucket.frame_end_s:
                bucket.turn(now_s)
            full = bucket.full + cost
            if full > bucket.ceiling:
                for counted in others[: others.index(bucket)]:
                    counted.full -= cost
                return self._decide_exactly(state, now_s, cost=cost)
            bucket.full = full
            admission = Admission(bucket.tier, full, bucket.edge, bucket.frame_end_s, now_s, admission)
        state.full = first
        return Admission(state.tier, first, state.edge, state.frame_end_s, now_s, admission)

    def _decide_exactly(self, state: KeyState, now_s: float, *, cost: int) -> Decision:
        """Decide about a request that is near a limit."""
        buckets = self._buckets(state)
        if not buckets:
            return FullDecision(True, False, self.mode)
        over = over_limit(buckets, now_s, cost)
        if over:
            return self._refuse(state, buckets, over, now_s=now_s, cost=cost)
        for bucket in buckets:
            bucket.add(cost)
        for concerned in (state,) if self.total is None else (state, self.total):
            if concerned.is_near_limit:
                self.dirty_queue.mark_urgent(concerned)
        own, *others = buckets
        admission: Admission | None = None
        for bucket in others:
            admission = bucket.admission(now_s, admission)
        return own.admission(now_s, admission)

    def count(self, state: KeyState, now_s: float) -> None:
        """Count a request that nothing is decided about. The lock is held by the caller."""
        self.dirty_queue.mark_dirty(state)
        for bucket in () if state is self.blank else state.buckets:
            bucket.left_s(now_s)
            bucket.add(1)

    def _buckets(self, state: KeyState) -> tuple[Bucket, ...]:
        """Return the buckets that a request of a key concerns."""
        own = () if state is self.blank else state.buckets
        return own + self.total_buckets

    def preview(self, state: KeyState, now_s: float, *, cost: int) -> FullDecision:
        """Decide as ``decide`` does, and count nothing. The lock is held by the caller."""
        self.dirty_queue.mark_dirty(state)
        if self.total is not None:
            self.dirty_queue.mark_dirty(self.total)
        buckets = self._buckets(state)
        if not buckets:
            return FullDecision(True, False, self.mode)
        over = over_limit(buckets, now_s, cost)
        if over:
            return describe_denial(buckets, over, now_s, cost=cost)
        return describe_admission(buckets, now_s)

    def _refuse(
        self, state: KeyState, buckets: Sequence[Bucket], over: Sequence[Bucket], *, now_s: float, cost: int
    ) -> FullDecision:
        """Describe a denial, and count the request where it counts all the same.

        A dry run beside enforced policies denies nothing, so what they admit counts for them.
        """
        denied = any(bucket.tier.is_enforced for bucket in over)
        admitting = [] if denied else [bucket for bucket in buckets if bucket.tier.is_enforced]
        counting = [bucket for bucket in buckets if bucket.tier.count_denied and bucket not in admitting]
        for bucket in counting:
            bucket.add(cost)
        denial = describe_denial(buckets, over, now_s, cost=cost)
        for bucket in admitting:  # not before: it is told what denies this request, not what would deny the next
            bucket.add(cost)
        if cost == 1 and not counting and not admitting and self.total is None:  # other users' requests move a total
            state.cached_denial = CachedDenial(denial, now_s, now_s + denial.retry_after_s - ROUNDING_S)
        return denial

    def forget(self, state: KeyState) -> bool:
        """Drop a key, unless something of it is still to be sent, or it is the total of all users and that is limited.

        Returns:
            Whether a key was dropped that counts towards the number of keys; a total does not.
        """
        with self.lock:
            if state is self.total or not state.is_settled or state.due_cycle == FORGOTTEN:
                return False
            state.due_cycle = FORGOTTEN
            if state is self.former_total:
                self.former_total = None
                return False
            self.keys.pop(state.username, None)
            self.former.pop(state.username, None)
            return True

    def is_total(self, state: KeyState) -> bool:
        """Return whether a state counts all users together."""
        return state is self.total or state is self.former_total

    def is_empty(self, now_s: float) -> bool:
        """Whether nothing would be lost if the place were forgotten. The lock is held by the caller."""
        total = self.total or self.former_total
        if self.keys or self.former:
            return False
        return total is None or (total.is_settled and total.is_idle(now_s))

    def leave(self) -> None:
        """Have no key any more, for good. The lock is held by the caller, and the place is empty."""
        self.is_gone = True
        for total in (self.total, self.former_total):
            if total is not None:
                total.due_cycle = FORGOTTEN
        self.total = self.former_total = None
        self.total_buckets = ()
