"""Overrides on running instances that share a MongoDB."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from testbed.clock import Clock, wait_until
from testbed.oauth_server.database import BATCH_JOBS
from tests.support.flows import post
from tests.support.sites import Site, config, protected

INTERVAL_S = 0.2
CLIENT_ID = "batch-jobs"


def ask(site: Site) -> int:
    return int(post(f"{site.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}).status_code)


@pytest.fixture
def clock() -> Clock:
    """One clock for all instances, at the present: MongoDB removes what its own clock says is over."""
    return Clock(time.time() // 10 * 10)


@pytest.fixture
def sites(database: Path, mongo_uri: str, clock: Clock) -> Iterator[list[Site]]:
    """Three instances that share counters and overrides, each after its first request."""
    shared = config(limit=10, sync={"interval": INTERVAL_S}, store={"uri": mongo_uri})
    with ExitStack() as undo:
        found = [undo.enter_context(protected(database, shared, clock=clock)) for _ in range(3)]
        assert [200] * 3 == list(map(ask, found))
        yield found


@pytest.fixture
def overrides(connection: Connection) -> OverrideStore:
    return OverrideStore(connection)


def test_limit_applies_on_all_instances_and_ends(sites: list[Site], overrides: OverrideStore, clock: Clock) -> None:
    target, limits = Target(OverrideKind.LIMIT, CLIENT_ID, LimitKind.CLIENT), (Policy("client", 1000, Window.of(10)),)
    until_s = overrides.put(Override(target, "ann", "a test", 0.0, 60.0, policies=limits)).until_s
    for site in sites:
        wait_until(lambda site=site: site.remaining(CLIENT_ID) > 900, "the new limit is known")  # type: ignore[misc]

    assert until_s is not None
    clock.now_s = until_s
    for site in sites:
        wait_until(lambda site=site: site.remaining(CLIENT_ID) <= 10, "the override has ended")  # type: ignore[misc]


def test_mode_changes_without_a_restart_and_is_logged(sites: list[Site], overrides: OverrideStore) -> None:
    wait_until(lambda: ask(sites[0]) == 429, "the limit is reached")
    with capture_logs() as logs:
        overrides.put(Override(Target(OverrideKind.MODE), "ann", "incident", 0.0, mode=Mode.DRY_RUN))
        wait_until(lambda: ask(sites[0]) == 200, "nobody is denied")
        # The event follows the change.
        wait_until(lambda: "mode_changed" in [entry["event"] for entry in logs], "the change is logged")

    reloaded = next(entry for entry in logs if entry["event"] == "config_reloaded")
    assert ("overrides", False) == (reloaded["origin"], reloaded["restart_needed"])
    assert "mode: enforce -> dry-run" in reloaded["changes"]
