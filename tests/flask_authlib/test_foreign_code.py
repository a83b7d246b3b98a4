"""Foreign code and data that raise, hang or make no sense: tokens are issued. docs/security.md lists the places."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import structlog
from authlib.integrations.flask_oauth2 import token_authenticated
from flask import Flask
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from oauth_ratelimit.flask_authlib import tracing
from oauth_ratelimit.observe import observer
from oauth_ratelimit.observe.metrics import Metrics
from testbed.clock import wait_until
from tests.support.apps import CLIENT, PasswordGrant, ask, protected_app
from tests.support.helpers import statuses
from tests.support.sites import config

ENDPOINTS = {"view": {"path": ["/view"], "limits": {"client": ["9/minute"], "user": ["9/minute"]}}}
SETTINGS = {"OAUTH_RATELIMIT_CONFIG": config(limit=3, endpoints=ENDPOINTS)}

Foreign = Callable[..., Any]
Patch = pytest.MonkeyPatch


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")


ANSWERS = {
    "raises": RuntimeError("foreign"),
    "raises the unprintable": Unprintable(),
    "returns None": None,
    "returns a number": 7,
    "returns bytes": b"\xff",
    "returns an object": object(),
}


def in_options(name: str) -> Callable[[Foreign, Patch], dict[str, Any]]:
    return lambda foreign, _: {"options": {name: foreign}}


def in_place_of(owner: Any, name: str) -> Callable[[Foreign, Patch], dict[str, Any]]:
    def put(foreign: Foreign, patch: Patch) -> dict[str, Any]:
        patch.setattr(owner, name, foreign)
        return {}

    return put


def as_user(foreign: Foreign, patch: Patch) -> dict[str, Any]:
    patch.setattr(PasswordGrant, "user", SimpleNamespace(get_user_id=foreign))
    return {}


def as_processor(foreign: Foreign, _: Patch) -> dict[str, Any]:
    structlog.configure(processors=[foreign])
    return {}


# Where it enters, and whether the limit is enforced all the same.
PLACES: dict[str, tuple[Callable[[Foreign, Patch], dict[str, Any]], bool]] = {
    "client_id_of": (in_options("client_id_of"), False),
    "username_of": (in_options("username_of"), False),
    "caller_of": (in_options("caller_of"), True),
    "on_denied": (in_options("on_denied"), True),
    "on_near_limit": (in_options("on_near_limit"), True),
    "user.get_user_id": (as_user, False),
    "client.get_client_id": (in_place_of(type(CLIENT), "get_client_id"), False),
    "metrics": (in_place_of(Metrics, "record_decisions"), True),
    "tracing": (in_place_of(observer.trace, "get_current_span"), True),
    "structlog's context": (in_place_of(tracing, "bound_values"), True),
    "structlog's processors": (as_processor, True),
}


@pytest.fixture(autouse=True)
def structlog_restored() -> Iterator[None]:
    former = structlog.get_config()
    yield
    structlog.configure(**former)


def token_status(app: Flask, username: str = "alice") -> int:
    return ask(app, "password", username=username, password="x").status_code


def add_view(app: Flask) -> None:
    def view() -> str:
        token_authenticated.send("protector", token={"client_id": CLIENT.client_id, "sub": "alice"})
        return "seen"

    app.add_url_rule("/view", "view", view, methods=["POST"])


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("place", PLACES)
def test_tokens_are_issued_whatever_foreign_code_does(place: str, answer: Any, monkeypatch: Patch) -> None:
    called = []

    def foreign(*_args: Any, **_facts: Any) -> Any:
        called.append(place)
        if isinstance(answer, Exception):
            raise answer
        return answer

    put, holds = PLACES[place]
    with protected_app(**SETTINGS, grants=[PasswordGrant], **put(foreign, monkeypatch)) as app:
        add_view(app)
        answers = [token_status(app) for _ in range(4)]
        assert 200 == ask(app, path="/view").status_code
        app.extensions["oauth_ratelimit"].update_metrics()

    assert called
    assert [200, 200, 200] == answers[:3]
    assert answers[3] == 429 if holds else answers[3] in (200, 429)


@pytest.mark.parametrize("source", ["username_of", "caller_of"])
def test_request_of_nobody_is_counted_nowhere_and_named(source: str) -> None:
    """Under the client alone, all its users would share one limit."""
    nobody = Mock(side_effect=LookupError("no such table"))
    settings = {"OAUTH_RATELIMIT_CONFIG": config(limit=1, endpoints={"view": {**ENDPOINTS["view"]}})}
    with capture_logs() as logs, protected_app(**settings, grants=[PasswordGrant], options={source: nobody}) as app:
        add_view(app)
        form = {"path": "/view"} if source == "caller_of" else {"username": "a", "password": "x"}
        assert [200] * 12 == statuses(lambda: ask(app, "password", **form), 12)
        assert 1 == app.extensions["oauth_ratelimit"].limiter.peek(CLIENT.client_id).remaining

    [entry] = [entry for entry in logs if entry["event"] == "caller_unknown"]
    assert (source, "error") == (entry["source"], entry["log_level"])
    assert "no such table" in entry["traceback"]
    assert "username_of=..." in entry["hint"]


@pytest.mark.parametrize("place", [place for place in PLACES if place != "client.get_client_id"])
def test_request_that_hangs_in_foreign_code_holds_no_other(place: str, monkeypatch: Patch) -> None:
    """It runs in the thread of its request, and no lock is held meanwhile."""
    begun, ends = threading.Event(), threading.Event()
    main = threading.current_thread()

    def foreign(*args: Any, **_facts: Any) -> Any:
        is_first = threading.current_thread() is not main
        if is_first:
            begun.set()
            assert ends.wait(60)
        name = "alice" if is_first else "bob"
        return args[-1] if "processors" in place else {} if "context" in place else name

    put, _ = PLACES[place]
    with (
        protected_app(**SETTINGS, grants=[PasswordGrant], **put(foreign, monkeypatch)) as app,
        ThreadPoolExecutor(1) as pool,
    ):
        add_view(app)

        def hang() -> list[int]:
            found = [token_status(app) for _ in range(4)]
            ask(app, path="/view")
            app.extensions["oauth_ratelimit"].update_metrics()
            return found

        try:
            first = pool.submit(hang)
            wait_until(begun.is_set, "the first request hangs")
            monkeypatch.setattr(PasswordGrant, "user", SimpleNamespace(username="bob"))
            assert 200 == ask(app).status_code
            assert 200 == token_status(app, "bob")
        finally:
            ends.set()
        assert [200, 200, 200] == first.result(60)[:3]


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.lists(st.none()),
    st.dictionaries(st.text(), st.none()),
    st.builds(object),
)


@settings(max_examples=60, deadline=None)
@given(username=NONSENSE, client_id=NONSENSE, caller=NONSENSE, lifetime=NONSENSE)
def test_nonsense_keeps_no_token_back(username: Any, client_id: Any, caller: Any, lifetime: Any) -> None:
    options = {"username_of": lambda _: username, "caller_of": lambda _: caller}
    with (
        pytest.MonkeyPatch.context() as patch,
        capture_logs(),
        protected_app(**SETTINGS, grants=[PasswordGrant], options=options) as app,
    ):
        patch.setattr(type(CLIENT), "get_client_id", lambda _: client_id)
        app.config["OAUTH2_TOKEN_EXPIRES_IN"] = {"password": lifetime}
        add_view(app)
        assert 200 == token_status(app)
        assert 200 == ask(app, path="/view").status_code
