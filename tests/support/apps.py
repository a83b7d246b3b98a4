"""A small protected application: one client, one grant, no HTTP."""

import contextlib
from collections.abc import Iterator
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from flask import Flask

from demo.models import Client
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from tests.support.helpers import Clock

CLIENT = Client("some-client", "some-secret")


class ClientCredentialsGrant(grants.ClientCredentialsGrant):  # type: ignore[misc]
    """The one grant that these applications need."""


def make_app(**settings: Any) -> Flask:
    """Return an application with these settings."""
    app = Flask("some-app")
    app.config.update(settings)
    return app


def make_server(app: Flask, server_class: Any = AuthorizationServer) -> Any:
    """Return a server that answers at /token and has one grant."""
    server = server_class(
        app,
        query_client=lambda client_id: CLIENT if client_id == CLIENT.client_id else None,
        save_token=lambda *_: None,
    )
    server.register_grant(ClientCredentialsGrant)
    add_route(app, server)
    return server


def add_route(app: Flask, server: Any) -> None:
    """Let the server answer at /token."""
    app.add_url_rule("/token", "token", lambda: server.create_token_response(), methods=["POST"])


def app_limiter_of(app: Flask) -> AppLimiter:
    """Return the limiter of an application."""
    app_limiter: AppLimiter = app.extensions["oauth_ratelimit"]
    return app_limiter


@contextlib.contextmanager
def protected_app(*, clock: Any = None, **settings: Any) -> Iterator[Flask]:
    """Yield a protected application with these settings, and stop what it has started."""
    app = make_app(**settings)
    OAuthRateLimit(app, make_server(app), clock=clock or Clock())
    try:
        yield app
    finally:
        app_limiter_of(app).close()


def token_status(app: Flask) -> int:
    """Ask for a token and return the status of the answer."""
    auth = (CLIENT.client_id, CLIENT.client_secret)
    return app.test_client().post("/token", data={"grant_type": "client_credentials"}, auth=auth).status_code
