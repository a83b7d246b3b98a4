"""The guard against guessed passwords and secrets, over real HTTP."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from structlog.testing import capture_logs
from werkzeug.middleware.proxy_fix import ProxyFix

from demo import grants
from demo import server as demo_server
from demo.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP
from demo.models import GRANT_DEVICE_CODE, GRANT_OWN_TOKEN
from oauth_ratelimit import RateLimitMixin, load_config
from tests.support.flows import password_of
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
from tests.support.sites import config

SECRET = WEB_SHOP.client_secret or ""


def statuses(send: Callable[[], requests.Response], count: int) -> list[int]:
    """Return the statuses of the same request, sent so often."""
    return [send().status_code for _ in range(count)]


def test_user_is_denied_at_an_address_after_too_many_wrong_passwords(server: Guarded) -> None:
    """Other users, other addresses and the client itself go on."""
    assert [400] * USER_LIMIT + [429] * 2 == statuses(server.login, USER_LIMIT + 2)

    assert 200 == server.login("bob", password_of("bob")).status_code
    assert 200 == server.login("alice", password_of("alice"), address=ELSEWHERE).status_code
    assert 200 == server.job().status_code


def test_denial_has_a_description_of_its_own_and_names_nobody(server: Guarded) -> None:
    """It is a 429 with the headers of other denials."""
    statuses(server.login, USER_LIMIT)
    answer = server.login()

    assert {
        "error": "temporarily_unavailable",
        "error_description": "Too many failed attempts. Try again after the seconds given in Retry-After.",
        "decision_id": answer.json()["decision_id"],
    } == answer.json()
    assert "no-store" == answer.headers["Cache-Control"]
    assert '"failures-passed_on";q=3;w=600' == answer.headers["RateLimit-Policy"]
    assert 1 <= int(answer.headers["Retry-After"]) <= WINDOW_S + WINDOW_S // 10
    assert "alice" not in answer.text


def test_right_password_is_accepted_at_retry_after_and_not_a_second_earlier(server: Guarded) -> None:
    server.let_time_pass(3.25)
    statuses(server.login, USER_LIMIT)
    retry_after_s = int(server.login().headers["Retry-After"])

    server.let_time_pass(retry_after_s - 1)
    assert 429 == server.login("alice", password_of("alice")).status_code
    server.let_time_pass(1)
    assert 200 == server.login("alice", password_of("alice")).status_code


def test_denied_attempts_do_not_prolong_the_denial(server: Guarded) -> None:
    """``Retry-After`` only counts down."""
    statuses(server.login, USER_LIMIT)
    first = int(server.login().headers["Retry-After"])
    server.let_time_pass(100)
    statuses(server.login, 20)
    assert first - 100 == int(server.login().headers["Retry-After"])


def test_answers_are_the_same_for_users_who_exist_and_who_do_not(server: Guarded) -> None:
    """Right and wrong passwords get the same denial."""

    def story(username: str, last_password: str) -> list[Any]:
        answers = [server.login(username) for _ in range(USER_LIMIT + 1)]
        answers.append(server.login(username, last_password))
        return [
            (
                answer.status_code,
                {name: value for name, value in answer.headers.items() if name != "Date"},
                {name: value for name, value in answer.json().items() if name != "decision_id"},
            )
            for answer in answers
        ]

    assert story("alice", password_of("alice")) == story("nobody-at-all", "wrong") == story("bob", "wrong")


def test_denied_attempt_checks_no_password_or_secret(server: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses(server.login, USER_LIMIT)
    statuses(lambda: server.job(BATCH_JOBS, "guess"), CLIENT_LIMIT)

    def check(*_args: Any) -> None:
        raise AssertionError("a password was checked")

    monkeypatch.setattr(grants.PasswordGrant, "authenticate_user", check)
    assert 429 == server.login().status_code
    monkeypatch.setattr("demo.models.Client.check_client_secret", check)
    assert 429 == server.job(BATCH_JOBS, "guess").status_code


def test_client_is_denied_at_an_address_after_too_many_wrong_secrets(server: Guarded) -> None:
    """The right secret is denied there, too. Elsewhere, and for other clients, requests go on."""
    guesses = [server.job(secret=f"guess {number}").status_code for number in range(CLIENT_LIMIT + 2)]

    assert [401] * CLIENT_LIMIT + [429] * 2 == guesses
    assert 429 == server.job().status_code
    assert 200 == server.job(address=ELSEWHERE).status_code
    assert 200 == server.job(BATCH_JOBS).status_code


def test_unknown_client_is_denied_like_a_known_one(server: Guarded) -> None:
    guess = lambda: server.send({"grant_type": "client_credentials"}, auth=("nobody", "x"))  # noqa: E731

    assert [401] * CLIENT_LIMIT + [429] == statuses(guess, CLIENT_LIMIT + 1)


def test_wrong_secret_counts_against_the_client_whatever_user_is_named(server: Guarded) -> None:
    """A new user with each guess does not help."""
    guesses = [
        server.login(f"user-{number}", auth=("web-shop", "guess")).status_code for number in range(CLIENT_LIMIT + 1)
    ]

    assert [401] * CLIENT_LIMIT + [429] == guesses


VARIATIONS: dict[str, Callable[[Guarded, int], requests.Response]] = {
    "another client in the form": lambda server, number: server.send(
        {"grant_type": "password", "username": "alice", "password": "x", "client_id": f"other-{number}"},
        auth=("web-shop", SECRET),
    ),
    "another client in the query": lambda server, number: server.login(query={"client_id": f"other-{number}"}),
    "another user in the query": lambda server, number: server.login(query={"username": f"other-{number}"}),
    "the password in another place, too": lambda server, number: server.login(query={"password": f"{number}"}),
    "another grant with the same password": lambda server, number: server.send(
        {"grant_type": ["password", GRANT_OWN_TOKEN][number % 2], "username": "alice", "password": "x"},
        auth=("web-shop", SECRET),
    ),
    "scopes": lambda server, number: server.send(
        {"grant_type": "password", "username": "alice", "password": "x", "scope": f"s{number}"},
        auth=("web-shop", SECRET),
    ),
}


@pytest.mark.parametrize("send", VARIATIONS.values(), ids=VARIATIONS)
def test_variations_of_a_guess_count_as_one(server: Guarded, send: Callable[[Guarded, int], requests.Response]) -> None:
    """Other parameters and other grants do not help."""
    found = [send(server, number).status_code for number in range(USER_LIMIT + 1)]

    assert [400] * USER_LIMIT + [429] == found


@pytest.mark.parametrize("own", ["basic", "form"])
def test_request_that_names_two_clients_counts_for_both(server: Guarded, own: str) -> None:
    """One in the header, another in the form."""
    for number in range(CLIENT_LIMIT + 1):
        header = ("batch-jobs", "x") if own == "basic" else ("web-shop", "guess")
        form = {"client_id": "web-shop", "client_secret": "guess"} if own == "basic" else {"client_id": f"n{number}"}
        answer = server.send({"grant_type": "client_credentials", **form}, auth=header)

    assert 429 == answer.status_code
    assert 429 == server.job().status_code


def test_address_is_denied_after_one_try_for_each_of_many_users(server: Guarded) -> None:
    tries = [server.login(f"user-{number}", client=MOBILE_APP).status_code for number in range(ADDRESS_LIMIT + 2)]

    assert [400] * ADDRESS_LIMIT + [429] * 2 == tries
    assert 200 == server.login("alice", password_of("alice"), client=MOBILE_APP, address=ELSEWHERE).status_code


def test_passwords_that_a_client_passes_on_do_not_count_against_its_address(server: Guarded) -> None:
    """All users of the client share the address of its server."""
    tries = [server.login(f"user-{number}").status_code for number in range(2 * ADDRESS_LIMIT)]

    assert [400] * 2 * ADDRESS_LIMIT == tries
    assert 200 == server.login("alice", password_of("alice")).status_code


def test_errors_that_are_no_guess_are_not_counted(server: Guarded) -> None:
    """Bogus codes and tokens, a missing password, an unknown grant type."""
    forms: list[dict[str, str]] = [
        {"grant_type": "authorization_code", "code": "bogus"},
        {"grant_type": "refresh_token", "refresh_token": "bogus"},
        {"grant_type": "password", "username": "alice"},
        {"grant_type": "no-such-grant", "username": "alice", "password": "x"},
        {},
    ]
    for form in forms:
        assert 400 == server.send(form, auth=("web-shop", SECRET)).status_code
        assert 400 == server.send({**form, "client_id": "mobile-app"}).status_code
    assert 0 == server.key_count


def test_successful_requests_are_not_counted_as_failures(server: Guarded) -> None:
    assert {200} == set(statuses(lambda: server.login("alice", password_of("alice")), 5))
    assert {200} == set(statuses(server.job, 5))

    assert 0 == server.key_count


def test_failures_move_no_token_quota(server: Guarded) -> None:
    statuses(server.login, 10)
    statuses(lambda: server.job(secret="guess"), 10)

    remaining = [server.site.remaining(client, name) for client in ("web-shop", "*") for name in (None, "alice")]
    assert [1000] * 4 == remaining


def test_denied_device_is_told_to_slow_down(server: Guarded) -> None:
    """Any other error would end its polling."""
    poll = lambda: server.send(  # noqa: E731
        {"grant_type": GRANT_DEVICE_CODE, "device_code": "x"}, auth=("web-shop", "guess")
    )

    assert {401} == set(statuses(poll, CLIENT_LIMIT))
    assert (429, "slow_down") == (poll().status_code, poll().json()["error"])


@pytest.fixture
def assertions(monkeypatch: pytest.MonkeyPatch) -> Callable[[Guarded], None]:
    """Lets the clients of a server prove themselves with an assertion, which holds their secret for a signature."""

    def proven(query_client: Callable[[str], Any], oauth_request: Any) -> Any:
        _, payload, secret = f"{oauth_request.form.get('client_assertion')}..".split(".")[:3]
        if not secret:
            return None
        client = query_client(json.loads(base64.urlsafe_b64decode(payload + "==="))["sub"])
        return client if client and client.client_secret == secret else None

    monkeypatch.setattr(grants.ClientCredentialsGrant, "TOKEN_ENDPOINT_AUTH_METHODS", [*grants.WITH_SECRET, "asserted"])
    monkeypatch.setattr("demo.models.Client.check_endpoint_auth_method", lambda *_args: True)

    def register(server: Guarded) -> None:
        server.site.app.extensions["authorization_server"].register_client_auth_method("asserted", proven)

    return register


def asserted(client_id: str, secret: str | None, *, padding: int = 0) -> dict[str, str]:
    """Return a form with an assertion."""
    claims = {"padding": "x" * padding, "sub": client_id}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return {"grant_type": "client_credentials", "client_assertion": f"e30.{payload}.{secret}"}


@pytest.mark.parametrize("padding", [0, 200_000])
def test_secret_in_an_assertion_is_guarded_for_the_client_that_it_names(
    database: Path, assertions: Callable[[Guarded], None], padding: int
) -> None:
    """Neither another name beside it helps nor a great length, and other clients with an assertion go on."""
    with guarded(database, guard()) as server:
        assertions(server)
        guesses = [
            server.send(
                {**asserted("web-shop", f"guess {number}", padding=padding), "client_id": f"n{number}"}
            ).status_code
            for number in range(CLIENT_LIMIT + 1)
        ]
        own = server.send(asserted("web-shop", SECRET)).status_code
        other = server.send(asserted("batch-jobs", BATCH_JOBS.client_secret)).status_code

    assert [401] * CLIENT_LIMIT + [429] == guesses
    assert (429, 200) == (own, other)


@pytest.mark.parametrize(
    "assertion", ["", "x", "a.b.c", "e30.W10.x", "e30.eyJzdWIiOjF9.x", "e30." + "WyJb" * 9_000 + ".x"]
)
def test_attempt_that_names_no_client_counts_for_all_such_at_the_address(server: Guarded, assertion: str) -> None:
    form = {"grant_type": "client_credentials", "client_assertion": assertion}

    assert [401] * CLIENT_LIMIT + [429] == statuses(lambda: server.send(form), CLIENT_LIMIT + 1)
    assert 200 == server.job().status_code


@pytest.mark.parametrize("assertion", ["x", "a.b.c.d.e", "e30.eyJzdWIiOjF9.x"])
def test_assertion_that_cannot_be_read_counts_whatever_client_is_named_beside_it(
    server: Guarded, assertion: str
) -> None:
    """The server may know how to read it, such as an encrypted one."""
    form = {"grant_type": "client_credentials", "client_assertion": assertion}
    found = [server.send({**form, "client_id": f"n{number}"}).status_code for number in range(CLIENT_LIMIT + 1)]

    assert [401] * CLIENT_LIMIT + [429] == found


def test_passed_on_passwords_are_only_reported_by_default(database: Path) -> None:
    """Otherwise a stranger could lock a user out of a client's login form. Without a secret, the address is denied."""
    settings = config(limit=1000, guard={"mode": "enforce"})
    with guarded(database, settings) as server, capture_logs() as logs:
        assert [400] * 12 == statuses(server.login, 12)
        assert 200 == server.login("alice", password_of("alice")).status_code
        assert [400] * 10 + [429] == statuses(lambda: server.login(client=MOBILE_APP), 11)

    events = [(line["event"], line["scope"]) for line in logs if line["event"].startswith("request_")]
    assert [("request_would_be_denied", "failures:passed_on"), ("request_denied", "failures:user")] == events


