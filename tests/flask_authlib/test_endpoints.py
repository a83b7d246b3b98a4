"""Limits at endpoints other than the token endpoint, over real HTTP."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
import requests
from authlib.integrations.flask_oauth2 import ResourceProtector, current_token
from authlib.oauth2.rfc6750 import BearerTokenValidator
from flask import Flask, Response, jsonify, request

from demo.database import BATCH_JOBS, WEB_SHOP
from demo.database import database as demo_database
from demo.models import Client
from oauth_ratelimit.flask_authlib.caller import Caller
from oauth_ratelimit.flask_authlib.extension import OAuthRateLimit
from tests.support.flows import issue, password_of, post
from tests.support.helpers import Clock
from tests.support.sites import Site, config, protect_after, protected

LIMITS = {"limits": {"client": ["2/minute"], "user": ["1/minute"]}}
TIMEOUT_S = 60


class TokenValidator(BearerTokenValidator):  # type: ignore[misc]  # untyped
    """Finds tokens in the demo's database."""

    def authenticate_token(self, token_string: str) -> Any:
        """Return the token, None if there is none."""
        return demo_database().token_by_access(token_string)


def protect_with_views(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    """Build the demo's server with views behind a token, and one that names its caller itself."""
    app = protect_after(database, settings, extension)
    require_oauth = ResourceProtector()
    require_oauth.register_token_validator(TokenValidator())

    @app.get("/userinfo")
    @require_oauth()  # type: ignore[untyped-decorator,unused-ignore]
    def userinfo() -> Response:
        return jsonify(username=current_token.username)

    @app.route("/api/things/<int:number>", methods=["GET", "POST"])
    @require_oauth(optional=True)  # type: ignore[untyped-decorator,unused-ignore]
    def thing(number: int) -> Response:
        return jsonify(number=number)

    @app.get("/partner")
    def partner() -> Response:
        OAuthRateLimit.limit(request.headers["X-Partner"], request.headers.get("X-User"))
        return jsonify(ok=True)

    return app


@pytest.fixture
def open_site(database: Path) -> Iterator[Callable[..., Site]]:
    """Serves the demo's server with endpoints that have limits of their own, and a large one for tokens."""
    with ExitStack() as undo:

        def open_one(endpoints: dict[str, Any] | None = None, **more: Any) -> Site:
            settings = config(limit=1000, endpoints=endpoints or {}, **more)
            clock = Clock(time.time())
            return undo.enter_context(protected(database, settings, protect=protect_with_views, clock=clock))

        yield open_one


def statuses(ask: Callable[[], requests.Response], count: int = 4) -> list[int]:
    """Return the statuses of some requests in a row."""
    return [ask().status_code for _ in range(count)]


def asking(site: Site, path: str, client: Client = BATCH_JOBS) -> Callable[[], requests.Response]:
    """Return a function that posts to an endpoint of Authlib's server."""
    return lambda: post(f"{site.url}{path}", client, {"token": "bogus", "client_id": client.client_id})


def getting(site: Site, path: str, access_token: str, *, method: str = "GET") -> Callable[[], requests.Response]:
    """Return a function that uses a token."""
    headers = {"Authorization": f"Bearer {access_token}"}
    return lambda: requests.request(method, f"{site.url}{path}", headers=headers, timeout=TIMEOUT_S)


def token_of(site: Site, username: str | None = None, client: Client = WEB_SHOP) -> str:
    """Return an access token of a user, or of the client itself."""
    form = {"grant_type": "client_credentials"}
    if username is not None:
        form = {"grant_type": "password", "username": username, "password": password_of(username)}
    return str(issue(site.url, client, form)["access_token"])


@pytest.mark.parametrize(
    ("name", "path"),
    [("revocation", "/revoke"), ("introspection", "/introspect"), ("device_authorization", "/device_authorization")],
)
def test_authlib_endpoint_is_limited_per_client_and_apart_from_others(
    open_site: Callable[..., Site], name: str, path: str
) -> None:
    """Its name in the configuration is Authlib's."""
    site = open_site({name: LIMITS})

    assert [200, 200, 429, 429] == statuses(asking(site, path))
    assert [200, 200, 429, 429] == statuses(asking(site, path, WEB_SHOP))
    for other in {"/revoke", "/introspect", "/device_authorization"} - {path}:
        assert [200] * 4 == statuses(asking(site, other))


def test_endpoint_answers_as_the_token_endpoint_does(open_site: Callable[..., Site]) -> None:
    """Denials have the same body and headers; admitted requests have quota headers."""
    site = open_site({"revocation": LIMITS})
    ask = asking(site, "/revoke")
    first, _, denied = ask(), ask(), ask()

    assert ("1", None) == (first.headers.get("X-RateLimit-Remaining"), first.headers.get("Retry-After"))
    assert ("temporarily_unavailable", "application/json") == (
        denied.json()["error"],
        denied.headers["Content-Type"],
    )
    assert int(denied.headers["Retry-After"]) >= 1
    assert ["2"] == denied.raw.headers.getlist("X-RateLimit-Limit")
    site.clock.advance(float(denied.headers["Retry-After"]))
    assert 200 == ask().status_code


def test_endpoint_is_found_by_path_and_method(open_site: Callable[..., Site]) -> None:
    site = open_site({"things": {**LIMITS, "path": ["/api/things/*"], "method": ["POST"]}})
    access_token = token_of(site)

    assert [200, 200, 429] == statuses(getting(site, "/api/things/7", access_token, method="POST"), 3)
    assert 429 == getting(site, "/api/things/8", access_token, method="POST")().status_code
    assert [200] * 3 == statuses(getting(site, "/api/things/7", access_token), 3)


def test_head_counts_as_get(open_site: Callable[..., Site]) -> None:
    """The server does the same work for both."""
    site = open_site({"things": {**LIMITS, "path": ["/api/things/*"], "method": ["GET"]}})
    access_token = token_of(site)

    assert [200, 200, 429] == statuses(getting(site, "/api/things/7", access_token, method="HEAD"), 3)
    assert 429 == getting(site, "/api/things/7", access_token)().status_code


def test_path_pattern_never_limits_the_token_endpoint(open_site: Callable[..., Site]) -> None:
    """Authlib's endpoints that it matches share one limit."""
    site = open_site({"all": {**LIMITS, "path": ["/*"]}})

    assert [200, 429] == [asking(site, path)().status_code for path in ("/revoke", "/revoke", "/introspect")][1:]
    for _ in range(4):
        token_of(site)


def test_view_behind_a_token_is_limited_per_client_and_user(open_site: Callable[..., Site]) -> None:
    """A token without a user counts for its client."""
    site = open_site({"userinfo": LIMITS})
    alice, bob, nobody = (token_of(site, username) for username in ("alice", "bob", None))

    assert [200, 429] == statuses(getting(site, "/userinfo", alice), 2)
    assert [200, 429] == statuses(getting(site, "/userinfo", bob), 2)
    assert [200, 200, 429] == statuses(getting(site, "/userinfo", nobody), 3)
    denied = getting(site, "/userinfo", alice)()
    assert "temporarily_unavailable" == denied.json()["error"]
    assert int(denied.headers["Retry-After"]) >= 1


def test_invalid_token_costs_nobody_anything(open_site: Callable[..., Site]) -> None:
    site = open_site({"userinfo": LIMITS})

    assert [401] * 4 == statuses(getting(site, "/userinfo", "bogus"))
    assert [200, 200, 429] == statuses(getting(site, "/userinfo", token_of(site)), 3)


@pytest.mark.parametrize(
    ("endpoints", "mode", "expected"),
    [("revocation", "enforce", 200), ("userinfo", "off", 200), ("userinfo", "dry-run", 500)],
    ids=["no limits here", "switched off", "limits here"],
)
def test_owner_of_a_token_is_asked_for_only_where_it_matters(
    database: Path, endpoints: str, mode: str, expected: int
) -> None:
    """Asking may read the user from a database, and is an error of the application if the user has no name."""

    def caller_of(token: Any) -> Caller:
        raise TypeError("User has no username")

    settings = config(limit=1000, mode=mode, endpoints={endpoints: LIMITS})
    with protected(database, settings, protect=protect_with_views, caller_of=caller_of) as site:
        assert expected == getting(site, "/userinfo", token_of(site, "alice"))().status_code


def test_wrong_secret_costs_the_client_nothing(open_site: Callable[..., Site]) -> None:
    """A stranger cannot use up a client's quota."""
    site = open_site({"revocation": LIMITS})
    stranger = Client(BATCH_JOBS.client_id, "wrong")

    assert [401] * 4 == statuses(asking(site, "/revoke", stranger))
    assert 200 == asking(site, "/revoke")().status_code


def test_application_can_limit_a_request_itself(open_site: Callable[..., Site]) -> None:
    """An endpoint that is not configured has no limit."""
    headers = {"X-Partner": "partner-bank", "X-User": "alice"}

    def ask(site: Site) -> requests.Response:
        return requests.get(f"{site.url}/partner", headers=headers, timeout=TIMEOUT_S)

    site = open_site({"partner": LIMITS})
    assert [200, 429] == statuses(lambda: ask(site), 2)
    denied = ask(site)
    assert "temporarily_unavailable" == denied.json()["error"]
    assert int(denied.headers["Retry-After"]) >= 1
    unlimited = open_site({"userinfo": LIMITS})
    assert [200] * 3 == statuses(lambda: ask(unlimited), 3)


@pytest.mark.parametrize("mode", ["dry-run", "off"])
def test_endpoint_has_a_mode_of_its_own(open_site: Callable[..., Site], mode: str) -> None:
    site = open_site({"revocation": {**LIMITS, "mode": mode}})

    assert [200] * 4 == statuses(asking(site, "/revoke"))


def test_trusted_client_is_denied_at_no_endpoint(open_site: Callable[..., Site]) -> None:
    """Neither at Authlib's endpoints nor behind a token."""
    site = open_site({"revocation": LIMITS, "userinfo": LIMITS}, trusted_clients=[WEB_SHOP.client_id])

    assert [200] * 4 == statuses(asking(site, "/revoke", WEB_SHOP))
    assert [200] * 4 == statuses(getting(site, "/userinfo", token_of(site, "alice")))


def test_request_goes_on_when_the_limiter_breaks(
    open_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = open_site({"revocation": LIMITS})
    monkeypatch.setattr(type(site.app_limiter.limiter), "check", lambda *_, **__: 1 / 0)

    assert [200] * 4 == statuses(asking(site, "/revoke"))


def test_emergency_switch_covers_endpoints(open_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    site = open_site({"revocation": LIMITS})

    assert [200] * 4 == statuses(asking(site, "/revoke"))
