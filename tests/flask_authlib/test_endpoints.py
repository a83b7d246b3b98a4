"""Limits at endpoints other than the token endpoint, over real HTTP."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from authlib.integrations.flask_oauth2 import ResourceProtector, current_token, token_authenticated
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import TokenMixin
from authlib.oauth2.rfc6750 import BearerTokenValidator
from flask import Flask, Response, jsonify, request
from structlog.testing import capture_logs
from werkzeug.local import LocalProxy

from oauth_ratelimit.flask_authlib.endpoints import Caller, caller_of_token, username_of
from oauth_ratelimit.flask_authlib.extension import OAuthRateLimit
from testbed.clock import Clock
from testbed.oauth_server.database import BATCH_JOBS, MOBILE_APP, PARTNER_BANK, WEB_SHOP
from testbed.oauth_server.database import database as demo_database
from testbed.oauth_server.models import Client
from tests.support.apps import CLIENT, PasswordGrant, ask, protected_app
from tests.support.flows import issue, password_of, post
from tests.support.helpers import statuses
from tests.support.sites import Site, config, protect_after, protected

LIMITS = {"limits": {"client": ["2/minute"], "user": ["1/minute"]}}
TIMEOUT_S = 60


class TokenValidator(BearerTokenValidator):  # type: ignore[misc]  # untyped
    def authenticate_token(self, token_string: str) -> Any:
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
        OAuthRateLimit.limit(request.headers["X-Partner"], LocalProxy(lambda: request.headers["X-User"]))
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


def asking(site: Site, path: str, client: Client = BATCH_JOBS) -> Callable[[], requests.Response]:
    return lambda: post(f"{site.url}{path}", client, {"token": "bogus", "client_id": client.client_id})


def getting(site: Site, path: str, access_token: str, *, method: str = "GET") -> Callable[[], requests.Response]:
    headers = {"Authorization": f"Bearer {access_token}"}
    return lambda: requests.request(method, f"{site.url}{path}", headers=headers, timeout=TIMEOUT_S)


def token_of(site: Site, username: str | None = None, client: Client = WEB_SHOP) -> str:
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
    """Its name in the configuration is Authlib's. Answers are those of the token endpoint."""
    site = open_site({name: LIMITS}, trusted_clients=[PARTNER_BANK.client_id])
    ask = asking(site, path)

    assert [401] * 4 == statuses(asking(site, path, Client(BATCH_JOBS.client_id, "wrong")), 4)
    first, _, denied = ask(), ask(), ask()
    assert ("1", None) == (first.headers.get("X-RateLimit-Remaining"), first.headers.get("Retry-After"))
    assert (429, "temporarily_unavailable") == (denied.status_code, denied.json()["error"])
    assert ["2"] == denied.raw.headers.getlist("X-RateLimit-Limit")
    assert [200, 200, 429, 429] == statuses(asking(site, path, WEB_SHOP), 4)
    assert [200] * 4 == statuses(asking(site, path, PARTNER_BANK), 4)
    assert [200] * 4 == statuses(asking(site, "/device_authorization", MOBILE_APP), 4)  # which anybody can name
    for other in {"/revoke", "/introspect", "/device_authorization"} - {path}:
        assert [200] * 4 == statuses(asking(site, other), 4)

    site.clock.advance(float(denied.headers["Retry-After"]))
    assert 200 == ask().status_code


@pytest.mark.parametrize(("method", "other"), [("POST", "GET"), ("GET", "POST"), ("HEAD", "POST")])
def test_endpoint_is_found_by_path_and_method(open_site: Callable[..., Site], method: str, other: str) -> None:
    """HEAD counts as GET: the server does the same work for both."""
    limited = "GET" if method == "HEAD" else method
    site = open_site({"things": {**LIMITS, "path": ["/api/things/*"], "method": [limited]}})
    access_token = token_of(site)

    assert [200, 200, 429] == statuses(getting(site, "/api/things/7", access_token, method=method), 3)
    assert 429 == getting(site, "/api/things/8", access_token, method=limited)().status_code
    assert [200] * 3 == statuses(getting(site, "/api/things/7", access_token, method=other), 3)