def test_dry_run_of_passed_on_passwords_does_not_hide_guessed_secrets(database: Path) -> None:
    """An attacker may own a client with too many passed-on passwords."""
    limits = {**LIMITS, "passed_on": [{"limit": USER_LIMIT, "window": WINDOW_S, "mode": "dry-run"}]}
    with guarded(database, config(limit=1000, guard={"mode": "enforce", "limits": limits})) as server:
        statuses(lambda: server.login(client=BATCH_JOBS), USER_LIMIT + 1)
        guess = lambda: server.login(auth=("web-shop", "guess"), query={"client_id": "batch-jobs"})  # noqa: E731
        assert [401] * CLIENT_LIMIT + [429] == statuses(guess, CLIENT_LIMIT + 1)


def test_trusted_address_is_not_checked(database: Path) -> None:
    with guarded(database, guard(trusted_addresses=["127.0.0.2/32", "10.0.0.0/8"])) as server:
        assert {400} == set(statuses(lambda: server.login(address=ELSEWHERE), 3 * USER_LIMIT))
        assert 0 == server.key_count
        assert 429 in statuses(server.login, USER_LIMIT + 1)


def test_dry_run_reports_denies_nobody_and_counts_as_enforcing_would(database: Path) -> None:
    """The log has what enforcing would deny."""
    with guarded(database, guard(mode="dry-run")) as server, capture_logs() as logs:
        assert {400} == set(statuses(server.login, 3 * USER_LIMIT))
        assert 200 == server.login("alice", password_of("alice")).status_code
        counted = server.limiter.counts("web-shop", "127.0.0.1 alice", endpoint="failures:passed_on")
        assert USER_LIMIT == counted.in_flight_hits + counted.shared_hits

    (event,) = [line for line in logs if line["event"].startswith("request_")]
    assert "request_would_be_denied" == event["event"]
    assert ("web-shop", "127.0.0.1 alice", "failures:passed_on", "failures-passed_on") == tuple(
        event[name] for name in ("client_id", "username", "scope", "policy")
    )


