"""Metrics of one process for Prometheus, if its client library is installed (the extra ``prometheus``).

They are in the library's own registry, beside those of the application. With several worker processes the library adds
them up over files in ``PROMETHEUS_MULTIPROC_DIR``, which must be set before it is imported.
"""

import os
import tempfile
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from oauth_ratelimit.core.decision import DecidedRequest, Decision, Outcome, outcome_of
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.statistics import Kind
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.sync.flusher import CycleReport

try:
    import prometheus_client
except ImportError:
    IS_AVAILABLE = False
else:
    IS_AVAILABLE = True

NAMESPACE = "oauth_ratelimit"
NONE = "none"
OTHER = "other"

ROOM_BYTES = 2**21  # some times what the files of a process take
NO_ROOM = "make room in PROMETHEUS_MULTIPROC_DIR and restart; docs/operations.md has more"
NOT_MADE = "empty PROMETHEUS_MULTIPROC_DIR before a start, let no other metric begin with oauth_ratelimit_, and restart"

MAX_CLIENTS = 50  # clients with series of their own, each with up to ten
FIRST_COME_CLIENTS = MAX_CLIENTS // 2  # the other half is kept for clients that are over a limit

DECISION_BUCKETS_S = (5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 1e-1)
FLUSH_BUCKETS_S = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0, 2.5, 10.0)
FLUSH_KEYS_BUCKETS = (1, 5, 25, 100, 500, 2500, 10_000, 50_000)
LOG_INTERVAL_S = 60.0  # between two log entries about metrics that cannot be written

