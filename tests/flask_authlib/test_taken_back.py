"""Requests that the server failed to answer: they do not count, as many as the limit in each window."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749.errors import InvalidRequestError
from flask import Flask, Response, abort
from werkzeug.test import create_environ

import oauth_ratelimit.limiter
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.blueprints import metrics_blueprint
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.flask_authlib.request_state import ResponseState
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.testing import FrozenClock, FrozenRateLimit
from testbed.memory_store import MemoryStore
from tests.support.apps import CLIENT, app_limiter_of, ask, make_app, make_server
from tests.support.limiters import in_flight_hits, stored_hits
from tests.support.sites import WINDOW_S, config

LIMIT = 3
KEY = Key(CLIENT.client_id, None)
VIEW_KEY = Key(CLIENT.client_id, None, "view")
ENDPOINTS = {"view": {"limits": {"client": [{"limit": LIMIT, "window": WINDOW_S}]}}}


@dataclass
class Site:
    """An application whose parts fail when a test wants them to. Its counters are shared through ``store``."""

    store: MemoryStore
    app: Flask
    clock: FrozenClock = field(default_factory=FrozenClock)
    extension: FrozenRateLimit = field(init=False)
    save: Callable[[], object] = str  # what saving a token does besides
    view: Callable[[Any], Any] = lambda response: response  # what the token endpoint makes of the server's answer
    other: Callable[[], Any] = str  # the answer of another endpoint with limits

    def protect(self, configuration: dict[str, Any]) -> "Site":
        class Server(AuthorizationServer):  # type: ignore[misc]  # untyped
            def save_token(_, token: Any, request: Any) -> None:
                self.save()

        def view() -> Any:
            OAuthRateLimit.limit(CLIENT.client_id)
            return self.other()

        self.app.config["OAUTH_RATELIMIT_CONFIG"] = configuration
        self.app.add_url_rule("/view", "view", view)
        server = make_server(self.app, Server)
        self.app.view_functions["token"] = lambda: self.view(server.create_token_response())
        self.extension = FrozenRateLimit(self.clock)
        self.extension.init_app(self.app, server)
        return self

    @property
    def limiter(self) -> Limiter:
        return app_limiter_of(self.app).limiter

    def statuses(self, count: int) -> list[int]:
        return [ask(self.app).status_code for _ in range(count)]

    def other_statuses(self, count: int) -> list[int]:
        return [self.app.test_client().get("/view").status_code for _ in range(count)]

    def stored(self, key: Key = KEY) -> int:
        """Return the hits in the store after a sync."""
        self.limiter.sync()
        return stored_hits(self.store, key)


Open = Callable[..., Site]


@pytest.fixture
def open_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    store, opened = MemoryStore(), []
    monkeypatch.setattr(oauth_ratelimit.limiter, "open_counters", lambda _: store)

    def open_one(app: Flask | None = None, **settings: Any) -> Site:
        opened.append(Site(store, app or make_app()).protect(config(limit=LIMIT, endpoints=ENDPOINTS) | settings))
        return opened[-1]

    yield open_one
    for site in opened:
        site.extension.close()


@pytest.fixture
def site(open_site: Open) -> Site:
    return open_site()


def fail(*_: Any) -> Any:
    raise RuntimeError("the database is down")


def refuse() -> None:
    raise InvalidRequestError("no token for you")


def answer(response: Any) -> Any:
    return response


def unavailable(_: Any) -> Any:
    return "try again later", 503


def test_client_keeps_its_quota_while_no_token_can_be_saved(site: Site) -> None:
    site.save = fail
    assert [500] * LIMIT == site.statuses(LIMIT)
    site.save = str
    assert [200] * LIMIT + [429] == site.statuses(LIMIT + 1)
    assert LIMIT == site.stored()


def test_request_whose_error_leaves_the_application_does_not_count(site: Site) -> None:
    """A server in debug mode answers it, for one."""
    site.app.testing, site.save = True, fail
    for _ in range(LIMIT):
        with pytest.raises(RuntimeError, match="database is down"):
            ask(site.app)
    site.save = str
    assert [200] * LIMIT + [429] == site.statuses(LIMIT + 1)


def test_no_more_requests_than_the_limit_are_taken_back_in_a_window(site: Site) -> None:
    """Else who can cause errors would have any number of attempts."""
    site.save = fail
    assert [500] * 2 * LIMIT + [429] * 2 == site.statuses(2 * LIMIT + 2)
    assert LIMIT == site.stored()
    site.clock.advance(3 * WINDOW_S)
    assert [500] * 2 * LIMIT + [429] == site.statuses(2 * LIMIT + 1)


@pytest.mark.parametrize("view", [fail, unavailable], ids=["exception", "status"])
def test_error_after_the_token_was_saved_counts(site: Site, view: Callable[[Any], Any]) -> None:
    site.view = view
    assert {500, 503} > set(site.statuses(LIMIT))
    site.view = answer
    assert [429] == site.statuses(1)
    assert LIMIT == site.stored()


def test_oauth_error_of_the_application_counts(site: Site) -> None:
    site.save = refuse
    assert [400] * LIMIT + [429] == site.statuses(LIMIT + 1)
    assert LIMIT == site.stored()


def test_error_of_the_server_at_another_endpoint_does_not_count(site: Site) -> None:
    site.other = fail
    assert [500] * LIMIT == site.other_statuses(LIMIT)
    site.other = lambda: ("", 502)
    assert [502] * LIMIT + [429] == site.other_statuses(LIMIT + 1)  # the quota that is left after ``LIMIT`` errors
    assert LIMIT == site.stored(VIEW_KEY)


def test_error_of_the_client_at_another_endpoint_counts(site: Site) -> None:
    site.other = lambda: abort(404)
    assert [404] * LIMIT + [429] == site.other_statuses(LIMIT + 1)
    assert LIMIT == site.stored(VIEW_KEY)


@pytest.mark.parametrize("is_failed", [False, True], ids=["answered", "failed"])
@pytest.mark.parametrize("syncs", [False, True], ids=["no sync", "sync before the response"])
@pytest.mark.parametrize("mode", ["enforce", "dry-run"])
def test_only_a_request_that_was_answered_is_ever_stored(
    open_site: Open, mode: str, syncs: bool, is_failed: bool
) -> None:
    """A sync between decision and response sends nothing of it."""
    site = open_site(mode=mode)
    seen: list[int] = []

    def save() -> None:
        if syncs:
            site.limiter.sync()
        seen.extend([stored_hits(site.store, KEY), in_flight_hits(site.limiter, KEY)])
        if is_failed:
            fail()

    site.save = save
    assert [500 if is_failed else 200] == site.statuses(1)
    assert [0, 0] == seen
    count = 0 if is_failed else 1
    assert [count] * 3 == [site.stored() for _ in range(3)]
    assert LIMIT - count == site.limiter.peek(CLIENT.client_id).remaining


def test_dry_run_takes_requests_back_as_enforce_does(open_site: Open) -> None:
    site = open_site(mode="dry-run")
    site.save = fail
    assert [500] * LIMIT == site.statuses(LIMIT)
    assert LIMIT == site.limiter.peek(CLIENT.client_id).remaining
    assert [500] * (LIMIT + 1) == site.statuses(LIMIT + 1)
    assert LIMIT == site.stored()
    assert 0 == site.limiter.peek(CLIENT.client_id).remaining


@pytest.mark.parametrize("mode", ["enforce", "dry-run"])
def test_request_over_a_limit_is_not_taken_back(open_site: Open, mode: str) -> None:
    """Not where denied requests count, and not where a dry run would deny it."""
    limits = {"client": [{"limit": LIMIT, "window": WINDOW_S, "count_denied": True}]}
    site = open_site(mode=mode, limits=limits)
    site.statuses(LIMIT)
    site.save, site.view = fail, fail
    assert {500} == set(site.statuses(2))
    assert LIMIT + 2 == site.stored()


def test_request_that_only_a_dry_run_would_deny_counts_in_the_enforced_limit(open_site: Open) -> None:
    trial = {"limit": 1, "window": WINDOW_S, "mode": "dry-run", "name": "trial"}
    site = open_site(limits={"client": [{"limit": 10, "window": WINDOW_S}, trial]})
    site.statuses(1)
    site.save = fail
    site.statuses(2)
    site.limiter.sync()
    assert 3 == stored_hits(site.store, KEY, series=Series(WINDOW_S // 10))


def test_what_is_taken_back_is_logged_and_counted(own_metrics: None, events: list[Any], site: Site) -> None:
    site.app.register_blueprint(metrics_blueprint())
    site.save = fail
    site.statuses(2 * LIMIT)
    logged = [event for event in events if event["event"] == "request_taken_back"]
    assert [("warning", CLIENT.client_id)] == [(event["log_level"], event["client_id"]) for event in logged]
    page = site.app.test_client().get("/metrics").get_data(as_text=True)
    assert f"oauth_ratelimit_requests_taken_back_total {LIMIT}.0" in page.splitlines()


def test_stream_counts_before_its_first_byte_also_if_it_breaks(site: Site) -> None:
    seen: list[int] = []

    def stream() -> Iterator[bytes]:
        seen.append(in_flight_hits(site.limiter, VIEW_KEY))
        yield b"some data"
        fail()

    site.other = lambda: Response(stream())
    with pytest.raises(RuntimeError, match="database is down"):
        site.app.test_client().get("/view").get_data()
    assert [1] == seen
    assert 1 == site.stored(VIEW_KEY)


def late(wsgi_app: Any) -> Any:
    """Return a WSGI application that starts its response only when it is read, as one that compresses may."""

    def respond(environ: Any, start_response: Any) -> Iterable[bytes]:
        started: list[Any] = []
        body = b"".join(wsgi_app(environ, lambda *args: started.append(args)))

        def stream() -> Iterator[bytes]:
            start_response(*started[0][:2])
            yield body

        return stream()

    return respond


@pytest.mark.parametrize("is_read", [True, False], ids=["late", "never"])
def test_request_whose_response_starts_late_or_never_counts(open_site: Open, is_read: bool) -> None:
    app = make_app()
    app.wsgi_app = late(app.wsgi_app)  # type: ignore[method-assign]
    site = open_site(app)
    statuses: list[str] = []
    response = app(create_environ("/view"), lambda status, *_: statuses.append(status))
    if is_read:
        assert [b""] == list(response)
    assert ["200 OK"] * is_read == statuses
    assert 1 == site.stored(VIEW_KEY)


def test_request_is_settled_once_although_its_worker_is_told_to_end_meanwhile() -> None:
    """A signal raises SystemExit anywhere, and the middleware settles what is left."""
    settled: list[bool] = []

    class Hit:
        def settle(self, *, is_failed: bool) -> None:
            settled.append(is_failed)
            raise SystemExit

    response = ResponseState()
    response.hits = (Hit(),)  # type: ignore[assignment]
    with pytest.raises(SystemExit):
        response.settle(is_failed=False)
    response.settle(is_failed=True)
    assert [False] == settled
