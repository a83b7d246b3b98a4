"""An application with the admin page, and what its tests store."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from html import unescape
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.blueprint import READ_CACHE
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.core.overrides import HistoryEntry
from oauth_ratelimit.core.statistics import OVER, ClientMinute, Denials, Peak, Source, Tally, UserLoad
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.rollups import RollupStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.mongod import free_port
from tests.support.apps import app_limiter_of, protected_app

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
LIMITS = {"client": ["10/hour"], "user": ["5/hour"], "client_total": ["50/hour"]}
LIMIT = {"kind": "limit", "client_id": "app", "limits": {"user": {"user": 2}}, "for": "7d", "reason": "ticket 4711"}
PASSWORD = Source("user", "password")
DRY_RUN = {"kind": "mode", "client_id": None, "mode": "dry-run", "reason": "a test"}


class Page:
    """Requests of one operator's browser to an application with the page."""

    def __init__(self, app: Flask) -> None:
        self.app = app
        self.browser: FlaskClient = app.test_client()

    def get(self, path: str, **params: str) -> TestResponse:
        """Open a path. The username goes into the header, as the page sends it."""
        headers = {f"X-Ratelimit-{name.title()}": quote(params.pop(name, "")) for name in ("user", "after", "kept")}
        return self.browser.get(f"/ratelimit/{path}", query_string=params or None, headers=headers, buffered=True)

    def html(self, name: str, *, fresh: bool = False, **params: str) -> str:
        """Return a part of a page; ``fresh`` without kept answers."""
        if fresh:
            self.app.extensions.pop(READ_CACHE, None)
        response = self.get(f"part/{name}", **params)
        assert 200 == response.status_code and f'data-part="{name}"' in response.text, response.text
        return response.text

    def traffic(self, **params: str) -> Any:
        found = re.search(r"data-content='([^']*)'", self.html("traffic", **params))
        assert found
        return json.loads(found[1])

    def history(self) -> list[HistoryEntry]:
        context = app_limiter_of(self.app).context()
        return context.stores.overrides.history() if context else []

    def part(self, name: str, *, fresh: bool = False, **params: str) -> str:
        """Return the text of a part of a page, without markup; ``fresh`` without kept answers."""
        text = unescape(re.sub(r"<[^>]*>", " ", self.html(name, fresh=fresh, **params)))
        return re.sub(r"\s+([.,:?])(?=\s|$)", r"\1", " ".join(text.split()))

    def token(self) -> str:
        found = re.search(r'data-token="([^"]*)"', self.get("overrides").text)
        assert found
        return found[1]

    def send(self, name: str, body: Any, **headers: str) -> TestResponse:
        """Send a change as the page does. Headers replace those of the page; an empty text removes one."""
        sent = {
            "X-Ratelimit-Token": self.token(),
            **SAME_SITE,
            **{key.replace("_", "-"): headers[key] for key in headers},
        }
        return self.browser.post(
            f"/ratelimit/api/{name}", json=body, headers={key: value for key, value in sent.items() if value}
        )


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the time in the middle of a minute, so that none ends between what a test writes and reads."""
    now_s = time.time() // 60 * 60 + 30
    monkeypatch.setattr(time, "time", lambda: now_s)


@pytest.fixture
def open_page() -> Iterator[Callable[..., Page]]:
    """Opens the page of an application with given settings."""
    with ExitStack() as undo:

        def open_one(
            *,
            authorize: Callable[[], Any] = lambda: "ann",
            secret_key: str | None = "a secret",
            may_change: Any = None,
            prepare: Callable[[Flask], object] = lambda app: None,
            **settings: Any,
        ) -> Page:
            config = {"mode": "enforce", "limits": LIMITS, **settings}
            app = undo.enter_context(protected_app(clock=lambda: time.time(), OAUTH_RATELIMIT_CONFIG=config))
            app.secret_key = secret_key
            prepare(app)
            more = {"may_change": may_change} if may_change else {}
            app.register_blueprint(admin_blueprint(authorize, **more))
            return Page(app)

        yield open_one


@pytest.fixture
def page(open_page: Callable[..., Page], mongo_uri: str) -> Page:
    """The page of an application with an empty database."""
    return open_page(store={"uri": mongo_uri})


@pytest.fixture
def cut_off_page(open_page: Callable[..., Page], quick_reconnect: None) -> Page:
    """The page of an application whose MongoDB is unreachable."""
    return open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})


@pytest.fixture
def limiter(mongo_uri: str) -> Iterator[Limiter]:
    """Another instance with the same limits. Its clock stands still, at the present."""
    now_s = time.time()
    limiter = Limiter(
        load_config({"mode": "enforce", "limits": LIMITS, "store": {"uri": mongo_uri}}), clock=lambda: now_s
    )
    yield limiter
    limiter.close()


def record(uri: str, minutes: list[ClientMinute]) -> None:
    """Write statistics and derive their rollups, as processes do."""
    with closing(Connection(uri)) as connection:
        StatisticsStore(connection).put("process", minutes, keep_s=10_000_000)
        connection.collection(STATISTICS).delete_many({"_id.step": {"$exists": True}})
        list(RollupStore(connection).derive_due(time.time(), keep_s=10_000_000))


def denial(
    client_id: str, username: str, scope: str | None = None, *, ago_s: float = 5.0, policy: str = "user", count: int = 1
) -> DenialRecord:
    """Return the record of denials in a second, so many seconds ago."""
    at_s = time.time() - ago_s
    first = Denial(
        uuid4().hex[:16], at_s, client_id, username, scope, "password", policy, 10, 60, "enforce", False, 1.0, Trace()
    )
    return DenialRecord(first, "node-1:7:aa", at_s, count - 1)


def record_denials(uri: str, *records: DenialRecord) -> None:
    with closing(Connection(uri)) as connection:
        DenialStore(connection).put(records, keep_s=10_000)


def minute(
    ago: int,
    client_id: str = "app",
    *,
    source: Source = PASSWORD,
    policy: str = "",
    limit: int = 10,
    window_s: int = 60,
    share: float = 0.5,
    now_s: float = 0.0,
    begun_s: int = 0,
    **outcomes: int,
) -> ClientMinute:
    """Return the requests in a minute, so many minutes ago; those over a limit were over the one of their kind."""
    now_s, policy = int(now_s or time.time()), policy or source.kind
    start_s, tally = (now_s // 60 - ago) * 60, Tally(**outcomes)
    times = max(start_s, begun_s), min(start_s + 59, now_s)
    over = {each: Denials(getattr(tally, each), *times, limit, window_s) for each in OVER if getattr(tally, each)}
    return ClientMinute(
        client_id,
        start_s,
        {source: tally},
        {policy: Peak(share, share * limit, limit, window_s)},
        (UserLoad("alice", sum(outcomes.values()), outcomes.get("denied", 0)),),
        {7: 3},
        seconds=[4, *[0] * 59],
        denials={(policy, source.grant, outcome): denials for outcome, denials in over.items()},
    )
