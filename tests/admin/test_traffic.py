"""Query for the charts."""

import time
from contextlib import closing
from dataclasses import replace

from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.statistics import Peak
from oauth_ratelimit.store.mongo.client import OVERRIDES, Connection
from oauth_ratelimit.store.mongo.fields import date_of
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.admin.conftest import LIMIT, Page, minute, record


def test_traffic_has_requests_by_client_and_minute(still: None, page: Page, mongo_uri: str) -> None:
    record(
        mongo_uri, [minute(3, allowed=7, denied=2, would_deny=1), minute(2, allowed=5), minute(2, "other", trusted=9)]
    )
    charts = page.traffic(span="15m")["charts"]
    issued, over = ({line["label"]: line["values"][-4:] for line in charts[name]} for name in ("issued", "denied"))

    assert {"app": [8.0, 5.0, 0.0, 0.0], "other": [0.0, 9.0, 0.0, 0.0]} == issued
    assert {"app": [2.0, 0.0, 0.0, 0.0], "app (dry run)": [1.0, 0.0, 0.0, 0.0]} == over


def test_use_of_a_limit_is_that_of_its_time(still: None, page: Page, mongo_uri: str) -> None:
    """A limit that was raised is not drawn over the past, and is in the legend before it has requests."""
    before, after = (
        replace(minute(ago, allowed=5), peaks={"user": Peak(0.5, 5, limit, 60)}) for ago, limit in ((3, 10), (2, 20))
    )
    record(mongo_uri, [before, after])
    charts = page.traffic(span="15m", id="app")["charts"]

    assert [("user: 10/minute → 20/minute → 5/hour", [50.0, 50.0, None, None]), ("the limit", [100] * 4)] == [
        (line["label"], line["values"][-4:]) for line in charts["uses"]
    ]
    assert ["issued"] == [line["label"] for line in charts["requests"]], "a limit per user is none of the client's"


def test_most_denied_then_busiest_clients_have_lines_of_their_own(page: Page, mongo_uri: str) -> None:
    busy = [minute(2, f"busy-{number}", allowed=100 + number) for number in range(8)]
    record(mongo_uri, [*busy, minute(2, "small-and-denied", denied=1), minute(2, "", allowed=3)])
    *lines, rest = page.traffic(span="15m")["charts"]["issued"]

    assert ["small-and-denied", "busy-7", "busy-6", "busy-5", "busy-4"] == [line["label"] for line in lines]
    assert 5 == len({line["colour"] for line in lines} - {"rest"})
    assert ("all others", 100 + 101 + 102 + 103 + 3) == (rest["label"], sum(rest["values"]))
    assert "5 other clients in grey." in page.part("traffic", span="15m")


def test_client_with_a_shortened_stored_id_has_traffic(page: Page, mongo_uri: str) -> None:
    name = "a" * 600
    record(mongo_uri, [minute(3, storable_name(name), allowed=30)])
    (line,) = page.traffic(span="15m", id=name)["charts"]["requests"]

    assert 30.0 == sum(line["values"])
    assert "Token requests 30" in page.part("day", id=name)


def test_changes_by_operators_are_marked_in_time(page: Page, mongo_uri: str) -> None:
    for body in (LIMIT, {"kind": "mode", "client_id": None, "mode": "dry-run", "reason": "x"}):
        page.send("apply", body)
    page.send("remove", {"kind": "limit", "client_id": "app", "limit_kind": "user", "reason": "done"})
    marks, other = (
        [mark["text"] for mark in page.traffic(span="15m", **params)["marks"] if "configuration" not in mark["text"]]
        for params in ({}, {"id": "other"})
    )

    assert [
        "user limit 2/hour for app (ann)",
        "mode dry-run for everybody (ann)",
        "override removed, user limit for app (ann)",
    ] == [text for text in marks if "started" not in text]
    assert ["mode dry-run for everybody (ann)"] == [text for text in other if "started" not in text]


def test_end_of_an_override_is_marked_unless_it_was_removed_before(page: Page, mongo_uri: str) -> None:
    now_s = time.time()
    with closing(Connection(mongo_uri)) as connection:
        store = OverrideStore(connection)
        for client_id in ("ended", "removed"):
            target = Target(OverrideKind.TRUSTED, client_id)
            store.put(Override(target, "ann", "x", now_s, until_s=now_s - 300))
        store.remove(target, author="ann", reason="done")
        dates = {f"history.{number}.at": date_of(now_s - ago_s) for number, ago_s in enumerate((600, 500))}
        connection.collection(OVERRIDES).update_one({"_id.clientId": "removed"}, {"$set": dates})
    texts = [mark["text"] for mark in page.traffic(span="15m")["marks"]]

    assert "override ended: trusted for ended" in texts
    assert "override ended: trusted for removed" not in texts


def test_long_spans_have_hourly_averages(still: None, page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [*(minute(ago, allowed=60) for ago in range(120, 240)), minute(0, denied=60)])
    data = page.traffic(span="1d")

    assert ("average per minute", 3600, 24) == (data["unit"], data["step_s"], len(data["times"]))
    assert 60.0 in data["charts"]["issued"][0]["values"]
    assert data["charts"]["denied"][0]["values"][-1] > 0, "the hour that is running is in it"
    assert "per minute" == page.traffic(span="1h")["unit"]


def test_link_of_an_alert_shows_its_moment_and_limit(page: Page, mongo_uri: str) -> None:
    """By default in the shortest span that holds it."""
    record(mongo_uri, [minute(3, allowed=30)])
    at_s = int(time.time()) - 7200
    data = page.traffic(at=str(at_s))
    assert (300, at_s) == (data["step_s"], data["marks"][0]["at_s"])
    assert 'aria-current="true">6 hours' in page.get("", at=str(at_s)).text
    assert '<tr class="chosen">' in page.get("part/limits", id="app", user="alice", limit="user").text
