"""One decision per token, whatever the grant does and however the server is built."""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import Context, copy_context
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749.grants import BaseGrant, TokenEndpointMixin
from flask import Flask, Response, request
from structlog.testing import capture_logs
from werkzeug.local import LocalProxy

from oauth_ratelimit import OAuthRateLimit, RateLimitMixin
from testbed.clock import Clock
from tests.support.apps import (
    CLIENT,
    PasswordGrant,
    app_limiter_of,
    ask,
    authorize,
    dispatch,
    make_app,
    make_server,
    protected_app,
)
from tests.support.helpers import statuses
from tests.support.sites import config

USER = PasswordGrant.user
SETTINGS = {"OAUTH_RATELIMIT_CONFIG": config(limit=2)}
TOKEN = {"access_token": "mine", "token_type": "Bearer", "expires_in": 1}


class CustomGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    GRANT_TYPE = "custom"
    issue: Callable[["CustomGrant"], Any]

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()

    def create_token_response(self) -> tuple[int, Any, Any]:
        return 200, self.issue(), self.TOKEN_RESPONSE_HEADER


@pytest.fixture
def app() -> Iterator[Flask]:
    with protected_app(**SETTINGS, grants=[PasswordGrant]) as made:
        yield made


def server_of(app: Flask) -> Any:
    return app.extensions["authorization_server"]


def remaining(app: Flask, username: str | None = None) -> int:
    return app_limiter_of(app).limiter.peek(CLIENT.client_id, username).remaining


def custom_statuses(app: Flask, issue: Callable[[Any], Any]) -> list[int]:
    """Ask three times for a token of a grant that issues it in its own way."""
    server_of(app).register_grant(type("TheCustomGrant", (CustomGrant,), {"issue": issue}))
    return statuses(lambda: ask(app, "custom"), 3)


# The user of a request.


