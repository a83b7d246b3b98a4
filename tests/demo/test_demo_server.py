"""The demo's OAuth server, unprotected: each grant over real HTTP, also with the clients that people use."""

import os
import re
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
from authlib.integrations.requests_client import AssertionSession
from authlib.integrations.requests_client import OAuth2Session as AuthlibSession
from authlib.oauth2.rfc7523 import JWTBearerGrant
from joserfc import jwk, jwt
from oauthlib.oauth2 import (
    BackendApplicationClient,
    DeviceClient,
    LegacyApplicationClient,
    MobileApplicationClient,
)
from requests_oauthlib import OAuth2Session

from demo.authserver import create_app, seed
from demo.child import Child
from demo.grants import ISSUER
from demo.records import (
    GRANT_DEVICE_CODE,
    GRANT_JWT_BEARER,
    GRANT_OWN_TOKEN,
    GRANT_TOKEN_EXCHANGE,
    Client,
    User,
)
from demo.seeds import BATCH_JOBS, MOBILE_APP, PARTNER_BANK, WEB_SHOP
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
from tests.support.helpers import wait_until
from tests.support.serving import serving

Flow = Callable[[str], GrantRequest]

RACERS = 6

each_flow = pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
each_front_channel_flow = pytest.mark.parametrize("flow", FRONT_CHANNEL_FLOWS.values(), ids=FRONT_CHANNEL_FLOWS)


@pytest.fixture(scope="module")
def database_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "accounts.sqlite3"
    seed(path)
    return path


@pytest.fixture(scope="module")
def base_url(database_path: Path) -> Iterator[str]:
    with serving(create_app(database_path)) as url:
        yield url


@pytest.fixture(autouse=True)
def plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")


def introspect(base_url: str, token: str) -> dict[str, Any]:
    response = post(f"{base_url}/introspect", BATCH_JOBS, {"token": token})
    assert 200 == response.status_code
    body: dict[str, Any] = response.json()
    return body


def claims_of(base_url: str, id_token: str) -> dict[str, Any]:
    """Verify an ID token with the published keys."""
    keys = jwk.KeySet.import_key_set(requests.get(f"{base_url}/jwks", timeout=30).json())
    return jwt.decode(id_token, keys, algorithms=["ES256"]).claims


def authlib_session(client: Client, **options: Any) -> AuthlibSession:
    if client.client_secret is None:
        options["token_endpoint_auth_method"] = "none"
    return AuthlibSession(client.client_id, client.client_secret, **options)


def password_form(username: str) -> dict[str, str]:
    return {"grant_type": "password", "username": username, "password": password_of(username), "scope": "profile"}


class TestEveryGrant:
    @each_flow
    def test_token_request(self, base_url: str, flow: Flow) -> None:
        """Each grant issues a token to its client, and for its user if it has one."""
        attempt = flow(base_url)

        response = attempt()

        assert 200 == response.status_code, response.text
        token = introspect(base_url, response.json()["access_token"])
        assert (True, attempt.client_id, attempt.username) == (
            token["active"],
            token["client_id"],
            token.get("username"),
        )

    @each_front_channel_flow
    def test_authorization_request(self, base_url: str, flow: Flow) -> None:
        """The front channel delivers a token in the fragment of the redirect."""
        attempt = flow(base_url)

        response = attempt()

        assert response.headers["Location"].startswith(f"{REDIRECT_URI}#")
        token = introspect(base_url, redirect_parameters(response)["access_token"])
        assert (attempt.client_id, attempt.username) == (token["client_id"], token["username"])

    @each_flow
    def test_flow_names_its_grant(self, base_url: str, flow: Flow) -> None:
        """A flow's grant type is one that the client may use."""
        assert flow(base_url).grant_type in WEB_SHOP.grant_types

    @pytest.mark.parametrize("name", ["authorization_code", "authorization_code_pkce", "refresh_token", "device_code"])
    def test_second_use(self, base_url: str, name: str) -> None:
        """What is to be used once works once."""
        attempt = FLOWS[name](base_url)

        status_codes = [attempt().status_code, attempt().status_code]

        assert [200, 400] == status_codes

    @pytest.mark.parametrize("name", ["authorization_code", "refresh_token", "device_code"])
    def test_use_by_many_at_once(self, base_url: str, name: str) -> None:
        """Of requests that race for one code, exactly one gets a token."""
        attempt = FLOWS[name](base_url)
        start = Barrier(RACERS)

        def race() -> int:
            start.wait(timeout=30)
            return attempt().status_code

        with ThreadPoolExecutor(RACERS) as pool:
            status_codes = [racer.result() for racer in [pool.submit(race) for _ in range(RACERS)]]

        assert [200] + [400] * (RACERS - 1) == sorted(status_codes)


