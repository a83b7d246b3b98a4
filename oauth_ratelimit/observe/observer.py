"""What is done about a decision besides answering: it is counted in the metrics, and the application hears of it."""

from collections.abc import Callable
from dataclasses import dataclass

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.observe.statistics import StatisticsRecorder

Hook = Callable[..., object]
"""Called as ``hook(decision, client_id=..., username=..., grant_type=...)``."""

NEAR_LIMIT_SHARE = 5  # the last fifth of a quota is near its limit


def is_near_limit(decision: Decision) -> bool:
    """Whether a request was admitted, and less than a fifth of the quota is left."""
    rule = decision.rule
    return rule is not None and not decision.would_deny and decision.remaining * NEAR_LIMIT_SHARE < rule.limit


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that an application passes in.

    Args:
        has_grant: Returns whether the server supports a grant type.
        on_denied: Called with each denied request.
        on_near_limit: Called with each request that is admitted near its limit.
    """

    has_grant: Callable[[str], bool]
    on_denied: Hook | None = None
    on_near_limit: Hook | None = None


class Observer:
    """Reports each decision of one application and process to metrics, statistics and callbacks. Takes no lock.

    Args:
        callbacks: Functions of the application.
        metrics: Counts decisions, if given.
        statistics: Counts decisions by client and minute, if given.

    Attributes:
        is_active: Whether anybody wants to know of decisions.
    """

    def __init__(
        self, callbacks: Callbacks, *, metrics: Metrics | None = None, statistics: StatisticsRecorder | None = None
    ) -> None:
        self.metrics = metrics
        self.statistics = statistics
        self._is_grant = callbacks.has_grant
        self._on_denied = callbacks.on_denied
        self._on_near_limit = callbacks.on_near_limit
        self.is_active = any(
            each is not None for each in (metrics, statistics, callbacks.on_denied, callbacks.on_near_limit)
        )

    def note(
        self,
        decision: Decision,
        client_id: str,
        *,
        username: str | None,
        grant_type: str | None,
        endpoint: str = TOKEN_ENDPOINT,
        duration_s: float,
    ) -> None:
        """Count a decision and call the hook that it concerns, if there is one. What a hook raises is the caller's."""
        if self.statistics is not None:
            self.statistics.note(
                decision,
                client_id,
                username=username,
                grant_type=grant_type,
                endpoint=endpoint,
                is_grant=self._is_grant,
            )
        is_near = is_near_limit(decision)
        if self.metrics is not None:
            self.metrics.note_decision(
                decision,
                client_id,
                username=username,
                grant_type=grant_type,
                is_near_limit=is_near,
                duration_s=duration_s,
                is_grant=self._is_grant,
            )
        hook = self._on_near_limit if is_near else self._on_denied if not decision.allowed else None
        if hook is not None:
            hook(decision, client_id=client_id, username=username, grant_type=grant_type)
