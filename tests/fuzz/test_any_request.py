"""Any request to the token endpoint gets the answer of a plain Authlib server."""

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from testbed.oauth_server.database import BATCH_JOBS, WEB_SHOP
from tests.fuzz.guessing import Servers, answer, both_servers
from tests.support.apps import app_limiter_of
from tests.support.flows import password_of
from tests.support.limiters import known_keys

PLENTY = [{"limit": 2**53, "window": 60}]
SETTINGS = {
    "mode": "enforce",
    "limits": dict.fromkeys(("client", "user", "client_total"), PLENTY),
    "guard": {"mode": "enforce", "limits": dict.fromkeys(("client", "user", "address"), PLENTY)},
}
GRANT_TYPES = ["client_credentials", "password", "authorization_code", "refresh_token", "implicit"]
GRANT_TYPES += [f"urn:ietf:params:oauth:grant-type:{name}" for name in ("device_code", "jwt-bearer", "token-exchange")]
NAMES = ["grant_type", "client_id", "client_secret", "username", "password", "code", "redirect_uri", "refresh_token"]
NAMES += ["device_code", "assertion", "subject_token", "subject_token_type", "scope", "client_assertion_type"]
NAMES += ["client_assertion", "code_verifier", "", "grant_type[]", "username[$gt]"]

texts = st.text(max_size=12) | st.sampled_from(
    [
        *("alice", "web-shop", "mobile-app", "batch-jobs", "profile", "openid", "\ud800", "\0", "\r\nX: y", "x" * 3000),
        *("\ufdfa" * 500, "eyJhbGciOiJub25lIn0.eyJpc3MiOiJwYXJ0bmVyLWJhbmsifQ.", "%00", "%ff", password_of("alice")),
    ]
)
pairs = st.lists(st.tuples(st.sampled_from(NAMES) | texts, st.sampled_from(GRANT_TYPES) | texts), max_size=7)
forms = st.builds(
    lambda grant_type, more: [("grant_type", grant_type), *more], st.sampled_from(GRANT_TYPES) | texts, pairs
)
encoded = (forms | pairs).map(lambda form: urlencode(form, errors="surrogatepass").encode())


def basic(credentials: bytes) -> str:
    return "Basic " + base64.b64encode(credentials).decode()


OWN = [basic(f"{client.client_id}:{client.client_secret}".encode()) for client in (WEB_SHOP, BATCH_JOBS)]
printable = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30)
authorizations = st.one_of(
    st.none(), st.sampled_from(OWN), st.binary(max_size=20).map(basic), printable, printable.map("Basic {}".format)
)
requests = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["POST"] * 8 + ["GET", "PUT", "HEAD", "OPTIONS"]),
        "query_string": (st.just(b"") | encoded | st.binary(max_size=20)).map(lambda query: query.decode("latin-1")),
        "data": encoded | st.binary(max_size=60),
        "content_type": st.sampled_from(["application/x-www-form-urlencoded"] * 8 + ["application/json", "x", ""])
        | st.just("multipart/form-data; boundary=x"),
    }
)
addresses = st.sampled_from(["192.0.2.7", "::1", "fe80::1%eth0", "", "unix:", "1.2.3", "\xff"]) | st.none()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """The same server, plain and with every feature at its token endpoint."""
    with both_servers(SETTINGS) as both:
        yield both


@pytest.mark.no_cover
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(request=requests, authorization=authorizations, address=addresses, forwarded=st.none() | printable)
def test_protected_server_answers_like_a_plain_one(
    servers: Servers,
    request: dict[str, Any],
    authorization: str | None,
    address: str | None,
    forwarded: str | None,
) -> None:
    """No failure is logged, and what is refused makes no key."""
    headers = {"Authorization": authorization, "X-Forwarded-For": forwarded}
    given_headers = {name: value for name, value in headers.items() if value is not None}
    sent = {"path": "/token", "headers": given_headers, "environ_base": {"REMOTE_ADDR": address}, **request}
    limiter = app_limiter_of(servers.guarded).limiter
    known = set(known_keys(limiter))
    with capture_logs() as logs:
        plain = answer(servers.plain, sent)
        assert plain == answer(servers.guarded, sent)

    assert [] == [line for line in logs if line["event"].endswith("_failed")]
    assert plain[0] == 200 or known == set(known_keys(limiter))