class TestIDToken:
    def test_authorization_code(self, base_url: str) -> None:
        """The code flow's ID token is signed with a published key and names issuer, client and user."""
        token = FLOWS["authorization_code_openid"](base_url)().json()

        claims = claims_of(base_url, token["id_token"])

        assert (ISSUER, [WEB_SHOP.client_id], "dave") == (claims["iss"], claims["aud"], claims["sub"])

    @pytest.mark.parametrize("name", ["oidc_implicit", "oidc_hybrid"])
    def test_front_channel(self, base_url: str, name: str) -> None:
        """So is the front channel's, which is bound to its access token."""
        attempt = FRONT_CHANNEL_FLOWS[name](base_url)

        claims = claims_of(base_url, redirect_parameters(attempt())["id_token"])

        assert (ISSUER, [attempt.client_id], attempt.username) == (claims["iss"], claims["aud"], claims["sub"])
        assert "at_hash" in claims

    def test_hybrid_code(self, base_url: str) -> None:
        """The code of a hybrid response is good at the token endpoint."""
        code = redirect_parameters(FRONT_CHANNEL_FLOWS["oidc_hybrid"](base_url)())["code"]

        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT_URI}

        assert "id_token" in issue(base_url, WEB_SHOP, form)

    def test_replayed_nonce(self, base_url: str) -> None:
        """A nonce that a pending code holds is refused."""
        asking = {"response_type": "code", "scope": "openid", "user": "alice", "nonce": "the-same"}
        assert "code" in redirect_parameters(authorize(base_url, WEB_SHOP, asking))

        replayed = authorize(base_url, WEB_SHOP, asking)

        assert "invalid_request" == redirect_parameters(replayed)["error"]


class TestRefusals:
    def test_unknown_user_at_authorize(self, base_url: str) -> None:
        """Nobody is approved without naming a user."""
        response = authorize(base_url, WEB_SHOP, {"response_type": "code", "scope": "profile"})

        assert "access_denied" == redirect_parameters(response)["error"]

    def test_unknown_client_at_authorize(self, base_url: str) -> None:
        """An unknown client's redirect address is not followed."""
        response = authorize(base_url, Client("nobody"), {"response_type": "code", "user": "alice"})

        assert (400, "invalid_client") == (response.status_code, response.json()["error"])

    def test_public_client_without_pkce(self, base_url: str) -> None:
        """A public client that sent no challenge cannot use its code."""
        asking = {"response_type": "code", "scope": "profile", "user": "alice"}
        code = redirect_parameters(authorize(base_url, MOBILE_APP, asking))["code"]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT_URI}

        response = token_request(base_url, MOBILE_APP, form)()

        assert 400 == response.status_code

    @pytest.mark.parametrize("path", ["token", "device_authorization", "revoke", "introspect"])
    @pytest.mark.parametrize("secret", [None, "wrong"])
    def test_client_without_its_secret(self, base_url: str, path: str, secret: str | None) -> None:
        """No endpoint takes a confidential client's name without its secret."""
        form = {"grant_type": "client_credentials", "token": "some-token"}

        response = post(f"{base_url}/{path}", Client(BATCH_JOBS.client_id, secret), form)

        assert "invalid_client" == response.json()["error"]

    @pytest.mark.parametrize("grant_type", ["password", GRANT_OWN_TOKEN])
    def test_wrong_password(self, base_url: str, grant_type: str) -> None:
        """A wrong password gets no token."""
        form = {"grant_type": grant_type, "username": "alice", "password": "wrong"}

        assert 400 == token_request(base_url, WEB_SHOP, form)().status_code

    def test_grant_that_the_client_lacks(self, tmp_path: Path) -> None:
        """A client may be limited to some grants."""
        client = Client("poor", "poor-secret", grant_types=("password",))
        seed(tmp_path / "accounts.sqlite3", clients=[client], users=[])
        with serving(create_app(tmp_path / "accounts.sqlite3")) as url:
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
        ids=["other-audience", "other-key", "unknown-client", "public-client"],
    )
    def test_bad_assertion(self, base_url: str, issuer: str, audience: str, secret: str) -> None:
        """An assertion counts only from its client, for this server."""
        key = {"kty": "oct", "k": urlsafe_b64encode(secret.encode()).rstrip(b"=").decode()}
        assertion = JWTBearerGrant.sign(key, issuer=issuer, audience=audience, header={"alg": "HS256"})

        response = requests.post(
            f"{base_url}/token", data={"grant_type": GRANT_JWT_BEARER, "assertion": assertion}, timeout=30
        )

        assert (400, "invalid_grant") == (response.status_code, response.json()["error"])

    @pytest.mark.parametrize("subject_token", ["", "unknown"])
    def test_exchange_of_an_unknown_token(self, base_url: str, subject_token: str) -> None:
        """Only a token of this server can be exchanged."""
        form = {
            "grant_type": GRANT_TOKEN_EXCHANGE,
            "subject_token": subject_token,
            "subject_token_type": ACCESS_TOKEN_TYPE,
        }

        assert "invalid_grant" == token_request(base_url, PARTNER_BANK, form)().json()["error"]