def test_path_pattern_never_limits_the_token_endpoint(open_site: Callable[..., Site]) -> None:
    """Authlib's endpoints that it matches share one limit."""
    site = open_site({"all": {**LIMITS, "path": ["/*"]}})

    assert [200, 429] == [asking(site, path)().status_code for path in ("/revoke", "/revoke", "/introspect")][1:]
    for _ in range(4):
        token_of(site)


def test_view_behind_a_token_is_limited_per_client_and_user(open_site: Callable[..., Site]) -> None:
    """A token without a user counts for its client, an invalid one for nobody."""
    site = open_site({"userinfo": LIMITS})
    alice, bob, nobody = (token_of(site, username) for username in ("alice", "bob", None))

    assert [401] * 4 == statuses(getting(site, "/userinfo", "bogus"), 4)
    assert [200, 429] == statuses(getting(site, "/userinfo", alice), 2)
    assert [200, 429] == statuses(getting(site, "/userinfo", bob), 2)
    assert [200, 200, 429] == statuses(getting(site, "/userinfo", nobody), 3)
    assert int(getting(site, "/userinfo", alice)().headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    ("endpoints", "mode", "is_asked"),
    [("revocation", "enforce", False), ("userinfo", "off", False), ("userinfo", "dry-run", True)],
    ids=["no limits here", "switched off", "limits here"],
)
def test_owner_of_a_token_is_asked_for_only_where_it_matters(
    database: Path, endpoints: str, mode: str, is_asked: bool
) -> None:
    """Asking may read the user from a database."""
    asked = []

    def caller_of(token: Any) -> Caller:
        asked.append(token.username)
        return Caller("some-client", "alice")

    settings = config(limit=1000, mode=mode, endpoints={endpoints: LIMITS})
    with protected(database, settings, protect=protect_with_views, caller_of=caller_of) as site:
        assert 200 == getting(site, "/userinfo", token_of(site, "alice"))().status_code
    assert (["alice"] if is_asked else []) == asked


def test_application_can_limit_a_request_itself(open_site: Callable[..., Site]) -> None:
    headers = {"X-Partner": "partner-bank", "X-User": "alice"}

    def ask(site: Site) -> requests.Response:
        return requests.get(f"{site.url}/partner", headers=headers, timeout=TIMEOUT_S)

    site = open_site({"partner": LIMITS})
    assert [200, 429] == statuses(lambda: ask(site), 2)
    denied = ask(site)
    peek = site.app.extensions["oauth_ratelimit"].limiter.peek
    assert 0 == peek("partner-bank", "alice", endpoint="partner").remaining
    assert "temporarily_unavailable" == denied.json()["error"]
    assert int(denied.headers["Retry-After"]) >= 1
    unlimited = open_site({"userinfo": LIMITS})
    assert [200] * 3 == statuses(lambda: ask(unlimited), 3)


@pytest.mark.parametrize("path", ["/auth/api/orders", "/auth/api/orders/", "/api/orders", "/api/orders/"])
def test_path_is_found_as_a_client_writes_it(path: str) -> None:
    """With the mount point or without, with a trailing slash or without where the route has both."""
    settings = config(limit=9, endpoints={"orders": {**LIMITS, "path": [path]}})
    with protected_app(OAUTH_RATELIMIT_CONFIG=settings) as app:
        app.add_url_rule("/api/orders/", "orders", limited, strict_slashes=False)
        client = app.test_client()
        found = [
            client.get(f"/api/orders{slash}", base_url="http://localhost/auth").status_code for slash in ("", "/", "")
        ]
    assert [200, 200, 429] == found


def limited() -> str:
    OAuthRateLimit.limit("some-client")
    return "seen"


def test_token_that_names_no_client_is_logged() -> None:
    settings = config(limit=9, endpoints={"view": LIMITS})
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=settings) as app:
        app.add_url_rule("/view", "view", lambda: token_authenticated.send("protector", token={"sub": "a"}) and "seen")
        assert [200] * 3 == [app.test_client().get("/view").status_code for _ in range(3)]
    assert ["caller_of"] == [entry["source"] for entry in logs if entry["event"] == "caller_unknown"]


