"""Attackers who try to guess past the guard, and strangers who try to lock somebody out, over real HTTP."""

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from hashlib import pbkdf2_hmac
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import requests
from authlib.oauth2 import OAuth2Error
from structlog.testing import capture_logs

from demo import grants
from demo.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP, Database
from demo.models import GRANT_JWT_BEARER, Client, User
from tests.support.flows import (
    TIMEOUT_S,
    authorization_code,
    authorization_code_pkce,
    device_code,
    password_of,
    refresh_token,
)
from tests.support.guarded import (
    ADDRESS_LIMIT,
    CLIENT_LIMIT,
    ELSEWHERE,
    LIMITS,
    USER_LIMIT,
    WINDOW_S,
    Guarded,
    guard,
    guarded,
)
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import wait_until

FORM = {"grant_type": "client_credentials"}


def limits(**more: int) -> list[dict[str, Any]]:
    """Return a limit, with further settings."""
    return [{"window": WINDOW_S, **more}]


def statuses(send: Callable[[int], requests.Response], count: int) -> list[int]:
    """Return the statuses of numbered requests."""
    return [send(number).status_code for number in range(count)]


# Every combination of limits on trial.


@pytest.mark.parametrize(
    "trial", [found for size in (1, 2) for found in combinations(("user", "address"), size)], ids=str
)
@pytest.mark.parametrize("trial_limit", [1, 50], ids=["stricter", "wider"])
def test_limit_on_trial_leaves_enforced_password_limits_as_they_are(
    database: Path, trial: tuple[str, ...], trial_limit: int
) -> None:
    """Beside it in the same kind, and in each other kind."""
    on_trial = {"limit": trial_limit, "window": WINDOW_S, "mode": "dry-run", "name": "on trial"}
    kinds = {kind: [*LIMITS[kind], on_trial] if kind in trial else LIMITS[kind] for kind in LIMITS}
    with guarded(database, guard(limits=kinds)) as server:
        assert [400] * USER_LIMIT + [429] * 2 == statuses(lambda _: server.login(client=MOBILE_APP), USER_LIMIT + 2)


@pytest.mark.parametrize("trial", ["user", "client", "address", "passed_on", "passed_on_total"])
def test_kind_on_trial_alone_denies_nothing_and_leaves_the_others_enforced(database: Path, trial: str) -> None:
    """Each kind of limit in a dry run, with a limit of one failure."""
    on_trial = [{"limit": 1, "window": WINDOW_S, "mode": "dry-run"}]
    with guarded(database, guard(limits={**LIMITS, trial: on_trial})) as server:
        secrets = statuses(lambda number: server.job(secret=f"guess {number}"), CLIENT_LIMIT + 2)
        same_user = statuses(lambda _: server.login(client=MOBILE_APP), USER_LIMIT + 1)
        many_users = statuses(lambda number: server.login(f"user-{number}", client=MOBILE_APP), ADDRESS_LIMIT)
        passed_on = statuses(lambda _: server.login(client=BATCH_JOBS), USER_LIMIT + 1)

    assert (trial != "client") is (429 in secrets)
    assert (trial != "user") is (429 in same_user)
    assert (trial != "address") is (429 in many_users)
    assert (trial != "passed_on") is (429 in passed_on)


def test_limit_on_trial_beside_one_of_the_same_kind_is_reported_and_the_other_denies(database: Path) -> None:
    """The enforced limit is the wider one."""
    on_trial = {"limit": 2, "window": WINDOW_S, "mode": "dry-run", "name": "on trial"}
    with guarded(database, guard(limits={"client": [*LIMITS["client"], on_trial]})) as server, capture_logs() as logs:
        found = statuses(lambda number: server.job(secret=f"guess {number}"), CLIENT_LIMIT + 2)

    assert [401] * CLIENT_LIMIT + [429] * 2 == found
    assert "on trial" in {line.get("policy") for line in logs if line["event"] == "request_would_be_denied"}


# Every endpoint that authenticates clients.

ENDPOINTS = ("token", "revoke", "introspect", "device_authorization", "custom")


def add_custom_endpoint(server: Guarded) -> None:
    """Add an endpoint of the application's own, which authenticates clients with Authlib's server."""
    oauth_server = server.site.app.extensions["authorization_server"]

    def custom() -> Any:
        oauth_request = oauth_server.create_oauth2_request(None)
        try:
            oauth_server.authenticate_client(oauth_request, grants.WITH_SECRET, "custom")
        except OAuth2Error as error:
            return oauth_server.handle_error_response(oauth_request, error)
        return {}

    server.site.app.add_url_rule("/custom", view_func=custom, methods=["POST"])


