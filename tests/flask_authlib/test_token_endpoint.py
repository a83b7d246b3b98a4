"""Every grant at a protected Authlib server, over real HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from testbed.oauth_server.database import MOBILE_APP
from testbed.oauth_server.models import GRANT_DEVICE_CODE
from tests.support.flows import (
    FLOWS,
    FRONT_CHANNEL_FLOWS,
    TIMEOUT_S,
    GrantRequest,
    Visit,
    post,
    redirect_parameters,
)
from tests.support.helpers import QUOTA_HEADERS
from tests.support.sites import WINDOW_S, Site, config, protect_after, protect_before, protected

Flow = Callable[[str], GrantRequest]

each_flow = pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
each_front_channel_flow = pytest.mark.parametrize("flow", FRONT_CHANNEL_FLOWS.values(), ids=FRONT_CHANNEL_FLOWS)


@pytest.fixture(scope="module", params=[protect_after, protect_before], ids=["attached last", "attached first"])
def attached_early_or_late(database: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The enforcing server, attached to after and before its grants were registered."""
    with protected(database, config(limit=1), protect=request.param) as site:
        yield site


@pytest.fixture(scope="module", params=[{"mode": "dry-run"}, {"trusted_clients": ["*-*"]}], ids=["dry run", "trusted"])
def denying_nobody(database: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The same server in a dry run, and with every client trusted."""
    with protected(database, config(limit=1) | request.param) as site:
        yield site


@pytest.fixture
def one_token(database: Path) -> Iterator[Site]:
    """The enforcing server for one test, with an error that only the token endpoint may return."""
    with protected(database, config(limit=1, denial={"error": "too_many_tokens"})) as site:
        yield site


def quota_headers(response: requests.Response) -> set[str]:
    return {name for name in (*QUOTA_HEADERS, "Retry-After") if name in response.headers}


@each_flow
def test_denied_code_token_or_assertion_works_at_retry_after(attached_early_or_late: Site, flow: Flow):
    """The denial has every header, and is repeated one second before ``Retry-After``."""
    site = attached_early_or_late
    first = flow(site.url)
    site.wait_for_quota()
    second = flow(site.url)
    site.wait_for_quota()
    admitted, denied = first(), second()

    assert 200 == admitted.status_code, admitted.text
    assert quota_headers(admitted) == {
        *QUOTA_HEADERS
    }  # no Retry-After, which MSAL takes as a reason to replay the answer
    assert 429 == denied.status_code, denied.text
    assert {*QUOTA_HEADERS, "Retry-After"} == quota_headers(denied)
    assert ("application/json", "no-store", "no-cache") == tuple(
        denied.headers[name] for name in ("Content-Type", "Cache-Control", "Pragma")
    )
    kind = "client" if second.username is None else "user"
    assert f'"{kind}";q=1;w={WINDOW_S}' == denied.headers["RateLimit-Policy"]
    expected = "slow_down" if second.grant_type == GRANT_DEVICE_CODE else "temporarily_unavailable"
    assert expected == denied.json()["error"]
    retry_after_s = int(denied.headers["Retry-After"])
    assert 1 <= retry_after_s <= 2 * WINDOW_S

    site.clock.advance(retry_after_s - 1)
    assert 429 == second().status_code

    site.clock.advance(1)
    after = second()
    assert 200 == after.status_code, after.text
    assert after.json()["access_token"]


@each_flow
def test_dry_run_denies_nobody_and_a_trusted_client_is_never_denied(denying_nobody: Site, flow: Flow):
    """No answer has ``Retry-After`` or a quota header, by which a client might pace itself."""
    answers = [flow(denying_nobody.url)() for _ in range(3)]

    assert [200, 200, 200] == [answer.status_code for answer in answers]
    assert [set(), set(), set()] == [quota_headers(answer) for answer in answers]


# Nobody uses up another's quota.


def test_pending_device_is_not_counted(one_token: Site):
    started = post(f"{one_token.url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
    form = {"grant_type": GRANT_DEVICE_CODE, "device_code": started["device_code"]}

    response = post(f"{one_token.url}/token", MOBILE_APP, form)

    assert "authorization_pending" == response.json()["error"]
    assert set() == quota_headers(response)
    assert 1 == one_token.remaining("mobile-app")


# The authorization endpoint.


@each_front_channel_flow
def test_authorization_endpoint_can_be_left_unlimited(database: Path, flow: Callable[[str], Visit]):
    """Its tokens are then issued and not counted."""
    with protected(database, config(limit=1), authorize_endpoint=False) as site:
        attempt = flow(site.url)

        answers = [redirect_parameters(attempt()) for _ in range(3)]

        assert all("access_token" in answer for answer in answers)
        assert 1 == site.remaining(attempt.client.client_id, attempt.username)


@each_front_channel_flow
def test_denial_at_the_authorization_endpoint_is_redirected(one_token: Site, flow: Callable[[str], Visit]):
    """In the fragment, with the client's state and an error that RFC 6749 knows there. The next window has a token."""
    attempt = flow(one_token.url)
    admitted, denied = attempt(), attempt()

    assert "access_token" in redirect_parameters(admitted)
    assert set() == quota_headers(admitted)  # a browser sees this answer, not the client
    assert denied.headers["Location"].startswith("http://localhost/callback#")
    answer = redirect_parameters(denied)
    assert ("temporarily_unavailable", "some-state") == (answer["error"], answer["state"])
    assert not {"access_token", "code"} & answer.keys()

    one_token.wait_for_quota()
    assert "access_token" in redirect_parameters(attempt())


def test_foreign_redirect_uri_gets_no_denial(one_token: Site):
    query = {
        "response_type": "token",
        "client_id": "mobile-app",
        "redirect_uri": "https://evil.example/",
        "user": "judy",
    }
    for _ in range(2):
        answer = requests.get(f"{one_token.url}/authorize", params=query, allow_redirects=False, timeout=TIMEOUT_S)
        assert 400 == answer.status_code

    assert 1 == one_token.remaining("mobile-app", "judy")
