"""The report of a start: one line per worker, and names in the configuration that match nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from authlib.oauth2.rfc6749 import BaseGrant, TokenEndpointMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant, ImplicitGrant, RefreshTokenGrant
from authlib.oidc.core.grants import OpenIDHybridGrant, OpenIDImplicitGrant
from flask import Flask
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, seed
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.grants import WITHOUT_SERVER
from tests.support.apps import app_limiter_of, make_app, make_server, token_status
from tests.support.flows import post
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import wait_until

WORKER_APP = "tests.support.worker_app:app"
SETTINGS: dict[str, Any] = {
    "mode": "enforce",
    "limits": {"user": ["10/second", {"limit": 50, "window": "10s", "mode": "dry-run"}]},
    "trusted_clients": ["our-own-app"],
}


class OwnGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A grant that makes its token itself."""

    GRANT_TYPE = "own"

    def create_token_response(self) -> Any:
        """Answer without the server."""
        return 200, {"access_token": "own"}, self.TOKEN_RESPONSE_HEADER


class SavingGrant(OwnGrant):
    """A grant that makes its token itself and saves it through the server."""

    GRANT_TYPE = "saving"

    def create_token_response(self) -> Any:
        """Answer with a saved token."""
        self.save_token({"access_token": "own"})
        return super().create_token_response()


class DivertedGrant(SavingGrant):
    """A grant whose way to the server is diverted."""

    GRANT_TYPE = "diverted"

    def create_token_response(self) -> Any:
        """Answer with a token that is saved elsewhere."""
        self.save_token({"access_token": "own"})
        return 200, {"access_token": "own"}, self.TOKEN_RESPONSE_HEADER

    def save_token(self, token: Any) -> None:
        """Save nothing."""