@pytest.mark.parametrize(
    ("own", "text"), [({"error_description": "Stop."}, "Stop."), ({}, "This client has sent too many requests here.")]
)
def test_denial_speaks_of_requests(own: dict[str, str], text: str) -> None:
    settings = config(limit=9, endpoints={"view": {"limits": {"client": ["1/minute"]}, **own}})
    with protected_app(OAUTH_RATELIMIT_CONFIG=settings) as app:
        app.add_url_rule("/view", "view", limited)
        answers = [app.test_client().get("/view") for _ in range(2)]
    assert [200, 429] == [answer.status_code for answer in answers]
    assert answers[1].get_json()["error_description"].startswith(text)


# Tenants.


def test_clients_of_two_tenants_with_one_id_are_counted_and_trusted_apart() -> None:
    """At the token endpoint, at another one and behind a token."""
    settings = config(limit=1, endpoints={"view": LIMITS}, trusted_clients=["initech/some-client"])
    options = {"client_id_of": lambda client: f"{request.headers['X-Tenant']}/{client.client_id}"}
    with protected_app(OAUTH_RATELIMIT_CONFIG=settings, options=options) as app:

        def view() -> tuple[str, int]:
            token = type("Token", (TokenMixin,), {"client_id": 4711, "get_client": lambda _: CLIENT})()
            try:
                token_authenticated.send("protector", token=token)
            except OAuth2Error as exc:  # as a ResourceProtector does
                return "denied", exc.status_code
            return "seen", 200

        app.add_url_rule("/view", "view", view, methods=["POST"])

        def found(tenant: str, path: str) -> list[int]:
            return [ask(app, path=path, headers={"X-Tenant": tenant}).status_code for _ in range(3)]

        assert [[200, 429, 429]] * 2 == [found(tenant, "/token") for tenant in ("acme", "globex")]
        assert [[200, 200, 429]] * 2 == [found(tenant, "/view") for tenant in ("acme", "globex")]
        assert [200] * 3 == found("initech", "/token")
        with capture_logs() as logs:  # without the header it raises
            assert [200] * 3 == statuses(lambda: ask(app), 3)
    assert ["client_id_of"] == [entry["source"] for entry in logs if entry["event"] == "caller_unknown"]


# Names of users and owners of tokens.


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"username": "alice", "get_user_id": lambda: 7, "id": 8}, "alice"),
        ({"get_user_id": lambda: 7, "id": 8}, "7"),
        ({"id": 8}, "8"),
        ({"id": 0}, "0"),
        ({"username": None, "get_user_id": lambda: None, "id": 8}, "8"),
        ({"username": "", "id": 8}, "8"),
    ],
    ids=["username", "get_user_id", "id", "id of zero", "unset names", "empty name"],
)
def test_first_attribute_that_is_set_names_a_user(attributes: dict[str, Any], expected: str) -> None:
    assert expected == username_of(SimpleNamespace(**attributes))


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (SimpleNamespace(client_id="app", user=SimpleNamespace(username="alice")), Caller("app", "alice")),
        (SimpleNamespace(client_id="app", user=None, user_id=7), Caller("app", "7")),
        (SimpleNamespace(client_id="app", username="bob", user_id=7), Caller("app", "bob")),
        (SimpleNamespace(client_id="app", username=""), Caller("app", None)),
        ({"client_id": "app", "sub": "alice"}, Caller("app", "alice")),
        ({"azp": "app", "sub": "app"}, Caller("app", None)),
        ({"sub": "alice"}, None),
        (SimpleNamespace(), None),
        (SimpleNamespace(get_client=lambda: CLIENT, client_id=3, user_id=7), Caller("some-client", "7")),
        (
            SimpleNamespace(get_client=lambda: CLIENT, get_user=lambda: PasswordGrant.user),
            Caller("some-client", "some-user"),
        ),
        (SimpleNamespace(get_client_id=lambda: "app", client_id=3, sub="app"), Caller("app", None)),
        (type("Token", (TokenMixin,), {"client_id": "app", "user_id": 7})(), Caller("app", "7")),
    ],
    ids=[
        *("user", "user id", "username", "no user", "JWT of a user", "JWT of a client", "JWT of nobody", "nothing"),
        *("client of the token", "user of the token", "id of the client", "methods that are not defined"),
    ],
)
def test_owner_is_read_from_stored_tokens_and_claims(token: Any, expected: Caller | None) -> None:
    """Without a client, a token has no owner."""
    assert expected == caller_of_token(token)
