"""Statistics of a protected application."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask

from demo.database import BATCH_JOBS, WEB_SHOP
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.core.statistics import ClientSum, Source, Tally
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.support.flows import password_of
from tests.support.helpers import Clock
from tests.support.sites import config, protect_after

CREDENTIALS = {"grant_type": "client_credentials"}
LOGIN = {"grant_type": "password", "username": "alice", "password": password_of("alice")}


@pytest.fixture
def statistics(connection: Connection) -> StatisticsStore:
    """The statistics that the application has written."""
    return StatisticsStore(connection)


def clients(statistics: StatisticsStore) -> dict[str, ClientSum]:
    """Return all statistics."""
    found: dict[str, ClientSum] = {}
    for minute in statistics.minutes(0, 4e9):
        found.setdefault(minute.client_id, ClientSum(minute.client_id)).add(minute)
    return found


@pytest.fixture
def app(database: Path, mongo_uri: str, clock: Clock) -> Iterator[Flask]:
    """A protected application in this process."""
    settings = config(
        limit=2,
        window=60,
        mode="dry-run",
        trusted_clients=["web-shop"],
        endpoints={"revocation": {"limits": {"client": ["1/minute"]}}},
        store={"uri": mongo_uri},
    )
    app = protect_after(database, settings, OAuthRateLimit(clock=clock))
    yield app
    app.extensions["oauth_ratelimit"].close()


def test_trusted_clients_dry_runs_and_endpoints_are_counted(app: Flask, statistics: StatisticsStore) -> None:
    """The statistics are written when the application ends."""
    client = app.test_client()
    asked = [(BATCH_JOBS, CREDENTIALS)] * 3 + [(WEB_SHOP, LOGIN)]
    for who, form in asked:
        assert 200 == client.post("/token", data=form, auth=(who.client_id, who.client_secret or "")).status_code
    client.post("/revoke", data={"token": "unknown"}, auth=(BATCH_JOBS.client_id, BATCH_JOBS.client_secret or ""))
    app.extensions["oauth_ratelimit"].close()

    found = clients(statistics)
    assert {Source("user", "password"): Tally(trusted=1)} == found["web-shop"].tallies
    assert Tally(allowed=2, would_deny=1) == found["batch-jobs"].tallies[Source("client", "client_credentials")]
    assert Tally(allowed=1) == found["batch-jobs"].tallies[Source("client", "endpoint:revocation")]
    assert {"batch-jobs": {864_000: 3}, "web-shop": {864_000: 1}} == {
        name: client.lifetimes for name, client in found.items()
    }


def test_broken_recorder_changes_no_answer(
    app: Flask, statistics: StatisticsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = app.test_client()
    ask = {"data": CREDENTIALS, "auth": (BATCH_JOBS.client_id, BATCH_JOBS.client_secret or "")}
    assert 200 == client.post("/token", **ask).status_code
    monkeypatch.setattr("oauth_ratelimit.observe.statistics.StatisticsRecorder.count", None)

    assert 200 == client.post("/token", **ask).status_code
