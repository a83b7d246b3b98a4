"""One decision per HTTP request, whatever the grant does and however the server is built."""

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

from demo.models import User
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.hooks import HOOKS, RateLimitMixin, attach
from tests.support.apps import CLIENT, app_limiter_of, make_app, make_server
from tests.support.helpers import Clock
from tests.support.sites import config

USER = User("some-user", "some-password")


class PasswordGrant(grants.ResourceOwnerPasswordCredentialsGrant):  # type: ignore[misc]
    """A grant with the one user, whatever name was sent."""

    user: Any = USER

    def authenticate_user(self, username: str, password: str) -> Any:
        return self.user


class CustomGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A grant whose ``issue`` is given by a test."""

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
    """Return a protected application with two grants and a limit of two tokens."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=2))
    server = make_server(app, server_class)
    server.register_grant(PasswordGrant)
    extension = OAuthRateLimit(clock=Clock(), **options)
    if attached:
        extension.init_app(app, server)
    return Setup(app, server, extension)


@pytest.fixture
def setup() -> Iterator[Setup]:
    """A protected application."""
    made = build()
    yield made
    made.app_limiter.close()


def with_grant(setup: Setup, issue: Callable[[CustomGrant], Any]) -> None:
    """Register a grant that issues its token in its own way."""
    setup.server.register_grant(type("TheCustomGrant", (CustomGrant,), {"issue": issue}))


# The user of a request.


class Account:
    """A user object with the attributes that it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_user_without_a_name_gets_no_token(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted under the client's key, such users would go unnoticed."""
    monkeypatch.setattr(PasswordGrant, "user", Account(email="alice@example.com"))
    setup.app.testing = True

    with pytest.raises(TypeError, match="Account has no username, get_user_id\\(\\) or id"):
        setup.post("password", username="alice", password="x")

    assert 2 == setup.remaining()