def test_guard_may_enforce_while_token_limits_run_dry(database: Path) -> None:
    """It has a mode of its own."""
    with guarded(database, {**guard(), "mode": "dry-run"}) as server:
        assert [400] * USER_LIMIT + [429] == statuses(server.login, USER_LIMIT + 1)


def test_known_failures_count_under_new_limits(database: Path) -> None:
    with guarded(database, guard()) as server:
        statuses(server.login, USER_LIMIT + 1)
        running = server.site.app_limiter.guard()
        assert running is not None
        limits = {"passed_on": [{"limit": USER_LIMIT + 2, "window": WINDOW_S}]}
        running.reconfigure(load_config(guard(limits=limits)))

        assert [400, 400, 429] == statuses(server.login, 3)


def test_proxy_fix_gives_the_address_of_the_client(database: Path) -> None:
    """Failures count for the address that the proxy adds."""
    with guarded(database, guard()) as server:
        server.site.app.wsgi_app = ProxyFix(server.site.app.wsgi_app)  # type: ignore[method-assign]
        near = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7"}  # the first was there before the proxy
        assert [400] * USER_LIMIT + [429] == statuses(lambda: server.login(headers=near), USER_LIMIT + 1)
        assert 400 == server.login(headers={"X-Forwarded-For": "192.0.2.8"}).status_code


