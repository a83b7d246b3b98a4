"""Queries over recorded statistics."""

import pytest

from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally
from tests.admin.conftest import LIMIT, Page, minute, record


def test_client_day_has_users_grants_bursts_and_a_letter(page: Page, mongo_uri: str) -> None:
    refreshed = ClientMinute("app", minute(5).minute_s, {Source("user", "refresh_token"): Tally(allowed=5)})
    record(mongo_uri, [minute(3, allowed=12, denied=3, retries=2), refreshed])
    data = page.query("client-day", id="app")

    assert (20, 3, 2, 4) == (data["offered"], data["over"], data["retries"], data["burst"])
    assert ({"password": 15, "refresh_token": 5}, [("alice", 17)]) == (
        {row["grant"]: row["offered"] for row in data["grants"]},
        [(user["username"], user["offered"]) for user in data["users"]],
    )
    assert (0.25, 1.0) == (data["refresh_share"], round(data["user_count"]))
    assert 20.0 == pytest.approx(data["per_user_hour"], abs=0.2)
    assert "over its limits" == data["verdict"]
    assert any("3" in text for text in data["faults"])
    assert "Keep each user's access token" in data["letter"]


def test_client_day_without_statistics_is_empty(page: Page) -> None:
    assert 0 == page.query("client-day", id="nobody")["offered"]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"by": "user", "limit": "20"}, (60, 0, 0)),
        ({"by": "user", "limit": "4"}, (60, 2, 2)),
        ({"by": "total", "limit": "4", "id": "app"}, (30, 1, 1)),
        ({"by": "total", "limit": "31", "window": "10"}, (60, 0, 0)),
        ({"by": "client"}, (0, 0, 0)),
    ],
    ids=str,
)
def test_what_if_counts_denied_requests_within_bounds(
    page: Page, mongo_uri: str, params: dict[str, str], expected: tuple[int, int, int]
) -> None:
    record(mongo_uri, [minute(ago, client_id, allowed=10) for ago in (5, 6, 7) for client_id in ("app", "other")])
    data = page.query("what-if", **{"span": "hour", "window": "1", **params})

    assert expected == (data["offered"], data["concerned_count"], sum(row["denied"] > 0 for row in data["bearers"]))
    assert data["at_least"] <= data["denied"] <= data["at_most"]
    assert data["highest"] >= max([1, *(row["peak"] for row in data["bearers"])])


@pytest.mark.parametrize(
    "params",
    [
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "9" * 30},
        {"limit": "²"},
        {"by": "all"},
        {"span": "year"},
        {"window": "0"},
    ],
    ids=str,
)
def test_invalid_what_if_is_rejected(page: Page, params: dict[str, str]) -> None:
    response = page.get("api/what-if", **params)

    assert (400, "input") == (response.status_code, response.json["problem"]["kind"])


def test_what_if_of_too_many_documents_refers_to_the_command_line(
    page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.what_if.MAX_READ", 2)
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)])

    assert "command line" in page.get("api/what-if", by="total").json["problem"]["text"]
    assert [] == page.send("preview", {**LIMIT, "limits": {"user": ["8/minute"]}}).json["past"]
