"""State of one client in one scope: its limits and its keys."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from oauth_ratelimit.core.cached_denial import CachedDenial
from oauth_ratelimit.core.decision import Admission, FullDecision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, ClientPolicies, Limits
from oauth_ratelimit.core.tier import Tier, raised, tiers_of
from oauth_ratelimit.core.window import ROUNDING_S
from oauth_ratelimit.counters.bucket import Bucket
from oauth_ratelimit.counters.client_scope import ClientScope, Peers
from oauth_ratelimit.counters.dirty_queue import DirtyQueue
from oauth_ratelimit.counters.key_state import Due, KeyState

CLIENT_TOTAL = "client_total"

Concerned = Mapping[Bucket, Tier]
"""The buckets that a request concerns, each with the tier that decides: its own, or one with another mode."""


def over_limit(tiers: Concerned, now_s: float, cost: int) -> list[Bucket]:
    """Return the buckets that do not admit a request."""
    return [bucket for bucket in tiers if bucket.estimate(now_s) > bucket.tier.limit - cost]


def describe_admission(tiers: Concerned, now_s: float) -> FullDecision:
    """Describe a request that all buckets admit, by the one with least left."""
    room, nearest = min(((bucket.tier.limit - bucket.estimate(now_s), bucket) for bucket in tiers), key=itemgetter(0))
    return FullDecision(
        allowed=True,
        would_deny=False,
        mode=tiers[nearest].mode,
        rule=tiers[nearest].policy,
        remaining=int(room),
        reset_after_s=nearest.reset_after_s(now_s),
    )


def describe_denial(tiers: Concerned, over: Sequence[Bucket], now_s: float, *, cost: int) -> FullDecision:
    """Describe a request that some buckets deny, by the one that admits it last."""
    denied = any(tiers[bucket].is_enforced for bucket in over)
    concerned = [bucket for bucket, tier in tiers.items() if tier.is_enforced or not denied]
    retry_after_s, last = 0.0, over[0]
    while True:  # until all of them admit the request at the same moment
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
        mode=tiers[last].mode,
        rule=tiers[last].policy,
        remaining=max(0, math.floor(min(bucket.tier.limit - bucket.estimate(now_s) for bucket in concerned))),
        reset_after_s=last.reset_after_s(now_s),
        retry_after_s=retry_after_s,
    )


@dataclass(frozen=True, slots=True)
class GrantTiers:
    """Tiers of a grant type whose requests count with the client's other grants, but under another mode.

    Attributes:
        mode: What is done with denials.
        exempt: The answer to every request, if nothing is decided.
        is_canary: Whether the client is in the share that a canary enforces.
        user, client, total: The tiers by what they count, as in ``ClientState`` but for their modes.
    """

    mode: Mode
    exempt: FullDecision | None
    is_canary: bool
    user: tuple[Tier, ...]
    client: tuple[Tier, ...]
    total: tuple[Tier, ...]

    @classmethod
    def of(cls, policies: ClientPolicies) -> "GrantTiers":
        """Return the tiers of a grant type's policies."""
        limits = policies.limits
        kinds = (limits.user, limits.client, limits.client_total)
        user, client, total = (tiers_of(kind, policies.mode) for kind in kinds)
        return cls(policies.mode, _exemption(policies), policies.is_canary, user, client, total)


NO_GRANTS: Mapping[str, ClientPolicies] = {}
NO_GRANT_TIERS: Mapping[str | None, GrantTiers] = {}