def test_unconfigured_proxy_turns_the_guard_off_and_is_logged(database: Path) -> None:
    """Everybody seems to come from the proxy, so one attacker would lock out all."""
    forwarded = {"X-Forwarded-For": "192.0.2.7"}
    with guarded(database, guard()) as server, capture_logs() as logs:
        tries = [server.login(client=MOBILE_APP, headers=forwarded).status_code for _ in range(2 * ADDRESS_LIMIT)]
        key_count = server.key_count
        for _ in range(USER_LIMIT):
            server.login()  # not through the proxy
        own = server.login("alice", password_of("alice"), headers=forwarded)

    assert [400] * 2 * ADDRESS_LIMIT == tries
    assert (0, 200) == (key_count, own.status_code)
    assert ["guard_sees_a_proxy"] == [line["event"] for line in logs]


def test_forged_header_does_not_change_the_address(database: Path) -> None:
    with guarded(database, guard()) as server:
        server.site.app.wsgi_app = ProxyFix(server.site.app.wsgi_app, x_for=0)  # type: ignore[method-assign]
        found = [
            server.login(headers={"X-Forwarded-For": f"198.51.100.{number}"}).status_code
            for number in range(USER_LIMIT + 1)
        ]

    assert [400] * USER_LIMIT + [429] == found