def test_user_without_a_name_passes_while_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a user then."""
    monkeypatch.setattr(PasswordGrant, "user", Account(email="alice@example.com"))
    setup = build(attached=False)
    setup.app.config["OAUTH_RATELIMIT_MODE"] = "off"
    setup.extension.init_app(setup.app, setup.server)

    assert 200 == setup.post("password", username="alice", password="x").status_code
    setup.app_limiter.close()


def test_username_of_names_users() -> None:
    """The name from the application is the key."""
    setup = build(username_of=lambda user: f"tenant-1:{user.username}")

    assert 200 == setup.post("password", username="some-user", password="x").status_code
    assert (1, 2) == (setup.remaining("tenant-1:some-user"), setup.remaining("some-user"))
    setup.app_limiter.close()


@pytest.mark.parametrize("name", [None, 7], ids=["none", "number"])
def test_username_of_must_return_text(name: Any) -> None:
    """Anything else is an error, and never the key of the client alone."""
    setup = build(username_of=lambda user: name)
    setup.app.testing = True

    with pytest.raises(TypeError, match="username_of must return str"):
        setup.post("password", username="alice", password="x")
    setup.app_limiter.close()


def test_client_id_that_is_a_number_is_counted_as_text(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(CLIENT), "get_client_id", lambda self: 42)

    assert 200 == setup.post().status_code
    assert 1 == setup.app_limiter.limiter.peek("42").remaining


# One decision per HTTP request.


def test_grant_that_generates_two_tokens_is_one_request(setup: Setup) -> None:
    def issue(grant: CustomGrant) -> Any:
        tokens = [grant.generate_token(), grant.generate_token()]
        for token in tokens:
            grant.save_token(token)
        return tokens[1]

    with_grant(setup, issue)

    assert 200 == setup.post("custom").status_code
    assert 1 == setup.remaining()


def test_requests_in_one_application_context_are_counted_each(setup: Setup) -> None:
    """They share ``flask.g``."""
    with setup.app.app_context():
        assert 200 == setup.post().status_code
        assert 200 == setup.post().status_code

    assert 0 == setup.remaining()


@pytest.mark.parametrize("is_copied", [False, True], ids=["in the view", "in a thread of its own"])
def test_request_within_a_request_is_counted_and_answered_apart(setup: Setup, is_copied: bool) -> None:
    """A view may create and handle requests of its own."""
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


def test_unprotected_application_called_within_a_request_is_not_limited(setup: Setup) -> None:
    other = Flask("some-other-app")
    setup.server.init_app(other)
    other.add_url_rule("/token", "token", lambda: setup.server.create_token_response(), methods=["POST"])
    setup.app.add_url_rule("/batch", "batch", lambda: [post(other.test_client()).status_code for _ in range(3)])

    assert [200, 200, 200] == setup.client.get("/batch").get_json()
    assert 2 == setup.remaining()


def test_grant_that_only_saves_is_decided_before_saving(setup: Setup) -> None:
    """It counts for the user of the request."""

    def issue(grant: CustomGrant) -> Any:
        grant.request.user = USER
        token = {"access_token": "mine", "token_type": "Bearer", "expires_in": 1}
        grant.save_token(token)
        return token

    with_grant(setup, issue)

    assert [200, 200, 429] == [setup.post("custom").status_code for _ in range(3)]
    assert 2 == setup.remaining()
    assert 0 == setup.remaining(USER.username)


def test_grant_that_catches_the_denial_is_denied_again(setup: Setup) -> None:
    def issue(grant: CustomGrant) -> Any:
        try:
            token = grant.generate_token()
        except OAuth2Error:
            token = {"access_token": "mine", "token_type": "Bearer", "expires_in": 1}
        grant.save_token(token)
        return token

    with_grant(setup, issue)

    assert [200, 200, 429] == [setup.post("custom").status_code for _ in range(3)]


def save_without_a_client(grant: CustomGrant) -> Any:
    """Save a token of no client."""
    grant.request.client = None
    grant.save_token({"access_token": "mine"})
    return {"access_token": "mine"}


@pytest.mark.parametrize(
    ("issue", "client_id"), [(lambda grant: {"access_token": "mine"}, CLIENT.client_id), (save_without_a_client, None)]
)
def test_token_that_bypasses_the_server_is_logged(
    setup: Setup, issue: Callable[[CustomGrant], Any], client_id: str | None
) -> None:
    """It cannot be stopped. The log has one entry per interval, with grant and client."""
    with_grant(setup, issue)

    with capture_logs() as logs:
        answers = [setup.post("custom") for _ in range(3)]

    assert [200, 200, 200] == [answer.status_code for answer in answers]
    [entry] = [entry for entry in logs if entry["event"] == "token_without_decision"]
    assert ("custom", client_id) == (entry["grant_type"], entry["client_id"])


def test_token_generated_outside_of_the_token_endpoint_is_not_limited(setup: Setup) -> None:
    """An application may generate tokens in its own code, with a request or without."""
    for context in (setup.app.app_context(), setup.app.test_request_context("/elsewhere")):
        with context:
            for _ in range(3):
                assert setup.server.generate_token("client_credentials", CLIENT)["access_token"]
            setup.server.save_token({}, None)

    assert setup.server.generate_token("client_credentials", CLIENT)["access_token"]
    assert 2 == setup.remaining()


# How the server is built.


def test_mixin_limits_after_init_app_only() -> None:
    """Its methods are not replaced on top."""

    class Server(RateLimitMixin, AuthorizationServer):  # type: ignore[misc]
        pass

    alone, mixed = build(Server, attached=False), build(Server)

    assert [200, 200, 200] == [alone.post().status_code for _ in range(3)]

    assert [200, 200, 429] == [mixed.post().status_code for _ in range(3)]
    assert not set(HOOKS) & set(vars(mixed.server))
    mixed.app_limiter.close()


def test_replaced_methods_keep_their_signatures() -> None:
    plain, attached = build(attached=False).server, build().server

    for name in HOOKS:
        assert inspect.signature(getattr(plain, name)) == inspect.signature(getattr(attached, name))


def test_own_generate_token_gets_the_arguments_of_its_caller() -> None:
    """Parameters and defaults of its own are respected."""
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


def test_object_that_is_no_server_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an Authlib AuthorizationServer, got 'server'"):
        attach("server")


def test_route_that_took_the_method_before_attaching_is_limited() -> None:
    setup = build(attached=False)
    setup.app.add_url_rule("/early", view_func=setup.server.create_token_response, endpoint="early", methods=["POST"])
    setup.extension.init_app(setup.app, setup.server)

    admitted, _, denied = (post(setup.client, path="/early") for _ in range(3))

    assert (200, "1") == (admitted.status_code, admitted.headers["X-RateLimit-Remaining"])
    assert (429, "0") == (denied.status_code, denied.headers["X-RateLimit-Remaining"])
    setup.app_limiter.close()


class TupleServer(AuthorizationServer):  # type: ignore[misc]
    """A server that answers with body, status and headers."""

    def handle_response(self, status: int, payload: Any, headers: Any) -> Any:
        return payload, status, dict(headers)


class StreamingServer(AuthorizationServer):  # type: ignore[misc]
    """A server that streams its answers."""

    def handle_response(self, status: int, payload: Any, headers: Any) -> Any:
        made = super().handle_response(status, payload, headers)
        return Response(iter([made.get_data()]), status=status, headers=dict(headers))


@pytest.mark.parametrize("server_class", [TupleServer, StreamingServer])
def test_quota_headers_reach_every_kind_of_response(server_class: Any) -> None:
    """A server may answer with a tuple or a stream."""
    setup = build(server_class)

    admitted, _, denied = (setup.post() for _ in range(3))

    assert (200, "1") == (admitted.status_code, admitted.headers["X-RateLimit-Remaining"])
    assert (429, "0") == (denied.status_code, denied.headers["X-RateLimit-Remaining"])
    assert admitted.get_json()["access_token"]
    assert "temporarily_unavailable" == denied.get_json()["error"]
    setup.app_limiter.close()