def guess_at(server: Guarded, endpoint: str, secret: str) -> int:
    """Send a guess of a client's secret to an endpoint."""
    form = {**FORM, "token": "x"}
    url = f"{server.site.url}/{endpoint}"
    return requests.post(url, data=form, auth=("web-shop", secret), timeout=TIMEOUT_S).status_code


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_secret_is_guarded_at_every_endpoint(database: Path, endpoint: str) -> None:
    """The right secret is denied there after too many wrong ones, and accepted from elsewhere."""
    with guarded(database, guard()) as server:
        add_custom_endpoint(server)
        found = [guess_at(server, endpoint, f"guess {number}") for number in range(CLIENT_LIMIT + 2)]
        own = guess_at(server, endpoint, WEB_SHOP.client_secret or "")
        elsewhere = server.job(address=ELSEWHERE).status_code

    assert [401] * CLIENT_LIMIT + [429] * 2 == found
    assert (429, 200) == (own, elsewhere)


def test_endpoints_share_their_counters(database: Path) -> None:
    """A guess at each of them in turn."""
    with guarded(database, guard()) as server:
        add_custom_endpoint(server)
        found = [guess_at(server, ENDPOINTS[number % 5], f"guess {number}") for number in range(2 * CLIENT_LIMIT)]

    assert [401] * CLIENT_LIMIT + [429] * CLIENT_LIMIT == found


def signed(server: Guarded, secret: str, **claims: Any) -> dict[str, str]:
    """Return the form of a grant with an assertion of the client ``web-shop``, signed with a secret."""
    default = {"iss": "web-shop", "aud": f"{server.site.url}/token", "exp": int(time.time()) + 3600}
    parts = [{"alg": "HS256"}, {**default, **claims}]
    text = ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    signature = urlsafe_b64encode(hmac.digest(secret.encode(), text.encode(), "sha256")).decode().rstrip("=")
    return {"grant_type": GRANT_JWT_BEARER, "assertion": f"{text}.{signature}"}


def test_signature_of_an_assertion_is_guarded_like_a_secret(server: Guarded) -> None:
    """On the same counter, whatever else the request names. The right one is denied there, too."""
    secret = WEB_SHOP.client_secret or ""
    guesses = statuses(
        lambda number: server.send(
            {**signed(server, f"wrong secret {number}"), "client_id": f"n{number}"}, auth=(f"other-{number}", "x")
        ),
        CLIENT_LIMIT + 1,
    )
    own = server.send(signed(server, secret)).status_code
    elsewhere = server.send(signed(server, secret), address=ELSEWHERE).status_code

    assert [400] * CLIENT_LIMIT + [429] == guesses
    assert (429, 200, 429) == (own, elsewhere, server.job().status_code)


@pytest.mark.parametrize(
    "claims", [{"exp": 1}, {"aud": "https://other.example"}, {"sub": "nobody"}, {"iss": "nobody"}], ids=str
)
def test_assertion_that_is_wrong_in_another_way_is_no_guess(server: Guarded, claims: dict[str, Any]) -> None:
    """An expired one, or one for a user who has left, was sent in good faith."""
    form = signed(server, WEB_SHOP.client_secret or "", **claims)

    assert {400} == set(statuses(lambda _: server.send(form), 2 * CLIENT_LIMIT))
    assert 0 == server.key_count


# Trusted clients.


def test_secret_of_a_trusted_client_can_be_guessed_no_more_often_than_another(database: Path) -> None:
    """A stranger who names it locks nobody out but their own address."""
    with guarded(database, {**guard(), "trusted_clients": ["web-*"]}) as server:
        guesses = statuses(lambda number: server.job(secret=f"guess {number}", address=ELSEWHERE), 3 * CLIENT_LIMIT)
        own = statuses(lambda _: server.job(), 3)

    assert [401] * CLIENT_LIMIT + [429] * 2 * CLIENT_LIMIT == guesses
    assert [200] * 3 == own


def test_password_through_a_trusted_public_client_is_guarded_as_through_any_other(database: Path) -> None:
    """Anybody can name it: nothing is proven."""
    with guarded(database, {**guard(), "trusted_clients": ["mobile-app"]}) as server:
        found = statuses(lambda _: server.login(client=MOBILE_APP), USER_LIMIT + 2)
        other = server.login("bob", password_of("bob"), client=MOBILE_APP).status_code

    assert [400] * USER_LIMIT + [429] * 2 == found
    assert 200 == other


