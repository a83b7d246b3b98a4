"""Quota headers on responses, each once, with other WSGI middleware around and inside."""

import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, Response, request
from werkzeug.test import Client, EnvironBuilder, TestResponse

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.failed_auth import JWT_BEARER
from oauth_ratelimit.testing import FrozenClock, FrozenRateLimit
from tests.support.apps import CLIENT, ClientCredentialsGrant, make_app, make_server
from tests.support.sites import config

QUOTA = ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


def ask(app: Any) -> TestResponse:
    """Ask for a token."""
    auth = (CLIENT.client_id, CLIENT.client_secret)
    return Client(app).post("/token", auth=auth, data={"grant_type": "client_credentials"})


def quota_of(response: TestResponse) -> list[str]:
    """Return the names of the quota headers, each as often as it is there."""
    return [name for name, _ in response.headers if name in QUOTA]


class AssertionGrant(ClientCredentialsGrant):
    """A grant that the guard takes for one with an assertion."""

    GRANT_TYPE = JWT_BEARER


def protected(view: Callable[[Any], Any], *, limit: int = 5, **more: Any) -> Flask:
    """Return an application whose token endpoint is a view of its own."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=limit) | more)
    server = make_server(app)
    server.register_grant(AssertionGrant)
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
    """A response, a mapping or a tuple made from Authlib's answer."""
    response = ask(protected(view))

    assert QUOTA == quota_of(response)
    assert "4" == response.headers["X-RateLimit-Remaining"]


def test_view_that_fails_after_the_decision_has_quota_headers() -> None:
    def view(server: Any) -> Any:
        server.create_token_response()
        raise LookupError("the application's own")

    response = ask(protected(view))

    assert 500 == response.status_code
    assert QUOTA == quota_of(response)


def answer(server: Any) -> Any:
    """Answer as Authlib does."""
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


def test_client_inside_the_canary_has_quota_headers() -> None:
    app = protected(answer, canary={"percent": 100})

    assert QUOTA == quota_of(ask(app))


def test_other_views_have_no_quota_headers() -> None:
    app = protected(lambda server: server.create_token_response())
    app.add_url_rule("/about", "about", lambda: "about")

    assert [] == quota_of(Client(app).get("/about"))


def test_application_inside_another_adds_its_headers_once() -> None:
    """It is called with the environment of the outer one."""
    inner = protected(lambda server: server.create_token_response())
    outer = protected(lambda _: Response.from_app(inner.wsgi_app, request.environ))

    assert QUOTA == quota_of(ask(outer))


def test_decision_after_calling_another_application_has_quota_headers() -> None:
    """The other application, which is protected, too, decided nothing."""
    inner = protected(lambda _: "no token")

    def view(server: Any) -> Any:
        Response.from_app(inner.wsgi_app, request.environ)
        return server.create_token_response()

    assert QUOTA == quota_of(ask(protected(view)))


def test_inner_middleware_may_pass_headers_as_any_sequence() -> None:
    """It was there before ``init_app``."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=5))
    server, plain = make_server(app), app.wsgi_app

    def with_tuple(environ: Any, start_response: Any) -> Any:
        return plain(environ, lambda status, headers, *exc_info: start_response(status, tuple(headers), *exc_info))

    app.wsgi_app = with_tuple  # type: ignore[method-assign]
    FrozenRateLimit(FrozenClock()).init_app(app, server)

    assert QUOTA == quota_of(ask(app))


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "around"])
def test_middleware_may_copy_the_environment(is_inside: bool) -> None:
    """Middleware from before ``init_app`` is inside ours, later middleware around it."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=5))
    server = make_server(app)

    def wrap() -> None:
        inner = app.wsgi_app
        app.wsgi_app = lambda environ, start_response: inner(dict(environ), start_response)  # type: ignore[method-assign]

    if is_inside:
        wrap()
    FrozenRateLimit(FrozenClock()).init_app(app, server)
    if not is_inside:
        wrap()

    assert QUOTA == quota_of(ask(app))


def test_inner_middleware_may_be_a_generator() -> None:
    """It does nothing until the server reads its answer."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1))
    server, plain = make_server(app), app.wsgi_app

    def late(environ: Any, start_response: Any) -> Any:
        yield from plain(environ, start_response)

    app.wsgi_app = late  # type: ignore[method-assign]
    FrozenRateLimit(FrozenClock()).init_app(app, server)

    assert QUOTA == quota_of(ask(app))
    assert 429 == ask(app).status_code


def test_outer_middleware_may_accept_two_arguments_only() -> None:
    """It starts responses with a status and headers."""
    app = protected(lambda server: server.create_token_response())
    ours = app.wsgi_app

    def around(environ: Any, start_response: Any) -> Any:
        return ours(environ, lambda status, headers: start_response(status, headers))

    app.wsgi_app = around  # type: ignore[method-assign]

    assert QUOTA == quota_of(ask(app))


def test_application_protected_again_is_wrapped_once() -> None:
    """Tests may protect one application many times."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=5))
    server = make_server(app)
    OAuthRateLimit().init_app(app, server)
    wrapped = app.wsgi_app
    for _ in range(3):
        with FrozenRateLimit(FrozenClock()) as ratelimit:
            ratelimit.init_app(app, server)
            assert QUOTA == quota_of(ask(app))

    assert wrapped is app.wsgi_app


@pytest.mark.parametrize(
    ("limit", "grant_type", "secret", "status"),
    [
        (5, "client_credentials", CLIENT.client_secret, "200 OK"),
        (1, "client_credentials", CLIENT.client_secret, "429 TOO MANY REQUESTS"),
        (5, "client_credentials", "wrong", "401 UNAUTHORIZED"),
        (5, JWT_BEARER, CLIENT.client_secret, "200 OK"),
    ],
    ids=["admitted", "denied", "not authenticated", "assertion"],
)
def test_request_is_freed_at_its_end(limit: int, grant_type: str, secret: str, status: str) -> None:
    """A request that only the garbage collector can free makes every token request several percent slower."""
    app = protected(answer, limit=limit, guard={"mode": "enforce"})
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
