"""From an HTTP request to one decision: whatever the grant does, however the server is built."""

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.grants import BaseGrant, TokenEndpointMixin
from flask import Flask, Response
from flask.testing import FlaskClient
from structlog.testing import capture_logs

from demo.models import Client, User
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.caller import username_of
from oauth_ratelimit.flask_authlib.hooks import RateLimitMixin, attach
from tests.support.apps import app_limiter_of
from tests.support.helpers import Clock
from tests.support.sites import config

CLIENT = Client("some-client", "some-secret")
USER = User("some-user", "some-password")

SHADOWED = (
    "create_token_response",
    "get_token_grant",
    "create_authorization_response",
    "generate_token",
    "save_token",
    "handle_error_response",
)


class ClientCredentialsGrant(grants.ClientCredentialsGrant):  # type: ignore[misc]
    """A grant without a user."""


class PasswordGrant(grants.ResourceOwnerPasswordCredentialsGrant):  # type: ignore[misc]
    """A grant with the one user, whoever is named."""

    user: Any = USER

    def authenticate_user(self, username: str, password: str) -> Any:
        return self.user


class CustomGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A grant that does as it likes; tests say what."""

    GRANT_TYPE = "custom"
    issue: Callable[["CustomGrant"], Any]

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()

    def create_token_response(self) -> tuple[int, Any, Any]:
        return 200, self.issue(), self.TOKEN_RESPONSE_HEADER


@dataclass
class Setup:
    """An application with its server, a limit of two tokens and a clock that stands still."""

    app: Flask
    server: Any
    extension: OAuthRateLimit

    @property
    def app_limiter(self) -> AppLimiter:
        """The application's limiter."""
        return app_limiter_of(self.app)

    @property
    def client(self) -> FlaskClient:
        """A new HTTP client."""
        return self.app.test_client()

    def post(self, grant_type: str = "client_credentials", **form: str) -> Any:
        """Ask for a token."""
        return post(self.client, grant_type, **form)

    def remaining(self, username: str | None = None) -> int:
        """Return what is left of the client's quota, or of its user's."""
        return self.app_limiter.limiter.peek(CLIENT.client_id, username).remaining


def post(client: FlaskClient, grant_type: str = "client_credentials", *, path: str = "/token", **form: str) -> Any:
    """Ask for a token."""
    auth = (CLIENT.client_id, CLIENT.client_secret)
    return client.post(path, data={"grant_type": grant_type, **form}, auth=auth)


def build(server_class: Any = AuthorizationServer, *, attached: bool = True, **options: Any) -> Setup:
    """Return a protected application with three grants and a limit of two tokens."""
    app = Flask("some-app")
    app.config["OAUTH_RATELIMIT_CONFIG"] = config(limit=2)
    server = server_class(
        app,
        query_client=lambda client_id: CLIENT if client_id == CLIENT.client_id else None,
        save_token=lambda *_: None,
    )
    for grant in (ClientCredentialsGrant, PasswordGrant):
        server.register_grant(grant)
    app.add_url_rule("/token", "token", lambda: server.create_token_response(), methods=["POST"])
    extension = OAuthRateLimit(clock=Clock(), **options)
    if attached:
        extension.init_app(app, server)
    return Setup(app, server, extension)


@pytest.fixture(autouse=True)
def plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let older Authlib accept http://."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")


@pytest.fixture
def setup() -> Iterator[Setup]:
    """A protected application."""
    made = build()
    yield made
    made.app_limiter.close()


def with_grant(setup: Setup, issue: Callable[[CustomGrant], Any]) -> None:
    """Register a grant that issues its token in its own way."""
    setup.server.register_grant(type("TheCustomGrant", (CustomGrant,), {"issue": issue}))


# Who the user is.