class TestDevicePolling:
    def test_before_and_after_approval(self, base_url: str) -> None:
        """A device hears "pending", "slow down" if it asks at once again, and gets its token after approval."""
        started = post(f"{base_url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
        poll = token_request(
            base_url, MOBILE_APP, {"grant_type": GRANT_DEVICE_CODE, "device_code": started["device_code"]}
        )

        errors = [poll().json()["error"], poll().json()["error"]]
        approved = requests.get(started["verification_uri_complete"], params={"user": "mia"}, timeout=30)

        assert ["authorization_pending", "slow_down"] == errors
        assert {"approved_by": "mia"} == approved.json()
        assert "mia" == introspect(base_url, poll().json()["access_token"])["username"]

    def test_approval_of_an_unknown_code(self, base_url: str) -> None:
        """A user code that was never given out cannot be approved."""
        response = requests.get(f"{base_url}/device", params={"user_code": "NONE", "user": "mia"}, timeout=30)

        assert 404 == response.status_code


class TestTokenLife:
    @pytest.mark.parametrize("name", ["access_token", "refresh_token"])
    def test_revocation(self, base_url: str, name: str) -> None:
        """Revoking either token of a pair ends both."""
        token = issue(base_url, WEB_SHOP, password_form("nils"))

        response = post(f"{base_url}/revoke", WEB_SHOP, {"token": token[name], "token_type_hint": name})

        assert 200 == response.status_code
        assert {"active": False} == introspect(base_url, token["access_token"])
        form = {"grant_type": "refresh_token", "refresh_token": token["refresh_token"]}
        assert 400 == token_request(base_url, WEB_SHOP, form)().status_code

    def test_revocation_by_another_client(self, base_url: str) -> None:
        """A client cannot revoke another's token."""
        token = issue(base_url, WEB_SHOP, password_form("nils"))["access_token"]

        response = post(f"{base_url}/revoke", BATCH_JOBS, {"token": token})

        assert "invalid_grant" == response.json()["error"]
        assert introspect(base_url, token)["active"]

    def test_rotation(self, base_url: str) -> None:
        """A refresh returns a new refresh token, ends the old pair, and the chain goes on."""
        first = issue(base_url, WEB_SHOP, password_form("nils"))
        refresh = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}

        second = issue(base_url, WEB_SHOP, refresh)
        third = issue(base_url, WEB_SHOP, {**refresh, "refresh_token": second["refresh_token"]})

        active = [introspect(base_url, token["access_token"])["active"] for token in (first, second, third)]
        assert [False, False, True] == active


