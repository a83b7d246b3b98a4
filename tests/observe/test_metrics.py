"""What is counted, under which names, and that the number of series is bounded."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from oauth_ratelimit import Limiter, StoreUnavailable, load_config
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.core.decision import Decision, FullDecision
from oauth_ratelimit.core.policy import Mode, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.observe.metric_labels import FIRST_COME_CLIENTS, MAX_CLIENTS
from oauth_ratelimit.observe.observer import is_near_limit
from oauth_ratelimit.observe.prometheus import PrometheusMetrics
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import CycleReport
from tests.support.helpers import Clock

RULE = Policy("client", 100, Window.of(60))
ALLOWED = FullDecision(True, False, Mode.ENFORCE, rule=RULE, remaining=50)
DENIED = FullDecision(False, True, Mode.ENFORCE, rule=RULE)
WOULD_DENY = FullDecision(True, True, Mode.DRY_RUN, rule=RULE)
TRUSTED = FullDecision(True, False, Mode.ENFORCE, trusted=True)

NAMES = {
    "oauth_ratelimit_decisions_total",
    "oauth_ratelimit_near_limit_total",
    "oauth_ratelimit_decision_seconds",
    "oauth_ratelimit_flush_seconds",
    "oauth_ratelimit_flush_keys",
    "oauth_ratelimit_flush_conflicts_total",
    "oauth_ratelimit_flush_failures_total",
    "oauth_ratelimit_in_flight_hits",
    "oauth_ratelimit_tracked_keys",
    "oauth_ratelimit_snapshot_age_seconds",
    "oauth_ratelimit_client_decisions_total",
    "oauth_ratelimit_client_limit_per_second",
    "oauth_ratelimit_failures_total",
    "oauth_ratelimit_alarms_total",
}


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of the test's own."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusMetrics:
    """Metrics that start at zero."""
    return PrometheusMetrics(registry)


def note(
    metrics: PrometheusMetrics,
    decision: Decision,
    client_id: str = "some-client",
    *,
    username: str | None = None,
    grant_type: str | None = "client_credentials",
) -> None:
    """Count a decision of a server that has one grant type of its own."""
    metrics.note_decision(
        decision,
        client_id,
        username=username,
        grant_type=grant_type,
        is_near_limit=is_near_limit(decision),
        duration_s=3e-6,
        is_grant=lambda name: name == "urn:example:own",
    )


def series(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a name by the values of their labels, in alphabetical order of the labels."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"oauth_ratelimit_{name}"
    }


def test_names(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """The metrics have the names that dashboards are built on."""
    names = {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}

    assert names == NAMES


def test_each_outcome(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """A decision is counted under its outcome, mode, grant type and policy."""
    for decision in (ALLOWED, ALLOWED, DENIED, WOULD_DENY, TRUSTED):
        note(metrics, decision)

    assert {
        ("allowed", "client_credentials", "enforce", "client"): 2,
        ("denied", "client_credentials", "enforce", "client"): 1,
        ("would_deny", "client_credentials", "dry-run", "client"): 1,
        ("trusted", "client_credentials", "enforce", "none"): 1,
    } == series(registry, "decisions_total")
    assert {(): 5} == series(registry, "decision_seconds_count")


@pytest.mark.parametrize(
    ("grant_type", "label"),
    [
        ("password", "password"),
        ("urn:example:own", "urn:example:own"),
        ("urn:example:unheard-of", "other"),
        ("", "other"),
        (None, "none"),
    ],
    ids=["known", "registered", "unknown", "empty", "none"],
)
def test_grant_types(
    registry: CollectorRegistry, metrics: PrometheusMetrics, grant_type: str | None, label: str
) -> None:
    """A grant type is a label if it is a standard one or registered with the server; a client cannot invent labels."""
    note(metrics, ALLOWED, grant_type=grant_type)

    assert [label] == [labels[1] for labels in series(registry, "decisions_total")]


@pytest.mark.parametrize(
    ("remaining", "expected"), [(20, 0), (19, 1), (0, 1)], ids=["a fifth", "less than a fifth", "nothing"]
)
def test_little_of_the_quota_left(
    registry: CollectorRegistry, metrics: PrometheusMetrics, remaining: int, expected: int
) -> None:
    """An admitted request is near its limit when less than a fifth of the quota is left."""
    note(metrics, FullDecision(True, False, Mode.ENFORCE, rule=RULE, remaining=remaining))

    assert {(): expected} == series(registry, "near_limit_total")


@pytest.mark.parametrize("decision", [DENIED, WOULD_DENY, TRUSTED], ids=["denied", "would deny", "trusted"])
def test_over_the_limit_is_not_near_it(
    registry: CollectorRegistry, metrics: PrometheusMetrics, decision: Decision
) -> None:
    """What is over its limit, or has none, is not near it."""
    note(metrics, decision)

    assert {(): 0} == series(registry, "near_limit_total")


def test_rate_of_a_client_and_its_limit(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """A client's requests with and without a user are apart, each beside the rate that its limit comes to."""
    note(metrics, ALLOWED, username="alice")
    note(metrics, DENIED)
    assert {("some-client", "allowed", "user"): 1, ("some-client", "denied", "client"): 1} == series(
        registry, "client_decisions_total"
    )

    raised = Policy("client", 600, Window.of(60))
    note(metrics, FullDecision(True, False, Mode.ENFORCE, rule=raised, remaining=500))
    assert {("some-client", "user", "client"): 100 / 60, ("some-client", "client", "client"): 10.0} == series(
        registry, "client_limit_per_second"
    )