def test_trusted_client_that_has_proven_itself_is_reported_and_never_denied(database: Path) -> None:
    """Neither for one name nor for all of them together."""
    kinds = {**LIMITS, "passed_on_total": limits(limit=5)}
    with guarded(database, {**guard(limits=kinds), "trusted_clients": ["web-*"]}) as server, capture_logs() as logs:
        found = statuses(lambda _: server.login(), 10)
        own = server.login("alice", password_of("alice")).status_code

    assert [400] * 10 == found
    assert 200 == own
    assert {"dry-run"} == {line["mode"] for line in logs if line["event"] == "request_would_be_denied"}
    assert "request_denied" not in {line["event"] for line in logs}


# Guesses in parallel.


@contextmanager
def slow_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Hash passwords and secrets when they are checked, and yield what was checked."""
    checked: list[str] = []

    def check_password(self: User, password: str) -> bool:
        checked.append(password)
        pbkdf2_hmac("sha256", password.encode(), b"salt", 50_000)
        return self.password == password

    def check_secret(self: Client, client_secret: str) -> bool:
        checked.append(client_secret)
        pbkdf2_hmac("sha256", client_secret.encode(), b"salt", 50_000)
        return self.client_secret == client_secret

    with monkeypatch.context() as patch:
        patch.setattr(User, "check_password", check_password)
        patch.setattr(Client, "check_client_secret", check_secret)
        yield checked


@pytest.mark.parametrize("guess", ["password", "secret"])
def test_parallel_guesses_are_checked_no_more_often_than_the_limit(
    database: Path, monkeypatch: pytest.MonkeyPatch, guess: str
) -> None:
    """All of them arrive while the first is being checked."""

    def send(number: int) -> int:
        if guess == "secret":
            return server.job(secret=f"guess {number}").status_code
        return server.login("alice", f"guess {number}", client=MOBILE_APP).status_code

    with guarded(database, guard()) as server, slow_checks(monkeypatch) as checked, ThreadPoolExecutor(32) as pool:
        found = list(pool.map(send, range(64)))

    limit = CLIENT_LIMIT if guess == "secret" else USER_LIMIT
    assert limit == len(checked)
    assert 64 - limit == found.count(429)


@pytest.mark.parametrize("guess", ["password", "secret"])
def test_parallel_right_ones_are_all_accepted(database: Path, monkeypatch: pytest.MonkeyPatch, guess: str) -> None:
    """More of them than the limit wait for each other instead of being denied, as long as it takes a busy machine."""
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 600.0)

    def send(_: int) -> int:
        if guess == "secret":
            return server.job().status_code
        return server.login("alice", password_of("alice"), client=MOBILE_APP).status_code

    with guarded(database, guard()) as server, slow_checks(monkeypatch), ThreadPoolExecutor(32) as pool:
        assert {200} == set(pool.map(send, range(64)))
        assert 0 == server.key_count


# A client with a secret that guesses its users' passwords.


def test_client_cannot_pass_on_guesses_for_ever(database: Path) -> None:
    """A name is guessed once; every other client, and what needs no password, goes on."""
    kinds = {**LIMITS, "passed_on_total": limits(limit=10)}
    with guarded(database, guard(limits=kinds)) as server:
        found = statuses(lambda number: server.login(f"user-{number}"), 12)
        elsewhere = server.login("bob", password_of("bob"), address=ELSEWHERE).status_code
        job = server.job().status_code
        other = server.login("bob", password_of("bob"), client=BATCH_JOBS).status_code
        public = server.login("bob", password_of("bob"), client=MOBILE_APP).status_code

    assert [400] * 10 + [429] * 2 == found
    assert (429, 200, 200, 200) == (elsewhere, job, other, public)


def test_ceiling_of_passed_on_failures_is_enforced_by_default(database: Path) -> None:
    """A thousand in ten minutes, through one client and for any names."""
    with guarded(database, {**guard(), "guard": {"mode": "enforce"}}) as server:
        client = server.site.app.test_client()
        auth = (WEB_SHOP.client_id, WEB_SHOP.client_secret or "")

        def guess(number: int) -> int:
            form = {"grant_type": "password", "username": f"user-{number}", "password": "x"}
            return client.post("/token", data=form, auth=auth).status_code

        found = [guess(number) for number in range(1002)]

    assert [400] * 1000 + [429] * 2 == found


@pytest.mark.parametrize("username", [{}, {"username": ""}], ids=["missing", "empty"])
def test_password_under_another_parameter_than_username_counts_without_a_name(
    database: Path, username: dict[str, str]
) -> None:
    """Against the address, or the client that passes it on."""
    form = {"grant_type": "password", "password": "x", "email": "alice", **username}
    kinds = {**LIMITS, "passed_on_total": limits(limit=5)}
    with guarded(database, guard(limits=kinds)) as server:
        public = statuses(lambda _: server.send({**form, "client_id": "mobile-app"}), ADDRESS_LIMIT + 1)
        auth = ("web-shop", WEB_SHOP.client_secret or "")
        passed_on = statuses(lambda _: server.send(form, auth=auth), 6)

    assert [400] * ADDRESS_LIMIT + [429] == public
    assert [400] * 5 + [429] == passed_on


# What somebody else does at a shared address.


def test_junk_from_a_shared_address_denies_no_code_token_or_secret(server: Guarded) -> None:
    """Codes, refresh tokens and device codes cannot be guessed."""
    flows = [
        flow(server.site.url) for flow in (authorization_code, authorization_code_pkce, refresh_token, device_code)
    ]
    statuses(lambda number: server.login(f"user-{number}", client=MOBILE_APP), 2 * ADDRESS_LIMIT)
    statuses(lambda number: server.send(FORM, auth=(f"client-{number}", "x")), 2 * ADDRESS_LIMIT)

    assert 429 == server.login("bob", password_of("bob"), client=MOBILE_APP).status_code
    assert [200] * 4 == [flow().status_code for flow in flows]
    assert 200 == server.job().status_code
    assert 200 == server.login("bob", password_of("bob")).status_code


# Two credentials in one request.


@pytest.mark.parametrize("own", ["secret", "public"])
def test_client_that_proves_itself_cannot_guess_anothers_secret_beside_it(server: Guarded, own: str) -> None:
    """Authlib tries the header first, then the form: the answer tells which of them was right."""
    form = {"grant_type": "refresh_token", "refresh_token": "bogus", "client_id": "mobile-app"}
    if own == "secret":
        form = {**FORM, "client_id": "batch-jobs", "client_secret": BATCH_JOBS.client_secret or ""}
    found = statuses(lambda number: server.send(form, auth=("web-shop", f"guess {number}")), CLIENT_LIMIT + 2)

    assert [429] * 2 == found[-2:]
    assert 429 not in found[:CLIENT_LIMIT]


def test_owner_of_a_client_with_a_similar_id_cannot_guess_beside_its_proof(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ids have the same form to the guard."""
    find = Database.client
    own = replace(BATCH_JOBS, client_id="Web-Shop")
    monkeypatch.setattr(
        Database, "client", lambda self, client_id: own if client_id == "Web-Shop" else find(self, client_id)
    )
    form = {**FORM, "client_id": "Web-Shop", "client_secret": own.client_secret or ""}
    with guarded(database, guard()) as server:
        found = statuses(lambda number: server.send(form, auth=("web-shop", f"guess {number}")), CLIENT_LIMIT)

    assert [200] * (CLIENT_LIMIT // 2) + [429] * (
        CLIENT_LIMIT // 2
    ) == found  # each counts as two secrets of one client


