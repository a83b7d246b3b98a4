"""``on_limit: reuse``: a client over its limit gets the token that it has, and nothing else."""

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from authlib.oauth2.rfc6749.grants import BaseGrant, TokenEndpointMixin
from authlib.oauth2.rfc7523.client import ASSERTION_TYPE, JWTBearerClientAssertion
from flask import request
from joserfc import jwt
from joserfc.jwk import OctKey
from structlog.testing import capture_logs
from werkzeug.local import LocalProxy

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.config.settings import ReuseSettings
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from oauth_ratelimit.token_cache import TokenCache
from testbed.clock import Clock, wait_until
from testbed.oauth_server.models import Client
from tests.support.apps import app_limiter_of, dispatch
from tests.support.reusing import LIMIT, MAX_AGE_S, METHODS, ClientCredentialsGrant, ReuseSite, reuse_config, reuse_site


@pytest.fixture
def site() -> Iterator[ReuseSite]:
    with reuse_site() as made:
        yield made


# What a client gets.


def test_client_over_its_limit_gets_the_token_that_it_has(site: ReuseSite) -> None:
    site.extra = {"ext_expires_in": 120, "refresh_in": 60}
    token = site.use_up()
    site.clock.advance(100)
    answer = site.ask()
    times = {"expires_in": 3500, "ext_expires_in": 20, "refresh_in": 0}
    assert answer.get_json() == {"token_type": "Bearer", "access_token": token, "scope": "", **times}
    assert len(site.saved) == len(site.issued) == LIMIT
    assert answer.headers["RateLimit"].startswith('"client";r=0;t=')
    assert "Retry-After" not in answer.headers


def test_reuse_is_counted_in_no_limit() -> None:
    limits = {"client": [{"limit": LIMIT, "window": "1d", "on_limit": "reuse"}], "client_total": ["100/day"]}
    with reuse_site({"mode": "enforce", "limits": limits}) as site:
        site.use_up()
        assert site.statuses(5) == [200] * 5
        assert app_limiter_of(site.app).limiter.peek("a", "some-user").remaining == 100 - LIMIT


def test_one_token_per_max_age_is_issued_above_the_limit(site: ReuseSite) -> None:
    site.use_up()
    first = site.token(foo="first")
    assert site.token(foo="first") == first
    assert site.statuses(3, foo="other") == [429] * 3
    assert site.ask(foo="other").headers["Retry-After"]
    site.clock.advance(MAX_AGE_S)
    assert site.token(foo="other") != first
    assert site.statuses(2, foo="first") == [429] * 2


@pytest.mark.parametrize(
    "difference",
    [
        {"resource": "https://api.example"},
        {"audience": "other"},
        {"scope": "openid"},
        {"foo": "bar"},
        {"client_assertion": "another"},
        {"headers": {"Authorization": "Bearer checked-by-nobody"}},
        {"headers": {"X-Forwarded-Server": "1"}},
        {"query": {"foo": "bar"}},
        {"path": "/other"},
        {"host": "other.example"},
        {"host": "localhost/root"},
        {"method": METHODS[0]},
    ],
    ids=str,
)
def test_a_request_that_differs_gets_another_token(site: ReuseSite, difference: dict[str, Any]) -> None:
    base = {"method": METHODS[1], "client_assertion": "checked-by-nobody"}
    token = site.use_up(**base)
    other = site.token(**base | difference)
    assert other != token
    assert site.token(**base | difference) == other
    assert site.token(**base) == token


@pytest.mark.parametrize(
    "difference",
    [
        {"headers": {"DPoP": "proof"}},
        {"headers": {"DPoP": "0"}},
        {"headers": {"X-Spiffe-Id": "spiffe://some/client"}},
        {"headers": {"X-Certificate-Thumbprint": "some-digest"}},
        {"environ": {"https_cc": "some-certificate"}},
        {"environ": {"SSL_CLIENT_CERT": "some-certificate"}},
        {"environ": {"gunicorn.socket": type("Socket", (), {"getpeercert": object})}},
        {"headers": {"X-Forwarded-Client-Cert": "some-certificate"}},
        {"headers": {"X-Client-Dn": "CN=some-client"}},
        {"headers": {"X-SSL-Subject": "CN=some-client"}},
        {"headers": {"Content-Type": "application/json"}},
    ],
    ids=str,
)
def test_a_bound_or_unreadable_request_is_denied_above_the_limit(site: ReuseSite, difference: dict[str, Any]) -> None:
    site.use_up()
    assert site.ask(**difference).status_code in (400, 401, 429)
    assert len(site.issued) == LIMIT