def attached(*grants: Any, settings: Any = SETTINGS, **options: Any) -> Flask:
    """Return a protected application with further grants."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=settings)
    server = make_server(app)
    for grant in grants:
        server.register_grant(grant)
    OAuthRateLimit(app, server, **options)
    return app


def of(event: str, logs: list[Any]) -> list[Any]:
    """Return the entries of an event."""
    return [entry for entry in logs if entry["event"] == event]


def test_start_is_logged_once_with_what_applies() -> None:
    with capture_logs() as logs:
        app = attached(RefreshTokenGrant)
        assert 1 == len(of("ratelimit_started", logs))
        assert [200, 200] == [token_status(app), token_status(app)]
    app_limiter_of(app).close()

    [entry] = of("ratelimit_started", logs)
    assert {
        "event": "ratelimit_started",
        "log_level": "info",
        "mode": "enforce",
        "canary": "none",
        "limits": {"client": "no limit", "user": "10/second, 50/10s (dry-run)", "client_total": "no limit"},
        "store": "none: each process counts alone",
        "trusted_clients": ["our-own-app"],
        "grants": ["client_credentials", "refresh_token"],
        "unprotected_grants": {},
    } == entry


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_forked_child_reports_its_start_too() -> None:
    """Whatever its parent has reported and served."""
    app = attached()
    app.test_client().get("/nothing")
    pid = os.fork()
    if pid == 0:
        with capture_logs() as logs:
            app.test_client().get("/nothing")
            app.test_client().get("/nothing")
        os._exit(len(of("ratelimit_started", logs)))

    assert 1 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_store_is_shown_without_secrets() -> None:
    uri = (
        "mongodb://someone:s3cret@db1.example:27017,db2.example/oauth?replicaSet=rs&tlsCertificateKeyFilePassword=p4ss"
    )
    with capture_logs() as logs:
        attached(settings={**SETTINGS, "store": {"uri": uri, "namespace": "blue"}})

    [entry] = of("ratelimit_started", logs)
    assert "db1.example:27017,db2.example/oauth, collection blue_ratelimits" == entry["store"]
    assert [] == of("counters_not_shared", logs)


def test_many_trusted_clients_are_cut_short() -> None:
    with capture_logs() as logs:
        attached(settings={"trusted_clients": [f"app-{number}" for number in range(25)]})

    [entry] = of("ratelimit_started", logs)
    assert (21, "and 5 more") == (len(entry["trusted_clients"]), entry["trusted_clients"][-1])


def test_grants_that_cannot_be_limited_have_a_reason() -> None:
    front_channel = (ImplicitGrant, OpenIDImplicitGrant, OpenIDHybridGrant)
    with capture_logs() as logs:
        attached(OwnGrant, SavingGrant, DivertedGrant, *front_channel)
        attached(*front_channel, authorize_endpoint=False)

    first, second = of("ratelimit_started", logs)
    response_types = ("token", "id_token", "id_token token", "code id_token", "code id_token token", "code token")
    names = [f"response_type={name}" for name in response_types]
    assert ["client_credentials", "saving", *names] == first["grants"]
    assert {"own": WITHOUT_SERVER, "diverted": WITHOUT_SERVER} == first["unprotected_grants"]
    assert ["client_credentials"] == second["grants"]
    assert dict.fromkeys(names, "authorize_endpoint=False") == second["unprotected_grants"]


def test_grants_that_are_registered_later_are_in_the_line() -> None:
    """Without any grant the line waits for the first request."""
    app = make_app(OAUTH_RATELIMIT_CONFIG={})
    server = make_server(app)
    server._token_grants.clear()
    with capture_logs() as logs:
        OAuthRateLimit(app, server)
        server.register_grant(ClientCredentialsGrant)
        assert [] == of("ratelimit_started", logs)
        assert 404 == app.test_client().get("/nothing").status_code

    [entry] = of("ratelimit_started", logs)
    assert ["client_credentials"] == entry["grants"]


@pytest.mark.parametrize(
    ("settings", "is_warned"),
    [
        ({"mode": "enforce"}, True),
        ({"mode": "dry-run"}, False),
        ({"clients": {"a": {"mode": "enforce"}}}, True),
        ({"mode": "off", "clients": {"a": {"mode": "enforce"}}}, False),
        ({"plans": {"a": {"grants": {"password": {"mode": "enforce"}}}}}, True),
        ({"endpoints": {"token_info": {"limits": {"user": [{"limit": 1, "window": 1, "mode": "enforce"}]}}}}, True),
        ({"mode": "enforce", "store": {"uri": "mongodb://db.example"}}, False),
    ],
    ids=str,
)
def test_enforced_limits_without_a_shared_store_are_a_warning(settings: dict[str, Any], is_warned: bool) -> None:
    with capture_logs() as logs:
        attached(settings=settings)

    assert is_warned == bool(of("counters_not_shared", logs))


def test_names_that_match_nothing_are_logged_with_the_first_request() -> None:
    settings = {
        "grants": {"client_cred": {"mode": "enforce"}, "password": {"mode": "off"}},
        "clients": {"a": {"grants": {"client_credentials": {"mode": "off"}}}},
        "endpoints": {"tokens": {}, "token": {}, "static": {}, "by-path": {"path": ["/x"]}},
    }
    del settings["endpoints"]["token"]
    with capture_logs() as logs:
        app = attached(settings=settings)
        app.test_client().get("/nothing")
        app.test_client().get("/nothing")

    unknown = {entry["grant_type"]: entry["hint"] for entry in of("grant_unknown", logs)}
    assert {"client_cred", "password"} == unknown.keys()
    assert unknown["client_cred"].startswith("did you mean client_credentials? its rules never apply")
    assert unknown["password"].startswith("its rules never apply; the application has client_credentials")
    [endpoint] = of("endpoint_unknown", logs)
    assert "tokens" == endpoint["endpoint"]
    assert endpoint["hint"].startswith("did you mean token?")


@pytest.fixture
def environment(tmp_path: Path, mongo_uri: str) -> Iterator[dict[str, str]]:
    """Environment of the workers."""
    database = tmp_path / "demo.sqlite3"
    seed(database)
    yield {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri}


@contextmanager
def started(environment: dict[str, str], **options: Any) -> Iterator[Gunicorn]:
    """Yield a server whose workers have had no request yet."""
    server = Gunicorn(WORKER_APP, env=environment, **options)
    try:
        server.start()
        wait_until(lambda: server.log.count("is ready") == options["workers"], "workers are ready")
        yield server
    finally:
        server.close()


def test_each_worker_says_what_it_is_before_any_request(environment: dict[str, str]) -> None:
    with started(environment, workers=2) as server:
        assert 2 == server.log.count("ratelimit_started")
        assert 200 == post(f"{server.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}).status_code
        assert 2 == server.log.count("ratelimit_started")


def test_preloaded_worker_says_what_it_is_with_its_first_request(environment: dict[str, str]) -> None:
    with started(environment, workers=1, preload=True) as server:
        assert 0 == server.log.count("ratelimit_started")
        for _ in range(3):
            assert 200 == post(f"{server.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}).status_code
        assert 1 == server.log.count("ratelimit_started")