@pytest.mark.parametrize(("limit", "checked_count"), [(CLIENT_LIMIT, CLIENT_LIMIT), (3, 2), (1, 0)])
def test_two_secrets_of_a_client_in_one_request_are_two_guesses(
    database: Path, monkeypatch: pytest.MonkeyPatch, limit: int, checked_count: int
) -> None:
    """Authlib tries the one in the header, then the one in the form."""

    def guess(number: int) -> requests.Response:
        form = {**FORM, "client_id": "web-shop", "client_secret": f"form {number}"}
        return server.send(form, auth=("web-shop", f"header {number}"))

    kinds = {**LIMITS, "client": limits(limit=limit)}
    with guarded(database, guard(limits=kinds)) as server, slow_checks(monkeypatch) as checked:
        found = statuses(guess, CLIENT_LIMIT)

    assert checked_count == len(checked)
    assert [401] * (checked_count // 2) + [429] * (CLIENT_LIMIT - checked_count // 2) == found


def test_client_that_sends_its_secret_twice_goes_on(server: Guarded) -> None:
    """In the header and in the form, as some libraries do."""
    secret = WEB_SHOP.client_secret or ""
    form = {**FORM, "client_id": "web-shop", "client_secret": secret}

    assert [200] * 2 * CLIENT_LIMIT == statuses(
        lambda _: server.send(form, auth=("web-shop", secret)), 2 * CLIENT_LIMIT
    )
    assert 0 == server.key_count


def test_client_that_names_another_beside_its_own_proof_goes_on(server: Guarded) -> None:
    """No secret of the other one was tried."""
    found = statuses(lambda _: server.job(query={"client_id": "batch-jobs"}), 2 * CLIENT_LIMIT)

    assert {200} == set(found)
    assert 0 == server.key_count


# Spellings.

SPELLINGS: dict[str, Callable[[int], str]] = {
    "spaces beyond any length": lambda number: "alice" + " " * (number + 400),
    "strokes": lambda number: "alice".replace("l", "\u0142\u019a\u2c61l"[number % 4]),
    "fillers": lambda number: "al" + "\u3164\u115f\u1160\uffa0\u2065"[number % 5] * (1 + number // 5) + "ice",
    "ligatures and long": lambda number: "alice" + "\u200b" * (number + 2_000),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("what", ["user", "client"])
def test_spellings_of_a_name_or_client_are_one(server: Guarded, spelling: Callable[[int], str], what: str) -> None:
    """A database may find the same user or client under all of them."""

    def guess(number: int) -> requests.Response:
        if what == "user":
            return server.login(spelling(number), client=MOBILE_APP)
        form = {**FORM, "client_id": spelling(number), "client_secret": "x"}
        return server.send(form)

    limit = USER_LIMIT if what == "user" else CLIENT_LIMIT
    assert [429] * 3 == statuses(guess, limit + 6)[-3:]


# Addresses.


def test_network_of_48_bits_has_ten_times_the_limit(server: Guarded) -> None:
    """Each guess comes from a /64 of its own."""
    client = server.site.app.test_client()

    def guess(number: int) -> int:
        form = {"grant_type": "password", "username": "alice", "password": "x", "client_id": "mobile-app"}
        address = f"2001:db8:1:{number:x}::1"
        return client.post("/token", data=form, environ_base={"REMOTE_ADDR": address}).status_code

    assert [400] * 10 * USER_LIMIT + [429] * 5 == [guess(number) for number in range(10 * USER_LIMIT + 5)]


def test_proxy_in_shared_address_space_is_noticed(server: Guarded) -> None:
    """100.64.0.0/10 is a carrier's or a cloud's own network."""
    client = server.site.app.test_client()
    form = {"grant_type": "password", "username": "alice", "password": "x", "client_id": "mobile-app"}
    with capture_logs() as logs:
        found = {
            client.post(
                "/token",
                data=form,
                environ_base={"REMOTE_ADDR": "100.64.3.4"},
                headers={"X-Forwarded-For": "192.0.2.7"},
            ).status_code
            for _ in range(3 * USER_LIMIT)
        }

    assert {400} == found
    assert ["guard_sees_a_proxy"] == [line["event"] for line in logs]


def test_parallel_guesses_at_several_processes_pass_each_limit_once_per_process(
    database: Path, mongo_uri: str, mongo_database: Any
) -> None:
    """Once the processes know of each other, no more pass at any."""
    form = {"grant_type": "password", "username": "alice"}
    env = {"DEMO_DATABASE": str(database), "WORKER_MONGO_URI": mongo_uri}
    env |= {"WORKER_GUARD": "enforce", "WORKER_INTERVAL": "100ms"}
    app = "tests.support.worker_app:app"
    auth = (WEB_SHOP.client_id, WEB_SHOP.client_secret or "")
    with (
        Gunicorn(app, env=env, worker_class="gthread", threads=16) as first,
        Gunicorn(app, env=env, worker_class="gthread", threads=16) as second,
        ThreadPoolExecutor(32) as pool,
    ):

        def guess(number: int) -> int:
            url = (first, second)[number % 2].url
            data = {**form, "password": f"guess {number}"}
            return requests.post(f"{url}/token", data=data, auth=auth, timeout=TIMEOUT_S).status_code

        at_once = list(pool.map(guess, range(128)))
        wait_until(lambda: guess(0) == 429 == guess(1), "both processes deny")
        later = list(pool.map(guess, range(128)))

    assert USER_LIMIT <= at_once.count(400) <= 2 * USER_LIMIT
    assert {429} == set(later)
    (counted,) = mongo_database["ratelimit_failures"].find()
    assert {"clientId": "web-shop", "username": "127.0.0.1 alice", "scope": "failures:passed_on"} == counted["_id"]