class Account:
    """A user object with the attributes that it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (Account(username="alice", get_user_id=lambda: 7, id=8), "alice"),
        (Account(get_user_id=lambda: 7, id=8), "7"),
        (Account(id=8), "8"),
        (Account(id=0), "0"),
        (Account(username=None, get_user_id=lambda: None, id=8), "8"),
        (Account(username="", id=8), "8"),
    ],
    ids=["username", "get_user_id", "id", "id of zero", "unset names", "empty name"],
)
def test_name_of_a_user(user: Any, expected: str) -> None:
    """The first of username, get_user_id() and id that is set names a user, as text."""
    assert expected == username_of(user)


def test_user_without_any_name(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that cannot be named is an error at once: under the client's key it would go unnoticed."""
    monkeypatch.setattr(PasswordGrant, "user", Account(email="alice@example.com"))
    setup.app.testing = True

    with pytest.raises(TypeError, match="Account has no username, get_user_id\\(\\) or id"):
        setup.post("password", username="alice", password="x")

    assert 2 == setup.remaining()


def test_user_without_any_name_while_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is off asks nothing of a user."""
    monkeypatch.setattr(PasswordGrant, "user", Account(email="alice@example.com"))
    setup = build(attached=False)
    setup.app.config["OAUTH_RATELIMIT_MODE"] = "off"
    setup.extension.init_app(setup.app, setup.server)

    assert 200 == setup.post("password", username="alice", password="x").status_code
    setup.app_limiter.close()


@pytest.mark.parametrize("name", [None, 7], ids=["none", "number"])
def test_own_naming_that_yields_no_text(name: Any) -> None:
    """A callable that names a user with anything but text is an error, never the key of the client alone."""
    setup = build(username_of=lambda user: name)
    setup.app.testing = True

    with pytest.raises(TypeError, match="username_of must return str"):
        setup.post("password", username="alice", password="x")
    setup.app_limiter.close()


def test_own_naming() -> None:
    """A callable names users."""
    setup = build(username_of=lambda user: f"tenant-1:{user.username}")

    assert 200 == setup.post("password", username="some-user", password="x").status_code
    assert 1 == setup.remaining("tenant-1:some-user")
    assert 2 == setup.remaining("some-user")
    setup.app_limiter.close()


def test_client_with_a_number_for_its_id(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client id that is no text is counted as text."""
    monkeypatch.setattr(Client, "get_client_id", lambda self: 42)

    assert 200 == setup.post().status_code
    assert 1 == setup.app_limiter.limiter.peek("42").remaining


