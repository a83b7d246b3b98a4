"""Queries on other limits."""

from collections.abc import Callable

import pytest

from tests.admin.conftest import LIMIT, Page, minute, record


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
    monkeypatch.setattr("oauth_ratelimit.admin.what_if.MAX_SUMMED", 2)
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)])

    for by in ("user", "total"):
        assert "command line" in page.get("api/what-if", by=by).json["problem"]["text"]
    (past,) = page.send("preview", {**LIMIT, "limits": {"user": ["8/minute"]}}).json["recorded"]["day"]["missing"]
    assert "command line" in past["reason"]


def test_what_if_starts_from_the_last_hour_if_a_day_is_too_much(
    page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oauth_ratelimit.admin.what_if.MAX_SUMMED", 2)
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 200, 400)])
    asked = {"by": "total", "window": "1"}

    assert ("hour", 10) == tuple(page.query("what-if", **asked)[name] for name in ("span", "offered"))
    assert "command line" in page.get("api/what-if", span="day", **asked).json["problem"]["text"]


def test_what_if_starts_from_the_present_limit_of_the_grants_that_a_client_uses(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(ago, allowed=4, denied=2) for ago in (5, 6, 7)])
    data = page.query("what-if", id="app")

    assert ("user", 5, 3600, "day") == (data["by"], data["limit"], data["window_s"], data["span"])
    assert (["5/hour"], {"layer": "limits"}) == (data["current"]["texts"], data["current"]["origin"])
    assert {"denied": 6, "would_deny": 0} == data["recorded"]
    assert [18] == data["peaks"]


def test_what_if_offers_an_override_for_a_named_client_only(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, limits={"user": ["2/second", "30/minute"]})
    asked = {"by": "user", "limit": "50"}

    assert page.query("what-if", **asked)["override"] is None
    assert {"kind": "limit", "client_id": "app", "limits": {"user": ["2/second", "50/minute"]}} == (
        page.query("what-if", id="app", **asked)["override"]
    )
    assert (
        200 == page.send("apply", {**page.query("what-if", id="app", **asked)["override"], "reason": "x"}).status_code
    )
    assert ["2/second", "50/minute"] == page.query("current", id="app")["limits"]["user"]["texts"]


def test_peaks_of_windows_have_the_highest_first(page: Page, mongo_uri: str) -> None:
    loads = {"calm": (1, 1, 1), "steady": (9, 9, 9), "burst": (20, 0, 0)}
    minutes = [minute(ago, name, allowed=count) for name, load in loads.items() for ago, count in enumerate(load, 5)]
    record(mongo_uri, minutes)
    data = page.query("what-if", by="total", window="2", limit="10", span="hour")

    assert [20, 18, 2] == data["peaks"]
    assert (3, 2) == (data["bearer_count"], data["concerned_count"])


def test_suggestions_are_those_of_the_command(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)] + [minute(5, "other", allowed=90)])
    everybody, own = page.query("suggest"), page.query("suggest", id="app")

    assert "user" in {one["kind"] for one in everybody["suggestions"]}
    assert {"limits", "clients"} >= everybody["configuration"].keys()
    assert {"app"} == {one["client_id"] for one in own["suggestions"]}
    assert all(one["text"] == f"{one['limit']}/hour" for one in own["suggestions"])
