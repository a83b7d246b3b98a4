"""The demo's OAuth server without a rate limit: each grant over real HTTP, refusals, and its admin page's operator."""

import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import requests
from authlib.oauth2.rfc7523 import JWTBearerGrant
from flask import Flask
from joserfc import jwk, jwt

from demo.database import BATCH_JOBS, MOBILE_APP, PARTNER_BANK, WEB_SHOP, seed
from demo.grants import ISSUER
from demo.models import (
    GRANT_DEVICE_CODE,
    GRANT_JWT_BEARER,
    GRANT_OWN_TOKEN,
    GRANT_TOKEN_EXCHANGE,
    Client,
    User,
)
from demo.server import create_app, local_operator
from tests.support.flows import (
    ACCESS_TOKEN_TYPE,
    FLOWS,
    FRONT_CHANNEL_FLOWS,
    REDIRECT_URI,
    GrantRequest,
    authorize,
    issue,
    password_of,
    post,
    redirect_parameters,
    token_request,
)
from tests.support.gunicorn import Gunicorn
from tests.support.serving import serving

Flow = Callable[[str], GrantRequest]

RACERS = 6
CODE_REQUEST = {"response_type": "code", "scope": "profile"}

each_flow = pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
each_front_channel_flow = pytest.mark.parametrize("flow", FRONT_CHANNEL_FLOWS.values(), ids=FRONT_CHANNEL_FLOWS)


@pytest.fixture(scope="module")
def database_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo.sqlite3"
    seed(path)
    return path


@pytest.fixture(scope="module")
def base_url(database_path: Path) -> Iterator[str]:
    with serving(create_app(database_path)) as url:
        yield url


def introspect(base_url: str, token: str) -> dict[str, Any]:
    response = post(f"{base_url}/introspect", BATCH_JOBS, {"token": token})
    assert 200 == response.status_code
    body: dict[str, Any] = response.json()
    return body


def claims_of(base_url: str, id_token: str) -> dict[str, Any]:
    """Verify an ID token with the published keys."""
    keys = jwk.KeySet.import_key_set(requests.get(f"{base_url}/jwks", timeout=30).json())
    return jwt.decode(id_token, keys, algorithms=["ES256"]).claims


def password_form(username: str) -> dict[str, str]:
    return {"grant_type": "password", "username": username, "password": password_of(username), "scope": "profile"}


@each_flow
def test_every_grant_issues_a_token_to_its_client_and_user(base_url: str, flow: Flow) -> None:
    attempt = flow(base_url)

    response = attempt()

    assert 200 == response.status_code, response.text
    token = introspect(base_url, response.json()["access_token"])
    assert (True, attempt.client_id, attempt.username) == (token["active"], token["client_id"], token.get("username"))
    assert attempt.grant_type in WEB_SHOP.grant_types


@each_front_channel_flow
def test_front_channel_delivers_a_token_in_the_fragment(base_url: str, flow: Flow) -> None:
    attempt = flow(base_url)

    response = attempt()

    assert response.headers["Location"].startswith(f"{REDIRECT_URI}#")
    token = introspect(base_url, redirect_parameters(response)["access_token"])
    assert (attempt.client_id, attempt.username) == (token["client_id"], token["username"])


@pytest.mark.parametrize("name", ["authorization_code", "authorization_code_pkce", "refresh_token", "device_code"])
def test_code_works_once(base_url: str, name: str) -> None:
    attempt = FLOWS[name](base_url)

    assert [200, 400] == [attempt().status_code, attempt().status_code]


@pytest.mark.parametrize("name", ["authorization_code", "refresh_token", "device_code"])
def test_one_of_several_simultaneous_requests_redeems_a_code(base_url: str, name: str) -> None:
    attempt = FLOWS[name](base_url)
    start = Barrier(RACERS)

    def race() -> int:
        start.wait(timeout=30)
        return attempt().status_code

    with ThreadPoolExecutor(RACERS) as pool:
        status_codes = [racer.result() for racer in [pool.submit(race) for _ in range(RACERS)]]

    assert [200] + [400] * (RACERS - 1) == sorted(status_codes)


def test_id_token_names_issuer_client_and_user(base_url: str) -> None:
    token = FLOWS["authorization_code_openid"](base_url)().json()

    claims = claims_of(base_url, token["id_token"])

    assert (ISSUER, [WEB_SHOP.client_id], "dave") == (claims["iss"], claims["aud"], claims["sub"])


