"""Hostile requests to the token endpoint, each sent to the same server with and without the extension."""

import base64
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest

from demo.database import BATCH_JOBS, DEMO_CLIENTS, DEMO_USERS, WEB_SHOP, seed
from demo.models import GRANT_DEVICE_CODE, GRANT_JWT_BEARER, GRANT_TOKEN_EXCHANGE
from demo.server import create_app
from tests.support.serving import serving
from tests.support.sites import Site, config, protected

FORM = "application/x-www-form-urlencoded"
GRANTS = (
    *("client_credentials", "password", "authorization_code", "refresh_token", "implicit", "", "no-such-grant"),
    *(GRANT_DEVICE_CODE, GRANT_JWT_BEARER, GRANT_TOKEN_EXCHANGE, "a\0b", "\u202e", "x" * 100_000),
)
VALUES = (
    *(
        "",
        "bogus",
        "a\0b",
        "\r\nX: y",
        "$where",
        "{'$gt': ''}",
        "a.b.c",
        "\u202eevil",
        "\ufdfa" * 1000,
        "x" * 1_000_000,
    ),
    *("eyJhbGciOiJub25lIn0.eyJpc3MiOiJwYXJ0bmVyLWJhbmsifQ.", "9" * 5000, "%", "%00", "%ff", "-1", "null", "[]"),
)
PARAMETERS = (
    *("grant_type", "client_id", "client_secret", "username", "password", "code", "redirect_uri", "code_verifier"),
    *("refresh_token", "device_code", "assertion", "subject_token", "subject_token_type", "scope", "client_assertion"),
)


def basic(user: str, password: str) -> str:
    """Return an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogatepass")).decode()


OWN = basic(WEB_SHOP.client_id, WEB_SHOP.client_secret or "")
WRONG = basic(WEB_SHOP.client_id, "wrong")
AUTHORIZATIONS = (
    *(
        None,
        OWN,
        WRONG,
        basic("nobody", "x"),
        basic("", ""),
        basic("web-shop", ""),
        basic("a\0b", "c"),
        basic("a:b", "c"),
    ),
    *("Basic", "Basic ", "Basic !!!", "Basic " + base64.b64encode(b"no colon").decode(), "Bearer x", "Digest x"),
    *(basic("\ud800", "x"), basic("x" * 50_000, "x"), "basic " + OWN[6:], "\x0b", "Negotiate " + "A" * 10_000),
)

Request = tuple[str, str, bytes, dict[str, str]]


def a_request(
    form: list[tuple[str, str]], *, authorization: str | None = None, query: str = "", method: str = "POST"
) -> Request:
    """Return method, path, body and headers."""
    headers = {"Content-Type": FORM}
    if authorization is not None:
        headers["Authorization"] = authorization
    return method, f"/token{query}", urlencode(form, errors="surrogatepass").encode(), headers


def corpus() -> Iterator[Request]:
    """Yield about two hundred hostile requests, none of which proves a grant."""
    for grant_type in GRANTS:
        for authorization in (None, OWN, WRONG):
            if (grant_type, authorization) != ("client_credentials", OWN):
                yield a_request([("grant_type", grant_type)], authorization=authorization)
    for value in VALUES:
        yield a_request([("grant_type", "password"), ("username", value), ("password", value)], authorization=OWN)
        yield a_request([("grant_type", "refresh_token"), ("refresh_token", value)], authorization=OWN)
        yield a_request([("grant_type", "authorization_code"), ("code", value), ("client_id", "mobile-app")])
        yield a_request([("grant_type", "client_credentials"), ("client_id", value), ("client_secret", value)])
        yield a_request([("grant_type", GRANT_JWT_BEARER), ("assertion", value)])
        yield a_request([("grant_type", GRANT_DEVICE_CODE), ("device_code", value), ("client_id", value)])
    for authorization in AUTHORIZATIONS:
        if authorization != OWN and authorization != "basic " + OWN[6:]:
            yield a_request([("grant_type", "client_credentials")], authorization=authorization)
        yield a_request([("grant_type", "password"), ("username", "alice")], authorization=authorization)
    for name in PARAMETERS:
        form = [("grant_type", "password"), ("username", "alice"), ("password", "wrong")]
        yield a_request([*form, (name, "x"), (name, "y")], authorization=OWN)
        yield a_request(form, authorization=OWN, query=f"?{name}=alice")
    victim = (
        f"?client_id=batch-jobs&client_secret={quote(BATCH_JOBS.client_secret or '')}&grant_type=client_credentials"
    )
    yield a_request([], query="?grant_type=client_credentials&client_id=batch-jobs")
    yield a_request([("grant_type", "no-such-grant")], query="?client_id=mobile-app", authorization=WRONG)
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        yield a_request([("grant_type", "client_credentials")], query=victim, authorization=OWN, method=method)
    for content_type in ("application/json", "text/plain", "", "multipart/form-data", f"{FORM}; charset=utf-7"):
        yield "POST", "/token", b'{"grant_type": "x"}', {"Content-Type": content_type, "Authorization": OWN}
    for body in (b"\xff\xfe=\x00", b"grant_type=%ff%fe", b"&&&===", b"grant_type", b"a=b&" * 5000, b"\0" * 1000):
        yield "POST", "/token", body, {"Content-Type": FORM, "Authorization": OWN}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded database."""
    path = tmp_path_factory.mktemp("hostile") / "demo.sqlite3"
    seed(path)
    return path


