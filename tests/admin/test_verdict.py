"""Verdicts: on the last minutes of all clients, and on the last hour of one."""

from collections.abc import Callable
from typing import Any

import pytest

from oauth_ratelimit.admin.cache import ONLY_THE_PAGE
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.admin.conftest import Page, minute, record
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
    assert (2, {"client_id": "worst", "share": 0.75, "over": 30}) == (data["clients_over"], data["worst"])
    assert ("enforce", None, 0, True) == (
        data["mode"],
        data["canary"],
        data["override_count"],
        data["store"]["is_reachable"],
    )


@pytest.mark.usefixtures("quick_reconnect")
def test_verdict_without_mongodb_says_that_limits_are_enforced_from_memory(open_page: Callable[..., Page]) -> None:
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})
    for data in (page.query("verdict"), page.query("verdict")):
        store = data["store"]
        assert (False, "enforce", None) == (store["is_reachable"], data["mode"], data["denied_per_minute"])
        assert abs(data["now_s"] - store["since_s"]) < 60
        assert "enforced from memory" in store["error"]
        assert "Error" not in store["error"]


def test_missing_rights_are_told_from_an_unreachable_mongodb(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreRejected("MongoDB refused: not authorized")

    monkeypatch.setattr(StatisticsStore, "sums", refuse)
    error, problem = page.query("verdict")["store"]["error"], page.query("clients")["problem"]["text"]

    assert error == problem == f"MongoDB refused: not authorized. {ONLY_THE_PAGE}"


def test_client_is_judged_by_the_grants_that_it_uses(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, allowed=6, denied=2)])
    data = page.query("client", id="app")

    assert ("over", 0.25, "user", [{"username": "alice", "offered": 8, "over": 2}]) == tuple(
        data["verdict"][name] for name in ("kind", "share", "policy", "worst_users")
    )
    assert "over its limit: 25 %" in data["verdict"]["text"]
    assert ("alice", "password", False) == (data["username"], data["grant_type"], data["is_chosen"])
    assert ["user", "client_total"] == [row["policy"] for row in data["limits"]]


def test_unknown_client_is_unknown_and_has_suggestions(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, "partner-app", allowed=6)])
    verdict = page.query("client", id="partner-ap")["verdict"]

    assert ("unknown", ["partner-app"]) == (verdict["kind"], verdict["suggestions"])
