"""Methods of a server, wherever they are defined and however they are called: limited, and called as without limits."""

from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial, wraps
from typing import Any
from unittest.mock import Mock

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientAuthentication
from authlib.oauth2.rfc6749.grants import BaseGrant, TokenEndpointMixin
from flask import Flask, current_app
from flask_limiter import Limiter
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from werkzeug.local import LocalProxy

from oauth_ratelimit import OAuthRateLimit, RateLimitMixin
from testbed.clock import Clock
from tests.support.apps import CLIENT, PasswordGrant, app_limiter_of, ask, make_app, make_server
from tests.support.helpers import statuses
from tests.support.sites import config

USER = PasswordGrant.user
TOKEN = {"access_token": "mine", "token_type": "Bearer", "expires_in": 60}
METHODS = (
    *("create_token_response", "get_token_grant", "generate_token", "save_token"),
    *("authenticate_client", "query_client", "handle_error_response"),
)
GUARD = {"mode": "enforce", "limits": {"client": [{"limit": 3, "window": 60}]}}
SETTINGS = {"OAUTH_RATELIMIT_CONFIG": config(limit=2, guard=GUARD)}

Place = Callable[[Any, str], None]


class UserGrant(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A grant with a user, whose server generates its token with arguments of its own."""

    GRANT_TYPE = "custom"
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = (("custom", CLIENT, USER), {})

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        self.request.user = USER

    def create_token_response(self) -> tuple[int, Any, Any]:
        args, kwargs = self.arguments
        token = self.server.generate_token(*args, **kwargs)
        self.save_token(token)
        return 200, token, self.TOKEN_RESPONSE_HEADER


def add_user_grant(server: Any, *args: Any, **kwargs: Any) -> None:
    server.register_grant(type("TheGrant", (UserGrant,), {"arguments": (args, kwargs)}))


def remaining(app: Flask, username: str | None) -> int:
    return app_limiter_of(app).limiter.peek(CLIENT.client_id, username).remaining


def wrapped(method: Any) -> Any:
    return wraps(method)(lambda *args, **kwargs: method(*args, **kwargs))


# Where a method of the object comes from.


def set_and_delete(server: Any, name: str) -> None:
    setattr(server, name, None)
    delattr(server, name)


def overriding(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(super(OVERRIDING, self), name)(*args, **kwargs)


OVERRIDING = type("Overriding", (RateLimitMixin, AuthorizationServer), {name: overriding(name) for name in METHODS})

PLACES: dict[str, Place] = {
    "as it is": lambda server, name: None,
    "a function": lambda server, name: setattr(server, name, wrapped(getattr(server, name))),
    "a partial": lambda server, name: setattr(server, name, partial(getattr(server, name))),
    "without a signature": lambda server, name: setattr(
        server, name, (lambda method: lambda *args, **kwargs: method(*args, **kwargs))(getattr(server, name))
    ),
    "put back": lambda server, name: setattr(server, name, getattr(server, name)),
    "set and deleted": set_and_delete,
}
BASES = {
    "Authlib's": AuthorizationServer,
    "with the mixin": type("Mixed", (RateLimitMixin, AuthorizationServer), {}),
    "overriding the mixin's": OVERRIDING,
}

steps = st.dictionaries(st.sampled_from(METHODS), st.sampled_from(sorted(PLACES)))


@given(base=st.sampled_from(sorted(BASES)), before=steps, after=st.lists(steps, max_size=2), is_kept=st.booleans())
def test_each_token_is_counted_once_wherever_the_methods_are_set(
    base: str, before: dict[str, str], after: list[dict[str, str]], is_kept: bool
) -> None:
    """Also where Authlib has kept the look-up of clients already, and for wrong secrets."""
    app = make_app(**SETTINGS)
    server = make_server(app, BASES[base])
    add_user_grant(server, "custom", CLIENT, user=USER)
    if is_kept:
        server.register_client_auth_method("own", lambda *_: None)
    for name, place in before.items():
        PLACES[place](server, name)
    OAuthRateLimit(app, server, clock=Clock())
    for step in after:
        for name, place in step.items():
            PLACES[place](server, name)
    with capture_logs() as logs:
        assert [200, 200, 429] == statuses(lambda: ask(app), 3)
        assert [200, 200, 429] == statuses(lambda: ask(app, "custom"), 3)
        assert (0, 0) == (remaining(app, None), remaining(app, USER.username))
        guesses = [_guess(app) for _ in range(5)]
    app_limiter_of(app).close()

    assert [401, 401, 401, 429, 429] == guesses
    assert not [entry for entry in logs if entry["log_level"] == "error"]


def _guess(app: Flask) -> int:
    auth = (CLIENT.client_id, "wrong")
    return app.test_client().post("/token", data={"grant_type": "client_credentials"}, auth=auth).status_code


# The arguments of generate_token.


def in_authlibs_order(grant_type: Any, client: Any, user: Any = None, scope: Any = None, **more: Any) -> Any: ...
def in_another_order(client: Any, grant_type: Any, user: Any = None, **more: Any) -> Any: ...
def with_other_names(kind: Any, holder: Any, who: Any = None, extent: Any = None) -> Any: ...
def with_the_user_last(kind: Any, holder: Any, extent: Any, who: Any) -> Any: ...
def with_all_by_keyword(*, client: Any, grant_type: Any, user: Any = None) -> Any: ...
def with_any(*args: Any, **kwargs: Any) -> Any: ...
def with_options_first(options: Any, /, client: Any, user: Any, grant_type: Any = "custom") -> Any: ...
def without_the_user(grant_type: Any, client: Any, scope: Any = None) -> Any: ...
def with_the_user_among_others(client: Any, grant_type: Any, **others: Any) -> Any: ...
def of_its_own(request: Any) -> Any: ...


Call = tuple[tuple[Any, ...], dict[str, Any]]
CALLS: list[tuple[Callable[..., Any], Call, str]] = [  # the signature, a call, and the method that decides
    (in_authlibs_order, (("custom", CLIENT, USER), {}), "generate_token"),
    (in_authlibs_order, ((), {"client": CLIENT, "grant_type": "custom", "user": USER, "nonce": 1}), "generate_token"),
    (in_another_order, ((CLIENT, "custom", USER), {}), "generate_token"),
    (in_another_order, ((CLIENT,), {"user": USER, "grant_type": "custom", "include": False}), "generate_token"),
    (with_other_names, (("custom", CLIENT, USER, "all"), {}), "generate_token"),
    (with_other_names, (("custom",), {"who": USER, "holder": CLIENT}), "save_token"),
    (with_all_by_keyword, ((), {"user": USER, "client": CLIENT, "grant_type": "custom"}), "generate_token"),
    (with_any, (("custom", CLIENT, USER, "all"), {"nonce": 2}), "generate_token"),
    (with_any, ((CLIENT, "custom", USER), {}), "save_token"),
    (with_any, (("custom", CLIENT, "all", USER), {}), "save_token"),
    (with_the_user_last, (("custom", CLIENT, "all", USER), {}), "save_token"),
    (with_options_first, (({}, CLIENT, USER), {"grant_type": "custom"}), "generate_token"),
    (with_options_first, (({}, CLIENT, USER), {}), "save_token"),
    (without_the_user, (("custom", CLIENT), {"scope": "all"}), "save_token"),
    (with_the_user_among_others, ((CLIENT, "custom"), {"user": USER, "scope": "all"}), "generate_token"),
    (with_the_user_among_others, ((CLIENT, "custom"), {"scope": "all"}), "save_token"),  # it may find the user itself
    (of_its_own, ((object(),), {}), "save_token"),
]


def recording(signature: Callable[..., Any], given: list[Call], *, is_method: bool) -> Any:
    """Return a function of this signature that keeps the arguments that it got."""

    @wraps(signature)
    def generate(*args: Any, **kwargs: Any) -> Any:
        signature(*args, **kwargs)  # they must fit
        given.append((args, kwargs))
        return TOKEN

    if not is_method:
        return generate

    class Server(AuthorizationServer):  # type: ignore[misc]
        generate_token = staticmethod(generate)

    return Server


@pytest.mark.parametrize("where", ["in the class", "on the object", "later"])
@pytest.mark.parametrize(("signature", "call", "decides"), CALLS)
def test_arguments_pass_as_they_came_and_their_user_is_counted(
    signature: Callable[..., Any], call: Call, decides: str, where: str
) -> None:
    """Where ``generate_token`` does not show the user, ``save_token`` decides, and the token is not given out."""
    given: list[Call] = []
    generate = recording(signature, given, is_method=where == "in the class")
    app = make_app(**SETTINGS)
    server = make_server(app, generate if where == "in the class" else AuthorizationServer)
    if where == "on the object":
        server.generate_token = generate
    add_user_grant(server, *call[0], **call[1])
    with capture_logs() as logs:
        OAuthRateLimit(app, server, clock=Clock())
        if where == "later":
            server.generate_token = generate
        assert [200, 200, 429] == statuses(lambda: ask(app, "custom"), 3)
    left = remaining(app, USER.username), remaining(app, None)
    app_limiter_of(app).close()

    assert [call] * (2 if decides == "generate_token" else 3) == given
    assert (0, 2) == left
    assert not [entry for entry in logs if entry["log_level"] == "error"]


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_method_of_the_object_that_calls_no_other_is_limited(base: Any) -> None:
    app = make_app(**SETTINGS)
    server = make_server(app, base)
    server.generate_token = lambda *_, **__: TOKEN
    server.save_token = lambda *_: None
    OAuthRateLimit(app, server, clock=Clock())
    assert [200, 200, 429] == statuses(lambda: ask(app), 3)
    app_limiter_of(app).close()


def test_start_says_which_method_decides() -> None:
    app = make_app(**SETTINGS)
    server, second, third = make_server(app), AuthorizationServer(app), AuthorizationServer(app)
    second.generate_token = without_the_user
    third.generate_token = with_the_user_among_others
    with capture_logs() as logs:
        OAuthRateLimit(app, [server, second, third], clock=Clock())
        assert 200 == ask(app).status_code
    app_limiter_of(app).close()

    [started] = [entry for entry in logs if entry["event"] == "ratelimit_started"]
    assert ["generate_token", "save_token", "generate_token"] == [text.split(": ")[1] for text in started["servers"]]


# What Flask, tests and applications do with a method.


def test_method_is_one_view_for_two_paths() -> None:
    """Flask refuses another function under the same name."""
    app = make_app(**SETTINGS)
    server = AuthorizationServer(app, lambda _: CLIENT, lambda *_: None)
    app.add_url_rule("/before", view_func=server.create_token_response, methods=["POST"])
    OAuthRateLimit(app, server, clock=Clock())
    app.add_url_rule("/after", view_func=server.create_token_response, methods=["POST"])
    assert {"create_token_response"} < {*app.view_functions}
    app_limiter_of(app).close()


def test_method_has_the_attributes_of_what_was_set() -> None:
    app = make_app(**SETTINGS)
    server = make_server(app)
    server.query_client = lru_cache(server.query_client)
    OAuthRateLimit(app, server, clock=Clock())
    server.save_token = Mock()
    server.save_token.return_value = 1
    assert [200, 200, 429] == statuses(lambda: ask(app), 3)
    app_limiter_of(app).close()

    assert 1 == server.query_client.cache_info().misses
    assert 2 == server.save_token.call_count
    assert 1 == copy(server.save_token)()


def test_other_extensions_know_a_view_by_its_names() -> None:
    """Flask-Limiter finds the limits of a view by its module and qualified name."""
    app = make_app(**SETTINGS)
    server = make_server(app)
    limiter = Limiter(lambda: "all", app=app, storage_uri="memory://", default_limits=["1/minute"])
    limiter.exempt(server.create_token_response)
    OAuthRateLimit(app, server, clock=Clock())
    app.view_functions["token"] = server.create_token_response
    assert [200, 200, 429] == statuses(lambda: ask(app), 3)
    app_limiter_of(app).close()


def test_method_that_tests_replace_and_put_back_stays_as_it_was() -> None:
    app = make_app(**SETTINGS)
    server = make_server(app)
    OAuthRateLimit(app, server, clock=Clock())
    for _ in range(2000):  # else each adds a call
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "generate_token", None)
    assert [200, 200, 429] == statuses(lambda: ask(app), 3)
    app_limiter_of(app).close()


def test_server_behind_a_proxy_is_limited() -> None:
    app = make_app(**SETTINGS)
    make_server(app)
    OAuthRateLimit(app, LocalProxy(lambda: current_app.extensions["authorization_server"]), clock=Clock())
    assert [200, 200, 429] == statuses(lambda: ask(app), 3)
    app_limiter_of(app).close()


def test_server_whose_class_forbids_hooks_starts_and_is_named() -> None:
    class Closed(AuthorizationServer):  # type: ignore[misc]
        def __init_subclass__(cls) -> None:
            raise TypeError("final")

    app = make_app(**SETTINGS)
    with capture_logs() as logs:
        OAuthRateLimit(app, make_server(app, Closed), clock=Clock())
        assert [200] * 3 == statuses(lambda: ask(app), 3)
        app_limiter_of(app).limiter  # noqa: B018  # starts the worker, which reports
    app_limiter_of(app).close()

    [entry] = [entry for entry in logs if entry["event"] == "server_unlimited"]
    assert entry["server"].endswith("Closed")


def test_look_up_that_an_application_gives_authlib_is_guarded() -> None:
    app = make_app(**SETTINGS)
    server = make_server(app)
    server._client_auth = ClientAuthentication(lambda client_id: server.query_client(client_id))
    OAuthRateLimit(app, server, clock=Clock())
    assert [401, 401, 401, 429] == [_guess(app) for _ in range(4)]
    app_limiter_of(app).close()


class AskingTwice(ClientAuthentication):  # type: ignore[misc]
    """Fence's way: whoever can authenticate has to do it again, without the method that checks nothing."""

    def authenticate(self, request: Any, methods: Any, endpoint: str) -> Any:
        super().authenticate(request, methods, endpoint)
        return super().authenticate(request, [name for name in methods if name != "none"], endpoint)


@pytest.mark.parametrize("place", ["authenticate_client", "_client_auth"])
def test_secret_is_one_guess_though_an_object_of_the_application_checks_it_twice(place: str) -> None:
    app = make_app(**SETTINGS)
    server = make_server(app)
    setattr(server, place, AskingTwice(server.query_client))
    with capture_logs() as logs:
        OAuthRateLimit(app, server, clock=Clock())
        found = [_guess(app), _guess(app), ask(app).status_code, _guess(app), _guess(app)]
    app_limiter_of(app).close()

    assert [401, 401, 200, 401, 429] == found
    assert "guard_sees_no_check" not in [entry["event"] for entry in logs]
