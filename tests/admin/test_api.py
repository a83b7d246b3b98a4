"""Queries: status, top, client, denial; problems instead of answers."""

from collections.abc import Callable
from contextlib import closing

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace, decision_id_of
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from tests.admin.conftest import HOSTILE, LIMIT, Page, minute, record
from tests.support.apps import token_status
from tests.support.helpers import wait_until
from tests.support.limiters import send_hits
from tests.support.mongod import free_port

QUERIES = [
    ("status", {}),
    ("top", {}),
    ("client", {"id": "app"}),
    ("overrides", {}),
    ("traffic", {}),
    ("client-day", {"id": "app"}),
    ("what-if", {}),
    ("clients", {}),
    ("current", {"id": "app"}),
    ("suggest", {}),
    ("denial", {"decision": decision_id_of(7)}),
]


def test_status_has_mode_limits_and_instances(page: Page) -> None:
    assert 200 == token_status(page.app)  # with its first request an instance starts
    data = wait_until(lambda: (found := page.query("status"))["instances"] and found, "the instance tells of itself")

    assert ("enforce", {"layer": "mode"}, None, 0) == (
        data["mode"],
        data["mode_origin"],
        data["canary"],
        data["override_count"],
    )
    assert {"client": ["client: 10/hour"], "user": ["user: 5/hour"], "client_total": ["client_total: 50/hour"]} == (
        data["limits"]
    )
    assert {"seen_s", "is_late", "conflict_count", "flushed_count", "failure_count"} <= data["instances"][0].keys()


def test_top_sorts_keys_by_their_most_used_limit(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 4, "app", "alice")
    send_hits(limiter, 3, "batch")
    data = page.query("top")

    assert [("app", "alice", 0.8), ("batch", None, 0.3)] == [
        (row["client_id"], row["username"], round(row["used_ratio"], 3)) for row in data["rows"][:2]
    ]
    assert (True, 4) == (data["is_complete"], data["read_count"])


def test_top_of_too_many_keys_says_that_it_is_incomplete(
    page: Page, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.api.MAX_TOP_READ", 3)
    for number in range(5):
        limiter.check(f"client-{number}")
    limiter.sync()
    data = page.query("top")

    assert (False, 3) == (data["is_complete"], data["read_count"])


def test_top_of_too_many_keys_has_the_busy_ones(
    page: Page, limiter: Limiter, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.api.MAX_TOP_READ", 3)
    send_hits(limiter, 4, "zzz", "alice")
    for number in range(5):
        limiter.check(f"client-{number}")
    limiter.sync()
    record(mongo_uri, [minute(1, "zzz", allowed=4)])

    assert ("zzz", "alice") == tuple(page.query("top")["rows"][0][name] for name in ("client_id", "username"))


def test_client_has_forecast_limits_and_users(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 6, "app", "alice")
    data = page.query("client", id="app", user="alice")

    assert ("denied", "enforce", None) == (data["forecast"]["kind"], data["mode"], data["trusted"])
    assert [("user", {"layer": "limits"}), ("client_total", {"layer": "limits"})] == [
        (row["policy"], row["origin"]) for row in data["limits"]
    ]
    assert ["alice"] == [row["username"] for row in data["users"] if row["username"]]


@pytest.mark.parametrize("params", [{}, {"id": ""}, {"id": "a" * 2000}], ids=["none", "empty", "long"])
def test_invalid_client_id_is_answered_with_what_is_allowed(page: Page, params: dict[str, str]) -> None:
    for name in ("client", "client-day"):
        response = page.get(f"api/{name}", **params)
        assert 400 == response.status_code
        assert "client id" in response.json["problem"]["text"]


def test_username_is_read_from_the_header_and_not_from_the_url(page: Page) -> None:
    response = page.browser.get("/ratelimit/api/client?id=app&user=alice", headers={"X-Ratelimit-User": "%C3%B6"})
    assert "ö" == response.json["username"]


def test_denial_is_found_by_its_decision_id(page: Page, mongo_uri: str) -> None:
    data = Denial(
        first_id=1000,
        at_s=1_700_000_000.0,
        client_id="app",
        username="alice",
        scope=None,
        grant_type="password",
        policy="user",
        limit=5,
        window_s=3600,
        mode="enforce",
        is_canary=False,
        retry_after_s=12.0,
        trace=Trace(),
    )
    with closing(Connection(mongo_uri)) as connection:
        DenialStore(connection).put([DenialRecord(data, "node-1", 1_700_000_030.0, 3)], keep_s=1e9)
    found = page.query("denial", decision=decision_id_of(1002))["denial"]

    assert ("app", "alice", "user", 2, decision_id_of(1000)) == tuple(
        found[name] for name in ("client_id", "username", "policy", "position", "logged_decision_id")
    )
    assert page.query("denial", decision=decision_id_of(10))["denial"] is None
    assert "input" == page.get("api/denial", decision="what?").json["problem"]["kind"]


def test_names_with_markup_are_data_and_never_markup(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 4, HOSTILE, HOSTILE)
    data = page.query("top")["rows"][0]
    shown = page.query("client", id=HOSTILE, user=HOSTILE)

    assert (HOSTILE, HOSTILE) == (data["client_id"], data["username"]) == (shown["client_id"], shown["username"])
    assert "<script>alert" not in page.get("client", id=HOSTILE, user=HOSTILE).text


@pytest.mark.usefixtures("quick_reconnect")
def test_pages_open_and_queries_name_the_problem_without_mongodb(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.cache.RETRY_AFTER_S", 0.0)
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})

    assert [200] * 4 == [page.get(path).status_code for path in ("", "client", "overrides", "instances")]
    for name, params in QUERIES:
        problem = page.query(name, **params)["problem"]
        assert ("database", True) == (problem["kind"], "unreachable" in problem["text"])
    for name in ("preview", "apply", "remove"):
        response = page.send(name, {**LIMIT, "limit_kind": "user"})
        assert (424, "database") == (response.status_code, response.json["problem"]["kind"])


def test_query_without_a_shared_store_says_so(open_page: Callable[..., Page]) -> None:
    assert "no store.uri" in open_page().query("top")["problem"]["text"]


def test_emergency_switch_keeps_the_page_from_starting_anything(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    page = open_page(store={"uri": "mongodb://127.0.0.1:1/"})

    assert "switches everything off" in page.query("status")["problem"]["text"]
    assert page.app.extensions["oauth_ratelimit"]._worker is None


def test_form_holds_limits_with_the_same_window(open_page: Callable[..., Page], mongo_uri: str) -> None:
    limits = [
        {"name": "few", "limit": 1, "window": "1h", "mode": "enforce"},
        {"name": "many", "limit": 100, "window": "1h"},
    ]
    page = open_page(store={"uri": mongo_uri}, limits={"client": limits})

    texts = page.query("current", id="app")["limits"]["client"]["texts"]
    assert ["few: 1/hour enforce", "many: 100/hour"] == texts
    body = {"kind": "limit", "client_id": "app", "limits": {"client": texts}, "for": "1h", "reason": "x"}
    assert 200 == page.send("preview", body).status_code