@pytest.mark.parametrize("name", ["oidc_implicit", "oidc_hybrid"])
def test_id_token_of_the_front_channel_is_bound_to_its_access_token(base_url: str, name: str) -> None:
    attempt = FRONT_CHANNEL_FLOWS[name](base_url)

    claims = claims_of(base_url, redirect_parameters(attempt())["id_token"])

    assert (ISSUER, [attempt.client_id], attempt.username) == (claims["iss"], claims["aud"], claims["sub"])
    assert "at_hash" in claims


def test_code_of_a_hybrid_response_gets_a_token(base_url: str) -> None:
    code = redirect_parameters(FRONT_CHANNEL_FLOWS["oidc_hybrid"](base_url)())["code"]

    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT_URI}

    assert "id_token" in issue(base_url, WEB_SHOP, form)


def test_nonce_of_a_pending_code_is_refused(base_url: str) -> None:
    parameters = {**CODE_REQUEST, "scope": "openid", "user": "alice", "nonce": "the-same"}
    assert "code" in redirect_parameters(authorize(base_url, WEB_SHOP, parameters))

    assert "invalid_request" == redirect_parameters(authorize(base_url, WEB_SHOP, parameters))["error"]


def test_authorize_without_a_user_is_denied(base_url: str) -> None:
    assert "access_denied" == redirect_parameters(authorize(base_url, WEB_SHOP, CODE_REQUEST))["error"]


def test_authorize_of_an_unknown_client_redirects_nowhere(base_url: str) -> None:
    response = authorize(base_url, Client("nobody"), {**CODE_REQUEST, "user": "alice"})

    assert (400, "invalid_client") == (response.status_code, response.json()["error"])


def test_public_client_needs_pkce(base_url: str) -> None:
    code = redirect_parameters(authorize(base_url, MOBILE_APP, {**CODE_REQUEST, "user": "alice"}))["code"]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT_URI}

    assert 400 == token_request(base_url, MOBILE_APP, form)().status_code


@pytest.mark.parametrize("path", ["token", "device_authorization", "revoke", "introspect"])
@pytest.mark.parametrize("secret", [None, "wrong"])
def test_every_endpoint_requires_the_secret(base_url: str, path: str, secret: str | None) -> None:
    form = {"grant_type": "client_credentials", "token": "some-token"}

    response = post(f"{base_url}/{path}", Client(BATCH_JOBS.client_id, secret), form)

    assert "invalid_client" == response.json()["error"]


@pytest.mark.parametrize("grant_type", ["password", GRANT_OWN_TOKEN])
def test_wrong_password_gets_no_token(base_url: str, grant_type: str) -> None:
    form = {"grant_type": grant_type, "username": "alice", "password": "wrong"}

    assert 400 == token_request(base_url, WEB_SHOP, form)().status_code


def test_client_cannot_use_a_grant_that_it_lacks(tmp_path: Path) -> None:
    client = Client("poor", "poor-secret", grant_types=("password",))
    seed(tmp_path / "demo.sqlite3", clients=[client], users=[])
    with serving(create_app(tmp_path / "demo.sqlite3")) as url:
        errors = {
            token_request(url, client, {"grant_type": grant_type})().json()["error"]
            for grant_type in ("client_credentials", GRANT_TOKEN_EXCHANGE, GRANT_OWN_TOKEN)
        }

    assert {"unauthorized_client"} == errors


@pytest.mark.parametrize(
    ("issuer", "audience", "secret"),
    [
        (PARTNER_BANK.client_id, "https://another.example/token", PARTNER_BANK.client_secret),
        (PARTNER_BANK.client_id, ISSUER, "another-secret-of-at-least-32-characters"),
        ("nobody", ISSUER, PARTNER_BANK.client_secret),
        (MOBILE_APP.client_id, ISSUER, PARTNER_BANK.client_secret),
    ],
    ids=["another audience", "another key", "unknown client", "public client"],
)
def test_assertion_must_come_from_its_client_for_this_server(
    base_url: str, issuer: str, audience: str, secret: str
) -> None:
    key = {"kty": "oct", "k": urlsafe_b64encode(secret.encode()).rstrip(b"=").decode()}
    assertion = JWTBearerGrant.sign(key, issuer=issuer, audience=audience, header={"alg": "HS256"})

    response = requests.post(
        f"{base_url}/token", data={"grant_type": GRANT_JWT_BEARER, "assertion": assertion}, timeout=30
    )

    assert (400, "invalid_grant") == (response.status_code, response.json()["error"])


@pytest.mark.parametrize("subject_token", ["", "unknown"])
def test_only_tokens_of_this_server_are_exchanged(base_url: str, subject_token: str) -> None:
    form = {
        "grant_type": GRANT_TOKEN_EXCHANGE,
        "subject_token": subject_token,
        "subject_token_type": ACCESS_TOKEN_TYPE,
    }

    assert "invalid_grant" == token_request(base_url, PARTNER_BANK, form)().json()["error"]