def test_paths_that_look_alike_have_tokens_of_their_own(site: ReuseSite) -> None:
    view = site.app.view_functions["/token"]
    site.app.add_url_rule("/t/<tenant>/token", "tenants", lambda tenant: view(), methods=["POST"])
    assert site.use_up(path="/t/a b/token") != site.token(path="/t/a%2520b/token")


def test_a_second_token_in_one_request_is_not_the_one_that_was_given_out_again(
    site: ReuseSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ClientCredentialsGrant.create_token_response
    site.use_up()

    def create_two(grant: Any) -> Any:
        grant.generate_token(scope=grant.request.payload.scope, include_refresh_token=False)
        return create(grant)

    monkeypatch.setattr(ClientCredentialsGrant, "create_token_response", create_two)
    assert site.ask().status_code == 429


@pytest.mark.parametrize("saved", [None, "text", LocalProxy(Mock(side_effect=RuntimeError))], ids=range(3))
def test_any_object_may_be_saved_in_place_of_a_token(
    site: ReuseSite, monkeypatch: pytest.MonkeyPatch, saved: Any
) -> None:
    site.use_up()
    site.servers[0]._save_token = lambda *_: None
    monkeypatch.setattr(
        ClientCredentialsGrant, "save_token", lambda grant, _: grant.server.save_token(saved, grant.request)
    )
    assert [site.ask(name).status_code for name in "ab"] == [429, 200]


@pytest.mark.parametrize(
    "name", ["X-Org-Identity", "X-Caller", "Ssl.Who", "X-User-Serial", "X-Tls-Session", "X-Forwarded-Host"]
)
def test_a_header_may_hold_a_certificate_or_the_host_of_an_issuer(site: ReuseSite, name: str) -> None:
    token = site.use_up(headers={name: "one"})
    assert site.token(headers={name: "one"}) == token
    assert site.ask(headers={name: "two"}).get_json().get("access_token") != token
    assert site.ask().get_json().get("access_token") != token


def test_headers_that_differ_in_each_request_prevent_no_reuse(site: ReuseSite) -> None:
    numbers = count()

    def headers() -> dict[str, str]:
        names = ("X-Request-ID", "traceparent", "X-Forwarded-For", "User-Agent", "X-B3-SpanId", "X-Amzn-Trace-Id")
        return {name: str(next(numbers)) for name in names}

    assert site.use_up(headers=headers()) == site.token(headers=headers())


@pytest.mark.parametrize("place", ["headers", "query", "form"])
def test_a_large_request_is_not_compared(site: ReuseSite, place: str) -> None:
    fields = {f"X-{number}": "x" * 8000 for number in range(5)}
    large: dict[str, Any] = fields if place == "form" else {place: fields}
    site.use_up(**large)
    assert site.ask(**large).status_code == 429
    assert len(site.issued) == LIMIT


def test_a_client_whose_record_cannot_be_compared_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "client_metadata", {"owner": object()}, raising=False)
    with capture_logs() as logs, reuse_site() as site:
        site.use_up()
        assert site.statuses(3) == [429] * 3
    assert ["TypeError('Client.client_metadata holds a value without a repr of its own')"] == [
        line["error"] for line in logs if line["event"] == "reuse_failed"
    ]


def test_no_certificate_is_no_binding(site: ReuseSite) -> None:
    environ = {"SSL_CLIENT_VERIFY": "NONE", "SSL_CLIENT_CERT": "", "SSL_SERVER_CERT": "our-own"}
    assert site.use_up(environ=environ) == site.token(environ=environ)


def test_a_public_client_is_denied(site: ReuseSite) -> None:
    assert site.statuses(5, "public", method="none") == [200] * LIMIT + [429] * 2


@pytest.mark.parametrize(
    "extra",
    [
        {"refresh_token": "stronger"},
        {"id_token": "stronger"},
        {"cnf": {"jkt": "key"}},
        {"token_type": "DPoP"},
        {"expires_in": 0},
        {"expires_in": None},
        {"refresh_in": "1800"},
        {"access_token": "e30.eyJjbmYiOnt9fQ.signature"},
        {"scope": "admin"},
    ],
    ids=str,
)
def test_an_answer_that_is_more_than_a_bearer_token_is_not_kept(site: ReuseSite, extra: dict[str, Any]) -> None:
    site.extra = extra
    site.use_up()
    assert site.statuses(3) == [200, 429, 429]


def test_a_token_near_its_end_is_not_given_out_again(site: ReuseSite) -> None:
    site.lifetime_s = 100
    token = site.use_up()
    site.clock.advance(90)
    assert site.ask().get_json()["expires_in"] == 10
    site.clock.advance(1)
    assert site.token() != token


