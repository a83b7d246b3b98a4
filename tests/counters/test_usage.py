"""Usage of limits, read from a document, beside the decisions of a limiter."""

from collections.abc import Mapping
from typing import Any

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.counters.rules import user_total_key
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from testbed.clock import Clock
from testbed.memory_store import MemoryStore

CONFIG: dict[str, Any] = {
    "mode": "enforce",
    "limits": {"client": ["5/minute; 20/hour"], "user": ["5/minute"], "client_total": ["8/minute"]},
    "grants": {"refresh_token": {"limits": {"user": ["3/minute"]}}, "a/b": {"limits": {"client_total": ["3/minute"]}}},
    "endpoints": {"revocation": {"limits": {"client": ["3/minute"], "client_total": ["4/minute"]}}},
    "clients": {"off": {"mode": "off"}},
    "trusted_clients": ["friend"],
}


def usage_of(store: MemoryStore, key: Key, now_s: float, config: Mapping[str, Any] = CONFIG) -> list[LimitUsage]:
    return UsageReader(load_config(config).policies).of(key, store.read([key]).get(key), now_s)


@pytest.mark.parametrize(
    ("mode", "ceiling", "expected"),
    [
        ("enforce", Mode.ENFORCE, [Mode.ENFORCE]),
        ("enforce", Mode.DRY_RUN, [Mode.DRY_RUN]),
        ("dry-run", Mode.ENFORCE, [Mode.DRY_RUN]),
        ("off", Mode.ENFORCE, []),
    ],
)
def test_limit_of_a_user_through_all_clients_has_the_mode_that_applies(
    mode: str, ceiling: Mode, expected: list[Mode]
) -> None:
    policies = load_config({"mode": mode, "limits": {"user_total": ["3/minute"]}}).policies._replace(ceiling=ceiling)
    assert expected == [usage.mode for usage in UsageReader(policies).of(user_total_key("alice"), None, 100.0)]


@pytest.mark.parametrize("estimator", Estimator)
@pytest.mark.parametrize("later_s", [0.0, 1.5, 6.0, 31.0, 60.0, 66.0, 120.0])
def test_usage_is_what_the_limiter_decides_by(estimator: Estimator, later_s: float) -> None:
    """An instance that knows the key decides by the same figures at any time."""
    config = {"mode": "enforce", "limits": {"client": [{"limit": 10, "window": 60, "estimator": estimator.value}]}}
    clock, store = Clock(1_700_000_003.0), MemoryStore()
    limiter = Limiter(load_config(config), store, clock=clock, monotonic=clock)
    for _ in range(12):
        limiter.check("app")
        clock.advance(4.5)
    limiter.sync()
    clock.advance(later_s)
    decision = limiter.peek("app")
    (usage,) = usage_of(store, Key("app", None), clock(), config)
    limiter.close()

    assert decision.remaining == usage.remaining
    assert decision.retry_after_s == pytest.approx(usage.retry_after_s)
    assert decision.reset_after_s == pytest.approx(usage.reset_after_s)


def test_frames_that_a_wrong_clock_has_counted_far_ahead_are_no_usage() -> None:
    """No limiter uses them, so nobody is denied for them."""
    now_s, key, store = 1_700_000_000.0, Key("app", "alice"), MemoryStore()
    clock = Clock(now_s + 3600)
    ahead = Limiter(load_config(CONFIG), store, clock=clock, monotonic=clock)
    for _ in range(5):
        ahead.check("app", "alice")
    ahead.sync()
    assert [0.0] == [usage.estimate for usage in usage_of(store, key, now_s)]
    assert [5.0] == [usage.estimate for usage in usage_of(store, key, now_s + 3600)]


def test_keys_are_measured_by_the_limits_of_their_kind_and_scope() -> None:
    clock, store = Clock(), MemoryStore()
    limiter = Limiter(load_config(CONFIG), store, clock=clock, monotonic=clock)
    limiter.check("app")
    limiter.check("app", "alice")
    limiter.check("app", "alice", grant_type="refresh_token")
    limiter.check("app", "alice", grant_type="a/b")
    limiter.check("app", endpoint="revocation")
    limiter.sync()
    limiter.close()

    expected = {
        Key("app", None): [("client-3600s", LimitKind.CLIENT, 1), ("client-60s", LimitKind.CLIENT, 1)],
        Key("app", "alice"): [("user", LimitKind.USER, 1)],
        Key("app", None, "client_total"): [("client_total", LimitKind.CLIENT_TOTAL, 2)],
        Key("app", "alice", "grant:refresh_token"): [("user", LimitKind.USER, 1)],
        Key("app", None, "grant:a/b/client_total"): [("client_total", LimitKind.CLIENT_TOTAL, 1)],
        Key("app", None, "revocation"): [("client", LimitKind.CLIENT, 1)],
        Key("app", None, "revocation/client_total"): [("client_total", LimitKind.CLIENT_TOTAL, 1)],
    }
    assert expected == {
        key: [(found.policy.name, found.kind, found.estimate) for found in usage_of(store, key, clock())]
        for key in expected
    }
    assert 1 / 3 == usage_of(store, Key("app", None, "revocation"), clock())[0].used_ratio


@pytest.mark.parametrize(
    "key",
    [Key("friend", None), Key("off", "alice"), Key("app", None, "gone"), Key("app", "alice", "grant:gone")],
    ids=["trusted", "off", "no endpoint", "no section of the grant type"],
)
def test_key_without_limits_has_no_usage(key: Key) -> None:
    assert [] == usage_of(MemoryStore(), key, 0.0)


def test_limits_of_a_grant_type_have_its_mode() -> None:
    config = {**CONFIG, "clients": {"app": {"mode": "off", "grants": {"password": {"mode": "enforce"}}}}}
    apart, plain = (
        usage_of(MemoryStore(), Key("app", "alice", each), 0.0, config) for each in ("grant:password", None)
    )
    assert ([("user", 5, "enforce")], []) == (
        [(each.policy.name, each.policy.limit, each.mode) for each in apart],
        plain,
    )
