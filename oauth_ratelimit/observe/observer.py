"""What is done about a decision besides answering: it is counted in the metrics, and the application hears of it."""

from collections.abc import Callable

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.observe.metrics import Metrics, open_all_metrics
from oauth_ratelimit.observe.statistics import StatisticsRecorder

Hook = Callable[..., object]
"""Called as ``hook(decision, client_id=..., username=..., grant_type=...)``."""

NEAR_LIMIT_SHARE = 5  # the last fifth of a quota is near its limit


def is_near_limit(decision: Decision) -> bool:
    """Whether a request was admitted, and less than a fifth of the quota is left."""
    rule = decision.rule
    return rule is not None and not decision.would_deny and decision.remaining * NEAR_LIMIT_SHARE < rule.limit


class Observer:
    """Observes the decisions of one application, off every lock.

    Args:
        is_grant: Whether a grant type is one of the server's.
        on_denied: Called with each denial.
        on_near_limit: Called with each request that is admitted near its limit.

    Attributes:
        metrics: Where decisions are counted, None if nowhere.
        statistics: Where they are counted by client and minute, None if nowhere. A process sets its own.
    """

    def __init__(
        self, *, is_grant: Callable[[str], bool], on_denied: Hook | None = None, on_near_limit: Hook | None = None
    ) -> None:
        self.metrics: Metrics | None = None
        self.statistics: StatisticsRecorder | None = None
        self._is_grant = is_grant
        self._on_denied = on_denied
        self._on_near_limit = on_near_limit

    def start(self) -> None:
        """Count from now on, if there is something to count with."""
        self.metrics = open_all_metrics()

    def has_listeners(self) -> bool:
        """Whether there is anything to tell."""
        return (
            self.metrics is not None
            or self.statistics is not None
            or self._on_denied is not None
            or self._on_near_limit is not None
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
