"""Guessing passwords and secrets over real HTTP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from oauthlib.oauth2 import LegacyApplicationClient, TemporarilyUnavailableError
from requests_oauthlib import OAuth2Session
from structlog.testing import capture_logs
from werkzeug.middleware.proxy_fix import ProxyFix

from demo import grants
from demo import server as demo_server
from demo.database import BATCH_JOBS
from demo.models import GRANT_DEVICE_CODE, GRANT_OWN_TOKEN
from oauth_ratelimit import RateLimitMixin, load_config
from tests.guard.guarded import (
    ADDRESS_LIMIT,
    CLIENT_LIMIT,
    ELSEWHERE,
    LIMITS,
    MOBILE_APP,
    USER_LIMIT,
    WEB_SHOP,
    WINDOW_S,
    Guarded,
    guard,
    guarded,
    password_of,
)
from tests.support.sites import config

SECRET = WEB_SHOP.client_secret or ""


def statuses(send: Callable[[], requests.Response], count: int) -> list[int]:
    """Return the statuses of the same request, sent so often."""
    return [send().status_code for _ in range(count)]


def test_guessed_password(server: Guarded) -> None:
    """After too many wrong passwords for a name, its attempts from there get 429, and nobody else's."""
    assert [400] * USER_LIMIT + [429] * 2 == statuses(server.login, USER_LIMIT + 2)

    assert 200 == server.login("bob", password_of("bob")).status_code
    assert 200 == server.login("alice", password_of("alice"), address=ELSEWHERE).status_code
    assert 200 == server.job().status_code


def test_answer(server: Guarded) -> None:
    """The 429 is one of ours, with a description of its own, and repeats no name."""
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


def test_delay_is_tight(server: Guarded) -> None:
    """One second before ``Retry-After`` is over the right password is denied; then it is taken."""
    server.let_time_pass(3.25)
    statuses(server.login, USER_LIMIT)
    retry_after_s = int(server.login().headers["Retry-After"])

    server.let_time_pass(retry_after_s - 1)
    assert 429 == server.login("alice", password_of("alice")).status_code
    server.let_time_pass(1)
    assert 200 == server.login("alice", password_of("alice")).status_code


def test_denied_attempts_do_not_count(server: Guarded) -> None:
    """Whoever goes on while denied is not kept out longer for it."""
    statuses(server.login, USER_LIMIT)
    first = int(server.login().headers["Retry-After"])
    server.let_time_pass(100)
    statuses(server.login, 20)
    assert first - 100 == int(server.login().headers["Retry-After"])


def test_answers_do_not_tell_who_exists(server: Guarded) -> None:
    """A user who exists and one who does not, a right password and a wrong one: the same answers, before and after."""

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


