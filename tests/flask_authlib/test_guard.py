"""The guard against guessed passwords and secrets, at the endpoints of a server."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from flask import request
from structlog.testing import capture_logs
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import TestResponse

from testbed.oauth_server.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP, Database
from testbed.oauth_server.models import GRANT_DEVICE_CODE, GRANT_JWT_BEARER, GRANT_OWN_TOKEN
from tests.support.flows import password_of
from tests.support.guarded import (
    ADDRESS_LIMIT,
    CLIENT_LIMIT,
    ELSEWHERE,
    HOME,
    USER_LIMIT,
    WINDOW_S,
    Guarded,
    add_endpoint,
    guard,
    guarded,
    jwt,
)
from tests.support.helpers import statuses

JOB = {"grant_type": "client_credentials"}
SECRET = WEB_SHOP.client_secret or ""
OWN = (WEB_SHOP.client_id, SECRET)
PASSWORD = {"grant_type": "password", "username": "alice", "password": "x"}


def numbered(send: Callable[[int], TestResponse], count: int) -> list[int]:
    return [send(number).status_code for number in range(count)]


def errors(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] == "error"]


# The answer.


def test_denial_has_a_description_of_its_own_and_names_nobody(server: Guarded) -> None:
    assert [400] * USER_LIMIT + [429] == statuses(server.login, USER_LIMIT + 1)
    answer = server.login()

    assert {
        "error": "temporarily_unavailable",
        "error_description": "Too many failed attempts. Try again after the seconds given in Retry-After.",
        "decision_id": answer.json["decision_id"],
    } == answer.json
    assert "no-store" == answer.headers["Cache-Control"]
    assert '"failures-passed_on";q=3;w=600' == answer.headers["RateLimit-Policy"]
    assert 1 <= int(answer.headers["Retry-After"]) <= WINDOW_S + WINDOW_S // 10
    assert "alice" not in answer.text


def test_answers_are_the_same_for_users_who_exist_and_who_do_not(server: Guarded) -> None:
    """Right and wrong passwords get the same denial."""

    def story(username: str, last_password: str) -> list[Any]:
        answers = [server.login(username) for _ in range(USER_LIMIT + 1)]
        answers.append(server.login(username, last_password))
        return [
            (
                answer.status_code,
                {name: value for name, value in answer.headers.items() if name != "Date"},
                {name: value for name, value in answer.json.items() if name != "decision_id"},
            )
            for answer in answers
        ]

    assert story("alice", password_of("alice")) == story("nobody-at-all", "wrong") == story("bob", "wrong")


def test_device_that_is_denied_is_told_to_slow_down(server: Guarded) -> None:
    """Any other error ends its polling."""
    form = {"grant_type": GRANT_DEVICE_CODE, "device_code": "some-code"}
    answers = [server.send(form, auth=("web-shop", "wrong")) for _ in range(CLIENT_LIMIT + 1)]
    assert (429, "slow_down") == (answers[-1].status_code, answers[-1].json["error"])


# What counts against whom.

Send = Callable[[Guarded, int], TestResponse]

PASSWORD_GUESSES: dict[str, Send] = {
    "another client in the form": lambda s, n: s.send({**PASSWORD, "client_id": f"other-{n}"}, auth=OWN),
    "another client in the query": lambda s, n: s.login(query={"client_id": f"other-{n}"}),
    "another user in the query": lambda s, n: s.login(query={"username": f"other-{n}"}),
    "the password in another place, too": lambda s, n: s.login(query={"password": f"{n}"}),
    "another grant": lambda s, n: s.send({**PASSWORD, "grant_type": ["password", GRANT_OWN_TOKEN][n % 2]}, auth=OWN),
    "scopes": lambda s, n: s.send({**PASSWORD, "scope": f"s{n}"}, auth=OWN),
    "strokes": lambda s, n: s.login("alice".replace("l", "\u0142\u019a\u2c61l"[n % 4]), client=MOBILE_APP),
    "fillers": lambda s, n: s.login("al" + "\u3164\u115f\u1160\uffa0"[n % 4] + "ice", client=MOBILE_APP),
}
SECRET_GUESSES: dict[str, Send] = {
    "a secret": lambda s, n: s.job(secret=f"guess {n}"),
    "an unknown client": lambda s, n: s.send(JOB, auth=("nobody", "x")),
    "a user beside it": lambda s, n: s.login(f"user-{n}", auth=("web-shop", "guess")),
    "another client in the form": lambda s, n: s.send({**JOB, "client_id": f"n{n}"}, auth=("web-shop", "guess")),
    "in the form": lambda s, n: s.send(
        {**JOB, "client_id": "web-shop", "client_secret": "x"}, auth=("batch-jobs", "x")
    ),
    "spaces": lambda s, n: s.send(JOB, auth=("web-shop" + " " * (n + 400), "x")),
}


@pytest.mark.parametrize("send", PASSWORD_GUESSES.values(), ids=PASSWORD_GUESSES)
def test_variations_of_a_guessed_password_count_as_one(server: Guarded, send: Send) -> None:
    assert [400] * USER_LIMIT + [429] == numbered(lambda number: send(server, number), USER_LIMIT + 1)

    assert 200 == server.login("bob", password_of("bob")).status_code
    assert 200 == server.login("alice", password_of("alice"), address=ELSEWHERE).status_code
    assert 200 == server.job().status_code


@pytest.mark.parametrize("send", SECRET_GUESSES.values(), ids=SECRET_GUESSES)
def test_variations_of_a_guessed_secret_count_as_one(server: Guarded, send: Send) -> None:
    assert [401] * CLIENT_LIMIT + [429] == numbered(lambda number: send(server, number), CLIENT_LIMIT + 1)

    assert 200 == server.job(address=ELSEWHERE).status_code


def test_password_without_a_name_counts_against_the_address(server: Guarded) -> None:
    """The application may take the name from another parameter."""
    form = {"grant_type": "password", "password": "x", "email": "alice", "client_id": "mobile-app", "username": ""}

    assert [400] * ADDRESS_LIMIT + [429] == statuses(lambda: server.send(form), ADDRESS_LIMIT + 1)


def test_what_is_no_guess_is_not_counted(server: Guarded) -> None:
    """Bogus codes and tokens, a missing password, an unknown grant type, and what succeeds."""
    forms: list[dict[str, str]] = [
        {"grant_type": "authorization_code", "code": "bogus"},
        {"grant_type": "refresh_token", "refresh_token": "bogus"},
        {"grant_type": "password", "username": "alice"},
        {"grant_type": "no-such-grant", "username": "alice", "password": "x"},
        {},
    ]
    for form in forms:
        assert 400 == server.send(form, auth=OWN).status_code
        assert 400 == server.send({**form, "client_id": "mobile-app"}).status_code
    assert {200} == set(statuses(lambda: server.login("alice", password_of("alice")), 5))
    assert {200} == set(statuses(server.job, 5))
    assert {200} == set(statuses(lambda: server.job(query={"client_id": "batch-jobs"}), 5))
    twice = {**JOB, "client_id": "web-shop", "client_secret": SECRET}  # as some libraries do
    assert {200} == set(statuses(lambda: server.send(twice, auth=OWN), 2 * CLIENT_LIMIT))

    assert 0 == server.counted_hits


# Two credentials in one request.


REFRESH = {"grant_type": "refresh_token", "refresh_token": "bogus"}


@pytest.mark.parametrize(
    ("form", "checked"),
    [
        ({**JOB, "client_id": "batch-jobs", "client_secret": BATCH_JOBS.client_secret}, [200] * CLIENT_LIMIT),
        ({**REFRESH, "client_id": "mobile-app"}, [400] * CLIENT_LIMIT),
        ({**JOB, "client_id": "Web-Shop", "client_secret": BATCH_JOBS.client_secret}, [200] * (CLIENT_LIMIT - 1)),
        ({**JOB, "client_id": "web-shop", "client_secret": "x"}, [401] * (CLIENT_LIMIT // 2)),
    ],
    ids=["a proven client", "a public client", "a proven client with a similar id", "another guess"],
)
def test_secret_cannot_be_guessed_beside_another_one(
    server: Guarded, monkeypatch: pytest.MonkeyPatch, form: dict[str, str], checked: list[int]
) -> None:
    """Authlib tries the one in the header, then the one in the form: the answer tells which of them was right.

    Two ids that are spelt alike have the same form to the guard, so such a request reserves two guesses at one client.
    """
    find = Database.client
    similar = replace(BATCH_JOBS, client_id="Web-Shop")
    monkeypatch.setattr(Database, "client", lambda self, name: similar if name == "Web-Shop" else find(self, name))

    found = numbered(lambda number: server.send(form, auth=("web-shop", f"guess {number}")), CLIENT_LIMIT + 1)
    assert checked + [429] * (CLIENT_LIMIT + 1 - len(checked)) == found


# Endpoints that authenticate clients, and grants that do it themselves.

ENDPOINTS = ("token", "revoke", "introspect", "device_authorization", "custom")


def test_endpoints_share_the_counter_of_a_secret(database: Path) -> None:
    """Also one of the application's own. The right secret is denied at each after too many wrong ones."""
    with guarded(database, guard()) as server:
        add_endpoint(server.app)

        def send(endpoint: str, secret: str) -> int:
            return server.send({**JOB, "token": "x"}, path=f"/{endpoint}", auth=("web-shop", secret)).status_code

        for endpoint in ENDPOINTS:
            server.forget()
            assert [401] * CLIENT_LIMIT + [429] == [send(endpoint, f"guess {n}") for n in range(CLIENT_LIMIT + 1)]
            assert [429] * len(ENDPOINTS) == [send(each, SECRET) for each in ENDPOINTS]


