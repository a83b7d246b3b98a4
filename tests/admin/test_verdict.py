"""Verdicts: on the last minutes of all clients, and on the last hour of one."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.admin.cache import ONLY_THE_PAGE
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.admin.conftest import Page, minute, record
from tests.support.limiters import send_hits
from tests.support.mongod import free_port


def test_verdict_has_requests_per_minute_and_the_worst_client(page: Page, mongo_uri: str) -> None:
    recent = [minute(3, "worst", allowed=10, denied=30), minute(3, "dry", would_deny=5), minute(4, "busy", allowed=500)]
    record(mongo_uri, [*recent, minute(9, "worst", denied=10)])
    data = page.query("verdict")

    assert ({"value": 6.0, "before": 2.0}, {"value": 1.0, "before": 0.0}, {"value": 102.0, "before": 0.0}) == (
        data["denied_per_minute"],
        data["would_deny_per_minute"],
        data["allowed_per_minute"],
    )
    assert (2, {"client_id": "worst", "share": 0.75, "denied": 30, "would_deny": 0}) == (
        data["clients_over"],
        data["worst"],
    )
    assert ("enforce", None, True) == (data["mode"], data["canary"], data["store"]["is_reachable"])


@pytest.mark.usefixtures("quick_reconnect")
def test_verdict_without_mongodb_says_that_limits_are_enforced_from_memory(open_page: Callable[..., Page]) -> None:
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})
    for data in (page.query("verdict"), page.query("verdict")):
        store = data["store"]
        assert (False, "enforce", None) == (store["is_reachable"], data["mode"], data["denied_per_minute"])
        assert abs(data["now_s"] - store["since_s"]) < 60
        assert "Limits are still enforced, from memory" in store["error"]
        assert "Error" not in store["error"]


@pytest.mark.usefixtures("quick_reconnect")
def test_outage_begins_with_the_last_answer_in_an_idle_process_too(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.cache.RETRY_AFTER_S", 0.0)
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})
    begun_s = page.query("verdict")["store"]["since_s"]
    later_s = time.time() + 600
    monkeypatch.setattr(AppLimiter, "now_s", lambda self: later_s)

    assert begun_s == page.query("verdict")["store"]["since_s"]


def test_missing_rights_are_told_from_an_unreachable_mongodb(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreRejected("MongoDB refused: not authorized")

    monkeypatch.setattr(StatisticsStore, "sums", refuse)
    error, problem = page.query("verdict")["store"]["error"], page.query("clients")["problem"]["text"]

    assert error == problem == f"MongoDB refused: not authorized. {ONLY_THE_PAGE}"
    assert page.query("verdict")["store"]["since_s"] is None, "nothing else is out of order"


def test_client_is_judged_by_the_grants_that_it_uses(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, allowed=6, denied=2)])
    data = page.query("client", id="app")

    assert ("over", 0.5, "user", [{"username": "alice", "offered": 8, "over": 2}]) == tuple(
        data["verdict"][name] for name in ("kind", "highest_use", "policy", "worst_users")
    )
    assert "25 % of the requests of the last hour were denied (2 of 8)" in data["verdict"]["text"]
    assert ("alice", "password", False) == (data["username"], data["grant_type"], data["is_chosen"])
    assert ["user", "client_total"] == [row["policy"] for row in data["limits"]]


def test_client_over_its_limit_before_and_after_enforcement_has_one_sum(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, allowed=5, denied=2), minute(4, would_deny=1)])
    text = page.query("client", id="app")["verdict"]["text"]

    assert "were denied, or would be in a dry run (3 of 8)" in text


def test_client_without_statistics_is_judged_by_its_counters(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 1, "quiet")
    send_hits(limiter, 10, "app")
    quiet, app = (page.query("client", id=name)["verdict"] for name in ("quiet", "app"))

    assert ("idle", "No requests are recorded in the last hour.") == (quiet["kind"], quiet["text"])
    assert ("over", "client", 1.0) == (app["kind"], app["policy"], round(app["highest_use"], 3))
    assert "At its limit now: 10 hits; allowed: client: 10/hour." == app["text"]


def test_unknown_client_is_unknown_and_has_suggestions(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, "partner-app", allowed=6)])
    verdict = page.query("client", id="partner-ap")["verdict"]

    assert ("unknown", ["partner-app"]) == (verdict["kind"], verdict["suggestions"])