def test_names_are_counted_as_text_whatever_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy ends with its request, and a document cannot hold one."""
    monkeypatch.setattr(type(CLIENT), "get_client_id", lambda self: 42)
    options = {"username_of": lambda user: LocalProxy(lambda: f"tenant-1:{request.form['username']}")}
    with protected_app(**SETTINGS, grants=[PasswordGrant], options=options) as app:
        assert 200 == ask(app, "password", username="some-user", password="x").status_code
        peek = app_limiter_of(app).limiter.peek
        assert (1, 2) == (peek("42", "tenant-1:some-user").remaining, peek("42", "some-user").remaining)


# One decision per token.


@pytest.mark.parametrize("is_copied", [False, True], ids=["in the view", "in a thread of its own"])
def test_request_within_a_request_is_counted_and_answered_apart(app: Flask, is_copied: bool) -> None:
    """A view may create and handle requests of its own, which share ``flask.g``."""

    def batch() -> list[int]:
        server_of(app).create_token_response()
        if not is_copied:
            return [dispatch(app), dispatch(app)]
        with ThreadPoolExecutor(1) as pool:
            return [pool.submit(copy_context().run, dispatch, app).result() for _ in range(2)]

    app.add_url_rule("/batch", "batch", batch, methods=["POST"])
    answer = ask(app, path="/batch")

    assert [200, 429] == answer.get_json()
    assert "1" == answer.headers["X-RateLimit-Remaining"]


@pytest.mark.parametrize("is_early", [False, True], ids=["method of the mixin", "taken before init_app"])
def test_each_token_of_a_request_is_decided(is_early: bool) -> None:
    app = make_app(**SETTINGS)
    server = make_server(app)
    create = server.create_token_response
    OAuthRateLimit(app, server, clock=Clock())
    if not is_early:
        create = server.create_token_response
    app.view_functions["token"] = lambda: [create().status_code for _ in range(4)]
    answer = ask(app)
    app_limiter_of(app).close()

    assert [200, 200, 429, 429] == answer.get_json()
    assert [] == answer.headers.getlist("X-RateLimit-Remaining"), "the last decision was a denial, with its own headers"


def test_endpoint_and_token_of_a_request_are_decided_apart() -> None:
    """A view with a limit of its own may issue tokens."""
    settings = config(limit=2, endpoints={"view": {"path": ["/token"], "limits": {"client": ["3/minute"]}}})
    with protected_app(OAUTH_RATELIMIT_CONFIG=settings) as app:
        issue = app.view_functions["token"]

        def view() -> Any:
            for _ in range(2):  # once in each request
                OAuthRateLimit.limit(CLIENT.client_id)
            return issue()

        app.view_functions["token"] = view
        denied = [ask(app) for _ in range(4)][2:]
    assert [429, 429] == [answer.status_code for answer in denied]
    assert [["2"], ["3"]] == [answer.headers.getlist("X-RateLimit-Limit") for answer in denied]


@pytest.mark.parametrize(
    "ask_for", [lambda server: server.create_token_response(), authorize], ids=["token", "authorization"]
)
def test_endpoint_is_limited_after_another_answer_of_the_same_request(ask_for: Callable[[Any], Response]) -> None:
    settings = config(limit=9, endpoints={"view": {"path": ["/token"], "limits": {"client": ["1/minute"]}}})
    with protected_app(OAUTH_RATELIMIT_CONFIG=settings) as app:

        def view() -> Response:
            answer = ask_for(server_of(app))
            OAuthRateLimit.limit(CLIENT.client_id)
            return answer

        app.view_functions["token"] = view
        assert [200, 429] == statuses(lambda: ask(app), 2)


@pytest.mark.parametrize("ask_for", [ask, dispatch], ids=["through the middleware", "past it"])
def test_grant_that_asks_for_another_token_is_limited_for_its_own(app: Flask, ask_for: Callable[[Flask], Any]) -> None:
    def issue(grant: CustomGrant) -> Any:
        ask_for(app)
        return grant.generate_token()

    assert [200, 429, 429] == custom_statuses(app, issue)


@pytest.mark.parametrize(
    ("is_protected", "expected"),
    [(True, [[200, 200], [200, 429], [429, 429]]), (False, [[200, 200], [200, 200], [429, 200]])],
)
def test_nested_application_is_limited_by_its_own(app: Flask, is_protected: bool, expected: list[list[int]]) -> None:
    """It is called with the environment of the outer one, which has its decision already."""
    inner = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1))
    server = make_server(inner, type("Server", (RateLimitMixin, AuthorizationServer), {}))
    if is_protected:
        OAuthRateLimit(inner, server, clock=Clock())
    issue = app.view_functions["token"]

    def view() -> Any:
        body = io.BytesIO(request.get_data())
        outer = issue().status_code
        request.environ["wsgi.input"] = body
        return [outer, Response.from_app(inner.wsgi_app, request.environ).status_code]

    app.view_functions["token"] = view
    answers = [ask(app).get_json() for _ in range(3)]
    if is_protected:
        app_limiter_of(inner).close()

    assert expected == answers


def generate_and_save_two(grant: CustomGrant) -> Any:
    for token in (grant.generate_token(), grant.generate_token()):
        grant.save_token(token)
    return token


def save_only(grant: CustomGrant) -> Any:
    grant.request.user = USER
    grant.save_token(TOKEN)
    return TOKEN


def catch_the_denial(grant: CustomGrant) -> Any:
    try:
        token = grant.generate_token()
    except OAuth2Error:
        token = TOKEN
    grant.save_token(token)
    return token


@pytest.mark.parametrize(
    ("issue", "username"), [(generate_and_save_two, None), (save_only, USER.username), (catch_the_denial, None)]
)
def test_request_of_an_unusual_grant_is_decided_once(
    app: Flask, issue: Callable[[CustomGrant], Any], username: str | None
) -> None:
    """Before its token is saved, and for the user of the request."""
    assert [200, 200, 429] == custom_statuses(app, issue)
    assert (0, 2) == (remaining(app, username), remaining(app, "alice" if username is None else None))


def save_without_a_client(grant: CustomGrant) -> Any:
    grant.request.client = None
    grant.save_token(TOKEN)
    return TOKEN


@pytest.mark.parametrize(("issue", "client_id"), [(lambda _: TOKEN, CLIENT.client_id), (save_without_a_client, None)])
def test_token_that_bypasses_the_server_is_logged(
    app: Flask, issue: Callable[[CustomGrant], Any], client_id: str | None
) -> None:
    """It cannot be stopped. The log has one entry per interval, with grant and client."""
    with capture_logs() as logs:
        assert [200, 200, 200] == custom_statuses(app, issue)

    [entry] = [entry for entry in logs if entry["event"] == "token_without_decision"]
    assert ("custom", client_id) == (entry["grant_type"], entry["client_id"])


@pytest.mark.parametrize("path", ["/token", "/early"])
@pytest.mark.parametrize("is_denied", [True, False], ids=["after a denial", "after an exception"])
def test_token_generated_outside_of_the_token_endpoint_is_not_limited(path: str, is_denied: bool) -> None:
    """An application may generate tokens in its own code, with a request or without, in any thread.

    No state of an earlier request is left, not even of one that an exception ended, or in a copy of its context.
    """
    copies: list[Context] = []

    def issue(grant: CustomGrant) -> Any:
        copies.append(copy_context())
        if not is_denied:
            raise ZeroDivisionError
        return grant.generate_token()

    app = make_app(**SETTINGS)
    server = make_server(app, AuthorizationServer, type("TheGrant", (CustomGrant,), {"issue": issue}))
    app.add_url_rule("/early", view_func=server.create_token_response, endpoint="early", methods=["POST"])
    OAuthRateLimit(app, server, clock=Clock())
    app.testing = True  # lets exceptions pass
    for _ in range(3):
        with nullcontext() if is_denied else pytest.raises(ZeroDivisionError):
            ask(app, "custom", path=path)
    left = remaining(app)

    def generate() -> None:
        for _ in range(3):
            assert server.generate_token("client_credentials", CLIENT)["access_token"]
        server.save_token({}, None)

    for context in (nullcontext(), app.app_context(), app.test_request_context("/elsewhere")):
        with context:
            generate()
    for copied in copies:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copied.run, generate).result()
    assert (0 if is_denied else 2) == left == remaining(app)
    app_limiter_of(app).close()


def test_denial_is_redirected_as_the_request_of_the_grant_says(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been read from a signed object (RFC 9101), and not from the HTTP request."""
    monkeypatch.setattr(type(CLIENT), "check_redirect_uri", lambda *_: True)
    app.view_functions["token"] = lambda: authorize(server_of(app))
    location = [ask(app) for _ in range(3)][-1].headers["Location"]
    assert location.startswith("http://localhost/own#error=temporarily_unavailable")
    assert "state=own-state" in location