@pytest.mark.parametrize("is_failing", [False, True])
def test_secrets_of_clients_with_one_id_are_guarded_by_tenant(database: Path, is_failing: bool) -> None:
    """An application that does not name a client leaves it guarded all the same, under its id."""

    def name_of(client: Any) -> str:
        tenants = {} if is_failing else {"acme.example": "acme", "localhost": "other"}
        return f"{tenants[request.host]}/{client.get_client_id()}"

    with guarded(database, guard(), client_id_of=name_of) as server:
        acme = {"headers": {"Host": "acme.example"}}
        found = numbered(lambda number: server.job(secret=f"guess {number}", **acme), CLIENT_LIMIT + 1)
        assert [401] * CLIENT_LIMIT + [429] == found
        assert (429 if is_failing else 200) == server.job().status_code


def signed(secret: str, **claims: Any) -> dict[str, str]:
    """Return the form of a grant with an assertion of the client ``web-shop``, signed with a secret."""
    default = {"iss": "web-shop", "aud": "http://localhost/token", "exp": int(time.time()) + 3600}
    return {"grant_type": GRANT_JWT_BEARER, "assertion": jwt({**default, **claims}, secret)}


def test_signature_of_an_assertion_is_guarded_like_a_secret(server: Guarded) -> None:
    """On the same counter, whatever else the request names. The right one is denied there, too."""
    guesses = numbered(
        lambda number: server.send(
            {**signed(f"wrong secret {number}"), "client_id": f"n{number}"}, auth=(f"other-{number}", "x")
        ),
        CLIENT_LIMIT + 1,
    )
    own, elsewhere = (server.send(signed(SECRET), address=address).status_code for address in (HOME, ELSEWHERE))

    assert [400] * CLIENT_LIMIT + [429] == guesses
    assert (429, 200, 429) == (own, elsewhere, server.job().status_code)