def test_clients_without_end(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """The first clients have series of their own, then only those that are over a limit, then none."""
    for number in range(200):
        note(metrics, ALLOWED, f"client-{number}")
    assert FIRST_COME_CLIENTS + 1 == len(series(registry, "client_decisions_total"))

    for number in range(200):
        note(metrics, DENIED, f"offender-{number}")
    clients = {labels[0] for labels in series(registry, "client_decisions_total")}
    offenders = {name for name in clients if name.startswith("offender-")}
    assert MAX_CLIENTS + 1 == len(clients)
    assert {f"offender-{number}" for number in range(MAX_CLIENTS - FIRST_COME_CLIENTS)} == offenders
    assert 400 == sum(series(registry, "client_decisions_total").values())
    assert MAX_CLIENTS == len(series(registry, "client_limit_per_second"))


def test_client_with_an_odd_name(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """A client's name is shown as logs show it."""
    note(metrics, ALLOWED, "a\nb")

    assert ["a\\nb"] == [labels[0] for labels in series(registry, "client_decisions_total")]


def test_cycle_that_did_something(registry: CollectorRegistry, metrics: PrometheusMetrics) -> None:
    """
    A cycle counts the documents it wrote, the races it lost and its time; one that had nothing to do is not observed.
    """
    metrics.note_cycle(CycleReport(flushed_count=7, conflict_count=2), duration_s=0.02)
    metrics.note_cycle(CycleReport(), duration_s=0.0)

    assert {(): 0.02} == series(registry, "flush_seconds_sum")
    assert {(): 1} == series(registry, "flush_seconds_count")
    assert {(): 7} == series(registry, "flush_keys_sum")
    assert {(): 2} == series(registry, "flush_conflicts_total")
    assert {(): 0} == series(registry, "flush_failures_total")


class _LostStore(MemoryStore):
    """A store that does not answer as long as it is lost."""

    is_lost = True

    def read(self, *args: Any, **kwargs: Any) -> Any:
        """Read, if it can."""
        if self.is_lost:
            raise StoreUnavailable("out of reach")
        return super().read(*args, **kwargs)

    def compare_and_set(self, *args: Any, **kwargs: Any) -> Any:
        """Write, if it can."""
        if self.is_lost:
            raise StoreUnavailable("out of reach")
        return super().compare_and_set(*args, **kwargs)


def test_mongodb_away_and_back(
    registry: CollectorRegistry, metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While MongoDB is away failures, hits in flight and the age of the snapshot grow; when it is back, hits have arrived.
    """
    elapsed = Clock(0.0)
    monkeypatch.setattr("oauth_ratelimit.background.health.time", SimpleNamespace(monotonic=elapsed))
    store = _LostStore()
    limits = {"user": ["50/10 seconds", "90/minute"], "client_total": ["100/minute"]}
    limiter = Limiter(load_config({"mode": "enforce", "limits": limits}), store, clock=Clock())
    health_monitor = HealthMonitor(limiter, None, clock=Clock(), metrics=metrics)
    for username in ("alice", "alice", "bob"):
        limiter.check("some-client", username)
    elapsed.advance(5.0)
    health_monitor.sync()

    assert {(): 1} == series(registry, "flush_failures_total")
    assert {(): 3} == series(registry, "in_flight_hits")
    assert {(): 2} == series(registry, "tracked_keys")
    assert {(): 5.0} == series(registry, "snapshot_age_seconds")
    assert "out of reach" == health_monitor.health().last_error

    store.is_lost = False
    health_monitor.sync()
    elapsed.advance(2.0)
    assert {(): 0} == series(registry, "in_flight_hits")
    assert {(): 0.0} == series(registry, "snapshot_age_seconds")
    assert (2.0, 2.0) == (health_monitor.health().lag_s, health_monitor.health().last_error_ago_s)

    health_monitor.note_state()
    assert {(): 2.0} == series(registry, "snapshot_age_seconds")
    health_monitor.stop()
    limiter.close()
    assert [{(): 0}, {(): 0}] == [series(registry, name) for name in ("tracked_keys", "snapshot_age_seconds")]


def test_without_the_libraries() -> None:
    """Without any library for metrics requests are decided as ever, and only the page says what is missing."""
    script = """
        import sys
        sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
        from flask import Flask
        from oauth_ratelimit.flask_authlib.blueprints import health_blueprint, metrics_blueprint
        from oauth_ratelimit.observe.prometheus import open_metrics
        from tests.support.apps import app_limiter_of, token_status, protected_app
        import os
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

        assert open_metrics() is None
        with protected_app(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["1/minute"]}}) as app:
            assert [200, 429] == [token_status(app), token_status(app)]
            assert not app_limiter_of(app)._worker.observer.is_active
        health_blueprint()
        try:
            metrics_blueprint()
        except RuntimeError as exc:
            print(exc)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)

    assert (0, "metrics need prometheus-client: pip install 'oauth_ratelimit[prometheus]'") == (
        done.returncode,
        done.stdout.strip().splitlines()[-1] if done.stdout else "",
    ), done.stderr