class TestRequestsOAuthlib:
    def test_client_credentials(self, base_url: str) -> None:
        """requests-oauthlib gets a token with client credentials."""
        with OAuth2Session(client=BackendApplicationClient(BATCH_JOBS.client_id)) as session:
            token = session.fetch_token(f"{base_url}/token", client_secret=BATCH_JOBS.client_secret)

        assert introspect(base_url, token["access_token"])["client_id"] == BATCH_JOBS.client_id

    def test_password_and_refresh(self, base_url: str) -> None:
        """It logs a user in and refreshes."""
        auth = (WEB_SHOP.client_id, WEB_SHOP.client_secret)
        with OAuth2Session(client=LegacyApplicationClient(WEB_SHOP.client_id)) as session:
            login = session.fetch_token(
                f"{base_url}/token",
                username="nils",
                password=password_of("nils"),
                client_secret=WEB_SHOP.client_secret,
            )
            token = session.refresh_token(f"{base_url}/token", auth=auth)

        assert login["access_token"] != token["access_token"]
        assert "nils" == introspect(base_url, token["access_token"])["username"]

    @pytest.mark.parametrize(("client", "pkce"), [(WEB_SHOP, None), (MOBILE_APP, "S256")], ids=["plain", "pkce"])
    def test_authorization_code(self, base_url: str, client: Client, pkce: str | None) -> None:
        """It walks through the authorization code flow, with a secret and with PKCE."""
        with OAuth2Session(client.client_id, redirect_uri=REDIRECT_URI, scope="profile", pkce=pkce) as session:
            url, _state = session.authorization_url(f"{base_url}/authorize", user="nils")
            callback = requests.get(url, allow_redirects=False, timeout=30).headers["Location"]
            token = session.fetch_token(
                f"{base_url}/token",
                authorization_response=callback,
                client_secret=client.client_secret,
                include_client_id=client.client_secret is None,
            )

        assert "nils" == introspect(base_url, token["access_token"])["username"]

    def test_implicit(self, base_url: str) -> None:
        """It reads the token from the fragment of an implicit response."""
        client = MobileApplicationClient(MOBILE_APP.client_id)
        with OAuth2Session(client=client, redirect_uri=REDIRECT_URI, scope="profile") as session:
            url, _state = session.authorization_url(f"{base_url}/authorize", user="nils")
            callback = requests.get(url, allow_redirects=False, timeout=30).headers["Location"]
            token = session.token_from_fragment(callback)

        assert "nils" == introspect(base_url, token["access_token"])["username"]

    def test_device_code(self, base_url: str) -> None:
        """It fetches the token of an approved device."""
        started = post(f"{base_url}/device_authorization", MOBILE_APP, {"scope": "profile"}).json()
        requests.get(started["verification_uri_complete"], params={"user": "nils"}, timeout=30)
        with OAuth2Session(client=DeviceClient(MOBILE_APP.client_id), scope="profile") as session:
            token = session.fetch_token(f"{base_url}/token", device_code=started["device_code"], include_client_id=True)

        assert "nils" == introspect(base_url, token["access_token"])["username"]


