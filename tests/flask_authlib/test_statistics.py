"""Statistics of a protected application."""

from pathlib import Path

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.core.statistics import Source, Tally
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.clock import Clock
from testbed.oauth_server.database import BATCH_JOBS, WEB_SHOP
from tests.support.flows import password_of
from tests.support.sites import config, protect_after

CREDENTIALS = {"grant_type": "client_credentials"}
LOGIN = {"grant_type": "password", "username": "alice", "password": password_of("alice")}


def test_trusted_clients_dry_runs_and_endpoints_are_counted(
    database: Path, mongo_uri: str, connection: Connection, clock: Clock
) -> None:
    """The statistics are written when the application ends."""
    endpoints = {"revocation": {"limits": {"client": ["1/minute"]}}}
    settings = config(
        limit=2, window=60, mode="dry-run", trusted_clients=["web-shop"], endpoints=endpoints, store={"uri": mongo_uri}
    )
    app = protect_after(database, settings, OAuthRateLimit(clock=clock))
    client = app.test_client()
    asked = [(BATCH_JOBS, CREDENTIALS, "/token")] * 3 + [(WEB_SHOP, LOGIN, "/token")]
    asked += [(BATCH_JOBS, {"token": "unknown"}, "/revoke")]
    for who, form, path in asked:
        assert 200 == client.post(path, data=form, auth=(who.client_id, who.client_secret or "")).status_code
    app.extensions["oauth_ratelimit"].close()

    found = {minute.client_id: minute for minute in StatisticsStore(connection).minutes(0, 4e9)}
    assert {Source("user", "password"): Tally(trusted=1)} == found["web-shop"].tallies
    assert Tally(allowed=2, would_deny=1) == found["batch-jobs"].tallies[Source("client", "client_credentials")]
    assert Tally(allowed=1) == found["batch-jobs"].tallies[Source("client", "endpoint:revocation")]
    assert {"batch-jobs": {864_000: 3}, "web-shop": {864_000: 1}} == {
        name: client.lifetimes for name, client in found.items()
    }
