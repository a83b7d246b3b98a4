"""Every grant and several client libraries at a protected Authlib server, over real HTTP."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import http_sf
import pytest
import requests
from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session as AuthlibSession
from oauthlib.oauth2 import BackendApplicationClient, TemporarilyUnavailableError
from requests_oauthlib import OAuth2Session
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, MOBILE_APP, PARTNER_BANK, WEB_SHOP
from demo.models import GRANT_DEVICE_CODE, Client
from oauth_ratelimit.config import Settings
from tests.support.flows import (
    FLOWS,
    FRONT_CHANNEL_FLOWS,
    TIMEOUT_S,
    GrantRequest,
    password_of,
    post,
    redirect_parameters,
)
from tests.support.sites import WINDOW_S, Site, config, protect_after, protect_before, protected

Flow = Callable[[str], GrantRequest]

QUOTA_HEADERS = {
    "RateLimit-Policy",
    "RateLimit",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
}

each_flow = pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
each_front_channel_flow = pytest.mark.parametrize("flow", FRONT_CHANNEL_FLOWS.values(), ids=FRONT_CHANNEL_FLOWS)


@pytest.fixture(scope="module")
def enforcing(database: Path) -> Iterator[Site]:
    """A server that admits one token per client, or client and user, in ten seconds."""
    with protected(database, config(limit=1)) as site:
        yield site


@pytest.fixture(scope="module", params=[protect_after, protect_before], ids=["attached last", "attached first"])
def attached_early_or_late(database: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The enforcing server, attached to after and before its grants were registered."""
    with protected(database, config(limit=1), protect=request.param) as site:
        yield site


@pytest.fixture(scope="module")
def dry_running(database: Path) -> Iterator[Site]:
    """The same server in a dry run."""
    with protected(database, config(limit=1, mode="dry-run")) as site:
        yield site


@pytest.fixture(scope="module")
def trusting(database: Path) -> Iterator[Site]:
    """The enforcing server with every client trusted."""
    with protected(database, config(limit=1, trusted_clients=["*-*"])) as site:
        yield site


@pytest.fixture
def one_token(enforcing: Site) -> Site:
    """The enforcing server with every quota whole."""
    enforcing.wait_for_quota()
    return enforcing


def two_attempts(site: Site, flow: Flow) -> tuple[GrantRequest, GrantRequest]:
    """Prepare two requests of the same client and user, and let what that took go by."""
    first = flow(site.url)
    site.wait_for_quota()
    second = flow(site.url)
    site.wait_for_quota()
    return first, second


def quota_headers(response: requests.Response) -> set[str]:
    """Return which quota headers an answer has."""
    return {name for name in QUOTA_HEADERS | {"Retry-After"} if name in response.headers}


def field(response: requests.Response, name: str) -> tuple[str, dict[str, Any]]:
    """Return the one item of a structured field, parsed as the RFC says."""
    [(item, parameters)] = http_sf.parse(response.headers[name].encode(), tltype="list")
    return str(item), dict(parameters)


@each_flow
def test_denied_code_token_or_assertion_works_at_retry_after(attached_early_or_late: Site, flow: Flow):
    """The denial has every header, and is repeated one second before ``Retry-After``."""
    site = attached_early_or_late
    first, second = two_attempts(site, flow)

    admitted = first()
    denied = second()

    assert 200 == admitted.status_code, admitted.text
    assert 429 == denied.status_code, denied.text
    assert "application/json" == denied.headers["Content-Type"]
    assert "no-store" == denied.headers["Cache-Control"]
    assert "no-cache" == denied.headers["Pragma"]
    retry_after_s = int(denied.headers["Retry-After"])
    assert 1 <= retry_after_s <= 2 * WINDOW_S
    kind = "client" if second.username is None else "user"
    assert (kind, {"q": 1, "w": WINDOW_S}) == field(denied, "RateLimit-Policy")
    assert (kind, {"r": 0, "t": retry_after_s}) == field(denied, "RateLimit")
    assert "1" == denied.headers["X-RateLimit-Limit"]
    assert "0" == denied.headers["X-RateLimit-Remaining"]
    assert str(retry_after_s) == denied.headers["X-RateLimit-Reset"]
    expected = "slow_down" if second.grant_type == GRANT_DEVICE_CODE else "temporarily_unavailable"
    assert expected == denied.json()["error"]
    assert denied.json()["error_description"].isascii()

    site.clock.advance(retry_after_s - 1)
    assert 429 == second().status_code

    site.clock.advance(1)
    after = second()
    assert 200 == after.status_code, after.text
    assert after.json()["access_token"]