class TestAuthlibClient:
    def test_client_credentials(self, base_url: str) -> None:
        """Authlib's client gets a token with client credentials, its secret in the form."""
        with authlib_session(BATCH_JOBS, token_endpoint_auth_method="client_secret_post") as session:
            token = session.fetch_token(f"{base_url}/token", grant_type="client_credentials")

        assert introspect(base_url, token["access_token"])["client_id"] == BATCH_JOBS.client_id

    def test_password_refresh_and_revocation(self, base_url: str) -> None:
        """It logs a user in, refreshes, and revokes."""
        with authlib_session(WEB_SHOP) as session:
            session.fetch_token(f"{base_url}/token", username="nils", password=password_of("nils"))
            token = session.refresh_token(f"{base_url}/token")
            before = introspect(base_url, token["access_token"])
            session.revoke_token(f"{base_url}/revoke", token=token["access_token"])
            after = introspect(base_url, token["access_token"])

        assert ("nils", False) == (before["username"], after["active"])

    @pytest.mark.parametrize("client", [WEB_SHOP, MOBILE_APP], ids=["plain", "pkce"])
    def test_authorization_code(self, base_url: str, client: Client) -> None:
        """It walks through the authorization code flow, with a secret and with PKCE."""
        pkce = {} if client.client_secret else {"code_verifier": "v" * 48}
        with authlib_session(
            client, scope="profile", redirect_uri=REDIRECT_URI, code_challenge_method="S256"
        ) as session:
            url, _state = session.create_authorization_url(f"{base_url}/authorize", user="nils", **pkce)
            callback = requests.get(url, allow_redirects=False, timeout=30).headers["Location"]
            token = session.fetch_token(f"{base_url}/token", authorization_response=callback, **pkce)

        assert "nils" == introspect(base_url, token["access_token"])["username"]

    def test_implicit(self, base_url: str) -> None:
        """It reads the token from the fragment of an implicit response."""
        with authlib_session(MOBILE_APP, scope="profile", redirect_uri=REDIRECT_URI) as session:
            url, _state = session.create_authorization_url(f"{base_url}/authorize", response_type="token", user="nils")
            callback = requests.get(url, allow_redirects=False, timeout=30).headers["Location"]
            token = session.fetch_token(authorization_response=callback)

        assert "nils" == introspect(base_url, token["access_token"])["username"]

    @pytest.mark.parametrize("subject", [None, "nils"])
    def test_assertion(self, base_url: str, subject: str | None) -> None:
        """Its assertion session signs a JWT and swaps it for a token."""
        key = {"kty": "oct", "k": urlsafe_b64encode(PARTNER_BANK.client_secret.encode()).decode()}
        with AssertionSession(
            f"{base_url}/token",
            issuer=PARTNER_BANK.client_id,
            subject=subject,
            audience=ISSUER,
            grant_type=AssertionSession.JWT_BEARER_GRANT_TYPE,
            header={"alg": "HS256"},
            key=key,
        ) as session:
            token = session.refresh_token()

        assert subject == introspect(base_url, token["access_token"]).get("username")

    def test_token_exchange(self, base_url: str) -> None:
        """It sends a grant that it does not know."""
        subject_token = issue(base_url, WEB_SHOP, password_form("nils"))["access_token"]
        with authlib_session(PARTNER_BANK) as session:
            token = session.fetch_token(
                f"{base_url}/token",
                grant_type=GRANT_TOKEN_EXCHANGE,
                subject_token=subject_token,
                subject_token_type=ACCESS_TOKEN_TYPE,
            )

        exchanged = introspect(base_url, token["access_token"])
        assert (PARTNER_BANK.client_id, "nils") == (exchanged["client_id"], exchanged["username"])


class TestInstances:
    def test_refresh_at_another_instance(self, base_url: str, database_path: Path) -> None:
        """What one instance issued, another one knows."""
        token = issue(base_url, WEB_SHOP, password_form("nils"))
        with serving(create_app(database_path)) as other_url:
            form = {"grant_type": "refresh_token", "refresh_token": token["refresh_token"]}
            issue(other_url, WEB_SHOP, form)

        assert {"active": False} == introspect(base_url, token["access_token"])

    def test_seeding_by_many_at_once(self, tmp_path: Path) -> None:
        """Processes that seed the same new file at the same time all succeed."""
        path = tmp_path / "accounts.sqlite3"
        program = f"from demo.seeds import seed; seed({str(path)!r})"

        seeding = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(6)]

        assert [0] * 6 == [process.wait(timeout=60) for process in seeding]
        with serving(create_app(path)) as url:
            assert "id_token" in FLOWS["authorization_code_openid"](url)().json()

    def test_seeding_again(self, tmp_path: Path) -> None:
        """A second seed replaces what it names and keeps the rest, the signing key included."""
        path = tmp_path / "accounts.sqlite3"
        seed(path)
        with serving(create_app(path)) as url:
            id_token = FLOWS["authorization_code_openid"](url)().json()["id_token"]
            seed(path, clients=[Client(WEB_SHOP.client_id, "another")], users=[User("alice", "changed")])

            form = {"grant_type": "password", "username": "alice", "password": "changed"}
            issue(url, Client(WEB_SHOP.client_id, "another"), form)
            issue(url, BATCH_JOBS, password_form("bob"))
            assert "dave" == claims_of(url, id_token)["sub"]

    def test_gunicorn(self, tmp_path: Path) -> None:
        """The WSGI entry seeds a new file and serves it from several workers."""
        log_path = tmp_path / "gunicorn.log"
        command = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--workers", "2", "--threads", "2"]
        environment = {**os.environ, "DEMO_DATABASE": str(tmp_path / "accounts.sqlite3"), "PYTHONPATH": str(Path.cwd())}
        server = Child([*command, "demo.wsgi:app"], log_path=log_path, env=environment)
        try:
            found = wait_until(
                lambda: re.search(r"Listening at: (http://\S+)", log_path.read_text()), "gunicorn listens"
            )
            status_codes = [flow(found[1])().status_code for flow in FLOWS.values()]
        finally:
            server.stop()

        assert [200] * len(FLOWS) == status_codes
