"""The demo's server with a guard, and requests from several addresses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask
from requests.adapters import HTTPAdapter

from demo import grants
from demo.database import WEB_SHOP
from demo.models import Client
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.limiter import Limiter
from tests.support.sites import Site, config, protect_after, protected

USER_LIMIT, CLIENT_LIMIT, ADDRESS_LIMIT = 3, 4, 8
WINDOW_S = 600
LIMITS = {
    "user": [{"limit": USER_LIMIT, "window": WINDOW_S}],
    "passed_on": [{"limit": USER_LIMIT, "window": WINDOW_S}],
    "client": [{"limit": CLIENT_LIMIT, "window": WINDOW_S}],
    "address": [{"limit": ADDRESS_LIMIT, "window": WINDOW_S}],
}
HOME, ELSEWHERE = "127.0.0.1", "127.0.0.2"


def guard(*, mode: str = "enforce", **more: Any) -> dict[str, Any]:
    """Return a configuration with a guard and plenty of tokens."""
    return config(limit=1000, guard={"mode": mode, "limits": LIMITS, **more})


class FromAddress(HTTPAdapter):
    """Sends from one address of this machine."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, source_address=(self._address, 0))  # type: ignore[no-untyped-call]


@contextmanager
def session_from(address: str) -> Iterator[requests.Session]:
    """Yield a session whose requests come from an address."""
    with requests.Session() as session:
        session.mount("http://", FromAddress(address))
        yield session


@dataclass(frozen=True)
class Guarded:
    """A guarded server."""

    site: Site

    def send(
        self,
        form: Mapping[str, Any],
        *,
        auth: tuple[str, str] | None = None,
        address: str = HOME,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a token request."""
        with session_from(address) as session:
            return session.post(
                f"{self.site.url}/token", data=form, params=query, auth=auth, headers=headers, timeout=30
            )

    def login(
        self, username: str = "alice", password: str = "wrong", *, client: Client = WEB_SHOP, **more: Any
    ) -> requests.Response:
        """Ask for a token with a password."""
        form = {"grant_type": "password", "username": username, "password": password}
        if client.client_secret is None:
            return self.send({**form, "client_id": client.client_id}, **more)
        return self.send(form, **{"auth": (client.client_id, client.client_secret), **more})

    def job(self, client: Client = WEB_SHOP, secret: str | None = None, **more: Any) -> requests.Response:
        """Ask for a token with a client secret, its own unless another is given."""
        auth = (client.client_id, secret or client.client_secret or "")
        return self.send({"grant_type": "client_credentials"}, auth=auth, **more)

    @property
    def limiter(self) -> Limiter:
        """The limiter that counts failures in this process."""
        guard = self.site.app_limiter.guard()
        assert guard is not None
        assert guard.limiter is not None
        return guard.limiter

    @property
    def key_count(self) -> int:
        """Number of keys of failures that are kept."""
        return self.limiter._clients.key_count

    def forget(self) -> None:
        """Let every failure leave its window."""
        self.let_time_pass()
        self.limiter.sync()
        self.let_time_pass()
        self.limiter.sync()
        self.site.app_limiter.limiter.sync()

    def let_time_pass(self, duration_s: float = 2 * WINDOW_S) -> None:
        """Move the server's clock."""
        self.site.clock.advance(duration_s)


class PasswordGrant(grants.PasswordGrant):
    """Passwords through any client, with a secret or without."""

    TOKEN_ENDPOINT_AUTH_METHODS = grants.WITH_OR_WITHOUT_SECRET


def protect_for_all(database: str | PathLike[str], settings: Any, extension: OAuthRateLimit) -> Flask:
    """Attach to a server with that grant."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grants, "PasswordGrant", PasswordGrant)
        return protect_after(database, settings, extension)


@contextmanager
def guarded(database: Path, settings: Mapping[str, Any], **options: Any) -> Iterator[Guarded]:
    """Serve the demo's server with a guard. Its mobile app, which has no secret, may use the password grant."""
    with protected(database, settings, protect=protect_for_all, **options) as site:
        yield Guarded(site)