@each_flow
def test_admitted_request_has_quota_headers(one_token: Site, flow: Flow):
    """It never has ``Retry-After``, which MSAL would take as a reason to replay the answer."""
    attempt = flow(one_token.url)
    one_token.wait_for_quota()

    response = attempt()

    assert 200 == response.status_code
    assert quota_headers(response) == QUOTA_HEADERS
    assert "0" == response.headers["X-RateLimit-Remaining"]
    assert "no-store" == response.headers["Cache-Control"]
    assert 0 == one_token.remaining(attempt.client_id, attempt.username)


@each_flow
def test_dry_run_denies_nobody(dry_running: Site, flow: Flow):
    """No answer has ``Retry-After`` or a quota header, by which a client might pace itself."""
    answers = [flow(dry_running.url)() for _ in range(3)]

    assert [200, 200, 200] == [answer.status_code for answer in answers]
    assert [set(), set(), set()] == [quota_headers(answer) for answer in answers]


@each_flow
def test_trusted_client_is_never_denied_nor_counted(trusting: Site, flow: Flow):
    attempts = [flow(trusting.url) for _ in range(3)]
    answers = [attempt() for attempt in attempts]

    assert [200, 200, 200] == [answer.status_code for answer in answers]
    assert [set(), set(), set()] == [quota_headers(answer) for answer in answers]
    limiter = trusting.app_limiter.limiter
    limiter.reconfigure(untrusting(trusting.app_limiter.settings))
    assert 1 == trusting.remaining(attempts[0].client_id, attempts[0].username)
    limiter.reconfigure(trusting.app_limiter.settings)


def untrusting(settings: Settings) -> Settings:
    """Return settings without trusted clients, to look at the counters behind the trust."""
    return replace(settings, policies=replace(settings.policies, trusted=()))


def test_each_user_and_each_client_has_a_quota_of_its_own(one_token: Site):
    """A client's own grants do not count for its users."""
    alice = {"grant_type": "password", "username": "alice", "password": password_of("alice")}
    bob = {"grant_type": "password", "username": "bob", "password": password_of("bob")}
    url = f"{one_token.url}/token"

    assert 200 == post(url, WEB_SHOP, alice).status_code
    assert 429 == post(url, WEB_SHOP, alice).status_code
    assert 200 == post(url, WEB_SHOP, bob).status_code
    assert 200 == post(url, PARTNER_BANK, alice).status_code
    assert 200 == post(url, WEB_SHOP, {"grant_type": "client_credentials"}).status_code


def test_denied_requests_do_not_count(one_token: Site):
    """``Retry-After`` stays the same."""
    form = {"grant_type": "client_credentials"}
    url = f"{one_token.url}/token"
    post(url, BATCH_JOBS, form)

    first = post(url, BATCH_JOBS, form)
    for _ in range(5):
        last = post(url, BATCH_JOBS, form)

    assert 429 == first.status_code == last.status_code
    assert first.headers["Retry-After"] == last.headers["Retry-After"]


# Nobody uses up another's quota.


@pytest.mark.parametrize(
    ("path", "client", "form"),
    [
        ("device_authorization", MOBILE_APP, {"scope": "profile"}),
        ("introspect", WEB_SHOP, {"token": "bogus"}),
        ("revoke", WEB_SHOP, {"token": "bogus"}),
    ],
    ids=["device authorization", "introspection", "revocation"],
)
def test_other_endpoint_takes_nothing_from_the_token_quota(one_token: Site, path: str, client: Client, form: Any):
    """Anybody can start a device flow under a public client's name."""
    assert [200, 200] == [post(f"{one_token.url}/{path}", client, form).status_code for _ in range(2)]
    assert 1 == one_token.remaining(client.client_id)


