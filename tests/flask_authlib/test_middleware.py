"""Quota headers on responses, each once, with other WSGI middleware around and inside."""

import gc
import io
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask, Response
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from werkzeug.test import EnvironBuilder, TestResponse

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.core.key import PseudonymKey
from oauth_ratelimit.core.policy import JWT_BEARER
from oauth_ratelimit.testing import FrozenClock, FrozenRateLimit
from tests.support.apps import (
    CLIENT,
    ClientCredentialsGrant,
    app_limiter_of,
    ask,
    authorize,
    decide,
    make_app,
    make_server,
    protected_app,
)
from tests.support.helpers import QUOTA_HEADERS
from tests.support.sites import config


def quota_of(response: TestResponse) -> list[str]:
    """Return the names of the quota headers, each as often as it is there."""
    return [name for name, _ in response.headers if name in QUOTA_HEADERS]


class AssertionGrant(ClientCredentialsGrant):
    """A grant with an assertion, of which the guard replaces a method."""

    GRANT_TYPE = JWT_BEARER

    def process_assertion_claims(self, assertion: str) -> dict[str, str]:
        return {"iss": assertion}


def protected(view: Callable[[Any], Any], *, limit: int = 5, **more: Any) -> Flask:
    """Return an application whose token endpoint is a view of its own."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=limit) | more)
    server = make_server(app, AuthorizationServer, AssertionGrant)
    app.view_functions["token"] = lambda: view(server)
    FrozenRateLimit(FrozenClock()).init_app(app, server)
    return app


@pytest.mark.parametrize(
    "view",
    [
        lambda server: server.create_token_response(),
        lambda server: server.create_token_response().get_json(),
        lambda server: (server.create_token_response().get_data(), 200, {"Content-Type": "application/json"}),
    ],
    ids=["response", "mapping", "tuple"],
)
def test_quota_headers_are_added_whatever_the_view_returns(view: Callable[[Any], Any]) -> None:
    response = ask(protected(view))

    assert QUOTA_HEADERS == quota_of(response)
    assert "4" == response.headers["X-RateLimit-Remaining"]


def answer(server: Any) -> Any:
    return server.create_token_response()


@pytest.mark.parametrize(
    "more",
    [
        {"mode": "dry-run"},
        {"mode": "off"},
        {"canary": {"percent": 0}},
        {"canary": {"instances": ["another-host"]}},
        {"clients": {CLIENT.client_id: {"mode": "dry-run"}}},
        {"grants": {"client_credentials": {"mode": "dry-run"}}},
        {"trusted_clients": [CLIENT.client_id]},
        {"limits": {"client": [{"limit": 5, "window": 10, "mode": "dry-run"}]}},
        {"limits": {"client": []}},
    ],
    ids=str,
)
def test_request_without_an_enforced_limit_has_no_quota_headers(more: dict[str, Any]) -> None:
    """A client that paces itself by the headers would change what a dry run measures."""
    app = protected(answer, **more)

    assert [(200, [])] * 7 == [(response.status_code, quota_of(response)) for response in (ask(app) for _ in range(7))]


@pytest.mark.parametrize("trial", [1, 100], ids=["trial limit reached", "trial limit not reached"])
@pytest.mark.parametrize("kind", ["client", "client_total"])
def test_quota_headers_describe_the_enforced_limit_beside_one_in_a_dry_run(kind: str, trial: int) -> None:
    on_trial = {"limit": trial, "window": 10, "mode": "dry-run", "name": "trial"}
    limits: dict[str, Any] = {"client": [{"limit": 4, "window": 60, "name": "enforced"}]}
    limits.setdefault(kind, []).append(on_trial)
    app = protected(answer, limits=limits)

    admitted, denied = [ask(app) for _ in range(4)], ask(app)

    assert ["3", "2", "1", "0"] == [response.headers["X-RateLimit-Remaining"] for response in admitted]
    assert {'"enforced";q=4;w=60'} == {response.headers["RateLimit-Policy"] for response in (*admitted, denied)}
    assert (429, denied.headers["Retry-After"]) == (denied.status_code, denied.headers["X-RateLimit-Reset"])


def test_rate_limit_policy_names_all_enforced_limits_in_each_answer() -> None:
    """``RateLimit`` is of the one with least left, and says when it has more."""
    limits = {
        "client": [{"limit": 2, "window": 10, "name": "burst"}, {"limit": 9, "window": 60, "mode": "dry-run"}],
        "client_total": [{"limit": 3, "window": 60}],
    }
    clock = FrozenClock(1_200_000_000.0)  # a minute begins
    app = make_app(OAUTH_RATELIMIT_CONFIG=config() | {"limits": limits})
    FrozenRateLimit(clock).init_app(app, make_server(app))

    first, second, denied = (ask(app).headers for _ in range(3))
    clock.advance(11)
    last = ask(app).headers

    assert {'"burst";q=2;w=10, "client_total";q=3;w=60'} == {
        headers["RateLimit-Policy"] for headers in (first, second, denied, last)
    }
    assert ['"burst";r=1;t=11', '"burst";r=0;t=11', '"burst";r=0;t=11', '"client_total";r=0;t=52'] == [
        headers["RateLimit"] for headers in (first, second, denied, last)
    ]
    assert "11" == denied["Retry-After"]


@pytest.mark.parametrize(
    ("secret", "settings"),
    [
        ("d" * 32, {"denial": {"partition_key": {"env": "PARTITION_KEY"}}}),
        ("p" * 32, {"privacy": {"user_names": "hashed", "keys": [{"env": "NAME_KEY"}]}}),
        (None, {"privacy": {"keys": [{"env": "NAME_KEY"}]}}),
    ],
    ids=["own key", "key of user names", "no key"],
)
def test_partition_key_names_the_user_whose_limit_it_is(
    monkeypatch: pytest.MonkeyPatch, secret: str | None, settings: dict[str, Any]
) -> None:
    """A limit that all users share has none."""
    monkeypatch.setenv("PARTITION_KEY", "d" * 32)
    monkeypatch.setenv("NAME_KEY", "p" * 32)
    limits = {"user": [{"limit": 2, "window": 60}], "client_total": [{"limit": 3, "window": 60}]}
    with protected_app(OAUTH_RATELIMIT_CONFIG=config() | {"limits": limits} | settings) as app:
        states = [decide(app, CLIENT, user) for user in ("alice", "alice", "alice", "bob", "bob")]
        pseudonym = app_limiter_of(app).limiter.pseudonym_of("alice")

    answers = [each.denial.get_headers() if each.denial else each.response.quota_headers for each in states]
    headers = [dict(answer)["RateLimit"] for answer in answers]
    assert ['"user"'] * 3 + ['"client_total"'] * 2 == [header.partition(";")[0] for header in headers]
    key = secret and PseudonymKey.of(secret.encode()).partition(CLIENT.client_id, pseudonym or "")
    assert not key or f"pk=:{key}:" == headers[0].rpartition(";")[2]
    assert [key is not None] * 3 + [False] * 2 == ["pk=" in header for header in headers]


def as_generator(inner: Any) -> Any:
    """Return middleware that does nothing until the server reads its answer."""

    def respond(environ: Any, start: Any) -> Any:
        yield from inner(environ, start)

    return respond


MIDDLEWARE: dict[str, Callable[[Any], Any]] = {
    "answers when the server reads": as_generator,
    "passes a tuple": lambda inner: (
        lambda environ, start: inner(environ, lambda status, headers, *more: start(status, tuple(headers), *more))
    ),
    "copies the environment": lambda inner: lambda environ, start: inner(dict(environ), start),
    "starts with two arguments": lambda inner: (
        lambda environ, start: inner(environ, lambda status, headers: start(status, headers))
    ),
}


@pytest.mark.parametrize("middleware", MIDDLEWARE.values(), ids=MIDDLEWARE)
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "around"])
def test_other_middleware_may_be_inside_and_around(middleware: Callable[[Any], Any], is_inside: bool) -> None:
    """Middleware from before ``init_app`` is inside ours, later middleware around it."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1))
    server = make_server(app)
    if is_inside:
        app.wsgi_app = middleware(app.wsgi_app)  # type: ignore[method-assign]
    FrozenRateLimit(FrozenClock()).init_app(app, server)
    if not is_inside:
        app.wsgi_app = middleware(app.wsgi_app)  # type: ignore[method-assign]

    answers = ask(app), ask(app)
    assert [200, 429] == [answer.status_code for answer in answers]
    assert [QUOTA_HEADERS, QUOTA_HEADERS] == [quota_of(answer) for answer in answers]