@pytest.mark.parametrize("claims", [{"exp": 1}, {"aud": "https://other.example"}, {"sub": "nobody"}], ids=str)
def test_assertion_that_is_wrong_in_another_way_is_no_guess(server: Guarded, claims: dict[str, Any]) -> None:
    """An expired one, or one for a user who has left, was sent in good faith."""
    form = signed(SECRET, **claims)

    assert {400} == set(statuses(lambda: server.send(form), 2 * CLIENT_LIMIT))
    assert 0 == server.counted_hits


# Trusted clients.


def test_trusted_client_is_exempt_once_it_has_proven_itself(database: Path) -> None:
    """Its secret can be guessed no more often than another, and a public client proves nothing."""
    with guarded(database, {**guard(), "trusted_clients": ["web-*", "mobile-app"]}) as server:
        guesses = numbered(lambda number: server.job(secret=f"guess {number}", address=ELSEWHERE), CLIENT_LIMIT + 1)
        assert [401] * CLIENT_LIMIT + [429] == guesses
        assert [400] * USER_LIMIT + [429] == statuses(lambda: server.login(client=MOBILE_APP), USER_LIMIT + 1)
        assert {400} == set(statuses(server.login, 3 * USER_LIMIT))
        assert 200 == server.login("alice", password_of("alice")).status_code


# Addresses.


