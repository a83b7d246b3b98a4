"""
A place is one client at one endpoint: its policies, and its keys.
"""

import math
import threading
from collections.abc import Sequence
from operator import itemgetter

from oauth_ratelimit.core.allowance import Admission
from oauth_ratelimit.core.decision import Decision, Finding
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import ClientPolicies, Limits
from oauth_ratelimit.core.refusal import Refusal
from oauth_ratelimit.core.tier import tiers_of
from oauth_ratelimit.sync.counters import Bucket
from oauth_ratelimit.sync.keys import KeyState
from oauth_ratelimit.sync.notices import Notices

CLIENT_TOTAL = "client_total"
LOOKS_BEFORE_ALLOWANCE = 4  # per cycle; a key that is asked for less often is not worth the memory


class Place:
    """
    One client at one endpoint: its policies and its keys.

    Attributes:
        lock: Guards ``keys``, ``former``, ``total`` and the buckets of their states.

        exempt: The answer to every request, if nothing is to be decided.

        blank: Stands for every user where users are not limited, so that they take no memory.

        keys: By user name, None for grants without a user.

        former: Keys that requests have not asked for since the policies last changed.

        total: All users together, if that is limited.

        horizon_s: How long a frame can matter, from its start.

        is_canary: Whether the client is in the share that a canary enforces.

        notices: Tells the sync cycle.
    """

    __slots__ = (
        "blank",
        "client_id",
        "client_tiers",
        "exempt",
        "former",
        "horizon_s",
        "is_canary",
        "keys",
        "lock",
        "mode",
        "notices",
        "scope",
        "total",
        "total_tiers",
        "user_tiers",
    )

    def __init__(self, client_id: str, policies: ClientPolicies, now_s: float, *, notices: Notices) -> None:
        self.client_id = client_id
        self.notices = notices
        self.scope: str | None = policies.scope
        self.lock = threading.Lock()
        self.keys: dict[str | None, KeyState] = {}
        self.former: dict[str | None, KeyState] = {}
        self.total: KeyState | None = None
        self.horizon_s = 0
        self.blank = KeyState(self, None, None, (), now_s)
        self.blank.is_touched = True  # keeps it off every list
        self.apply(policies, now_s)

    def apply(self, policies: ClientPolicies, now_s: float) -> None:
        """
        Take over new policies. Keys follow when a request asks for them.
        """
        limits, mode = policies.limits, policies.mode
        self.mode = mode
        self.is_canary = policies.is_canary
        exempt: Decision | None = None
        if policies.trusted or mode is Mode.OFF or limits == Limits():
            exempt = Finding(True, False, mode, trusted=policies.trusted)
        with self.lock:
            self.exempt = exempt
            self.user_tiers = tiers_of(limits.user, mode)
            self.client_tiers = tiers_of(limits.client, mode)
            self.total_tiers = tiers_of(limits.client_total, mode)
            tiers = (*self.user_tiers, *self.client_tiers, *self.total_tiers)
            # Never shorter than before: hits counted under a wider window are still to be sent.
            self.horizon_s = max(self.horizon_s, *(tier.window_s + tier.frame_s for tier in tiers), 0)
            self.former = {**self.former, **self.keys}
            self.keys = {}
            total = self.total
            if not self.total_tiers:
                self.total = None
            elif total is None:
                scope = CLIENT_TOTAL if self.scope is None else f"{self.scope}/{CLIENT_TOTAL}"
                self.total = KeyState(self, None, scope, self.total_tiers, now_s)
            else:
                total.adopt(self.total_tiers, now_s)

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
            state = KeyState(self, username, self.scope, tiers, now_s)
        else:
            state.adopt(tiers, now_s)
        self.keys[username] = state
        return state

    def decide(self, state: KeyState, now_s: float, *, cost: int) -> Decision:
        """
        Decide about a request that no allowance covers, and count it where it counts. The lock is held by the caller.
        """
        total = self.total
        allowance = state.grant(now_s)
        left = allowance.left - cost
        state.look_count += 1
        if not state.is_touched:
            self.notices.touch(state)
        if total is not None or left < 0 or not allowance.terms:
            return self._decide_exactly(state, now_s, cost=cost)
        if state.look_count < LOOKS_BEFORE_ALLOWANCE:
            for bucket in state.buckets:
                bucket.add(cost)
        else:
            state.allowance = allowance
        allowance.left = left
        return Admission(allowance, left, now_s)

    def _decide_exactly(self, state: KeyState, now_s: float, *, cost: int) -> Finding:
        """
        Look at every bucket that a request concerns.
        """
        states = (state,) if self.total is None else (state, self.total)
        buckets: tuple[Bucket, ...] = ()
        for concerned in states:
            buckets += concerned.settle()
            self.notices.touch(concerned)
        if not buckets:
            return Finding(True, False, self.mode)
        over = over_limit(buckets, now_s, cost)
        if over:
            return self._refuse(state, buckets, over, now_s=now_s, cost=cost)
        for bucket in buckets:
            bucket.add(cost)
        for concerned in states:
            if any(bucket.full >= bucket.alert for bucket in concerned.buckets):
                self.notices.hurry(concerned)
            if self.total is not None:
                concerned.allowance = concerned.grant(now_s)
        return _admission(buckets, now_s)

    def preview(self, state: KeyState, now_s: float, *, cost: int) -> Finding:
        """
        Decide as ``decide`` does, and count nothing. The lock is held by the caller.
        """
        buckets = state.settle()
        self.notices.touch(state)
        if self.total is not None:
            buckets += self.total.settle()
            self.notices.touch(self.total)
        if not buckets:
            return Finding(True, False, self.mode)
        over = over_limit(buckets, now_s, cost)
        return _denial(buckets, over, now_s, cost=cost) if over else _admission(buckets, now_s)

    def _refuse(
        self, state: KeyState, buckets: Sequence[Bucket], over: Sequence[Bucket], *, now_s: float, cost: int
    ) -> Finding:
        """
        Describe a denial, and count the request where it counts all the same.

        A dry run beside enforced policies denies nothing, so what they admit counts for them.
        """
        denied = any(bucket.tier.is_enforced for bucket in over)
        counting = [
            bucket for bucket in buckets if bucket.tier.count_denied or (bucket.tier.is_enforced and not denied)
        ]
        for bucket in counting:
            bucket.add(cost)
        finding = _denial(buckets, over, now_s, cost=cost)
        if cost == 1 and not counting and self.total is None:  # other users' requests move a total
            state.refusal = Refusal(finding, now_s, now_s + finding.retry_after_s)
        return finding

    def forget(self, state: KeyState) -> bool:
        """
        Drop a key, unless something of it is still to be sent.
        """
        with self.lock:
            if not state.is_settled:
                return False
            if self.total is not state:
                self.keys.pop(state.username, None)
                self.former.pop(state.username, None)
            return True


