"""Statistics of real worker processes, over real HTTP."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask import Flask

from demo.database import BATCH_JOBS, WEB_SHOP
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.core.statistics import ClientSum, Source, Tally
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.support.flows import password_of, post
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import Clock
from tests.support.sites import config, protect_after

CREDENTIALS = {"grant_type": "client_credentials"}
LOGIN = {"grant_type": "password", "username": "alice", "password": password_of("alice")}


@pytest.fixture
def statistics(mongo_uri: str) -> Iterator[StatisticsStore]:
    """Return the statistics that the workers have written."""
    connection = Connection(mongo_uri)
    yield StatisticsStore(connection)
    connection.close()


def clients(statistics: StatisticsStore) -> dict[str, ClientSum]:
    """Return all statistics."""
    found: dict[str, ClientSum] = {}
    for minute in statistics.minutes(0, 4e9):
        found.setdefault(minute.client_id, ClientSum(minute.client_id)).add(minute)
    return found


def merged_lifetimes(found: dict[str, ClientSum]) -> dict[int, int]:
    """Return the number of issued tokens by lifetime."""
    merged: dict[int, int] = {}
    for client in found.values():
        for lifetime_s, count in client.lifetimes.items():
            merged[lifetime_s] = merged.get(lifetime_s, 0) + count
    return merged


@pytest.mark.parametrize("worker_class", ("sync", "gevent"))
def test_workers_that_end_have_written_every_request_once(
    database: Path, mongo_uri: str, statistics: StatisticsStore, worker_class: str
) -> None:
    """Requests are counted by their outcome."""
    env = {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri, "WORKER_LIMIT": "5"}
    app = "tests.support.worker_app:app"
    with Gunicorn(app, worker_class=worker_class, workers=3, preload=True, env=env) as server:
        with ThreadPoolExecutor(4) as pool:
            asked = [(BATCH_JOBS, CREDENTIALS), (WEB_SHOP, LOGIN)] * 20
            answers = [answer.status_code for answer in pool.map(lambda ask: post(f"{server.url}/token", *ask), asked)]
        assert 0 == server.stop(), server.log

    found = clients(statistics)
    tallies = {client_id: found[client_id].tally() for client_id in ("batch-jobs", "web-shop")}
    assert dict.fromkeys(tallies, 20) == {name: tally.offered for name, tally in tallies.items()}
    assert {
        "batch-jobs": (answers[0::2].count(200), answers[0::2].count(429)),
        "web-shop": (answers[1::2].count(200), answers[1::2].count(429)),
    } == {client_id: (tally.allowed, tally.denied) for client_id, tally in tallies.items()}
    assert ["alice"] == list(found["web-shop"].users)
    assert {864_000: answers.count(200)} == merged_lifetimes(found)
    assert 1 == round(found["web-shop"].user_count)
    assert "Traceback" not in server.log


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


def test_broken_recorder_changes_no_answer(
    app: Flask, statistics: StatisticsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics fail open."""
    client = app.test_client()
    ask = {"data": CREDENTIALS, "auth": (BATCH_JOBS.client_id, BATCH_JOBS.client_secret or "")}
    assert 200 == client.post("/token", **ask).status_code
    monkeypatch.setattr("oauth_ratelimit.observe.statistics.StatisticsRecorder.count", None)

    assert 200 == client.post("/token", **ask).status_code