def test_proxy_fix_gives_the_address_of_the_client(database: Path) -> None:
    with guarded(database, guard()) as server:
        server.app.wsgi_app = ProxyFix(server.app.wsgi_app)  # type: ignore[method-assign]
        near = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7"}  # the first was there before the proxy
        assert [400] * USER_LIMIT + [429] == statuses(lambda: server.login(headers=near), USER_LIMIT + 1)
        assert 400 == server.login(headers={"X-Forwarded-For": "192.0.2.8"}).status_code


@pytest.mark.parametrize(
    ("address", "event"),
    [("127.0.0.1", "guard_sees_a_proxy"), ("100.64.3.4", "guard_sees_a_proxy"), ("", "guard_without_address")],
    ids=["loopback", "shared address space", "Unix socket"],
)
def test_address_that_everybody_shares_is_not_counted_and_logged(database: Path, address: str, event: str) -> None:
    """Behind a proxy without ProxyFix one attacker would lock out all."""
    forwarded = {"X-Forwarded-For": "192.0.2.7"}
    with guarded(database, guard()) as server, capture_logs() as logs:
        found = set(statuses(lambda: server.login(address=address, headers=forwarded), 2 * USER_LIMIT))
        counted_hits = server.counted_hits

    assert ({400}, 0) == (found, counted_hits)
    assert [event] == errors(logs)


# What breaks, and what floods.


@pytest.mark.parametrize(
    "broken", ["guard.Guard.reserve", "guard.Guard.settle", "background.worker.Worker.start"], ids=str
)
def test_server_answers_as_without_a_guard_when_the_guard_breaks(
    database: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(f"oauth_ratelimit.{broken}", Mock(side_effect=ZeroDivisionError("a bug")))
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.01)  # for a guess that is never settled
    with guarded(database, guard()) as server, capture_logs() as logs:
        assert {400} == set(statuses(server.login, 2))
        assert 401 == (answer := server.job(secret="guess")).status_code
        assert "methods: ['client_secret_basic', " in answer.json["error_description"]
        assert 200 == server.login("alice", password_of("alice")).status_code

    assert {"guard_failed"} == set(errors(logs)) - {"check_failed"}
    assert SECRET not in str(logs)


def test_password_counts_against_the_address_where_the_guard_cannot_read_the_request(
    server: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.flask_authlib.failed_auth.folded", Mock(side_effect=ZeroDivisionError))

    assert [400] * ADDRESS_LIMIT + [429] == statuses(lambda: server.login(client=MOBILE_APP), ADDRESS_LIMIT + 1)


def test_flood_of_random_names_is_bounded_and_takes_nothing_from_tokens(database: Path) -> None:
    """Failures have keys and limits of their own. Refresh tokens cannot be guessed, so they are not denied."""
    settings = {**guard(max_keys=10), "limits": {"user": ["5/minute"], "client": ["5/minute"]}}
    with guarded(database, settings) as server, capture_logs() as logs:
        token = server.login("bob", password_of("bob")).json["refresh_token"]
        for number in range(40):
            server.login(f"user-{number}", client=MOBILE_APP)
            server.send(JOB, auth=(f"client-{number}", "x"))
        server.guard.run()
        assert server.key_count <= 10
        assert (4, 5) == (server.tokens.peek("web-shop", "bob").remaining, server.tokens.peek("web-shop").remaining)
        assert 429 == server.login("bob", password_of("bob"), client=MOBILE_APP).status_code
        assert 200 == server.send({**REFRESH, "refresh_token": token}, auth=OWN).status_code

    assert "keys_exhausted" in errors(logs)


def test_stranger_forges_no_line_of_the_log(server: Guarded) -> None:
    """Names with line breaks, terminal escapes and direction marks, until they are denied and logged."""
    name = 'alice\r\n{"event": "forged"}\x1b[2J\u202e\u2028\x85'
    with capture_logs() as logs:
        for _ in range(USER_LIMIT + 1):
            server.login(name, client=MOBILE_APP)
            server.send(JOB, auth=("web-shop\n\x1b[2Jforged", "x"))
        for _ in range(ADDRESS_LIMIT):
            server.send(JOB, auth=("web-shop\n\x1b[2Jforged", "x"))

    denied = [line for line in logs if line["event"] == "request_denied"]
    assert {"failures:user", "failures:client"} == {line["scope"] for line in denied}
    assert all(value.isprintable() for line in logs for value in line.values() if isinstance(value, str))
