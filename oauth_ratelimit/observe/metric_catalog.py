"""Names, types and labels of all metrics."""

from dataclasses import dataclass
from typing import Literal

NAMESPACE = "oauth_ratelimit"
MAX_CLIENTS = 50  # clients with series of their own, each with up to ten

# Decisions take microseconds, unless the store is asked before the last requests of a quota.
DECISION_BUCKETS_S = (5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 1e-1)
FLUSH_BUCKETS_S = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0, 2.5, 10.0)
FLUSH_KEYS_BUCKETS = (1, 5, 25, 100, 500, 2500, 10_000, 50_000)


@dataclass(frozen=True, eq=False, slots=True)
class Metric:
    """Definition of a metric. Compared and hashed by identity.

    Args:
        kind: Type of the instrument.
        name: Name without the namespace. Counters are exported with ``_total`` after it.
        help: Description for the people who build dashboards.
        labels: Names of its labels.
        buckets: Upper bounds of a histogram's buckets.
        aggregation: Multiprocess mode of a gauge, in the terms of ``prometheus_client``.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    aggregation: Literal["livemostrecent", "livesum", "livemax"] = "livesum"


DECISIONS = Metric("counter", "decisions", "Requests decided.", labels=("decision", "mode", "grant_type", "policy"))
NEAR_LIMIT = Metric("counter", "near_limit", "Requests admitted with less than a fifth of their quota left.")
DECISION_SECONDS = Metric("histogram", "decision_seconds", "Duration of a decision.", buckets=DECISION_BUCKETS_S)
CLIENT_DECISIONS = Metric(
    "counter",
    "client_decisions",
    f"Requests decided, of at most {MAX_CLIENTS} clients per process by name. Kind: client or user, as limits.",
    labels=("client_id", "kind", "decision"),
)
CLIENT_LIMIT = Metric(
    "gauge",
    "client_limit_per_second",
    "Limit of a client as a rate; of kind user, for each user.",
    labels=("client_id", "kind", "policy"),
    aggregation="livemostrecent",
)
FLUSH_SECONDS = Metric("histogram", "flush_seconds", "Duration of a sync cycle with MongoDB.", buckets=FLUSH_BUCKETS_S)
FLUSH_KEYS = Metric("histogram", "flush_keys", "Documents written by a sync cycle.", buckets=FLUSH_KEYS_BUCKETS)
FLUSH_CONFLICTS = Metric("counter", "flush_conflicts", "Writes that lost a race and were repeated.")
FLUSH_FAILURES = Metric("counter", "flush_failures", "Sync cycles that failed because of MongoDB.")
OVER_ADMITTED = Metric(
    "counter",
    "over_admitted",
    "Hits above a limit, admitted while instances did not know of each other. The instance that writes one counts it.",
    labels=("policy",),
)
IN_FLIGHT_HITS = Metric("gauge", "in_flight_hits", "Hits counted here that the last sync cycle could not write.")
TRACKED_KEYS = Metric("gauge", "tracked_keys", "Keys in memory, summed over processes.")
SNAPSHOT_AGE = Metric(
    "gauge",
    "snapshot_age_seconds",
    "Time since the last full sync cycle without an error, of the process that lags most.",
    aggregation="livemax",
)
FAILURES = Metric("counter", "failures", "Failed authentications, by kind of limit that counts them.", labels=("kind",))
ALARMS = Metric(
    "counter", "alarms", "Requests that came after too many failed authentications.", labels=("decision", "policy")
)

CATALOG = (
    DECISIONS,
    NEAR_LIMIT,
    DECISION_SECONDS,
    CLIENT_DECISIONS,
    CLIENT_LIMIT,
    FLUSH_SECONDS,
    FLUSH_KEYS,
    FLUSH_CONFLICTS,
    FLUSH_FAILURES,
    OVER_ADMITTED,
    IN_FLIGHT_HITS,
    TRACKED_KEYS,
    SNAPSHOT_AGE,
    FAILURES,
    ALARMS,
)
