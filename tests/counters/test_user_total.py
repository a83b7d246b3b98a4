"""One user's limit through all clients together."""

from typing import Any

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import known_keys

LIMITS = {"mode": "enforce", "limits": {"user_total": ["10/minute"], "user": ["8/minute"]}}


def limiter_of(settings: dict[str, Any], **more: Any) -> Limiter:
    return Limiter(load_config({**LIMITS, **settings}), clock=Clock(1_700_000_000), **more)


def admitted(limiter: Limiter, *clients: str, username: str = "alice") -> int:
    return sum(limiter.check(client, username).allowed for client in clients)


def test_user_with_very_many_clients_has_one_limit() -> None:
    """As with dynamic registration; another user has its own, and so has the client's user."""
    limiter = limiter_of({})
    assert 10 == admitted(limiter, *(f"installation-{number}" for number in range(40)))
    assert 8 == admitted(limiter, *["one"] * 20, username="bob")
    decision = limiter.check("installation-41", "alice")
    assert ("user_total", 10) == (decision.policy, decision.limit)
    assert limiter.check("installation-41").allowed, "a grant without a user"
    assert not decision.enforced_quota()[1]  # type: ignore[index]


def test_denied_request_counts_in_no_limit_of_it() -> None:
    limiter = limiter_of({"limits": {"user": ["3/minute"], "user_total": ["4/minute"], "client_total": ["99/minute"]}})
    assert 3 == admitted(limiter, *["a"] * 9)
    assert 1 == admitted(limiter, *["b"] * 9)
    assert [96, 98] == [limiter.peek(client).remaining for client in "ab"], "what is left of client_total"


@pytest.mark.parametrize(
    ("client", "is_counted", "is_denied"),
    [
        ({"trusted_clients": ["own"]}, False, False),
        ({"clients": {"own": {"mode": "off"}}}, False, False),
        ({"clients": {"own": {"mode": "dry-run"}}}, True, False),
        ({"canary": {"percent": 0.0001}, "clients": {"other": {"mode": "enforce"}}}, True, False),
        ({}, True, True),
    ],
    ids=["trusted", "off", "dry run", "outside of the canary", "enforced"],
)
def test_mode_of_a_client_decides_whether_it_counts_and_is_denied(
    client: dict[str, Any], is_counted: bool, is_denied: bool
) -> None:
    limiter = limiter_of({"limits": {"user_total": ["10/minute"]}, **client})
    assert 4 == admitted(limiter, *["own"] * 4)
    assert (6 if is_counted else 10) == admitted(limiter, *["other"] * 20)
    assert (0 if is_denied else 20) == admitted(limiter, *["own"] * 20)
    assert is_counted is limiter.check("own", "alice").would_deny


def test_limit_on_trial_is_counted_by_all_clients_in_one_series() -> None:
    """Whatever the modes of the clients."""
    limits = {"user_total": [{"limit": 10, "window": "60s"}, {"limit": 6, "window": "30s", "mode": "dry-run"}]}
    limiter = limiter_of({"limits": limits, "clients": {"own": {"mode": "dry-run"}}})
    assert 4 == admitted(limiter, *["own"] * 4)
    assert [False, False, True] == [limiter.check("other", "alice").would_deny for _ in range(3)]


def test_instances_share_it_under_a_key_of_its_own() -> None:
    store = MemoryStore()
    first, second = (limiter_of({"limits": {"user_total": ["10/minute"]}}, store=store) for _ in range(2))
    assert 7 == admitted(first, *"abcdefg")
    first.sync()
    admitted(second, "h")
    second.sync()
    second.sync()
    assert 2 == admitted(second, *"ijklmnop")
    assert [Key("*", "alice", "user_total")] == [key for key in known_keys(second) if key.username == "alice"]


def test_override_is_for_everybody_alone() -> None:
    with pytest.raises(ValueError, match="one limit for everybody"):
        Target(OverrideKind.LIMIT, "app", LimitKind.USER_TOTAL)
    settings = load_config({**LIMITS, "mode": "dry-run"})
    (policy,) = settings.policies.limits.user_total
    override = Override(Target(OverrideKind.LIMIT, None, LimitKind.USER_TOTAL), "ann", "why", 0.0, None, (policy,))
    off = Override(Target(OverrideKind.MODE, "own"), "ann", "why", 0.0, None, (), Mode.OFF)
    policies = apply_overrides(settings.policies, [override, off])
    assert (policy,) == policies.matching("any").limits.user_total
    assert () == policies.matching("own").limits.user_total
