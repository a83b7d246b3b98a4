"""The demo's server with a guard, and requests from several addresses."""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
from authlib.oauth2 import OAuth2Error
from flask import Flask
from werkzeug.test import TestResponse

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from testbed.clock import Clock
from testbed.oauth_server import grants
from testbed.oauth_server.database import WEB_SHOP
from testbed.oauth_server.models import Client
from tests.support.apps import app_limiter_of
from tests.support.limiters import known_keys
from tests.support.sites import config, protect_after

USER_LIMIT, CLIENT_LIMIT, ADDRESS_LIMIT = 3, 4, 8
WINDOW_S = 600
LIMITS = {
    "user": [{"limit": USER_LIMIT, "window": WINDOW_S}],
    "passed_on": [{"limit": USER_LIMIT, "window": WINDOW_S}],
    "client": [{"limit": CLIENT_LIMIT, "window": WINDOW_S}],
    "address": [{"limit": ADDRESS_LIMIT, "window": WINDOW_S}],
}
HOME, ELSEWHERE = "5.6.7.8", "9.8.7.6"  # public addresses: any other may be a proxy's


def guard(*, mode: str = "enforce", **more: Any) -> dict[str, Any]:
    return config(limit=1000, guard={"mode": mode, "limits": LIMITS, **more})


def jwt(claims: dict[str, Any], secret: str) -> str:
    """Return claims that are signed with a secret."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256"}, claims)]
    text = ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    signature = urlsafe_b64encode(hmac.digest(secret.encode(), text.encode(), "sha256")).decode().rstrip("=")
    return f"{text}.{signature}"


@dataclass(frozen=True)
class Guarded:
    app: Flask
    clock: Clock

    def send(
        self,
        form: Mapping[str, Any],
        *,
        path: str = "/token",
        auth: tuple[str, str] | None = None,
        address: str = HOME,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TestResponse:
        """Send a token request, or one to another path."""
        environ = {"REMOTE_ADDR": address}
        return self.app.test_client().post(
            path, data=form, query_string=query, auth=auth, headers=headers, environ_base=environ
        )

    def login(
        self, username: str = "alice", password: str = "wrong", *, client: Client = WEB_SHOP, **more: Any
    ) -> TestResponse:
        form = {"grant_type": "password", "username": username, "password": password}
        if client.client_secret is None:
            return self.send({**form, "client_id": client.client_id}, **more)
        return self.send(form, **{"auth": (client.client_id, client.client_secret), **more})

    def job(self, client: Client = WEB_SHOP, secret: str | None = None, **more: Any) -> TestResponse:
        """Ask for a token with a client secret, its own unless another is given."""
        auth = (client.client_id, secret or client.client_secret or "")
        return self.send({"grant_type": "client_credentials"}, **{"auth": auth, **more})

    @property
    def tokens(self) -> Limiter:
        return app_limiter_of(self.app).limiter

    @property
    def guard(self) -> Guard:
        guard = app_limiter_of(self.app).guard()
        assert guard is not None
        return guard

    @property
    def key_count(self) -> int:
        return 0 if self.guard.limiter is None else len(known_keys(self.guard.limiter))

    @property
    def counted_hits(self) -> int:
        """Failures that still count, once for each of their keys."""
        limiter = self.guard.limiter
        keys = [] if limiter is None else known_keys(limiter)
        decisions = [limiter.peek(key.client_id, key.username, endpoint=key.scope or "") for key in keys if limiter]
        return sum((decision.limit or 0) - decision.remaining for decision in decisions)

    def forget(self) -> None:
        """Let every failure leave its window."""
        for _ in range(2):
            self.clock.advance(2 * WINDOW_S)
            self.guard.run()
            self.tokens.sync()


class PasswordGrant(grants.PasswordGrant):
    """Passwords through any client, with a secret or without."""

    TOKEN_ENDPOINT_AUTH_METHODS = grants.WITH_OR_WITHOUT_SECRET


def protect_for_all(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grants, "PasswordGrant", PasswordGrant)
        return protect_after(database, settings, extension)


def add_endpoint(app: Flask) -> None:
    """Add an endpoint of the application's own, which authenticates a client."""
    oauth_server = app.extensions["authorization_server"]

    def custom() -> Any:
        oauth_request = oauth_server.create_oauth2_request(None)
        try:
            oauth_server.authenticate_client(oauth_request, grants.WITH_SECRET, "custom")
        except OAuth2Error as error:
            return oauth_server.handle_error_response(oauth_request, error)
        return {}

    app.add_url_rule("/custom", view_func=custom, methods=["POST"])


@contextmanager
def guarded(database: Path, settings: Mapping[str, Any], **options: Any) -> Iterator[Guarded]:
    """Yield the demo's server with a guard. Its mobile app, which has no secret, may use the password grant."""
    clock = Clock()
    app = protect_for_all(database, settings, OAuthRateLimit(clock=clock, **options))
    try:
        yield Guarded(app, clock)
    finally:
        app_limiter_of(app).close()