def test_application_protected_again_is_wrapped_once() -> None:
    """Tests may protect one application many times."""
    app = protected(answer)
    wrapped = app.wsgi_app
    FrozenRateLimit(FrozenClock()).init_app(app, app.extensions["authorization_server"])

    assert wrapped is app.wsgi_app
    assert QUOTA_HEADERS == quota_of(ask(app))


def endpoint(_: Any) -> str:
    OAuthRateLimit.limit(CLIENT.client_id)
    return "used"


@pytest.mark.parametrize(
    ("view", "limit", "grant_type", "secret", "status"),
    [
        (answer, 5, "client_credentials", CLIENT.client_secret, "200 OK"),
        (answer, 1, "client_credentials", CLIENT.client_secret, "429 TOO MANY REQUESTS"),
        (answer, 5, "client_credentials", "wrong", "401 UNAUTHORIZED"),
        (answer, 5, JWT_BEARER, CLIENT.client_secret, "200 OK"),
        (endpoint, 5, "", "", "200 OK"),
        (authorize, 1, "", "", "429 TOO MANY REQUESTS"),
    ],
    ids=["admitted", "denied", "not authenticated", "assertion", "endpoint", "denied at the authorization endpoint"],
)
def test_request_is_freed_at_its_end(view: Any, limit: int, grant_type: str, secret: str, status: str) -> None:
    """A request that only the garbage collector can free makes every token request several percent slower."""
    endpoints = {"view": {"path": ["/token"]}}
    app = protected(view, limit=limit, guard={"mode": "enforce"}, endpoints=endpoints)
    ask(app)
    auth, form = (CLIENT.client_id, secret), {"grant_type": grant_type}
    environ = EnvironBuilder("/token", method="POST", auth=auth, data=form).get_environ()
    environ["REMOTE_ADDR"] = "203.0.113.7"  # without an address there is no guard
    body = environ["wsgi.input"] = io.BufferedReader(environ["wsgi.input"])
    freed = weakref.ref(body)
    del body
    answered: list[str] = []
    gc.collect()
    gc.disable()
    try:
        app(environ, lambda answer_status, _: answered.append(answer_status)).close()
        del environ
        assert freed() is None
    finally:
        gc.enable()
    assert [status] == answered


