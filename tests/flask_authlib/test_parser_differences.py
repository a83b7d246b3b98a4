"""Requests that the guard and the server may read in different ways: no secret is checked more often than the limit."""

import hmac
import json
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Request
from structlog.testing import capture_logs

from testbed.oauth_server import app as app_module
from testbed.oauth_server import grants
from testbed.oauth_server.database import MOBILE_APP, Database
from testbed.oauth_server.models import GRANT_JWT_BEARER, Client
from tests.support.guarded import CLIENT_LIMIT, ELSEWHERE, HOME, LIMITS, WINDOW_S, Guarded, add_endpoint, guard, guarded

ENDPOINTS = ("/token", "/revoke", "/introspect", "/device_authorization", "/custom")
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=B"
CHUNK = 64 * 1024  # bytes that Werkzeug parses at once
ATTEMPTS = CLIENT_LIMIT + 2

Fields = dict[str, str]
Sent = dict[str, Any]  # arguments of Werkzeug's test client


# Assertions.


def encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).decode().rstrip("=")


def signed(header: str, payload: str, secret: str = "guess") -> str:
    """Return an assertion whose parts are given as they are sent."""
    return f"{header}.{payload}.{encoded(hmac.digest(secret.encode(), f'{header}.{payload}'.encode(), 'sha256'))}"


HEADER = encoded(b'{"alg": "HS256"}')
UNENCODED = encoded(b'{"alg": "HS256", "b64": false, "crit": ["b64"]}')  # RFC 7797
CLAIMS = '{"sub": "web-shop", "iss": "web-shop"}'


def two_faced(number: int) -> str:
    """Return claims of the web shop that a lenient decoder of Base64 takes for those of another client."""
    other = f'{{"sub": "n{number}", "iss": "n{number}", "x": "'.ljust(60).encode("utf-16-le")
    letters = "22"  # so that the names below decode to whole characters
    end = '"} '.encode("utf-16-le")
    return f'{{"{encoded(other)}": "", "iss": "web-shop", "sub": "web-shop", "{letters}{encoded(end)}": ""}}'


ASSERTIONS: dict[str, Callable[[int], str]] = {
    "plain": lambda n: signed(HEADER, encoded(CLAIMS.encode())),
    "claims that are not encoded": lambda n: signed(UNENCODED, two_faced(n)),
    "the same without crit": lambda n: signed(encoded(b'{"alg": "HS256", "b64": false}'), two_faced(n)),
    "a name twice": lambda n: signed(HEADER, encoded(f'{CLAIMS[:-1]}, "sub": "n{n}", "iss": "n{n}"}}'.encode())),
    "letters of no alphabet": lambda n: signed(HEADER, "!" + encoded(CLAIMS.encode())),
    "another encoding": lambda n: signed(HEADER, encoded(CLAIMS.encode("utf-16"))),
}


def asserted(query_client: Callable[[str], Client | None], oauth_request: Any) -> Client | None:
    """Return the client of an assertion, read as RFC 7797 says, by a lenient decoder; or that of a header."""
    if name := oauth_request.headers.get("X-Client"):
        named = query_client(name)
        return named if named and named.check_client_secret("guess") else None
    header, payload, _ = f"{oauth_request.form.get('client_assertion')}..".split(".")[:3]
    try:
        is_raw = json.loads(urlsafe_b64decode(header + "===")).get("b64") is False
        claims = json.loads(payload if is_raw else urlsafe_b64decode(payload + "==="))
    except ValueError:
        return None
    client = query_client(claims["sub"])
    return client if client and client.check_client_secret("guess") else None


class SmallRequest(Request):
    max_form_parts = 20


class Server(app_module.AuthorizationServer):  # type: ignore[misc]
    def authenticate_client(self, request: Any, methods: Sequence[str], endpoint: str = "token") -> Any:
        return super().authenticate_client(request, ["asserted", *methods], endpoint)


# How a client is named, and what is around it.

METHODS: dict[str, tuple[Fields, Fields]] = {  # form and headers
    "header": ({}, {"Authorization": "Basic " + b64encode(b"web-shop:guess").decode()}),
    "form": ({"client_id": "web-shop", "client_secret": "guess"}, {}),
    "assertion": ({"client_assertion": ASSERTIONS["plain"](0)}, {}),
    "a header that only the server knows": ({}, {"X-Client": "web-shop"}),
}