@pytest.mark.parametrize(
    "name",
    ["a:b", "a\0b", "$where", "a.b", "\ud800", "a\r\nb", "\u202eevil", "ﷺ" * 100_000, "None"],
    ids=["colon", "nul", "dollar", "dot", "surrogate", "line break", "right to left", "huge", "none in words"],
)
def test_odd_names(setup: Setup, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Any name is a key of its own."""
    monkeypatch.setattr(PasswordGrant, "user", Account(username=name))

    answers = [setup.post("password", username="x", password="x") for _ in range(3)]

    assert [200, 200, 429] == [answer.status_code for answer in answers]
    assert 2 == setup.remaining()
    assert name not in answers[2].text


# One decision per HTTP request.


def test_grant_that_generates_twice(setup: Setup) -> None:
    """A grant that generates two tokens and saves both is one request."""

    def issue(grant: CustomGrant) -> Any:
        tokens = [grant.generate_token(), grant.generate_token()]
        for token in tokens:
            grant.save_token(token)
        return tokens[1]

    with_grant(setup, issue)

    assert 200 == setup.post("custom").status_code
    assert 1 == setup.remaining()


def test_two_requests_in_one_application_context(setup: Setup) -> None:
    """Two HTTP requests that share flask.g are two requests."""
    with setup.app.app_context():
        assert 200 == setup.post().status_code
        assert 200 == setup.post().status_code

    assert 0 == setup.remaining()


@pytest.mark.parametrize("is_copied", [False, True], ids=["in the view", "in a thread of its own"])
def test_requests_within_a_request(setup: Setup, is_copied: bool) -> None:
    """
    A request that a view makes up and handles is one of its own, and does not change the answer of the one around it.
    """
    auth = (CLIENT.client_id, CLIENT.client_secret)
    form = {"grant_type": "client_credentials"}

    def handle() -> int:
        with setup.app.test_request_context("/token", method="POST", data=form, auth=auth):
            return setup.app.full_dispatch_request().status_code

    def batch() -> list[int]:
        setup.server.create_token_response()
        if not is_copied:
            return [handle(), handle()]
        with ThreadPoolExecutor(1) as pool:
            return [pool.submit(copy_context().run, handle).result() for _ in range(2)]

    setup.app.add_url_rule("/batch", "batch", batch, methods=["POST"])

    answer = post(setup.client, path="/batch")

    assert [200, 429] == answer.get_json()
    assert "1" == answer.headers["X-RateLimit-Remaining"]


def test_unprotected_application_within_a_request(setup: Setup) -> None:
    """Another application with the same server is not limited by being asked in a request to a protected one."""
    other = Flask("some-other-app")
    setup.server.init_app(other)
    other.add_url_rule("/token", "token", lambda: setup.server.create_token_response(), methods=["POST"])
    setup.app.add_url_rule("/batch", "batch", lambda: [post(other.test_client()).status_code for _ in range(3)])

    assert [200, 200, 200] == setup.client.get("/batch").get_json()
    assert 2 == setup.remaining()


def test_grant_that_only_saves(setup: Setup) -> None:
    """A grant that makes its token itself is decided before it is saved, for its user."""

    def issue(grant: CustomGrant) -> Any:
        grant.request.user = USER
        token = {"access_token": "mine", "token_type": "Bearer", "expires_in": 1}
        grant.save_token(token)
        return token

    with_grant(setup, issue)

    assert [200, 200, 429] == [setup.post("custom").status_code for _ in range(3)]
    assert 2 == setup.remaining()
    assert 0 == setup.remaining(USER.username)


def test_grant_that_swallows_the_denial(setup: Setup) -> None:
    """A grant that catches the denial and goes on to save is denied again, and once counted at most."""

    def issue(grant: CustomGrant) -> Any:
        try:
            token = grant.generate_token()
        except OAuth2Error:
            token = {"access_token": "mine", "token_type": "Bearer", "expires_in": 1}
        grant.save_token(token)
        return token

    with_grant(setup, issue)

    assert [200, 200, 429] == [setup.post("custom").status_code for _ in range(3)]


def test_grant_that_neither_generates_nor_saves(setup: Setup) -> None:
    """A token that bypasses the server cannot be stopped; the log says so, once."""
    with_grant(setup, lambda grant: {"access_token": "mine"})

    with capture_logs() as logs:
        answers = [setup.post("custom") for _ in range(3)]

    assert [200, 200, 200] == [answer.status_code for answer in answers]
    assert ["token_without_decision"] == [entry["event"] for entry in logs]


def test_save_without_a_client(setup: Setup) -> None:
    """A token saved for no client at all is let through and reported, not an error."""

    def issue(grant: CustomGrant) -> Any:
        grant.request.client = None
        grant.save_token({"access_token": "mine"})
        return {"access_token": "mine"}

    with_grant(setup, issue)

    with capture_logs() as logs:
        answer = setup.post("custom")

    assert 200 == answer.status_code
    assert ["token_without_decision"] == [entry["event"] for entry in logs]


def test_token_made_outside_of_the_token_endpoint(setup: Setup) -> None:
    """An application that makes tokens in its own code is not limited, with a request or without."""
    for context in (setup.app.app_context(), setup.app.test_request_context("/elsewhere")):
        with context:
            for _ in range(3):
                assert setup.server.generate_token("client_credentials", CLIENT)["access_token"]
            setup.server.save_token({}, None)

    assert setup.server.generate_token("client_credentials", CLIENT)["access_token"]
    assert 2 == setup.remaining()


# How the server is built.


def test_mixin(setup: Setup) -> None:
    """The mixin protects as attaching does, and is not attached to on top."""

    class Server(RateLimitMixin, AuthorizationServer):  # type: ignore[misc]
        pass

    mixed = build(Server)

    assert [200, 200, 429] == [mixed.post().status_code for _ in range(3)]
    assert not set(SHADOWED) & set(vars(mixed.server))
    mixed.app_limiter.close()


def test_mixin_without_init_app() -> None:
    """The mixin alone changes nothing."""

    class Server(RateLimitMixin, AuthorizationServer):  # type: ignore[misc]
        pass

    alone = build(Server, attached=False)

    assert [200, 200, 200] == [alone.post().status_code for _ in range(3)]


def test_signatures_stay() -> None:
    """Shadowed methods look like the ones they stand for."""
    plain, attached = build(attached=False).server, build().server

    for name in SHADOWED:
        assert inspect.signature(getattr(plain, name)) == inspect.signature(getattr(attached, name))


def test_server_that_generates_in_its_own_way() -> None:
    """A server whose generate_token has parameters or defaults of its own gets exactly what its caller gives."""
    given = []

    class Server(AuthorizationServer):  # type: ignore[misc]
        def generate_token(
            self,
            grant_type: str,
            client: Any,
            user: Any = None,
            scope: Any = "all",
            expires_in: Any = None,
            include_refresh_token: bool = False,
        ) -> Any:
            given.append((scope, include_refresh_token))
            return {"access_token": "mine"}

    class ExtendedServer(AuthorizationServer):  # type: ignore[misc]
        def generate_token(self, grant_type: str, client: Any, user: Any = None, **more: Any) -> Any:
            given.append(more)
            return {"access_token": "mine"}

    def decorated(*args: Any, **options: Any) -> Any:
        server = AuthorizationServer(*args, **options)
        inner = server.generate_token

        @wraps(inner)
        def generate_token(grant_type: str, client: Any, user: Any = None, **more: Any) -> Any:
            given.append(sorted(more))
            return inner(grant_type, client, user, **more)

        server.generate_token = generate_token
        return server

    for server_class, arguments in ((Server, {}), (ExtendedServer, {"audience": "api"}), (decorated, {"scope": "all"})):
        made = build(server_class)
        with_grant(made, lambda grant, to=arguments: grant.server.generate_token("custom", CLIENT, **to))
        assert [200, 200, 429] == [made.post("custom").status_code for _ in range(3)]
        made.app_limiter.close()

    assert [("all", False)] * 2 + [{"audience": "api"}] * 2 + [["scope"]] * 2 == given


def test_attaching_twice(setup: Setup) -> None:
    """A server is attached to once."""
    before = {name: getattr(setup.server, name) for name in SHADOWED}

    attach(setup.server)

    assert before == {name: getattr(setup.server, name) for name in SHADOWED}


def test_attaching_to_something_else() -> None:
    """What is no authorization server is refused by name."""
    with pytest.raises(TypeError, match="expected an Authlib AuthorizationServer, got 'server'"):
        attach("server")


def test_route_that_took_the_plain_method() -> None:
    """A route that got hold of the server's method before attaching counts and tells all the same."""
    setup = build(attached=False)
    setup.app.add_url_rule("/early", view_func=setup.server.create_token_response, endpoint="early", methods=["POST"])
    setup.extension.init_app(setup.app, setup.server)

    admitted, _, denied = (post(setup.client, path="/early") for _ in range(3))

    assert (200, "1") == (admitted.status_code, admitted.headers["X-RateLimit-Remaining"])
    assert (429, "0") == (denied.status_code, denied.headers["X-RateLimit-Remaining"])
    setup.app_limiter.close()


class TupleServer(AuthorizationServer):  # type: ignore[misc]
    """A server that answers with what a Flask view may return: body, status, headers."""

    def handle_response(self, status: int, payload: Any, headers: Any) -> Any:
        return payload, status, dict(headers)


class StreamingServer(AuthorizationServer):  # type: ignore[misc]
    """A server that streams its answers."""

    def handle_response(self, status: int, payload: Any, headers: Any) -> Any:
        made = super().handle_response(status, payload, headers)
        return Response(iter([made.get_data()]), status=status, headers=dict(headers))


@pytest.mark.parametrize("server_class", [TupleServer, StreamingServer])
def test_other_kinds_of_answers(server_class: Any) -> None:
    """Quota headers reach the client whatever the server's answers are made of."""
    setup = build(server_class)

    admitted, _, denied = (setup.post() for _ in range(3))

    assert (200, "1") == (admitted.status_code, admitted.headers["X-RateLimit-Remaining"])
    assert (429, "0") == (denied.status_code, denied.headers["X-RateLimit-Remaining"])
    assert admitted.get_json()["access_token"]
    assert "temporarily_unavailable" == denied.get_json()["error"]
    setup.app_limiter.close()
