"""
Events about denials, few enough to be read while a client floods.
"""

import threading

import structlog

from oauth_ratelimit.core.decision import Decision

log = structlog.get_logger("oauth_ratelimit")

REPEAT_S = 60.0  # one event per key and this long
MAX_KEYS = 10_000  # keys that are remembered for it


class DenialEvents:
    """
    Says once per key and minute that it is being denied, or would be; the next event tells how many were left out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _said
        self._said: dict[tuple[str, str | None, bool], tuple[float, int]] = {}

    def report(self, client_id: str, username: str | None, *, decision: Decision, now_s: float) -> None:
        """
        Log ``request_denied`` or ``request_would_be_denied``, unless that was done a moment ago.
        """
        key = (client_id, username, decision.allowed)
        with self._lock:
            said_s, suppressed = self._said.get(key, (-REPEAT_S, 0))
            if 0 <= now_s - said_s < REPEAT_S:
                self._said[key] = (said_s, suppressed + 1)
                return
            if len(self._said) >= MAX_KEYS:
                self._said.clear()
            self._said[key] = (now_s, 0)
        event = "request_would_be_denied" if decision.allowed else "request_denied"
        log.warning(
            event,
            client_id=client_id,
            username=username,
            policy=decision.policy,
            limit=decision.limit,
            window_s=decision.window_s,
            retry_after_s=decision.retry_after_s,
            mode=decision.mode.value,
            suppressed_count=suppressed,
        )
