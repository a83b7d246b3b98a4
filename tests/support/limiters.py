"""Limiters and policies for tests that say only what matters to them."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from oauth_ratelimit import Limiter, Settings, load_config
from oauth_ratelimit.config import SyncSettings
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Limits, Policy, PolicySet, Rules
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.counters.rules import key_of, row_name
from oauth_ratelimit.store.base import CounterStore, Hits
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.loop import SyncLoop
from testbed.clock import Clock

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
    """Return settings that enforce policies: ``client`` for users, too, if they have none; by default one for all."""
    own = client or (a_policy(),)
    limits = Limits(client=own, user=own if user is None else user, client_total=total)
    policies = PolicySet(mode=mode, limits=limits, trusted=trusted, grants=grants or {})
    return Settings(policies=policies, sync=SyncSettings(interval_s=interval_s))


def a_limiter(store: CounterStore | None, clock: Clock, *client: Policy, interval_s: float = 1.0) -> Limiter:
    """Return a limiter that enforces policies per client and user; one that never denies if there is none."""
    return Limiter(some_settings(*client, interval_s=interval_s), store, clock=clock, monotonic=clock)


def limiter_of(config: Mapping[str, Any], store: CounterStore | None = None, *, clock: Callable[[], float]) -> Limiter:
    """Return a limiter of a configuration, which enforces its limits unless it names another mode."""
    return Limiter(load_config({"mode": "enforce", **config}), store, clock=clock, monotonic=clock)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock over another connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def stored_hits(store: CounterStore, key: Key = KEY, *, series: Series | None = None) -> int:
    snapshot = store.read([key]).get(key)
    hits = snapshot.hits if snapshot else {}
    return sum(sum(frames.values()) for name, frames in hits.items() if series in (None, name))


def known_keys(limiter: Limiter) -> list[Key]:
    """Return the keys that an instance holds counts of."""
    return [key_of(name) for names in limiter._table.all_names() for name in names]


def in_flight(limiter: Limiter, key: Key = KEY) -> Hits:
    """Return the hits of a key, by series and frame, that no document is known to hold."""
    return next((replica.in_flight for replica in limiter.cycle._rows.load([row_name(key)])), {})


def in_flight_hits(limiter: Limiter, key: Key = KEY) -> int:
    """Return the requests of a key that no document is known to hold. Each is in the hits of every tier."""
    return max((sum(frames.values()) for frames in in_flight(limiter, key).values()), default=0)


def used_hits(limiter: Limiter, client_id: str = CLIENT, username: str | None = None) -> int:
    """Return the hits of a key that an instance knows: those that it has read and its own in-flight ones."""
    decision = limiter.peek(client_id, username)
    return (decision.limit or 0) - decision.remaining


@contextmanager
def in_background(limiter: Limiter, *, interval_s: float) -> Iterator[None]:
    scheduler = SyncLoop(limiter, interval_s=interval_s)
    scheduler.start()
    try:
        yield
    finally:
        assert scheduler.stop(timeout_s=30)


def hit(limiter: Limiter, *key: Any, **request: Any) -> CycleReport:
    """Count a request, by default of ``CLIENT``, and synchronise."""
    limiter.check(*(key or (CLIENT,)), **request)
    return limiter.sync()


def send_hits(limiter: Limiter, count: int, *key: Any, **request: Any) -> None:
    for _ in range(count):
        limiter.check(*key, **request)
    limiter.sync()