def test_password_is_not_looked_at(server: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied attempt costs no check of a password or a secret."""
    statuses(server.login, USER_LIMIT)

    def looked(*_args: Any) -> None:
        raise AssertionError("a password was looked at")

    monkeypatch.setattr(grants.PasswordGrant, "authenticate_user", looked)
    monkeypatch.setattr("demo.models.Client.check_client_secret", looked)
    assert 429 == server.login().status_code


def test_guessed_secret(server: Guarded) -> None:
    """After too many wrong secrets of a client from an address, it gets 429 there, with the right one, too; the client
    itself, and other clients at the address, go on.
    """
    guesses = [server.job(secret=f"guess {number}").status_code for number in range(CLIENT_LIMIT + 2)]

    assert [401] * CLIENT_LIMIT + [429] * 2 == guesses
    assert 429 == server.job().status_code
    assert 200 == server.job(address=ELSEWHERE).status_code
    assert 200 == server.job(BATCH_JOBS).status_code


def test_unknown_client(server: Guarded) -> None:
    """A client that does not exist is denied as one that does."""
    guess = lambda: server.send({"grant_type": "client_credentials"}, auth=("nobody", "x"))  # noqa: E731

    assert [401] * CLIENT_LIMIT + [429] == statuses(guess, CLIENT_LIMIT + 1)


def test_names_do_not_hide_a_guessed_secret(server: Guarded) -> None:
    """A wrong secret counts against the client, whatever user is named along with it."""
    guesses = [
        server.login(f"user-{number}", auth=("web-shop", "guess")).status_code for number in range(CLIENT_LIMIT + 1)
    ]

    assert [401] * CLIENT_LIMIT + [429] == guesses


HIDING: dict[str, Callable[[Guarded, int], requests.Response]] = {
    "capitals": lambda server, number: server.login(["alice", "ALICE", "Alice"][number % 3]),
    "spaces": lambda server, number: server.login(" " * number + "alice"),
    "full-width letters": lambda server, number: server.login(["alice", "\uff41lice", "a\uff4cice"][number % 3]),
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


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_hiding_a_guess(server: Guarded, hide: Callable[[Guarded, int], requests.Response]) -> None:
    """Nothing that is added to a guess makes it another."""
    found = [hide(server, number).status_code for number in range(USER_LIMIT + 1)]

    assert [400] * USER_LIMIT + [429] == found


@pytest.mark.parametrize("own", ["basic", "form"])
def test_two_clients_at_once(server: Guarded, own: str) -> None:
    """Whoever names one client in the header and guesses the secret of another in the form is counted for both."""
    for number in range(CLIENT_LIMIT + 1):
        header = ("batch-jobs", "x") if own == "basic" else ("web-shop", "guess")
        form = {"client_id": "web-shop", "client_secret": "guess"} if own == "basic" else {"client_id": f"n{number}"}
        answer = server.send({"grant_type": "client_credentials", **form}, auth=header)

    assert 429 == answer.status_code
    assert 429 == server.job().status_code


def test_stuffing(server: Guarded) -> None:
    """Through a client without a secret, one try for each of many names is too many for an address."""
    tries = [server.login(f"user-{number}", client=MOBILE_APP).status_code for number in range(ADDRESS_LIMIT + 2)]

    assert [400] * ADDRESS_LIMIT + [429] * 2 == tries
    assert 200 == server.login("alice", password_of("alice"), client=MOBILE_APP, address=ELSEWHERE).status_code


def test_many_clients_from_one_address(server: Guarded) -> None:
    """One wrong secret for each of many clients is too many for an address, too."""
    form = {"grant_type": "client_credentials"}
    tries = [server.send(form, auth=(f"client-{number}", "x")).status_code for number in range(ADDRESS_LIMIT + 1)]

    assert [401] * ADDRESS_LIMIT + [429] == tries


def test_server_of_a_client(server: Guarded) -> None:
    """
    Wrong passwords that a client with a secret passes on count against the names alone: its address is that of all its
    users.
    """
    tries = [server.login(f"user-{number}").status_code for number in range(2 * ADDRESS_LIMIT)]

    assert [400] * 2 * ADDRESS_LIMIT == tries
    assert 200 == server.login("alice", password_of("alice")).status_code


def test_what_is_no_guess(server: Guarded) -> None:
    """Bogus codes and tokens, a missing password, an unknown grant type, a scope that is refused: none of it counts."""
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


def test_success_leaves_no_trace(server: Guarded) -> None:
    """Who comes in with the right password is not remembered as anybody who failed."""
    assert {200} == set(statuses(lambda: server.login("alice", password_of("alice")), 5))
    assert {200} == set(statuses(server.job, 5))

    assert 0 == server.key_count


def test_tokens_are_not_touched(server: Guarded) -> None:
    """Failures and denials move no quota of tokens."""
    statuses(server.login, 10)
    statuses(lambda: server.job(secret="guess"), 10)

    remaining = [server.site.remaining(client, name) for client in ("web-shop", "*") for name in (None, "alice")]
    assert [1000] * 4 == remaining


def test_device_that_guesses(server: Guarded) -> None:
    """A device is told to slow down, as ever."""
    poll = lambda: server.send(  # noqa: E731
        {"grant_type": GRANT_DEVICE_CODE, "device_code": "x"}, auth=("web-shop", "guess")
    )

    assert {401} == set(statuses(poll, CLIENT_LIMIT))
    assert (429, "slow_down") == (poll().status_code, poll().json()["error"])


def test_client_library(server: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """requests-oauthlib meets the error that it knows."""
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    statuses(server.login, USER_LIMIT)

    with (
        OAuth2Session(client=LegacyApplicationClient("web-shop")) as session,
        pytest.raises(TemporarilyUnavailableError, match="Too many failed attempts"),
    ):
        session.fetch_token(
            f"{server.site.url}/token", username="alice", password="wrong", client_id="web-shop", client_secret=SECRET
        )


def test_trusted_client(database: Path) -> None:
    """
    A trusted client is never denied, not even while its secret is being guessed from its own address; it is reported.
    """
    settings = {**guard(), "trusted_clients": ["web-*"]}
    with guarded(database, settings) as server, capture_logs() as logs:
        assert {401} == set(statuses(lambda: server.job(secret="guess"), 2 * CLIENT_LIMIT))
        assert 200 == server.job().status_code
        mixed = server.send({"grant_type": "client_credentials", "client_id": "n"}, auth=("web-shop", "guess"))

    assert 429 == mixed.status_code
    assert ["request_would_be_denied", "dry-run"] == [logs[0][name] for name in ("event", "mode")]


@pytest.fixture
def assertions(monkeypatch: pytest.MonkeyPatch) -> Callable[[Guarded], None]:
    """Lets the clients of a server prove themselves with an assertion that names them, and with nothing else."""

    def proven(query_client: Callable[[str], Any], oauth_request: Any) -> Any:
        _, signed, client_id = oauth_request.form.get("client_assertion", "").partition("signed by ")
        return query_client(client_id) if signed else None

    monkeypatch.setattr(grants.ClientCredentialsGrant, "TOKEN_ENDPOINT_AUTH_METHODS", [*grants.WITH_SECRET, "asserted"])
    monkeypatch.setattr("demo.models.Client.check_endpoint_auth_method", lambda *_args: True)

    def register(server: Guarded) -> None:
        server.site.app.extensions["authorization_server"].register_client_auth_method("asserted", proven)

    return register


def test_trusted_client_with_an_assertion(database: Path, assertions: Callable[[Guarded], None]) -> None:
    """A trusted client that an assertion alone names is never denied, whatever others at its address have done; another
    client with an assertion is, and so is who adds one to a guess.
    """
    form = {"grant_type": "client_credentials"}
    with guarded(database, {**guard(), "trusted_clients": ["web-*"]}) as server:
        assertions(server)
        for number in range(ADDRESS_LIMIT):
            assert 401 == server.send(form, auth=(f"client-{number}", "x")).status_code

        assert 200 == server.send({**form, "client_assertion": "signed by web-shop"}).status_code
        assert 429 == server.send({**form, "client_assertion": "signed by batch-jobs"}).status_code
        assert 401 == server.send({**form, "client_assertion": "forged"}).status_code
        assert 429 == server.send({**form, "client_assertion": "forged"}, auth=("batch-jobs", "guess")).status_code
        assert 429 == server.send(form).status_code


def test_login_form_of_a_client(database: Path) -> None:
    """By default nobody is kept out of a client with a secret by a stranger who types their name into its login form:
    that is reported. Through a client without a secret, the stranger's own address is denied.
    """
    settings = config(limit=1000, guard={"mode": "enforce"})
    with guarded(database, settings) as server, capture_logs() as logs:
        assert [400] * 12 == statuses(server.login, 12)
        assert 200 == server.login("alice", password_of("alice")).status_code
        assert [400] * 10 + [429] == statuses(lambda: server.login(client=MOBILE_APP), 11)

    events = [(line["event"], line["scope"]) for line in logs if line["event"].startswith("request_")]
    assert [("request_would_be_denied", "failures:passed_on"), ("request_denied", "failures:user")] == events


def test_secret_in_the_shade_of_a_dry_run(database: Path) -> None:
    """Whoever has a client of their own, and too many passwords that it has passed on, guesses no secret for that."""
    limits = {**LIMITS, "passed_on": [{"limit": USER_LIMIT, "window": WINDOW_S, "mode": "dry-run"}]}
    with guarded(database, config(limit=1000, guard={"mode": "enforce", "limits": limits})) as server:
        statuses(lambda: server.login(client=BATCH_JOBS), USER_LIMIT + 1)
        guess = lambda: server.login(auth=("web-shop", "guess"), query={"client_id": "batch-jobs"})  # noqa: E731
        assert [401] * CLIENT_LIMIT + [429] == statuses(guess, CLIENT_LIMIT + 1)


def test_trusted_address(database: Path) -> None:
    """An address that the configuration trusts is not looked at."""
    with guarded(database, guard(trusted_addresses=["127.0.0.2/32", "10.0.0.0/8"])) as server:
        assert {400} == set(statuses(lambda: server.login(address=ELSEWHERE), 3 * USER_LIMIT))
        assert 0 == server.key_count
        assert 429 in statuses(server.login, USER_LIMIT + 1)


def test_dry_run(database: Path) -> None:
    """A dry run reports whom enforcing would deny, denies nobody, and counts as enforcing would."""
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


@pytest.mark.parametrize("more", [{"guard": {"mode": "off"}}, {"mode": "off"}, {"enabled": False}, {"guard": {}}])
def test_switched_off(database: Path, more: dict[str, Any]) -> None:
    """Off is off, its own switch as well as the global one."""
    with guarded(database, {**guard(), **more}) as server:
        assert {400} == set(statuses(server.login, 3 * USER_LIMIT))
        assert server.site.app_limiter.guard() is None


def test_tokens_in_a_dry_run(database: Path) -> None:
    """The guard has a mode of its own: it may deny while limits on tokens are on trial."""
    with guarded(database, {**guard(), "mode": "dry-run"}) as server:
        assert [400] * USER_LIMIT + [429] == statuses(server.login, USER_LIMIT + 1)


def test_reload(database: Path) -> None:
    """Failures that are known count on under other limits and modes."""
    with guarded(database, guard()) as server:
        statuses(server.login, USER_LIMIT + 1)
        running = server.site.app_limiter.guard()
        assert running is not None
        limits = {"passed_on": [{"limit": USER_LIMIT + 2, "window": WINDOW_S}]}
        running.reconfigure(load_config(guard(limits=limits)))

        assert [400, 400, 429] == statuses(server.login, 3)


def test_behind_a_proxy(database: Path) -> None:
    """With Werkzeug's ProxyFix failures are those of the address that the proxy has named."""
    with guarded(database, guard()) as server:
        server.site.app.wsgi_app = ProxyFix(server.site.app.wsgi_app)  # type: ignore[method-assign]
        near = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7"}  # the first was there before the proxy
        assert [400] * USER_LIMIT + [429] == statuses(lambda: server.login(headers=near), USER_LIMIT + 1)
        assert 400 == server.login(headers={"X-Forwarded-For": "192.0.2.8"}).status_code


def test_proxy_that_is_not_configured(database: Path) -> None:
    """A forwarded address without ProxyFix is not believed. Everybody seems to be the proxy, so nothing is counted and
    nobody is denied, and that is said.
    """
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


def test_forged_address(database: Path) -> None:
    """Where ProxyFix is told that there is no proxy, whatever stands in the header makes a guess no other."""
    with guarded(database, guard()) as server:
        server.site.app.wsgi_app = ProxyFix(server.site.app.wsgi_app, x_for=0)  # type: ignore[method-assign]
        found = [
            server.login(headers={"X-Forwarded-For": f"198.51.100.{number}"}).status_code
            for number in range(USER_LIMIT + 1)
        ]

    assert [400] * USER_LIMIT + [429] == found


def test_server_without_addresses(database: Path) -> None:
    """Over a Unix socket without ProxyFix nobody can be told from anybody: nothing is counted, and that is said."""
    form = {"grant_type": "password", "username": "alice", "password": "x"}
    with guarded(database, guard()) as server, capture_logs() as logs:
        client = server.site.app.test_client()
        found = {
            client.post("/token", data=form, auth=("web-shop", SECRET), environ_base={"REMOTE_ADDR": ""}).status_code
            for _ in range(3 * USER_LIMIT)
        }

    assert {400} == found
    assert ["guard_without_address"] == [line["event"] for line in logs]


def test_networks_of_ipv6(server: Guarded) -> None:
    """Whoever has a /64 has one address."""
    client = server.site.app.test_client()
    form = {"grant_type": "password", "username": "alice", "password": "x"}

    def guess(address: str) -> int:
        return client.post(
            "/token", data=form, auth=("web-shop", SECRET), environ_base={"REMOTE_ADDR": address}
        ).status_code

    assert [400] * USER_LIMIT + [429] == [guess(f"2001:db8::{number:x}") for number in range(USER_LIMIT + 1)]
    assert 400 == guess("2001:db8:0:1::1")


def test_guard_that_breaks(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the guard, the server answers as it would without it."""

    def broken(*_args: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("oauth_ratelimit.guard.Guard.look", broken)
    monkeypatch.setattr("oauth_ratelimit.guard.Guard.count", broken)
    with guarded(database, guard()) as server, capture_logs() as logs:
        assert {400} == set(statuses(server.login, 2))
        assert 200 == server.login("alice", password_of("alice")).status_code

    assert {"guard_failed"} == {line["event"] for line in logs}
    assert SECRET not in str(logs)


def test_guard_that_does_not_start(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that can start no thread, the server answers as it would without a guard."""

    def broken(*_args: Any) -> None:
        raise RuntimeError("can't start new thread")

    with guarded(database, guard()) as server, capture_logs() as logs:
        monkeypatch.setattr("oauth_ratelimit.background.worker.Worker.start", broken)
        assert 401 == server.job(secret="guess").status_code
        assert 200 == server.login("alice", password_of("alice")).status_code

    assert {"guard_failed", "check_failed"} == {line["event"] for line in logs}


def test_flood_of_names(database: Path) -> None:
    """Random names and clients are bounded, and take no room from the keys of tokens."""
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


def test_mixin(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with the mixin is guarded as one that was attached to."""

    class Server(RateLimitMixin, demo_server.AuthorizationServer):  # type: ignore[misc]
        """The typed way in."""

    monkeypatch.setattr(demo_server, "AuthorizationServer", Server)
    with guarded(database, guard()) as server:
        assert [400] * USER_LIMIT + [429] == statuses(server.login, USER_LIMIT + 1)
        assert [401] * CLIENT_LIMIT + [429] == statuses(lambda: server.job(BATCH_JOBS, "guess"), CLIENT_LIMIT + 1)