class ClientState(ClientScope):
    """One client in one scope: its limits and its keys. There is one in a process, so each document has one state.

    Args:
        client_id: The client, in its storable form.
        policies: The policies of the client.
        now_s: The time.
        configured_id: The client's id as the configuration names it.
        dirty_queue: Queue of keys for the sync cycle.
        peers: Other instances.
        endpoint: The endpoint whose requests are counted here.
        grant_type: The grant type whose requests are counted here, None for all that have no limits of their own.
        grants: See ``apply``.

    Attributes:
        exempt: The answer to every request, if nothing is decided.
        grant_tiers: Tiers by grant type, where one differs from the others in its mode alone.
        keys: States by username, None for grants without a user.
        former: States that no request has asked for since the policies last changed.
        total: The state of all users together, if they are limited.
        former_total: The same, if they are not limited any more. It is used again if the limit comes back.
        is_gone: Whether the registry has dropped this state, so that no key may be added.
        is_canary: Whether the client is in the share that a canary enforces.
    """

    __slots__ = (
        "_total_buckets",
        "client_tiers",
        "configured_id",
        "dirty_queue",
        "endpoint",
        "exempt",
        "former",
        "former_total",
        "grant_tiers",
        "grant_type",
        "is_canary",
        "is_gone",
        "keys",
        "mode",
        "total",
        "total_tiers",
        "user_tiers",
    )

    def __init__(
        self,
        client_id: str,
        policies: ClientPolicies,
        now_s: float,
        *,
        configured_id: str,
        dirty_queue: DirtyQueue,
        peers: Peers,
        endpoint: str = TOKEN_ENDPOINT,
        grant_type: str | None = None,
        grants: Mapping[str, ClientPolicies] = NO_GRANTS,
    ) -> None:
        super().__init__(client_id, None if policies.scope is None else storable_name(policies.scope), peers)
        self.configured_id = configured_id
        self.endpoint = endpoint
        self.grant_type = grant_type
        self.dirty_queue = dirty_queue
        self.keys: dict[str | None, KeyState] = {}
        self.former: dict[str | None, KeyState] = {}
        self.total: KeyState | None = None
        self.former_total: KeyState | None = None
        self._total_buckets: tuple[Bucket, ...] = ()
        self.is_gone = False
        self.user_tiers: tuple[Tier, ...] = ()
        self.client_tiers: tuple[Tier, ...] = ()
        self.total_tiers: tuple[Tier, ...] = ()
        self.apply(policies, now_s, grants=grants)

    def apply(
        self, policies: ClientPolicies, now_s: float, *, grants: Mapping[str, ClientPolicies] = NO_GRANTS
    ) -> None:
        """Apply new policies. Each key follows with its next request.

        Args:
            policies: The policies of the client.
            now_s: The time.
            grants: Policies of the grant types that count here and differ from ``policies`` in their modes.
        """
        with self.lock:
            self.mode = policies.mode
            self.is_canary = policies.is_canary
            self.exempt = _exemption(policies)
            self.grant_tiers: Mapping[str | None, GrantTiers] = {
                name: GrantTiers.of(found) for name, found in grants.items()
            } or NO_GRANT_TIERS
            # Limits are the same for all grants, but where a mode is off they are left out.
            counted = next((found for found in (policies, *grants.values()) if found.limits != Limits()), policies)
            self._set_tiers(counted.limits, counted.mode, now_s)

    def _set_tiers(self, limits: Limits, mode: Mode, now_s: float) -> None:
        self.former_horizons = raised(self.former_horizons, self._tiers_of_all_kinds)
        alone = not limits.client_total
        self.user_tiers = tiers_of(limits.user, mode, alone=alone)
        self.client_tiers = tiers_of(limits.client, mode, alone=alone)
        self.total_tiers = tiers_of(limits.client_total, mode)
        # Never shorter than before, because hits of a wider window are still to be sent.
        self.horizon_s = max(self.horizon_s, *(tier.horizon_s for tier in self._tiers_of_all_kinds), 0)
        if self.former:
            self.former.update(self.keys)
        else:
            self.former = self.keys
        self.keys = {}
        total = self.total or self.former_total
        if total is not None and self.total_tiers:
            if total.change_tiers(self.total_tiers, now_s):
                self.dirty_queue.mark_urgent(total)
        elif self.total_tiers:
            scope = CLIENT_TOTAL if self.scope is None else f"{self.scope}/{CLIENT_TOTAL}"
            total = KeyState(self, None, scope, self.total_tiers, now_s)
        self.total, self.former_total = (total, None) if self.total_tiers else (None, total)
        self._total_buckets = self.total.buckets if self.total else ()

    @property
    def _tiers_of_all_kinds(self) -> tuple[Tier, ...]:
        return (*self.user_tiers, *self.client_tiers, *self.total_tiers)

    def exempt_all(self) -> None:
        """Admit every request uncounted."""
        self.exempt = self.exempt or FullDecision(True, False, self.mode)
        self.grant_tiers = NO_GRANT_TIERS

    def under(self, grant_type: str | None) -> "ClientState | GrantTiers":
        """Return what holds the mode, exemption and canary of a grant type. The lock is held."""
        return self.grant_tiers.get(grant_type) or self

    def is_limited(self, username: str | None) -> bool:
        """Return whether a key has limits of its own, besides those of all users together."""
        return bool(self.client_tiers if username is None else self.user_tiers)

    def add_key(self, username: str | None, now_s: float) -> KeyState:
        """Add a limited key that is not in ``keys``. The lock is held."""
        tiers = self.client_tiers if username is None else self.user_tiers
        state = self.former.pop(username, None)
        if state is None:
            state = KeyState(self, username, self.scope, tiers, now_s)
            if state.is_urgent_unread:
                self.dirty_queue.mark_urgent(state)
        elif state.change_tiers(tiers, now_s):
            self.dirty_queue.mark_urgent(state)
        self.keys[username] = state
        return state

    def keys_to_reserve(self, state: KeyState | None) -> tuple[KeyState, ...]:
        """Return the keys to synchronise before a request of a key is decided, if there are any. The lock is held."""
        concerned = tuple(each for each in (state, self.total) if each is not None)
        return concerned if any(each.has_reached_alert for each in concerned) else ()

    def try_admit(self, state: KeyState, now_s: float, cost: int) -> Admission | None:
        """Admit and count a request that is surely within all limits, else return None. The lock is held."""
        total = self.total
        if not state.is_dirty:
            self.dirty_queue.mark_dirty(state)
        if total is not None and not total.is_dirty:
            self.dirty_queue.mark_dirty(total)
        others = state.others + self._total_buckets
        # No calls, and the key apart from its other buckets: the loops are twice as fast on objects of one class.
        if now_s >= state.frame_end_s:
            state.turn(now_s)
        full = state.full + cost
        if full > state.ceiling:
            return None
        for bucket in others:
            if now_s >= bucket.frame_end_s:
                bucket.turn(now_s)
            if bucket.full + cost > bucket.ceiling:
                return None
        admission: Admission | None = None
        for bucket in others:
            bucket.full += cost
            admission = Admission(bucket.tier, bucket.full, bucket.edge, bucket.frame_end_s, now_s, admission)
        state.full = full
        return Admission(state.tier, full, state.edge, state.frame_end_s, now_s, admission)

    def decide(
        self, state: KeyState | None, now_s: float, cost: int, *, grant_type: str | None = None
    ) -> Admission | FullDecision:
        """Decide about a request by the estimates, and count it where it counts. The lock is held.

        Args:
            state: The key; None if it has no limits of its own.
            now_s: The time.
            cost: Hits of the request.
            grant_type: The grant type, which may have a mode of its own.
        """
        self._mark_dirty(state)
        tiers = self._tiers(state, grant_type)
        over = over_limit(tiers, now_s, cost)
        if over:
            return self._deny(state, tiers, over, now_s=now_s, cost=cost, grant_type=grant_type)
        admission: Admission | None = None
        for bucket, tier in reversed(list(tiers.items())):
            bucket.add(cost)
            admission = Admission(tier, bucket.full, bucket.edge, bucket.frame_end_s, now_s, admission)
        for concerned in (state, self.total):
            if concerned is not None and concerned.has_reached_alert:
                self.dirty_queue.mark_urgent(concerned)
        return admission or FullDecision(True, False, self.under(grant_type).mode)

    def _deny(
        self,
        state: KeyState | None,
        tiers: Concerned,
        over: Sequence[Bucket],
        *,
        now_s: float,
        cost: int,
        grant_type: str | None,
    ) -> FullDecision:
        """Describe a denial, and count the request where it counts all the same.

        A dry run beside enforced policies denies nothing, so the request counts in those.
        """
        denied = any(tiers[bucket].is_enforced for bucket in over)
        admitting = [] if denied else [bucket for bucket, tier in tiers.items() if tier.is_enforced]
        counting = [bucket for bucket in tiers if bucket.tier.count_denied and bucket not in admitting]
        for bucket in counting:
            bucket.add(cost)
        denial = describe_denial(tiers, over, now_s, cost=cost)
        for bucket in admitting:  # afterwards, or it would describe the denial of the next request
            bucket.add(cost)
            denial.beside = Admission(tiers[bucket], bucket.full, bucket.edge, bucket.frame_end_s, now_s, denial.beside)
        is_constant = not counting and not admitting and self.total is None  # other users change a total
        if state is not None and cost == 1 and is_constant and grant_type not in self.grant_tiers:
            state.cached_denial = CachedDenial(denial, now_s, now_s + denial.retry_after_s - ROUNDING_S)
        return denial

    def _mark_dirty(self, state: KeyState | None) -> None:
        for concerned in (state, self.total):
            if concerned is not None:
                self.dirty_queue.mark_dirty(concerned)
                # New here, as a total is beside its first key.
                if concerned.due_cycle is Due.UNLISTED and concerned.is_urgent_unread:
                    self.dirty_queue.mark_urgent(concerned)

    def _tiers(self, state: KeyState | None, grant_type: str | None) -> Concerned:
        """Return the buckets that a request of a key concerns, with their tiers."""
        own = () if state is None else state.buckets
        grant = self.grant_tiers.get(grant_type)
        if grant is None:
            return {bucket: bucket.tier for bucket in own + self._total_buckets}
        own_tiers = grant.client if state is None or state.username is None else grant.user
        # zip() stops where there are no buckets, as for a key without limits.
        return dict((*zip(own, own_tiers, strict=False), *zip(self._total_buckets, grant.total, strict=False)))

    def preview(
        self, state: KeyState | None, now_s: float, *, cost: int, grant_type: str | None = None
    ) -> FullDecision:
        """Decide as ``decide`` does, and count nothing. The lock is held."""
        self._mark_dirty(state)
        tiers = self._tiers(state, grant_type)
        if not tiers:
            return FullDecision(True, False, self.under(grant_type).mode)
        over = over_limit(tiers, now_s, cost)
        if over:
            return describe_denial(tiers, over, now_s, cost=cost)
        return describe_admission(tiers, now_s)

    def count(self, state: KeyState | None, now_s: float) -> None:
        """Count a request that was admitted before: in all limits but those on trial that deny it. The lock is held."""
        if state is None:
            return
        self.dirty_queue.mark_dirty(state)
        for bucket in state.buckets:
            if bucket.estimate(now_s) <= bucket.tier.limit - 1 or bucket.tier.is_enforced:
                bucket.add(1)
        if state.has_reached_alert:
            self.dirty_queue.mark_urgent(state)

    def forget(self, state: KeyState) -> bool:
        """Drop a settled key, and return whether it was one that counts towards the number of keys. The lock is held.

        The total counts towards no number, and is kept while it is limited.
        """
        if state is self.total or not state.is_settled or state.due_cycle is Due.FORGOTTEN:
            return False
        state.due_cycle = Due.FORGOTTEN
        if state is self.former_total:
            self.former_total = None
            return False
        self.keys.pop(state.username, None)
        self.former.pop(state.username, None)
        return True

    def erase(self, state: KeyState) -> bool:
        """Drop a key with all its hits, and return whether it counted towards the number of keys. The lock is held."""
        state.discard()
        return self.forget(state)

    def states(self) -> list[KeyState]:
        """Return the states of all keys, those of former policies included."""
        totals = (self.total, self.former_total)
        return [*self.keys.values(), *self.former.values(), *(state for state in totals if state is not None)]

    def is_empty(self, now_s: float) -> bool:
        """Return whether nothing is lost if the client is dropped. The lock is held."""
        total = self.total or self.former_total
        if self.keys or self.former:
            return False
        return total is None or (total.is_settled and total.is_idle(now_s))

    def leave(self) -> None:
        """Mark an empty client as dropped. The lock is held."""
        self.is_gone = True
        for total in (self.total, self.former_total):
            if total is not None:
                total.due_cycle = Due.FORGOTTEN
        self.total = self.former_total = None
        self._total_buckets = ()


def _exemption(policies: ClientPolicies) -> FullDecision | None:
    if policies.trusted or policies.mode is Mode.OFF or policies.limits == Limits():
        return FullDecision(True, False, policies.mode, trusted=policies.trusted)
    return None