def test_device_waits_slows_down_and_gets_its_token_after_approval(base_url: str) -> None:
    started = post(f"{base_url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
    poll = token_request(base_url, MOBILE_APP, {"grant_type": GRANT_DEVICE_CODE, "device_code": started["device_code"]})

    errors = [poll().json()["error"], poll().json()["error"]]
    approved = requests.get(started["verification_uri_complete"], params={"user": "mia"}, timeout=30)

    assert ["authorization_pending", "slow_down"] == errors
    assert {"approved_by": "mia"} == approved.json()
    assert "mia" == introspect(base_url, poll().json()["access_token"])["username"]


def test_unknown_user_code_cannot_be_approved(base_url: str) -> None:
    response = requests.get(f"{base_url}/device", params={"user_code": "NONE", "user": "mia"}, timeout=30)

    assert 404 == response.status_code


@pytest.mark.parametrize("name", ["access_token", "refresh_token"])
def test_revoking_one_token_of_a_pair_ends_both(base_url: str, name: str) -> None:
    token = issue(base_url, WEB_SHOP, password_form("nils"))

    response = post(f"{base_url}/revoke", WEB_SHOP, {"token": token[name], "token_type_hint": name})

    assert 200 == response.status_code
    assert {"active": False} == introspect(base_url, token["access_token"])
    form = {"grant_type": "refresh_token", "refresh_token": token["refresh_token"]}
    assert 400 == token_request(base_url, WEB_SHOP, form)().status_code


def test_client_cannot_revoke_the_token_of_another(base_url: str) -> None:
    token = issue(base_url, WEB_SHOP, password_form("nils"))["access_token"]

    response = post(f"{base_url}/revoke", BATCH_JOBS, {"token": token})

    assert "invalid_grant" == response.json()["error"]
    assert introspect(base_url, token)["active"]


def test_refresh_at_another_instance_ends_the_old_tokens(base_url: str, database_path: Path) -> None:
    first = issue(base_url, WEB_SHOP, password_form("nils"))
    refresh = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}

    with serving(create_app(database_path)) as other_url:
        second = issue(other_url, WEB_SHOP, refresh)
    third = issue(base_url, WEB_SHOP, {**refresh, "refresh_token": second["refresh_token"]})

    active = [introspect(base_url, token["access_token"])["active"] for token in (first, second, third)]
    assert [False, False, True] == active


def test_several_processes_can_seed_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "demo.sqlite3"
    program = f"from demo.database import seed; seed({str(path)!r})"

    seeding = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(6)]

    assert [0] * 6 == [process.wait(timeout=60) for process in seeding]
    with serving(create_app(path)) as url:
        assert "id_token" in FLOWS["authorization_code_openid"](url)().json()


def test_second_seed_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "demo.sqlite3"
    seed(path)
    with serving(create_app(path)) as url:
        id_token = FLOWS["authorization_code_openid"](url)().json()["id_token"]
        seed(path, clients=[Client(WEB_SHOP.client_id, "another")], users=[User("alice", "changed")])

        form = {"grant_type": "password", "username": "alice", "password": "changed"}
        issue(url, Client(WEB_SHOP.client_id, "another"), form)
        issue(url, BATCH_JOBS, password_form("bob"))
        assert "dave" == claims_of(url, id_token)["sub"]


@pytest.mark.slow
def test_wsgi_entry_point_seeds_a_new_file_and_serves_every_grant(tmp_path: Path) -> None:
    env = {"DEMO_DATABASE": str(tmp_path / "demo.sqlite3"), "OAUTH_RATELIMIT_CONFIG": ""}
    with Gunicorn("demo.wsgi:app", worker_class="gthread", workers=2, threads=2, env=env) as server:
        assert {200} == {flow(server.url)().status_code for flow in FLOWS.values()}


@pytest.mark.parametrize(
    ("address", "host", "is_admitted"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost:8000", True),
        ("::1", "[::1]:8000", True),
        ("10.0.0.1", "127.0.0.1:8000", False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example:8000", False),
    ],
    ids=["address", "name", "IPv6", "another machine", "another name", "a similar name"],
)
def test_admin_page_is_open_to_this_machine_under_its_own_name(address: str, host: str, is_admitted: bool) -> None:
    with Flask("demo").test_request_context(
        "/ratelimit/", base_url=f"http://{host}", environ_base={"REMOTE_ADDR": address}
    ):
        assert is_admitted == (local_operator() == "demo operator")