# How the server is built.


@pytest.mark.parametrize("is_passed", [True, False], ids=["passed", "with the mixin"])
def test_second_server_of_an_application_is_limited(is_passed: bool) -> None:
    app = make_app(**SETTINGS)
    servers = [make_server(app)]
    inner = make_app()
    second = make_server(
        inner, AuthorizationServer if is_passed else type("S", (RateLimitMixin, AuthorizationServer), {})
    )
    app.add_url_rule("/second", "second", lambda: second.create_token_response(), methods=["POST"])
    OAuthRateLimit(app, [*servers, second] if is_passed else servers, clock=Clock())

    assert [200, 200, 429] == [ask(app, path=path).status_code for path in ("/token", "/second", "/second")]
    app_limiter_of(app).close()


def test_own_generate_token_gets_the_arguments_of_its_caller() -> None:
    given = []

    class Server(AuthorizationServer):  # type: ignore[misc]
        def generate_token(
            self, grant_type: str, client: Any, user: Any = None, scope: Any = "all", **more: Any
        ) -> Any:
            given.append((scope, more))
            return {"access_token": "mine"}

    with protected_app(**SETTINGS, server_class=Server) as app:
        assert [200, 200, 429] == custom_statuses(
            app, lambda grant: grant.server.generate_token("custom", CLIENT, audience="api")
        )

    assert [("all", {"audience": "api"})] * 2 == given