# Beside another limiter, and in a browser.


@pytest.mark.parametrize("retry_after", ["delta-seconds", "http-date"])
@pytest.mark.parametrize("other_s", [5, 3600])
def test_headers_of_another_limiter_are_not_doubled(retry_after: str, other_s: int) -> None:
    """Its quota stays, and the longer one of two times to wait."""
    app = protected(answer, limit=1)
    limiter = Limiter(
        get_remote_address, app=app, headers_enabled=True, retry_after=retry_after, storage_uri="memory://"
    )
    app.view_functions["token"] = limiter.limit(f"9 per {other_s} seconds")(app.view_functions["token"])
    admitted, denied = ask(app), ask(app)

    for response in (admitted, denied):
        assert sorted(QUOTA_HEADERS) == sorted(quota_of(response))
        assert "9" == response.headers["X-RateLimit-Limit"]
    ours = int(re.findall("t=([0-9]+)", denied.headers["RateLimit"])[0])
    assert 429 == denied.status_code
    assert ours <= int(denied.headers["Retry-After"]) <= max(ours, other_s + 1)
    assert (other_s > ours) is (int(denied.headers["Retry-After"]) > ours)


def test_headers_of_another_limiter_stay_if_its_limit_is_the_same_number() -> None:
    app = protected(answer, limit=1)
    limiter = Limiter(get_remote_address, app=app, headers_enabled=True, storage_uri="memory://")
    never_full = limiter.limit("1 per hour", deduct_when=lambda _: False)
    app.view_functions["token"] = never_full(app.view_functions["token"])

    for response, status in ((ask(app), 200), (ask(app), 429)):
        assert status == response.status_code
        assert sorted(QUOTA_HEADERS) == sorted(quota_of(response))
        assert ("1", "1") == tuple(response.headers[f"X-RateLimit-{name}"] for name in ("Limit", "Remaining"))


@pytest.mark.parametrize(
    ("view", "limit", "secret"),
    [(answer, 1, CLIENT.client_secret), (answer, 5, "wrong"), (authorize, 1, CLIENT.client_secret)],
    ids=["denied", "denied by the guard", "denied at the authorization endpoint"],
)
def test_shorter_time_to_wait_of_another_limiter_replaces_none_of_a_denial(view: Any, limit: int, secret: str) -> None:
    app = protected(view, limit=limit, guard={"mode": "enforce", "limits": {"client": ["1/hour"]}})

    @app.after_request
    def limiter(response: Response) -> Response:
        response.headers["Retry-After"] = "1"
        return response

    form, auth = {"grant_type": "client_credentials"}, (CLIENT.client_id, secret)
    _, denied = [app.test_client().post("/token", data=form, auth=auth) for _ in range(2)]

    [left] = re.findall("r=0;t=([0-9]+)", denied.headers["RateLimit"])
    assert (429, [left]) == (denied.status_code, denied.headers.getlist("Retry-After"))
    assert int(left) > 1


def test_script_of_another_site_may_read_the_headers_if_that_is_configured() -> None:
    app = protected(answer, limit=1, denial={"expose_headers": True})
    for response in (ask(app), ask(app)):
        [exposed] = response.headers.getlist("Access-Control-Expose-Headers")
        assert {"Retry-After", *QUOTA_HEADERS} == set(exposed.split(", "))
    assert "Access-Control-Expose-Headers" not in ask(protected(answer)).headers