def over_limit(buckets: Sequence[Bucket], now_s: float, cost: int) -> list[Bucket]:
    """
    Return the buckets that do not admit a request.
    """
    return [bucket for bucket in buckets if bucket.estimate(now_s) + cost > bucket.tier.limit]


def _admission(buckets: Sequence[Bucket], now_s: float) -> Finding:
    room, nearest = min(((bucket.tier.limit - bucket.estimate(now_s), bucket) for bucket in buckets), key=itemgetter(0))
    tier = nearest.tier
    return Finding(
        allowed=True,
        would_deny=False,
        mode=tier.mode,
        rule=tier.policy,
        remaining=int(room),
        reset_after_s=nearest.reset_after_s(now_s),
    )


def _denial(buckets: Sequence[Bucket], over: Sequence[Bucket], now_s: float, *, cost: int) -> Finding:
    """
    Describe a request that is over the limit of some buckets: it fits when all that can deny it admit it at once.
    """
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
    return Finding(
        allowed=not denied,
        would_deny=True,
        mode=last.tier.mode,
        rule=last.tier.policy,
        remaining=max(0, math.floor(min(bucket.tier.limit - bucket.estimate(now_s) for bucket in concerned))),
        reset_after_s=last.reset_after_s(now_s),
        retry_after_s=retry_after_s,
    )
