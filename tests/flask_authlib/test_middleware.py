"""Where an answer gets its quota headers: whatever a view returns, once each, and on the answer that was decided."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, Response, request
from werkzeug.test import Client, TestResponse

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.testing import FrozenClock, FrozenRateLimit
from tests.support.apps import CLIENT, make_app, make_server
from tests.support.sites import config

QUOTA = ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


@pytest.fixture(autouse=True)
def plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older Authlib refuses it otherwise."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")


def ask(app: Any) -> TestResponse:
    """Ask for a token."""
    auth = (CLIENT.client_id, CLIENT.client_secret)
    return Client(app).post("/token", auth=auth, data={"grant_type": "client_credentials"})


def quota_of(response: TestResponse) -> list[str]:
    """Return the names of the quota headers, each as often as it is there."""
    return [name for name, _ in response.headers if name in QUOTA]


def protected(view: Callable[[Any], Any], *, limit: int = 5) -> Flask:
    """Return an application whose token endpoint is a view of its own."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=limit))
    server = make_server(app)
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
def test_view_returns(view: Callable[[Any], Any]) -> None:
    """The quota is in the headers whatever the view makes of Authlib's answer."""
    response = ask(protected(view))

    assert QUOTA == quota_of(response)
    assert "4" == response.headers["X-RateLimit-Remaining"]


def test_view_fails_after_the_decision() -> None:
    """A request that was counted says so, also if the application then breaks."""

    def view(server: Any) -> Any:
        server.create_token_response()
        raise LookupError("the application's own")

    response = ask(protected(view))

    assert 500 == response.status_code
    assert QUOTA == quota_of(response)


def test_request_that_is_not_decided() -> None:
    """Other views of the application answer as ever."""
    app = protected(lambda server: server.create_token_response())
    app.add_url_rule("/about", "about", lambda: "about")

    assert [] == quota_of(Client(app).get("/about"))


def test_application_within_another() -> None:
    """A protected application that another one calls with its own environment tells its quota once."""
    inner = protected(lambda server: server.create_token_response())
    outer = protected(lambda _: Response.from_app(inner.wsgi_app, request.environ))

    assert QUOTA == quota_of(ask(outer))


def test_application_that_asks_another_first() -> None:
    """A decision that comes after a call of another protected application, which decided nothing, is told, too."""
    inner = protected(lambda _: "no token")

    def view(server: Any) -> Any:
        Response.from_app(inner.wsgi_app, request.environ)
        return server.create_token_response()

    assert QUOTA == quota_of(ask(protected(view)))


def test_middleware_with_headers_of_another_kind() -> None:
    """Middleware from before init_app may start an answer with any sequence of headers."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=5))
    server, plain = make_server(app), app.wsgi_app

    def with_tuple(environ: Any, start_response: Any) -> Any:
        return plain(environ, lambda status, headers, *exc_info: start_response(status, tuple(headers), *exc_info))

    app.wsgi_app = with_tuple  # type: ignore[method-assign]
    FrozenRateLimit(FrozenClock()).init_app(app, server)

    assert QUOTA == quota_of(ask(app))


def test_middleware_with_an_environment_of_its_own() -> None:
    """Middleware between us and the server may hand on a copy of the environment."""
    app = protected(lambda server: server.create_token_response())
    ours = app.wsgi_app
    app.wsgi_app = lambda environ, start_response: ours(dict(environ), start_response)  # type: ignore[method-assign]

    assert QUOTA == quota_of(ask(app))


def test_middleware_from_before() -> None:
    """Middleware that was there before init_app may do so, too."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=5))
    server, plain = make_server(app), app.wsgi_app
    app.wsgi_app = lambda environ, start_response: plain(dict(environ), start_response)  # type: ignore[method-assign]
    FrozenRateLimit(FrozenClock()).init_app(app, server)

    assert QUOTA == quota_of(ask(app))


def test_middleware_that_works_when_the_answer_is_read() -> None:
    """Middleware that was there before init_app may do nothing until the server reads its answer."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1))
    server, plain = make_server(app), app.wsgi_app

    def late(environ: Any, start_response: Any) -> Any:
        yield from plain(environ, start_response)

    app.wsgi_app = late  # type: ignore[method-assign]
    FrozenRateLimit(FrozenClock()).init_app(app, server)

    assert QUOTA == quota_of(ask(app))
    assert 429 == ask(app).status_code


def test_middleware_that_knows_two_arguments() -> None:
    """Middleware around ours may start answers with a status and headers alone."""
    app = protected(lambda server: server.create_token_response())
    ours = app.wsgi_app

    def around(environ: Any, start_response: Any) -> Any:
        return ours(environ, lambda status, headers: start_response(status, headers))

    app.wsgi_app = around  # type: ignore[method-assign]

    assert QUOTA == quota_of(ask(app))


def test_application_that_is_protected_again() -> None:
    """Tests that protect one application again and again do not wrap it again and again."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=5))
    server = make_server(app)
    OAuthRateLimit().init_app(app, server)
    wrapped = app.wsgi_app
    for _ in range(3):
        with FrozenRateLimit(FrozenClock()) as ratelimit:
            ratelimit.init_app(app, server)
            assert QUOTA == quota_of(ask(app))

    assert wrapped is app.wsgi_app
