"""
A place is one client at one endpoint: its policies, and its keys.
"""

import threading

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.policy import ClientPolicies, Limits
from oauth_ratelimit.sync.counters import tiers_of
from oauth_ratelimit.sync.keys import KeyState

CLIENT_TOTAL = "client_total"


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
    """

    __slots__ = (
        "blank",
        "client_id",
        "client_tiers",
        "exempt",
        "former",
        "horizon_s",
        "keys",
        "lock",
        "mode",
        "scope",
        "total",
        "total_tiers",
        "user_tiers",
    )

    def __init__(self, client_id: str, policies: ClientPolicies, now_s: float) -> None:
        self.client_id = client_id
        self.scope: str | None = policies.scope
        self.lock = threading.Lock()
        self.keys: dict[str | None, KeyState] = {}
        self.former: dict[str | None, KeyState] = {}
        self.total: KeyState | None = None
        self.blank = KeyState(self, None, None, (), now_s)
        self.blank.is_touched = True  # keeps it off every list
        self.apply(policies, now_s)

    def apply(self, policies: ClientPolicies, now_s: float) -> None:
        """
        Take over new policies. Keys follow when a request asks for them.
        """
        limits, mode = policies.limits, policies.mode
        self.mode = mode
        exempt = None
        if policies.trusted or mode is Mode.OFF or limits == Limits():
            exempt = Decision(True, False, mode, trusted=policies.trusted)
        with self.lock:
            self.exempt = exempt
            self.user_tiers = tiers_of(limits.user, mode)
            self.client_tiers = tiers_of(limits.client, mode)
            self.total_tiers = tiers_of(limits.client_total, mode)
            tiers = (*self.user_tiers, *self.client_tiers, *self.total_tiers)
            self.horizon_s = max((tier.policy.window.window_s + tier.frame_s for tier in tiers), default=0)
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