def multipart(fields: Fields) -> bytes:
    parts = (
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    return "".join(parts).encode()


FULL = b'--B\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n' * 21  # one part more than is accepted


def urlencoded(fields: Fields) -> Sent:
    return {"data": fields, "content_type": FORM}


TRAPS: dict[str, Callable[[Fields, int], Sent]] = {
    "nothing": lambda fields, n: urlencoded(fields),
    "too many parts": lambda fields, n: {"data": multipart(fields) + FULL + b"--B--\r\n", "content_type": MULTIPART},
    "a form behind a broken one": lambda fields, n: {
        "data": FULL.ljust(CHUNK + 10, b"x") + b"\r\n" + multipart(fields) + b"--B--\r\n",
        "content_type": MULTIPART,
    },
    "a long field": lambda fields, n: {
        "data": multipart({"x": "x" * 600_000, **fields}) + b"--B--\r\n",
        "content_type": MULTIPART,
    },
    "bytes in the query": lambda fields, n: {**urlencoded(fields), "environ_overrides": {"QUERY_STRING": "x=\xff"}},
    "another client in the query": lambda fields, n: {**urlencoded(fields), "query_string": {"client_id": f"n{n}"}},
}


@contextmanager
def a_server(database: Path, settings: Any) -> Iterator[Guarded]:
    """Yield a guarded server that accepts assertions, too, with an endpoint of its own that needs no form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "AuthorizationServer", Server)
        patch.setattr(Client, "check_endpoint_auth_method", lambda *_: True)
        with guarded(database, settings) as server:
            server.app.extensions["authorization_server"].register_client_auth_method("asserted", asserted)
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
    """Whatever keeps the guard from reading the request. What is checked is denied in the end, and not before."""
    fields, headers = METHODS[method]
    body = {"grant_type": "client_credentials", "token": "x", **fields}
    with capture_logs() as logs:
        found = [send(trapped, path, TRAPS[trap](body, number), headers) for number in range(ATTEMPTS)]

    assert len(checked) <= CLIENT_LIMIT
    assert (429 in found) is bool(checked)
    assert not [line for line in logs if line["event"] == "guard_failed"]
    assert 200 == trapped.job(address=ELSEWHERE).status_code


@pytest.mark.parametrize("assertion", ASSERTIONS.values(), ids=ASSERTIONS)
def test_key_of_a_client_is_not_tried_more_often_than_the_limit(
    trapped: Guarded, checked: list[str], monkeypatch: pytest.MonkeyPatch, assertion: Callable[[int], str]
) -> None:
    """At the jwt-bearer grant, by Authlib's own reader."""
    tried = []
    key_of = grants.JWTBearerGrant.resolve_client_public_key

    def recorded(grant: Any, client: Client | None) -> Any:
        tried.append(client)
        return key_of(grant, client)

    monkeypatch.setattr(grants.JWTBearerGrant, "resolve_client_public_key", recorded)
    bodies = [{"grant_type": GRANT_JWT_BEARER, "assertion": assertion(number)} for number in range(ATTEMPTS)]
    found = [send(trapped, "/token", urlencoded(body)) for body in bodies]

    assert len(tried) <= CLIENT_LIMIT
    assert (429 in found) is bool(tried)


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
    alone = urlencoded({"grant_type": "client_credentials", "client_id": "broken", "client_secret": "x"})
    assert {500} == {send(trapped, "/token", alone) for _ in range(ATTEMPTS)}
    found = [send(trapped, "/token", alone, METHODS["header"][1]) for _ in range(ATTEMPTS)]

    assert [500] * CLIENT_LIMIT + [429] * (ATTEMPTS - CLIENT_LIMIT) == found
    assert ["web-shop"] * CLIENT_LIMIT == checked


def test_request_that_breaks_the_guard_while_it_reads_counts(
    trapped: Guarded, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the server looks up."""

    def fail(*_args: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("oauth_ratelimit.flask_authlib.failed_auth.extract_basic_authorization", fail)
    request = urlencoded({"grant_type": "client_credentials"})
    found = [send(trapped, "/token", request, METHODS["header"][1]) for _ in range(ATTEMPTS)]

    assert [401] * CLIENT_LIMIT + [429] * (ATTEMPTS - CLIENT_LIMIT) == found


def test_all_secrets_that_are_guessed_at_an_address_have_a_limit(database: Path) -> None:
    """Two in a request count as two. Other addresses go on, and passwords there."""
    limits = {**LIMITS, "client_address": [{"limit": 6, "window": WINDOW_S}]}
    with a_server(database, guard(limits=limits)) as server:
        job = {"grant_type": "client_credentials"}
        found = [server.send(job, auth=(f"client-{number}", "x")).status_code for number in range(4)]
        both = {**job, "client_id": "other", "client_secret": "x"}
        found += [server.send(both, auth=("another", "x"), path="/introspect").status_code for _ in range(2)]

        assert [401] * 5 + [429] == found
        assert (429, 200) == (server.job().status_code, server.job(address=ELSEWHERE).status_code)
        assert 400 == server.login(client=MOBILE_APP).status_code
