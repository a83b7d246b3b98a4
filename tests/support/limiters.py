"""Limiters and policies for tests that say only what matters to them."""

from collections.abc import Mapping
from typing import Any

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.config import SyncSettings
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Limits, Policy, PolicySet, Rules
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.store.base import CounterStore
from tests.support.helpers import Clock

CLIENT = "app"
KEY = Key(CLIENT, None)
MANY = 1_000_000  # a limit that no test reaches


def a_policy(limit: int = MANY, window_s: int = 60, *, frames: int | None = None, name: str = "client") -> Policy:
    """Return a policy, by default one that never denies."""
    return Policy(name, limit, Window.of(window_s, frames))


def some_settings(
    *client: Policy,
    user: tuple[Policy, ...] | None = None,
    total: tuple[Policy, ...] = (),
    trusted: tuple[str, ...] = (),
    grants: Mapping[str, Rules] | None = None,
    mode: Mode = Mode.ENFORCE,
    interval_s: float = 1.0,
) -> Settings:
    """Return settings that enforce policies.

    Args:
        client: For grants without a user; one that never denies if there is none.
        user: For each user; None takes those of ``client``.
        total: For all grants of a client together.
        trusted: Client ids.
        grants: What differs for a grant type.
        mode: What is done with a denial.
        interval_s: Time between two sync cycles.
    """
    own = client or (a_policy(),)
    limits = Limits(client=own, user=own if user is None else user, client_total=total)
    policies = PolicySet(mode=mode, limits=limits, trusted=trusted, grants=grants or {})
    return Settings(policies=policies, sync=SyncSettings(interval_s=interval_s))


def a_limiter(store: CounterStore | None, clock: Clock, *client: Policy) -> Limiter:
    """Return a limiter that enforces policies per client and user; one that never denies if there is none."""
    return Limiter(some_settings(*client), store, clock=clock, monotonic=clock)


def stored_hits(store: CounterStore, key: Key = KEY, *, series: Series | None = None) -> int:
    """Return the hits that a document holds, of all series or of one."""
    snapshot = store.read([key]).get(key)
    hits = snapshot.hits if snapshot else {}
    return sum(sum(frames.values()) for name, frames in hits.items() if series in (None, name))


def send_hits(limiter: Limiter, count: int, *key: Any, **request: Any) -> None:
    """Count requests and flush them."""
    for _ in range(count):
        limiter.check(*key, **request)
    limiter.sync()
