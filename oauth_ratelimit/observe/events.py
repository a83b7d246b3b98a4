"""
Events about denials, few enough to be read while a client floods.
"""

import random

import structlog

from oauth_ratelimit.core.decision import Finding
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.refusal import Silence

log = structlog.get_logger("oauth_ratelimit")

REPEAT_S = 60.0  # one event per key and this long
MAX_KEYS = 10_000  # keys that are remembered for it


class DenialEvents:
    """
    Says once per key and minute that it is being denied, or would be; the next event tells how many were left out.

    Takes no lock: when two threads meet, one more event or a count off by one costs less than waiting.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, str | None, str | None], Silence] = {}

    def report(
        self,
        client_id: str,
        username: str | None,
        *,
        scope: str | None,
        decision: Finding,
        is_canary: bool,
        now_s: float,
    ) -> Silence:
        """
        Log ``request_denied`` or ``request_would_be_denied``, unless that was done a moment ago.

        Every denial gets its ``decision_id``, those that are not logged included.

        Args:
            client_id: Who asked.

            username: For whom, None for grants without a user.

            scope: Where it is counted, None for the plain token counter.

            decision: What was decided.

            is_canary: Whether the client is in the share that a canary enforces.

            now_s: The time, seconds since the epoch.

        Returns:
            How long nothing more is to be said of this key; until then the caller may just count.
        """
        key = (client_id, username, scope)
        last = self._said.get(key)
        if last is not None and last.since_s <= now_s < last.until_s:
            last.suppressed_count += 1
            _name(decision, last)
            return last
        if len(self._said) >= MAX_KEYS:
            self._said.clear()
        silence = Silence(now_s, now_s + REPEAT_S, random.getrandbits(64))  # this generator starts anew after a fork
        self._said[key] = silence
        _name(decision, silence)
        log.warning(
            "request_would_be_denied" if decision.allowed else "request_denied",
            client_id=visible_name(client_id),
            username=None if username is None else visible_name(username),
            scope=scope,
            policy=decision.policy,
            limit=decision.limit,
            window_s=decision.window_s,
            retry_after_s=decision.retry_after_s,
            mode=decision.mode.value,
            canary=is_canary,
            suppressed_count=last.suppressed_count if last else 0,
            **({} if decision.decision_id is None else {"decision_id": decision.decision_id}),
        )
        return silence


def _name(decision: Finding, silence: Silence) -> None:
    if not decision.allowed:
        decision.decision_id = silence.decision_id(silence.suppressed_count)
