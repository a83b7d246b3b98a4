"""Query for the charts."""

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.admin.conftest import LIMIT, Page, minute, record


def test_traffic_without_statistics_has_times_and_no_lines(page: Page) -> None:
    data = page.query("traffic", span="1h")

    assert (60, [], None, 0) == (len(data["times"]), data["lines"], data["rest"], data["total"]["offered"])


def test_traffic_has_requests_by_client_and_minute(page: Page, mongo_uri: str) -> None:
    record(
        mongo_uri, [minute(3, allowed=7, denied=2, would_deny=1), minute(2, allowed=5), minute(2, "other", trusted=9)]
    )
    data = page.query("traffic", span="15m")
    lines = {line["client_id"]: line for line in data["lines"]}

    assert ([8.0, 5.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]) == (
        lines["app"]["issued"][-4:],
        lines["app"]["denied"][-4:],
    )
    assert [0.0, 9.0, 0.0, 0.0] == lines["other"]["issued"][-4:]
    assert {"offered": 24, "issued": 22, "denied": 2, "would_deny": 1, "trusted": 9, "retries": 0} == data["total"]
    assert [("app", 15, 0.5), ("other", 9, 0.5)] == [
        (row["client_id"], row["offered"], row["highest_use"]) for row in data["clients"]
    ]


def test_most_denied_then_busiest_clients_have_lines_of_their_own(page: Page, mongo_uri: str) -> None:
    busy = [minute(2, f"busy-{number}", allowed=100 + number) for number in range(8)]
    record(mongo_uri, [*busy, minute(2, "small-and-denied", denied=1), minute(2, "", allowed=3)])
    data = page.query("traffic", span="15m")

    assert ["small-and-denied", "busy-7", "busy-6", "busy-5", "busy-4"] == [line["client_id"] for line in data["lines"]]
    assert (5, 100 + 101 + 102 + 103 + 3) == (data["rest_count"], sum(data["rest"]["issued"]))


def test_unknown_span_is_rejected(page: Page) -> None:
    assert 400 == page.get("api/traffic", span="10y").status_code


def test_client_with_a_shortened_stored_id_has_traffic_and_limits(
    open_page: Callable[..., Page], mongo_uri: str
) -> None:
    name = "a" * 600
    page = open_page(store={"uri": mongo_uri}, clients={name: {"limits": {"client_total": ["120/minute"]}}})
    record(mongo_uri, [minute(3, storable_name(name), allowed=30)])
    line, habits = page.query("traffic", span="15m", id=name)["lines"][0], page.query("client-day", id=name)

    assert (name, 30.0, [120.0]) == (
        line["client_id"],
        sum(line["issued"]),
        [rate["per_minute"] for rate in line["rates"]],
    )
    assert 30 == habits["offered"]


def test_clients_are_sorted_by_requests_over_a_limit(page: Page, mongo_uri: str) -> None:
    record(
        mongo_uri,
        [minute(2, "busy", allowed=90), minute(2, "half", allowed=5, denied=5), minute(3, "worst", would_deny=9)],
    )
    data = page.query("clients", span="15m")

    assert (["worst", "half", "busy"], 3, 3, "over", True) == (
        [row["client_id"] for row in data["rows"]],
        data["total"],
        data["client_count"],
        data["sort"],
        data["descending"],
    )
    assert {
        "client_id": "half",
        "mode": "enforce",
        "is_canary": False,
        "offered": 10,
        "issued": 5,
        "denied": 5,
        "would_deny": 0,
        "trusted": 0,
        "retries": 0,
        "over": 5,
        "over_share": 0.5,
        "highest_use": 0.5,
        "policy": "user",
    } == data["rows"][1]


def test_clients_are_sorted_filtered_and_paged_by_the_server(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(2, f"shop-{number}", allowed=number + 1) for number in range(30)] + [minute(2, "x")])
    found = page.query("clients", span="15m", sort="offered", filter="SHOP", size="10", page="2")
    named = page.query("clients", span="15m", sort="client_id", size="3")

    assert ([f"shop-{number}" for number in range(19, 9, -1)], 30, 31) == (
        [row["client_id"] for row in found["rows"]],
        found["total"],
        found["client_count"],
    )
    assert ["shop-0", "shop-1", "shop-10"] == [row["client_id"] for row in named["rows"]]


@pytest.mark.parametrize(
    "params", [{"sort": "colour"}, {"page": "0"}, {"size": "5000"}, {"descending": "yes"}], ids=str
)
def test_invalid_page_of_clients_is_rejected(page: Page, params: dict[str, str]) -> None:
    response = page.get("api/clients", **params)

    assert (400, True) == (response.status_code, next(iter(params)) in response.json["problem"]["text"])


def test_changes_by_operators_are_marked_in_time(page: Page, mongo_uri: str) -> None:
    for body in (LIMIT, {"kind": "mode", "client_id": None, "mode": "dry-run", "reason": "x"}):
        page.send("apply", body)
    page.send("remove", {"kind": "limit", "client_id": "app", "limit_kind": "user", "reason": "done"})
    marks = page.query("traffic", span="15m")["marks"]
    other = page.query("traffic", span="15m", id="other")["marks"]

    assert [
        "user limit of app: user: 2/hour (ann)",
        "mode dry-run for everybody (ann)",
        "override removed: user limit of app (ann)",
    ] == [mark["text"] for mark in marks]
    assert ["mode dry-run for everybody (ann)"] == [mark["text"] for mark in other]


def test_end_of_an_override_is_marked_unless_it_was_removed_before(page: Page, mongo_uri: str) -> None:
    now_s = time.time()
    with closing(Connection(mongo_uri)) as connection:
        store = OverrideStore(connection)
        for client_id in ("ended", "removed"):
            target = Target(OverrideKind.TRUSTED, client_id)
            store.put(Override(target, "ann", "x", now_s - 600, until_s=now_s - 300))
        store.remove(target, author="ann", reason="done", at_s=now_s - 500)
    texts = [mark["text"] for mark in page.query("traffic", span="15m")["marks"]]

    assert "override ended: ended trusted" in texts
    assert "override ended: removed trusted" not in texts


def test_long_spans_have_hourly_averages(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(ago, allowed=60) for ago in range(120, 240)])
    data = page.query("traffic", span="1d")

    assert ("average per minute", 3600, 24) == (data["unit"], data["step_s"], len(data["times"]))
    assert 60.0 in data["lines"][0]["issued"]
    assert "per minute" == page.query("traffic", span="1h")["unit"]