def test_request_without_an_address_is_not_counted_and_logged(database: Path) -> None:
    """Over a Unix socket without ProxyFix all clients look the same."""
    form = {"grant_type": "password", "username": "alice", "password": "x"}
    with guarded(database, guard()) as server, capture_logs() as logs:
        client = server.site.app.test_client()
        found = {
            client.post("/token", data=form, auth=("web-shop", SECRET), environ_base={"REMOTE_ADDR": ""}).status_code
            for _ in range(3 * USER_LIMIT)
        }

    assert {400} == found
    assert ["guard_without_address"] == [line["event"] for line in logs]


@pytest.mark.parametrize("method", ["reserve", "settle"])
def test_server_answers_as_without_a_guard_when_the_guard_breaks(
    database: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The guard fails open, and no secret is logged."""

    def broken(*_args: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(f"oauth_ratelimit.guard.Guard.{method}", broken)
    monkeypatch.setattr("oauth_ratelimit.guard.WAIT_S", 0.01)  # for a guess that is never settled
    with guarded(database, guard()) as server, capture_logs() as logs:
        assert {400} == set(statuses(server.login, 2))
        assert 200 == server.login("alice", password_of("alice")).status_code

    assert {"guard_failed"} == {line["event"] for line in logs}
    assert SECRET not in str(logs)


def test_server_answers_as_without_a_guard_when_no_thread_can_start(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: Any) -> None:
        raise RuntimeError("can't start new thread")

    with guarded(database, guard()) as server, capture_logs() as logs:
        monkeypatch.setattr("oauth_ratelimit.background.worker.Worker.start", broken)
        assert 401 == server.job(secret="guess").status_code
        assert 200 == server.login("alice", password_of("alice")).status_code

    assert {"guard_failed", "check_failed"} == {line["event"] for line in logs}


def test_flood_of_random_names_is_bounded_and_takes_no_room_from_tokens(database: Path) -> None:
    """Failures have a limit on keys of their own."""
    limits = {"user": ["5/minute"], "client": ["5/minute"]}
    settings = {**guard(max_keys=10), "limits": limits, "sync": {"interval": "1h"}}
    with guarded(database, settings) as server:
        server.login("alice", password_of("alice"))
        with capture_logs() as logs:
            for number in range(40):
                server.login(f"user-{number}")
                server.send({"grant_type": "client_credentials"}, auth=(f"client-{number}", "x"))
        assert server.key_count <= 10
        assert 4 == server.site.remaining("web-shop", "alice")

    assert "keys_exhausted" in {line["event"] for line in logs}


def test_server_with_the_mixin_is_guarded(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server(RateLimitMixin, demo_server.AuthorizationServer):  # type: ignore[misc]
        """A server with the mixin."""

    monkeypatch.setattr(demo_server, "AuthorizationServer", Server)
    with guarded(database, guard()) as server:
        assert [400] * USER_LIMIT + [429] == statuses(server.login, USER_LIMIT + 1)
        assert [401] * CLIENT_LIMIT + [429] == statuses(lambda: server.job(BATCH_JOBS, "guess"), CLIENT_LIMIT + 1)


# Several servers, with MongoDB.


def test_claimed_names_are_stored_and_logged_as_hashes_only(
    mongo_uri: str, mongo_database: Any, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``user_names: hashed``, guessed names are hashed, too."""
    monkeypatch.setenv("SOME_KEY", "k" * 64)
    settings = {
        **guard(),
        "store": {"uri": mongo_uri},
        "privacy": {"user_names": "hashed", "keys": [{"env": "SOME_KEY"}]},
    }
    with capture_logs() as logs, guarded(database, settings) as server:
        assert [400] * USER_LIMIT + [429] == [server.login("Alice").status_code for _ in range(USER_LIMIT + 1)]

    (counted,) = mongo_database["ratelimit_failures"].find()
    address, _, name = counted["_id"]["username"].partition(" ")
    assert "127.0.0.1" == address
    assert len(name) > 30
    assert "alice" not in str([counted, logs]).lower()