# Who may do what by now.


def test_authentication_and_scope_are_checked_anew(site: ReuseSite, monkeypatch: pytest.MonkeyPatch) -> None:
    token = site.use_up(scope="openid profile")
    site.change("a", client_secret="rotated")
    assert site.ask(scope="openid profile", secret="secret-a").status_code == 401
    site.change("a", client_secret="secret-a")
    monkeypatch.setattr(Client, "get_allowed_scope", lambda *_: "openid")
    weaker = site.ask(scope="openid profile").get_json()
    assert weaker["access_token"] != token
    assert weaker["scope"] == "openid"
    site.change("a", grant_types=())
    assert site.ask(scope="openid profile").status_code == 400


@pytest.mark.parametrize("change", [{"scope": "openid"}, {"client_secret": "of-another-owner"}], ids=str)
def test_a_client_that_was_changed_gets_no_former_token(site: ReuseSite, change: dict[str, str]) -> None:
    token = site.use_up()
    site.change("a", **change)
    assert site.token() != token


def test_an_assertion_may_differ_but_not_its_claims(site: ReuseSite, monkeypatch: pytest.MonkeyPatch) -> None:
    key, used, numbers = OctKey.generate_key(256), set[str](), count()

    class Assertion(JWTBearerClientAssertion):  # type: ignore[misc]
        get_audiences = staticmethod(lambda: ["here"])
        validate_jti = staticmethod(lambda _claims, jti: len(used) < len(used | {jti}) and not used.add(jti))
        resolve_client_public_key = staticmethod(lambda _client: key)

    method = Assertion.CLIENT_AUTH_METHOD
    site.servers[0].register_client_auth_method(method, Assertion())
    monkeypatch.setattr(ClientCredentialsGrant, "TOKEN_ENDPOINT_AUTH_METHODS", [method])
    monkeypatch.setattr(Client, "check_endpoint_auth_method", lambda *_: True)

    def proof(**more: str) -> dict[str, str]:
        claims = {"iss": "a", "sub": "a", "aud": "here", "exp": 4_000_000_000, "jti": str(next(numbers)), **more}
        text = jwt.encode({"alg": "HS256"}, claims, key)
        return {"method": method, "client_assertion_type": ASSERTION_TYPE, "client_assertion": text}

    token, proven = [site.token(**proof()) for _ in range(LIMIT)][-1], proof()
    assert site.token(**proven) == token
    assert site.ask(**proven).status_code == 400
    assert site.token(**proof(tenant="other")) != token


@pytest.mark.parametrize("way", ["a", "b", "forget"])
def test_a_revocation_drops_all_tokens_of_the_client(site: ReuseSite, way: str) -> None:
    token, others = site.use_up(), site.use_up("b")
    with site.app.app_context():
        OAuthRateLimit.forget_tokens("")  # nobody's
        assert site.token() == token
        OAuthRateLimit.forget_tokens("a" if way == "forget" else "")
    assert way == "forget" or site.revoke(token, by=way).status_code == 200
    assert site.token() != token
    assert (site.token("b") == others) is (way != "b")
    for _ in range(5):  # a client that revokes and asks gets no dead token, and not one after the other
        for text, issued in list(site.issued.items()):
            if issued.client_id == "a" and not issued.is_revoked:
                site.revoke(text)
        assert site.ask().status_code == 429


def test_the_token_after_a_revocation_stays(mongo_uri: str) -> None:
    """Although its process reads the notice that it has written."""
    with reuse_site(reuse_config(store={"uri": mongo_uri})) as site:
        site.use_up("b")
        wait_until(lambda: site.token("b") == site.token("b"), "the overrides are known, so that limits are enforced")
        site.revoke(site.use_up())
        tokens = app_limiter_of(site.app)._running_worker().tokens
        tokens.run()
        token = site.token()
        for _ in range(3):
            tokens.run()
            assert token == site.token()


def test_a_revocation_counts_while_nothing_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"

    def write(on_limit: str) -> None:
        path.write_text(json.dumps(reuse_config(on_limit=on_limit, sync={"interval": "50ms"})))

    write("reuse")
    with reuse_site(str(path)) as site:
        token = site.use_up()
        write("deny")
        wait_until(lambda: site.ask().status_code == 429, "nothing is reused")
        assert site.revoke(token).status_code == 200
        write("reuse")
        wait_until(lambda: site.ask().status_code == 200, "tokens are reused")
        assert token not in {site.token() for _ in range(3)}