log = get_logger(__name__)
_throttled_log = ThrottledLog(log, LOG_INTERVAL_S)


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Log what the library raises. No limit, count or heartbeat depends on metrics."""
    try:
        yield
    except Exception as exc:  # noqa: BLE001  # foreign code, which opens files anew after a fork
        _throttled_log.error("observer_failed", error=repr(exc), traceback=traceback.format_exc())


class Metrics:
    """Counters and gauges of one process. Thread-safe, as the library is."""

    def __init__(self, registry: "prometheus_client.CollectorRegistry | None" = None) -> None:
        own: dict[str, Any] = {"namespace": NAMESPACE, "registry": registry or prometheus_client.REGISTRY}
        counter: Callable[..., prometheus_client.Counter] = partial(prometheus_client.Counter, **own)
        gauge: Callable[..., prometheus_client.Gauge] = partial(prometheus_client.Gauge, **own)
        total = partial(gauge, multiprocess_mode="livesum")  # over the processes
        histogram: Callable[..., prometheus_client.Histogram] = partial(prometheus_client.Histogram, **own)
        self._decisions = counter("decisions", "Requests decided.", ("decision", "mode", "grant_type", "policy"))
        self._near_limit = counter("near_limit", "Requests admitted with less than a fifth of their quota left.")
        self._decision_seconds = histogram("decision_seconds", "Duration of a decision.", buckets=DECISION_BUCKETS_S)
        self._taken_back = counter(
            "requests_taken_back",
            "Admitted requests that do not count, because the server failed before it saved a token.",
        )
        self._client_decisions = counter(
            "client_decisions",
            f"Requests decided, of at most {MAX_CLIENTS} clients per process by name. Kind: client or user, as limits.",
            ("client_id", "kind", "decision"),
        )
        self._client_limit = gauge(
            "client_limit_per_second",
            "Limit of a client as a rate; of kind user, for each user.",
            ("client_id", "kind", "policy"),
            multiprocess_mode="livemostrecent",
        )
        self._flush_seconds = histogram(
            "flush_seconds", "Duration of a sync cycle with MongoDB.", buckets=FLUSH_BUCKETS_S
        )
        self._flush_keys = histogram("flush_keys", "Documents written by a sync cycle.", buckets=FLUSH_KEYS_BUCKETS)
        self._flush_conflicts = counter("flush_conflicts", "Writes that lost a race and were repeated.")
        self._flush_failures = counter("flush_failures", "Sync cycles that failed because of MongoDB.")
        self._lock_timeouts = counter(
            "host_lock_timeouts", "Requests that did not get the lock of the host's file in time. Without guesses."
        )
        self._over_admitted = counter(
            "over_admitted",
            "Hits above a limit, admitted while instances did not know of each other. The instance that writes one "
            "counts it.",
            ("policy",),
        )
        self._in_flight_hits = total("in_flight_hits", "Hits counted here that the last sync cycle could not write.")
        self._tracked_keys = total("tracked_keys", "Keys with counters; those of a host are counted once.")
        self._snapshot_age = gauge(
            "snapshot_age_seconds",
            "Time since the last full sync cycle without an error, of the process that lags most.",
            multiprocess_mode="livemax",
        )
        self._config_valid = gauge(
            "config_valid", "1, or 0 if a process rejects its configuration file.", multiprocess_mode="livemin"
        )
        self._config_valid.set(1)  # what is exported even if a later one cannot be made
        self._refused = gauge(
            "store_refused", "1 if MongoDB refuses something for a missing right, else 0.", multiprocess_mode="livemax"
        )
        self._mode = total("mode", "Processes in each global mode.", ("mode",))
        self._failures = counter("failures", "Failed authentications, by kind of limit that counts them.", ("kind",))
        self._alarms = counter(
            "alarms", "Requests that came after too many failed authentications.", ("decision", "policy")
        )
        self._labels: dict[str, str] = {}  # by client id
        self._rates: dict[tuple[str, ...], float] = {}  # shown by the gauge of limits

    @_errors_logged()
    def record_decisions(self, decided: Sequence[DecidedRequest]) -> None:
        """Count requests, those of a kind at once: the library takes longer to count one than we to decide it."""
        found: defaultdict[tuple[str, Kind, str, Outcome, Mode, str], list[Policy | None]] = defaultdict(list)
        near_limit_count = 0
        for request in decided:
            policy, mode, _, is_near_limit = request.decision.described()
            near_limit_count += is_near_limit
            kind: Kind = "client" if request.username is None else "user"
            name = NONE if policy is None else policy.name
            found[request.client_id, kind, request.grant, outcome_of(request.decision), mode, name].append(policy)
        for (client_id, kind, grant, outcome, mode, name), policies in found.items():
            count, policy = len(policies), policies[-1]
            client = self._label_of(client_id, is_over_limit=outcome not in ("allowed", "trusted"))
            self._decisions.labels(outcome, mode.value, grant, name).inc(count)
            self._client_decisions.labels(client, kind, outcome).inc(count)
            if policy is not None and client != OTHER:
                rate = policy.limit / policy.window.window_s
                if self._rates.get((client, kind, name)) != rate:
                    self._rates[client, kind, name] = rate
                    self._client_limit.labels(client, kind, name).set(rate)
        self._near_limit.inc(near_limit_count)
        for request in decided:
            self._decision_seconds.observe(request.duration_s)

    @_errors_logged()
    def record_taken_back(self) -> None:
        self._taken_back.inc()

    def _label_of(self, client_id: str, *, is_over_limit: bool) -> str:
        """Return a client's own label if it has one or there is room, else ``other``. A race may add one too many."""
        label = self._labels.get(client_id)
        if label is None:
            if len(self._labels) >= (MAX_CLIENTS if is_over_limit else FIRST_COME_CLIENTS):
                return OTHER
            label = self._labels.setdefault(client_id, visible_name(client_id))
        return label

    @_errors_logged()
    def record_cycle(self, report: CycleReport, *, duration_s: float) -> None:
        if report.error is not None:
            self._flush_failures.inc()
        if report.error is not None or report.flushed_count or report.pulled_count:
            self._flush_seconds.observe(duration_s)
        if report.flushed_count:
            self._flush_keys.observe(report.flushed_count)
        self._flush_conflicts.inc(report.conflict_count)
        self._lock_timeouts.inc(report.lock_timeout_count)
        for policy, hits in report.over_admitted.items():
            self._over_admitted.labels(policy).inc(hits)

    @_errors_logged()
    def record_state(
        self, report: CycleReport, *, lag_s: float, is_config_valid: bool, is_refused: bool, mode: Mode | None
    ) -> None:
        """Set the gauges; ``mode`` is None at the end of a process."""
        self._in_flight_hits.set(report.in_flight_hits)
        self._tracked_keys.set(0 if report.is_elsewhere else report.key_count)
        self._snapshot_age.set(lag_s)
        self._config_valid.set(is_config_valid)
        self._refused.set(is_refused)
        for each in Mode:
            self._mode.labels(each.value).set(each is mode)

    @_errors_logged()
    def record_failure(self, kind: str) -> None:
        self._failures.labels(kind).inc()

    @_errors_logged()
    def record_alarm(self, decision: Decision) -> None:
        """Count a request that came after too many failed authentications."""
        self._alarms.labels(outcome_of(decision), decision.policy or NONE).inc()


_opening = threading.Lock()  # guards _opened
_opened: list[Metrics | None] = []  # None if they cannot be made


def open_metrics() -> Metrics | None:
    """Return the metrics of this process, which all its applications share; None if they cannot be made.

    Called as late as the first request: in multiprocess mode metrics leave files behind, and commands should not.
    """
    if not IS_AVAILABLE:
        return None
    with _opening:
        if not _opened and _has_room():
            try:
                _opened.append(Metrics())
            except Exception as exc:  # noqa: BLE001  # foreign code, whose files and names others may have taken
                _opened.append(None)  # some are registered by now, so another try would fail, too
                log.error("metrics_off", reason=repr(exc), hint=NOT_MADE)
        return _opened[0] if _opened else None


def _has_room() -> bool:
    """Return False if the library's files in ``PROMETHEUS_MULTIPROC_DIR`` have no room, and log it.

    The library maps them into memory, so the system kills a process that writes where the disk has no room.
    """
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not folder or not hasattr(os, "posix_fallocate"):
        return True
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            os.posix_fallocate(probe.fileno(), 0, ROOM_BYTES)
    except OSError as exc:
        log.error("metrics_off", reason=exc.strerror, hint=NO_ROOM)
        return False
    return True
