"""A small protected application: one client, one grant, no HTTP."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from flask import Flask
from werkzeug.test import TestResponse

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.flask_authlib.request_state import RequestState, ResponseState
from testbed.clock import Clock
from testbed.oauth_server.models import Client, User

CLIENT = Client("some-client", "some-secret")


class ClientCredentialsGrant(grants.ClientCredentialsGrant):  # type: ignore[misc]
    """The one grant that these applications need."""


class PasswordGrant(grants.ResourceOwnerPasswordCredentialsGrant):  # type: ignore[misc]
    """A grant with the one user, whatever name was sent."""

    user: Any = User("some-user", "some-password")

    def authenticate_user(self, username: str, password: str) -> Any:
        return self.user


def make_app(**settings: Any) -> Flask:
    app = Flask("some-app")
    app.config.update(settings)
    return app


def make_server(app: Flask, server_class: Any = AuthorizationServer, *grants: Any) -> Any:
    """Return a server that answers at /token and has one grant, and further ones."""
    server = server_class(
        app,
        query_client=lambda client_id: CLIENT if client_id == CLIENT.client_id else None,
        save_token=lambda *_: None,
    )
    for grant in (ClientCredentialsGrant, *grants):
        server.register_grant(grant)
    app.extensions["authorization_server"] = server
    add_route(app, server)
    return server


def add_route(app: Flask, server: Any) -> None:
    app.add_url_rule("/token", "token", lambda: server.create_token_response(), methods=["POST"])


def app_limiter_of(app: Flask) -> AppLimiter:
    app_limiter: AppLimiter = app.extensions["oauth_ratelimit"]
    return app_limiter


def decide(app: Flask, client: Any, username: str | None, grant_type: str | None = None) -> RequestState:
    """Return the state of a request after its decision."""
    state = RequestState(app_limiter_of(app), ResponseState(), False, None)
    state.follow(state.app_limiter.check(client.client_id, username, grant_type=grant_type))
    return state


@contextlib.contextmanager
def protected_app(
    *,
    clock: Any = None,
    server_class: Any = AuthorizationServer,
    grants: Iterable[Any] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[Flask]:
    """Yield a protected application with these settings and options of the extension; stop what it has started."""
    app = make_app(**settings)
    OAuthRateLimit(app, make_server(app, server_class, *grants), clock=clock or Clock(), **options)
    try:
        yield app
    finally:
        app_limiter_of(app).close()


def ask(
    app: Flask, grant_type: str = "client_credentials", *, path: str = "/token", headers: Any = None, **form: str
) -> TestResponse:
    auth = (CLIENT.client_id, CLIENT.client_secret or "")
    return app.test_client().post(path, data={"grant_type": grant_type, **form}, auth=auth, headers=headers)


def dispatch(app: Flask, client: Client = CLIENT) -> int:
    """Handle a token request without middleware."""
    auth, form = (client.client_id, client.client_secret or ""), {"grant_type": "client_credentials"}
    with app.test_request_context("/token", method="POST", data=form, auth=auth):
        return app.full_dispatch_request().status_code


class ImplicitGrant:
    """A grant that has Authlib's server generate a token at the authorization endpoint, for a request of its own."""

    request = SimpleNamespace(payload=SimpleNamespace(redirect_uri="http://localhost/own", state="own-state"))
    validate_authorization_request = staticmethod(str)
    execute_hook = staticmethod(lambda *_: None)

    def __init__(self, server: Any) -> None:
        self.server = server

    def create_authorization_response(self, *_: Any) -> tuple[int, Any, Any]:
        return 200, self.server.generate_token("implicit", CLIENT), []


def authorize(server: Any) -> Any:
    return server.create_authorization_response(grant_user=None, grant=ImplicitGrant(server))


def token_status(app: Flask) -> int:
    return ask(app).status_code
