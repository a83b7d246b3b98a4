"""All metrics of the package, each with values."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from oauth_ratelimit.core.decision import DecidedRequest, Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.sync.flusher import CycleReport
from tests.support.decisions import DENIED, an_admission

Series = dict[tuple[str, ...], Any]
"""Values by the labels' values, in alphabetical order of the labels; count and sum of a histogram."""


class RecordedMetrics(Metrics):
    """Metrics of a registry of their own, and what a scrape of it would find."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        super().__init__(self.registry)

    def decide(self, decision: Decision, client_id: str = "some-client", username: str | None = None) -> None:
        self.record_decisions([DecidedRequest(decision, client_id, username, "password", "token", 1.0, 3e-6)])

    def use_all(self) -> None:
        self.decide(an_admission(remaining=1))
        self.record_taken_back()
        over = Counter({"user": 4})
        self.record_cycle(
            CycleReport(flushed_count=7, pulled_count=2, conflict_count=3, over_admitted=over, lock_timeout_count=2),
            duration_s=0.02,
        )
        self.record_cycle(CycleReport(error=StoreUnavailable("out of reach")), duration_s=0.01)
        self.record_cycle(CycleReport(), duration_s=0.0)  # did nothing, so its duration is left out
        last = CycleReport(in_flight_hits=7, key_count=9)
        self.record_state(last, lag_s=1.5, is_config_valid=False, is_refused=True, mode=Mode.ENFORCE)
        self.record_failure("user")
        self.record_alarm(DENIED)

    def families(self) -> Iterator[tuple[str, str, set[str]]]:
        for family in self.registry.collect():
            suffix = "_total" if family.type == "counter" else ""
            labels = {label for sample in family.samples for label in sample.labels}
            yield family.name + suffix, family.type, labels - {"le"}

    def series(self, name: str) -> Series:
        values: dict[str, Series] = {}
        for sample in self._samples():
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            values.setdefault(sample.name, {})[labels] = sample.value
        full = f"oauth_ratelimit_{name}"
        if full in values:
            return values[full]
        return {labels: (count, values[f"{full}_sum"][labels]) for labels, count in values[f"{full}_count"].items()}

    def labels_by_series(self) -> Mapping[str, set[str]]:
        return {sample.name: set(sample.labels) for sample in self._samples()}

    def _samples(self) -> Iterator[Any]:
        return (sample for family in self.registry.collect() for sample in family.samples)
