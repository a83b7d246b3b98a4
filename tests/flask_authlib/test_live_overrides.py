"""Overrides on running instances that share a MongoDB."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS
from oauth_ratelimit.background.live_settings import OverrideCache
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.support.flows import post
from tests.support.helpers import Clock, wait_until
from tests.support.sites import Site, config, protected

INTERVAL_S = 0.2
CLIENT_ID = "batch-jobs"


def ask(site: Site) -> int:
    """Ask for a token and return the status."""
    return int(post(f"{site.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}).status_code)


@pytest.fixture
def clock() -> Clock:
    """One clock for all instances, at the present: MongoDB removes what its own clock says is over."""
    return Clock(time.time() // 10 * 10)


@pytest.fixture
def open_sites(database: Path, mongo_uri: str, clock: Clock) -> Iterator[Callable[..., list[Site]]]:
    """Serves instances that share counters and overrides, each after its first request."""
    with ExitStack() as undo:

        def open_some(count: int, **settings: Any) -> list[Site]:
            shared = config(sync={"interval": INTERVAL_S}, store={"uri": mongo_uri}, **settings)
            sites = [undo.enter_context(protected(database, shared, clock=clock)) for _ in range(count)]
            for site in sites:
                assert ask(site) in (200, 429)
            return sites

        yield open_some


@pytest.fixture
def overrides(connection: Connection) -> OverrideStore:
    """The store of overrides."""
    return OverrideStore(connection)


def limit_of(amount: int, *, until_s: float | None = None) -> Override:
    """Return an override of the client's limit."""
    target = Target(OverrideKind.LIMIT, CLIENT_ID, LimitKind.CLIENT)
    return Override(target, "ann", "a test", 0.0, until_s, policies=(Policy("client", amount, Window.of(10)),))


@pytest.fixture
def empty_refreshes(monkeypatch: pytest.MonkeyPatch) -> Counter[OverrideCache]:
    """Number of refreshes without an override, by instance; each cycle has one."""
    seen = Counter[OverrideCache]()
    refresh = OverrideCache.refresh

    def counting(override_cache: OverrideCache) -> None:
        refresh(override_cache)
        seen[override_cache] += not override_cache._known

    monkeypatch.setattr(OverrideCache, "refresh", counting)
    return seen


def test_limit_applies_on_all_instances_within_two_cycles_and_ends(
    open_sites: Callable[..., list[Site]],
    overrides: OverrideStore,
    clock: Clock,
    empty_refreshes: Counter[OverrideCache],
) -> None:
    sites = open_sites(3, limit=10)
    overrides.put(limit_of(1000, until_s=clock.now_s + 5))
    before = empty_refreshes.copy()
    for site in sites:
        wait_until(lambda site=site: site.remaining(CLIENT_ID) > 900, "the new limit is known")  # type: ignore[misc]

    assert set((empty_refreshes - before).values()) <= {1}  # one that was under way
    clock.advance(5)
    for site in sites:
        wait_until(lambda site=site: site.remaining(CLIENT_ID) <= 10, "the override has ended")  # type: ignore[misc]


def test_denied_client_is_admitted_once_trusted_and_denied_again_afterwards(
    open_sites: Callable[..., list[Site]], overrides: OverrideStore
) -> None:
    (site,) = open_sites(1, limit=1)
    assert 429 == ask(site)
    target = Target(OverrideKind.TRUSTED, CLIENT_ID)
    overrides.put(Override(target, "ann", "a test", 0.0))
    wait_until(lambda: ask(site) == 200, "the client is trusted")

    overrides.remove(target, author="ann", reason="", at_s=0.0)
    wait_until(lambda: ask(site) == 429, "the client is denied again")


def test_mode_changes_without_a_restart_and_is_logged(
    open_sites: Callable[..., list[Site]], overrides: OverrideStore
) -> None:
    (site,) = open_sites(1, limit=1)
    with capture_logs() as logs:
        overrides.put(Override(Target(OverrideKind.MODE), "ann", "incident", 0.0, mode=Mode.DRY_RUN))
        wait_until(lambda: ask(site) == 200, "nobody is denied")
        # The event follows the change.
        wait_until(lambda: "mode_changed" in [entry["event"] for entry in logs], "the change is logged")

    reloaded = next(entry for entry in logs if entry["event"] == "config_reloaded")
    assert ("overrides", False) == (reloaded["origin"], reloaded["restart_needed"])
    assert "mode: enforce -> dry-run" in reloaded["changes"]


def test_instance_that_starts_later_applies_overrides(
    open_sites: Callable[..., list[Site]], overrides: OverrideStore
) -> None:
    """The override is older than the instance."""
    overrides.put(limit_of(1000))
    (site,) = open_sites(1, limit=1)

    wait_until(lambda: site.remaining(CLIENT_ID) > 1, "the override is known")
    assert site.remaining(CLIENT_ID) > 900


def test_emergency_switch_beats_overrides(
    open_sites: Callable[..., list[Site]], overrides: OverrideStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    overrides.put(Override(Target(OverrideKind.MODE), "ann", "a test", 0.0, mode=Mode.ENFORCE))
    (site,) = open_sites(1, limit=1)

    assert [200] * 3 == [ask(site) for _ in range(3)]


def test_decision_during_a_change_never_mixes_limits(
    open_sites: Callable[..., list[Site]], overrides: OverrideStore
) -> None:
    (site,) = open_sites(1, limit=10**6)
    seen: set[tuple[int | None, bool]] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            decision = site.app_limiter.limiter.peek(CLIENT_ID)
            seen.add((decision.limit, decision.remaining > (decision.limit or 0) - 1000))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        wait_until(lambda: seen, "the limits before it are seen")
        overrides.put(limit_of(2 * 10**6))
        wait_until(lambda: len(seen) > 1, "the change is seen")
    finally:
        done.set()
        thread.join()

    assert {(10**6, True), (2 * 10**6, True)} == seen
