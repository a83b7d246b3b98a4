"""
Events about denials, few enough to be read while a client floods.
"""

import random
from dataclasses import dataclass

import structlog

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import visible_name

log = structlog.get_logger("oauth_ratelimit")

REPEAT_S = 60.0  # one event per key and this long
MAX_KEYS = 10_000  # keys that are remembered for it


@dataclass(slots=True)
class _Said:
    since_s: float
    until_s: float
    suppressed_count: int = 0


class DenialEvents:
    """
    Says once per key and minute that it is being denied, or would be; the next event tells how many were left out.

    Takes no lock: when two threads meet, one more event or a count off by one costs less than waiting.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, str | None], _Said] = {}

    def report(
        self, client_id: str, username: str | None, *, decision: Decision, is_canary: bool, now_s: float
    ) -> None:
        """
        Log ``request_denied`` or ``request_would_be_denied``, unless that was done a moment ago.

        Every denial gets its ``decision_id``, those that are not logged included.

        Args:
            client_id: Who asked.

            username: For whom, None for grants without a user.

            decision: What was decided.

            is_canary: Whether the client is in the share that a canary enforces.

            now_s: The time, seconds since the epoch.
        """
        is_denied = not decision.allowed
        if is_denied:
            # This generator starts anew after a fork. Every denial has a slot for it, which the base class cannot.
            decision.decision_id = f"{random.getrandbits(64):016x}"  # type: ignore[misc]
        key = (client_id, username)
        said = self._said.get(key)
        if said is not None and said.since_s <= now_s < said.until_s:
            said.suppressed_count += 1
            return
        if len(self._said) >= MAX_KEYS:
            self._said.clear()
        self._said[key] = _Said(now_s, now_s + REPEAT_S)
        log.warning(
            "request_denied" if is_denied else "request_would_be_denied",
            client_id=visible_name(client_id),
            username=None if username is None else visible_name(username),
            policy=decision.policy,
            limit=decision.limit,
            window_s=decision.window_s,
            retry_after_s=decision.retry_after_s,
            mode=decision.mode.value,
            canary=is_canary,
            suppressed_count=said.suppressed_count if said else 0,
            **({"decision_id": decision.decision_id} if is_denied else {}),
        )