def test_pending_device_is_not_counted(one_token: Site):
    started = post(f"{one_token.url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
    form = {"grant_type": GRANT_DEVICE_CODE, "device_code": started["device_code"]}

    response = post(f"{one_token.url}/token", MOBILE_APP, form)

    assert "authorization_pending" == response.json()["error"]
    assert set() == quota_headers(response)
    assert 1 == one_token.remaining("mobile-app")


def test_reused_code_is_not_counted(one_token: Site):
    attempt = FLOWS["authorization_code"](one_token.url)
    assert 200 == attempt().status_code
    one_token.wait_for_quota()

    assert "invalid_grant" == attempt().json()["error"]
    assert 1 == one_token.remaining(attempt.client_id, attempt.username)


# The authorization endpoint.


@each_front_channel_flow
def test_authorization_endpoint_can_be_left_unlimited(database: Path, flow: Flow):
    """Its tokens are then issued and not counted."""
    with protected(database, config(limit=1), authorize_endpoint=False) as site:
        attempt = flow(site.url)

        answers = [redirect_parameters(attempt()) for _ in range(3)]

        assert all("access_token" in answer for answer in answers)
        assert 1 == site.remaining(attempt.client_id, attempt.username)


@each_front_channel_flow
def test_denial_at_the_authorization_endpoint_is_redirected(database: Path, flow: Flow):
    """The client gets it at its redirect URI, with its state. After the window, the next visit gets a token."""
    with protected(database, config(limit=1)) as site:
        attempt = flow(site.url)

        admitted, denied = attempt(), attempt()

        assert "access_token" in redirect_parameters(admitted)
        assert set() == quota_headers(admitted)  # a browser sees this answer, not the client
        assert 302 == denied.status_code
        assert denied.headers["Location"].startswith("http://localhost/callback#")
        answer = redirect_parameters(denied)
        assert "temporarily_unavailable" == answer["error"]
        assert "some-state" == answer["state"]
        assert "access_token" not in answer
        assert "code" not in answer

        site.wait_for_quota()
        assert "access_token" in redirect_parameters(attempt())


def test_foreign_redirect_uri_gets_no_denial(database: Path):
    with protected(database, config(limit=1)) as site:
        query = {
            "response_type": "token",
            "client_id": "mobile-app",
            "redirect_uri": "https://evil.example/",
            "user": "judy",
        }
        answers = [
            requests.get(f"{site.url}/authorize", params=query, allow_redirects=False, timeout=TIMEOUT_S)
            for _ in range(2)
        ]

        assert [400, 400] == [answer.status_code for answer in answers]
        assert 1 == site.remaining("mobile-app", "judy")


def test_issuing_a_code_is_not_counted(database: Path):
    with protected(database, config(limit=1)) as site:
        attempt = FLOWS["authorization_code"](site.url)
        assert 1 == site.remaining(attempt.client_id, attempt.username)

        assert 200 == attempt().status_code
        assert 0 == site.remaining(attempt.client_id, attempt.username)


# Client libraries.


def test_requests_oauthlib_raises_its_typed_error(one_token: Site):
    url = f"{one_token.url}/token"
    with OAuth2Session(client=BackendApplicationClient(client_id=BATCH_JOBS.client_id)) as session:
        token = session.fetch_token(url, auth=(BATCH_JOBS.client_id, BATCH_JOBS.client_secret))
        with pytest.raises(TemporarilyUnavailableError) as caught:
            session.fetch_token(url, auth=(BATCH_JOBS.client_id, BATCH_JOBS.client_secret))

    assert token["access_token"]
    assert "Retry-After" in caught.value.description


def test_authlib_client_raises_our_error_code(one_token: Site):
    url = f"{one_token.url}/token"
    with AuthlibSession(BATCH_JOBS.client_id, BATCH_JOBS.client_secret) as session:
        token = session.fetch_token(url, grant_type="client_credentials")
        with pytest.raises(OAuthError) as caught:
            session.fetch_token(url, grant_type="client_credentials")

    assert token["access_token"]
    assert "temporarily_unavailable" == caught.value.error


# Fail open.


def test_broken_limiter_admits_everybody_and_is_logged_once(database: Path, monkeypatch: pytest.MonkeyPatch):
    with protected(database, config(limit=1)) as site:
        monkeypatch.setattr(type(site.app_limiter.limiter), "check", broken_check)
        with capture_logs() as logs:
            statuses = [FLOWS["client_credentials"](site.url)().status_code for _ in range(3)]

    assert [200, 200, 200] == statuses
    # The module's other servers go on meanwhile; one whose clock was moved past its hits' window drops them.
    assert ["check_failed"] == [entry["event"] for entry in logs if entry["event"] != "hits_dropped"]


def broken_check(*_args: Any, **_kwargs: Any) -> None:
    """Fail like any bug."""
    raise ZeroDivisionError("a bug")