@pytest.fixture(scope="module")
def plain(database: Path) -> Iterator[str]:
    """The address of a server without the extension."""
    with serving(create_app(database)) as url:
        yield url


@pytest.fixture(scope="module")
def site(database: Path) -> Iterator[Site]:
    """The same server with it, one token per client and per user."""
    with protected(database, config(limit=1)) as served:
        yield served


@contextmanager
def answered(url: str, request: Request) -> Iterator[http.client.HTTPResponse]:
    """Send a request as it is, without a library that would clean it first."""
    method, path, body, headers = request
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        yield connection.getresponse()
    finally:
        connection.close()


def answer(url: str, request: Request) -> tuple[int, bytes, set[str]]:
    """Return status, body and the names of the headers."""
    with answered(url, request) as response:
        return response.status, response.read(), {name.lower() for name in response.headers}


def assert_nobody_paid(site: Site) -> None:
    """Fail if a counter of any client or user of theirs has moved."""
    for client in (*(client.client_id for client in DEMO_CLIENTS), "nobody", ""):
        for username in (None, *(user.username for user in DEMO_USERS), "nobody"):
            assert 1 == site.remaining(client, username), (client, username)


def test_hostile_request_is_answered_as_without_the_extension(plain: str, site: Site) -> None:
    """No counter moves, and no key is made, so nothing can reach MongoDB."""
    known = set(site.app_limiter.limiter._clients)
    requests = list(corpus())
    for request in requests:
        assert answer(plain, request) == answer(site.url, request), request[:2]

    assert len(requests) >= 200
    assert known >= set(site.app_limiter.limiter._clients)
    assert_nobody_paid(site)


def test_header_that_is_not_utf8_is_answered_as_authlib_does(plain: str, site: Site) -> None:
    """The extension changes nothing."""
    broken = "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode()
    for form in ([("grant_type", "client_credentials")], [("grant_type", "password"), ("username", "alice")]):
        request = a_request(form, authorization=broken)
        assert answer(plain, request)[0] == answer(site.url, request)[0]


def test_denied_client_is_denied_whatever_it_adds(site: Site) -> None:
    """To the form and the query."""
    site.wait_for_quota()
    own = basic(BATCH_JOBS.client_id, BATCH_JOBS.client_secret or "")
    form = [("grant_type", "client_credentials")]
    assert 200 == answer(site.url, a_request(form, authorization=own))[0]
    tricks: list[tuple[list[tuple[str, str]], str]] = [
        ([], "?client_id=web-shop&username=alice"),
        ([("client_id", "web-shop"), ("username", "alice"), ("user", "bob")], ""),
        ([("client_id", "BATCH-JOBS"), ("scope", "")], "?grant_type=client_credentials"),
        ([("endpoint", "revocation"), ("cost", "0")], "?cost=-1"),
    ]
    for more, query in tricks:
        status, body, headers = answer(site.url, a_request([*form, *more], authorization=own, query=query))
        assert 429 == status, body
        assert "retry-after" in headers
    site.wait_for_quota()