def test_a_token_that_was_being_issued_at_a_revocation_is_not_kept(site: ReuseSite) -> None:
    first = site.use_up(foo="bar")
    generate = site.servers[0]._token_generators["default"]

    def revoke_meanwhile(**arguments: Any) -> Any:
        token = generate(**arguments)
        site.revoke(first)
        return token

    site.servers[0].register_token_generator("default", revoke_meanwhile)
    assert site.statuses(2) == [200, 429]


@pytest.mark.parametrize("answer", [[False] * 9, RuntimeError("token-is-in-this-text")], ids=["no", "error"])
def test_a_token_that_is_not_active_is_not_given_out_again(answer: Any) -> None:
    with capture_logs() as logs, reuse_site(is_token_active=Mock(side_effect=answer)) as site:
        site.use_up()
        assert site.statuses(4) == [200, 429, 429, 429]
    assert "token-" not in repr(logs)


def test_a_token_that_is_revoked_while_the_application_is_asked_is_not_given_out() -> None:
    def revoke_meanwhile(token: dict[str, Any]) -> bool:
        assert site.revoke(token["access_token"]).status_code == 200
        return True

    with reuse_site(is_token_active=revoke_meanwhile) as site:
        token = site.use_up()
        assert site.ask().get_json().get("access_token") != token


def test_an_application_that_hangs_when_it_is_asked_holds_two_requests() -> None:
    may_go_on = threading.Event()
    with reuse_site(is_token_active=lambda _token: may_go_on.wait(30)) as site:
        token = site.use_up()
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(site.ask) for _ in range(8)]
            wait_until(lambda: sum(each.done() for each in asked) == 6, "the others are answered")
            may_go_on.set()
            answers = [each.result() for each in asked]
        assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 6
        assert site.token() == token


def test_the_key_of_the_application_separates_tenants() -> None:
    with reuse_site(reuse_key=lambda _client: request.headers["X-Tenant"]) as site:
        token = site.use_up(headers={"X-Tenant": "one"})
        assert site.token(headers={"X-Tenant": "two"}) != token
        assert site.token(headers={"X-Tenant": "one"}) == token
        assert site.ask().status_code == 429  # the function fails


# What is kept.


@pytest.mark.parametrize("place", ["generate", "save", "view", "commit"])
def test_only_the_token_of_a_successful_response_is_kept(site: ReuseSite, place: str) -> None:
    site.break_at = place
    assert site.statuses(LIMIT + 1) == [500] * (LIMIT + 1)
    site.break_at = ""
    is_saved = place in ("view", "commit")  # else the requests do not count
    assert site.ask().status_code == (429 if is_saved else 200)  # the one above the limit is used up


class OwnGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A grant that saves its token by itself, or makes it by itself."""

    GRANT_TYPE = "client_credentials"
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS
    makes_token = False

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()

    def create_token_response(self) -> tuple[int, Any, Any]:
        token = {"access_token": "own", "token_type": "Bearer", "expires_in": 3600}
        if self.makes_token:
            self.save_token(token)
        else:
            token = self.generate_token(scope="")
        return 200, token, self.TOKEN_RESPONSE_HEADER


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [({}, [200, 429]), ({"makes_token": True}, [429, 429]), ({"GRANT_TYPE": "urn:some:grant"}, [429, 429])],
)
def test_a_grant_of_another_type_or_that_makes_its_token_itself_is_denied(
    site: ReuseSite, attributes: dict[str, Any], expected: list[int]
) -> None:
    grant: Any = type("TheGrant", (OwnGrant,), attributes)
    site.servers[0]._token_grants.clear()
    site.servers[0].register_grant(grant)
    site.statuses(LIMIT, grant_type=grant.GRANT_TYPE)
    assert site.statuses(2, grant_type=grant.GRANT_TYPE) == expected


def test_a_token_for_another_client_than_the_one_that_asks_is_denied(site: ReuseSite) -> None:
    def issue_to_b(grant: Any) -> tuple[int, Any, Any]:
        token = grant.server.generate_token(grant.GRANT_TYPE, site.clients["b"], scope="")
        grant.save_token(token)
        return 200, token, grant.TOKEN_RESPONSE_HEADER

    site.servers[0]._token_grants.clear()
    site.servers[0].register_grant(type("TheGrant", (OwnGrant,), {"create_token_response": issue_to_b}))
    assert site.statuses(LIMIT + 1) == [200] * LIMIT + [429]


def test_a_token_is_denied_where_no_middleware_sees_the_answer(site: ReuseSite) -> None:
    site.use_up()
    assert dispatch(site.app, site.clients["a"]) == 429


def test_memory_is_bounded_and_a_full_cache_denies() -> None:
    clock, names = Clock(), [f"{number}" + "\U0001f600" * 500 for number in range(10)]
    cache = TokenCache(partial(ReuseSettings, max_bytes=20_000), may_reuse=bool, clock=clock)
    for name in names:
        cache.note_request(name, b"some-request", is_over=True)
    assert [*map(cache.follows, names)] == [True] * 5 + [False] * 5  # each of about 4,000 bytes
    clock.advance(MAX_AGE_S)
    cache.purge()
    assert not any(map(cache.follows, names))
    with reuse_site(reuse_config(reuse={"max_bytes": 2500})) as site:
        assert site.statuses(5) + site.statuses(5, "b") == [200] * (5 + LIMIT) + [429] * 2


def test_nothing_that_holds_a_token_shows_it(site: ReuseSite) -> None:
    with capture_logs() as logs:
        site.use_up()
        site.statuses(3)
        site.statuses(3, foo="bar")
    tokens = app_limiter_of(site.app)._worker.tokens  # type: ignore[union-attr]
    assert "token-" not in repr((logs, tokens, vars(tokens)))


# Parallel requests, processes, other instances.


def test_parallel_requests_get_one_new_token() -> None:
    """Some of them wait for it, the others are denied at once."""
    with reuse_site() as site:
        site.use_up()
        is_generating, may_go_on = threading.Event(), threading.Event()
        generate = site.servers[0]._token_generators["default"]

        def slowly(**arguments: Any) -> Any:
            is_generating.set()
            may_go_on.wait(30)
            return generate(**arguments)

        site.servers[0].register_token_generator("default", slowly)
        with ThreadPoolExecutor(100) as pool:
            first = pool.submit(site.ask, foo="bar")
            is_generating.wait(30)
            others = [pool.submit(site.ask, foo="bar") for _ in range(99)]
            wait_until(lambda: sum(each.done() for each in others) >= 80, "most of them are denied")
            may_go_on.set()
            answers = [each.result() for each in (first, *others)]
    assert len(site.issued) == LIMIT + 1
    tokens = {answer.get_json()["access_token"] for answer in answers if answer.status_code == 200}
    assert len(tokens) == 1
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {200, 429}
    assert 2 <= statuses.count(200) <= 20


def test_a_forked_process_has_no_tokens_of_its_parent(site: ReuseSite) -> None:
    token = site.use_up()
    reader, writer = os.pipe()
    if not os.fork():
        try:
            counted_anew = site.use_up()
            answer = "same" if token in (counted_anew, site.token()) else "other"
            inherited = app_limiter_of(site.app)._inherited[0].tokens
            os.write(writer, (answer if token not in repr(vars(inherited)["_clients"]) else "inherited").encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 100) == b"other"
    os.close(reader)
    os.wait()
    assert site.token() == token


def test_end_in_an_outage_is_reported_as_no_bug() -> None:
    store = {"uri": "mongodb://127.0.0.1:1/nowhere", "timeout": "10ms"}
    with capture_logs() as logs, reuse_site(reuse_config(store=store)) as site:
        assert site.use_up() == site.token()
    events = {line["event"] for line in logs}
    assert "hits_undelivered" in events
    assert "task_failed" not in events


def test_modes_change_while_it_runs(mongo_uri: str, connection: Connection) -> None:
    """A dry run issues new tokens, and records which of them would have been reused; it keeps none."""
    with reuse_site(reuse_config(store={"uri": mongo_uri}, sync={"interval": "100ms"})) as site:
        site.use_up()
        wait_until(lambda: site.token() == site.token(), "the overrides are known, so that limits are enforced")
        token = site.token()
        target = Target(OverrideKind.MODE, "a")
        OverrideStore(connection).put(Override(target, "ann", "a test", 0.0, mode=Mode.DRY_RUN))
        wait_until(lambda: site.token() != token, "the dry run")
        site.clock.advance(MAX_AGE_S)
        issued_count = len(site.issued)
        assert len({site.token() for _ in range(4)}) == 4
        assert len(site.issued) == issued_count + 4
        OverrideStore(connection).remove(target, author="ann", reason="a test")
        wait_until(lambda: site.token() == site.token(), "enforced again")
    minutes = StatisticsStore(connection).minutes(0, 4e9)
    tallies = [tally for minute in minutes for tally in minute.tallies.values()]
    assert sum(tally.reused for tally in tallies) >= 2
    assert 3 <= sum(tally.would_reuse for tally in tallies) <= sum(tally.would_deny for tally in tallies)
