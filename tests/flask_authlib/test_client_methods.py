"""Secrets of clients, however a request names the client: none is checked more often than the limit."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from flask import Request
from structlog.testing import capture_logs

from testbed.oauth_server import app as app_module
from testbed.oauth_server.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP, Database
from testbed.oauth_server.models import Client
from tests.support.guarded import (
    CLIENT_LIMIT,
    ELSEWHERE,
    HOME,
    LIMITS,
    WINDOW_S,
    Guarded,
    add_endpoint,
    guard,
    guarded,
    jwt,
)

ENDPOINTS = ("/token", "/revoke", "/introspect", "/device_authorization", "/custom")
MULTIPART = "multipart/form-data; boundary=B"
ATTEMPTS = CLIENT_LIMIT + 2

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
Fields = dict[str, str]
Sent = dict[str, Any]  # arguments of Werkzeug's test client


def by_header(query_client: Any, oauth_request: Any) -> Client | None:
    """Return the client that a header of the application's own names."""
    name = oauth_request.headers.get("X-Client")
    client = query_client(name) if name else None
    return client if client and client.check_client_secret("guess") else None


class Assertion(JWTBearerClientAssertion):  # type: ignore[misc]
    """Authlib's own reader of assertions, with the secret of a client as its key."""

    def __init__(self) -> None:  # Authlib's takes other arguments in each version
        self.token_url = "http://localhost/token"
        self.leeway = 60
        self._validate_jti = False

    def get_audiences(self) -> list[str]:
        return ["http://localhost/token"]

    def resolve_client_public_key(self, client: Client, _headers: object = None) -> bytes:
        client.check_client_secret("guess")
        return b"the secret of a client that signs its assertions"


class SmallRequest(Request):
    max_form_parts = 20


class Server(app_module.AuthorizationServer):  # type: ignore[misc]
    def authenticate_client(self, request: Any, methods: Sequence[str], endpoint: str = "token") -> Any:
        return super().authenticate_client(request, [*OWN_METHODS, *methods], endpoint)


OWN_METHODS = {"by_header": by_header, "client_assertion_jwt": Assertion()}
BODY = {"grant_type": "client_credentials", "token": "x"}
METHODS: dict[str, tuple[Fields, Fields]] = {  # form and headers
    "header": ({}, {"Authorization": "Basic " + b64encode(b"web-shop:guess").decode()}),
    "form": ({"client_id": "web-shop", "client_secret": "guess"}, {}),
    "assertion": ({"client_assertion_type": ASSERTION_TYPE, "client_assertion": jwt({"sub": "web-shop"}, "guess")}, {}),
    "a header that only the server knows": ({}, {"X-Client": "web-shop"}),
}


def multipart(fields: Fields) -> bytes:
    parts = (
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    return "".join(parts).encode()


FULL = b'--B\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n' * 21  # one part more than is accepted
TRAPS = {
    "nothing": lambda fields: {"data": fields},
    "too many parts": lambda fields: {"data": multipart(fields) + FULL + b"--B--\r\n", "content_type": MULTIPART},
    "bytes in the query": lambda fields: {"data": fields, "environ_overrides": {"QUERY_STRING": "x=\xff"}},
}


@contextmanager
def a_server(database: Path, settings: Any) -> Iterator[Guarded]:
    """Yield a guarded server with methods and an endpoint of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "AuthorizationServer", Server)
        patch.setattr(Client, "check_endpoint_auth_method", lambda *_: True)
        with guarded(database, settings) as server:
            for name, method in OWN_METHODS.items():
                server.app.extensions["authorization_server"].register_client_auth_method(name, method)
            server.app.request_class = SmallRequest
            add_endpoint(server.app)
            yield server


@pytest.fixture(scope="module")
def trapped(database: Path) -> Iterator[Guarded]:
    with a_server(database, guard()) as server:
        yield server


@pytest.fixture
def checked(trapped: Guarded, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Clients whose secret was checked."""
    trapped.forget()
    found: list[str] = []
    check = Client.check_client_secret

    def recorded(client: Client, secret: str) -> bool:
        found.append(client.client_id)
        return check(client, secret)

    monkeypatch.setattr(Client, "check_client_secret", recorded)
    return found


def send(server: Guarded, path: str, request: Sent, headers: Fields | None = None, *, address: str = HOME) -> int:
    environ = {"REMOTE_ADDR": address}
    return server.app.test_client().post(path, headers=headers, environ_base=environ, **request).status_code


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("path", ENDPOINTS)
def test_secret_is_not_checked_more_often_than_the_limit(
    trapped: Guarded, checked: list[str], path: str, trap: str, method: str
) -> None:
    """What is checked is denied in the end, and not before."""
    fields, headers = METHODS[method]
    with capture_logs() as logs:
        found = [send(trapped, path, TRAPS[trap]({**BODY, **fields}), headers) for _ in range(ATTEMPTS)]

    assert len(checked) <= CLIENT_LIMIT
    assert (429 in found) is bool(checked)
    assert not [line for line in logs if line["event"] == "guard_failed"]
    assert 200 == trapped.job(address=ELSEWHERE).status_code


def test_secret_that_was_checked_before_an_error_counts_and_a_failed_look_up_does_not(
    trapped: Guarded, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the error would tell that it was wrong; and clients would be denied after an outage of the database."""
    find = Database.client

    def fail(self: Database, client_id: str) -> Client | None:
        if client_id == "broken":
            raise ZeroDivisionError("no database")
        return find(self, client_id)

    monkeypatch.setattr(Database, "client", fail)
    alone = {"data": {**BODY, "client_id": "broken", "client_secret": "x"}}
    assert {500} == {send(trapped, "/token", alone) for _ in range(ATTEMPTS)}
    found = [send(trapped, "/token", alone, METHODS["header"][1]) for _ in range(ATTEMPTS)]

    assert [500] * CLIENT_LIMIT + [429] * (ATTEMPTS - CLIENT_LIMIT) == found
    assert ["web-shop"] * CLIENT_LIMIT == checked


def test_two_secrets_for_a_client_are_two_guesses_where_it_cannot_come_without_one(
    trapped: Guarded, checked: list[str]
) -> None:
    """Its id in the query is no reason to look it up once more."""
    headers = {**METHODS["header"][1], **METHODS["a header that only the server knows"][1]}
    request = {"data": BODY, "query_string": {"client_id": "web-shop"}}
    found = [send(trapped, "/introspect", request, headers) for _ in range(ATTEMPTS)]

    assert 429 in found
    assert len(checked) <= CLIENT_LIMIT


def test_all_secrets_that_are_guessed_at_an_address_have_a_limit(database: Path) -> None:
    """Two in a request count as two. Other addresses go on, and passwords there."""
    limits = {**LIMITS, "client_address": [{"limit": 6, "window": WINDOW_S}]}
    with a_server(database, guard(limits=limits)) as server:
        job = {"grant_type": "client_credentials"}
        found = [server.send(job, auth=(f"client-{number}", "x")).status_code for number in range(4)]
        both = {**job, "client_id": WEB_SHOP.client_id, "client_secret": "x"}
        found += [server.send(both, auth=(BATCH_JOBS.client_id, "x")).status_code for _ in range(2)]

        assert [401] * 5 + [429] == found
        assert (429, 200) == (server.job().status_code, server.job(address=ELSEWHERE).status_code)
        assert 400 == server.login(client=MOBILE_APP).status_code
