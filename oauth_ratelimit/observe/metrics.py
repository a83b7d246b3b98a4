"""What metrics are fed with, whoever collects them: Prometheus, OpenTelemetry, both or nobody."""

from collections.abc import Callable
from typing import Any, Protocol

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.observe.otel import open_otel
from oauth_ratelimit.observe.prometheus import open_metrics
from oauth_ratelimit.sync.flusher import CycleReport


class Metrics(Protocol):
    """Counts what happens in one process. Thread-safe."""

    def note_decision(
        self,
        decision: Decision,
        client_id: str,
        *,
        username: str | None,
        grant_type: str | None,
        is_near_limit: bool,
        duration_s: float,
        is_grant: Callable[[str], bool],
    ) -> None:
        """Count one decision.

        Args:
            decision: What was decided.
            client_id: Who asked.
            username: For whom, None for grants without a user.
            grant_type: How, None if that does not matter.
            is_near_limit: Whether little of the quota is left.
            duration_s: How long the decision took.
            is_grant: Whether a grant type is one of the server's; any other is not worth a label.
        """

    def note_cycle(self, report: CycleReport, *, duration_s: float) -> None:
        """Note what a sync cycle did."""

    def note_state(self, *, in_flight_hits: int, key_count: int, lag_s: float) -> None:
        """Note where the synchronisation stands."""

    def note_failure(self, kind: str) -> None:
        """Count a failed authentication against a client, a user or an address."""

    def note_alarm(self, decision: Decision) -> None:
        """Count a request that came after too many failures."""


class CombinedMetrics:
    """Feeds two meters with the same."""

    def __init__(self, one: Metrics, other: Metrics) -> None:
        self._meters = (one, other)

    def note_decision(self, decision: Decision, client_id: str, **facts: Any) -> None:
        """See ``Metrics.note_decision``."""
        for meter in self._meters:
            meter.note_decision(decision, client_id, **facts)

    def note_cycle(self, report: CycleReport, *, duration_s: float) -> None:
        """See ``Metrics.note_cycle``."""
        for meter in self._meters:
            meter.note_cycle(report, duration_s=duration_s)

    def note_state(self, *, in_flight_hits: int, key_count: int, lag_s: float) -> None:
        """See ``Metrics.note_state``."""
        for meter in self._meters:
            meter.note_state(in_flight_hits=in_flight_hits, key_count=key_count, lag_s=lag_s)

    def note_failure(self, kind: str) -> None:
        """See ``Metrics.note_failure``."""
        for meter in self._meters:
            meter.note_failure(kind)

    def note_alarm(self, decision: Decision) -> None:
        """See ``Metrics.note_alarm``."""
        for meter in self._meters:
            meter.note_alarm(decision)


def open_all_metrics() -> Metrics | None:
    """Return what this process is metered with, None if neither library is there."""
    metrics, otel = open_metrics(), open_otel()
    if metrics is None or otel is None:
        return metrics or otel
    return CombinedMetrics(metrics, otel)
