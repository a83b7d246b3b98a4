"""Changes: preview, apply, remove."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from tests.admin.conftest import LIMIT, Page, minute, record
from tests.support.limiters import send_hits

BODY = {"kind": "mode", "client_id": None, "mode": "off", "reason": "a test"}


def test_preview_shows_before_and_after_and_stores_nothing(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 3, "app", "alice")
    data = page.send("preview", LIMIT).json

    assert [("user limit", "user: 5/3600s", "user: 2/3600s")] == [
        (row["what"], row["before"], row["after"]) for row in data["changes"] if row["is_changed"]
    ]
    assert (0, 1) == (data["keys"]["denied_before_count"], data["keys"]["denied_after_count"])
    assert [] == page.query("overrides")["history"]


def test_preview_notes_exceptions_and_replaced_overrides(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(
        store={"uri": mongo_uri},
        canary={"percent": 10},
        trusted_clients=["friend"],
        clients={"partner": {"mode": "dry-run"}},
    )
    everybody = page.send("preview", {"kind": "mode", "client_id": None, "mode": "enforce", "reason": "x"}).json
    friend = page.send("preview", {**LIMIT, "client_id": "friend"}).json
    page.send("apply", LIMIT)
    again = page.send("preview", LIMIT).json

    assert {"partner", "canary", "will be denied"} == {
        words for words in ("partner", "canary", "will be denied") if any(words in note for note in everybody["notes"])
    }
    assert any("trusted" in note for note in friend["notes"])
    assert ["ann"] == [override["by"] for override in again["replaces"]]


def test_preview_of_a_limit_has_its_effect_on_the_last_day(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)])
    (past,) = page.send("preview", {**LIMIT, "limits": {"user": ["8/minute"], "client": ["1/second"]}}).json["past"]

    assert ("user", 30, 1, 1) == (past["kind"], past["offered"], past["concerned_count"], past["bearer_count"])
    assert 6 <= past["at_least"] <= past["denied"] <= past["at_most"] <= 16


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LIMIT, ("limit", "user", ["user: 2/3600s"], None)),
        ({**LIMIT, "limits": {"client": ["none"]}}, ("limit", "client", [], None)),
        ({"kind": "mode", "client_id": None, "mode": "dry-run", "reason": "x"}, ("mode", None, [], "dry-run")),
        ({"kind": "trusted", "client_id": "mobile-*", "reason": "x"}, ("trusted", None, [], None)),
    ],
    ids=["limit", "no limit", "mode", "trust"],
)
def test_override_is_applied_and_removed_under_the_operators_name(
    page: Page, body: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    with capture_logs() as logs:
        assert 200 == page.send("apply", body).status_code
        (found,) = page.query("overrides")["overrides"]
        target = {name: found[name] for name in ("kind", "client_id", "limit_kind")}
        assert page.send("remove", {**target, "reason": "done"}).json["is_removed"]
        assert not page.send("remove", {**target, "reason": "done"}).json["is_removed"]

    assert expected == (found["kind"], found["limit_kind"], found["limits"], found["mode"])
    assert "ann" == found["by"]
    data = page.query("overrides")
    assert ([], [("unset", "ann", "done"), ("set", "ann", body["reason"])]) == (
        data["overrides"],
        [(entry["action"], entry["by"], entry["reason"]) for entry in data["history"]],
    )
    changes = [entry for entry in logs if entry["event"] == "override_changed"]
    assert [("ann", "set"), ("ann", "unset")] == [(entry["operator"], entry["action"]) for entry in changes]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "must be a JSON object"),
        ({}, "kind"),
        ({**BODY, "kind": "everything"}, "kind"),
        ({**BODY, "kind": ["mode"]}, "kind"),
        ({**BODY, "mode": "on"}, "mode"),
        ({**BODY, "client_id": 7}, "client_id"),
        ({**BODY, "client_id": ""}, "client id"),
        ({**BODY, "client_id": "a" * 2000}, "client id"),
        ({**BODY, "client_id": "\ud800"}, "client id"),
        ({**BODY, "reason": ""}, "reason"),
        ({**BODY, "reason": "   "}, "reason"),
        ({**BODY, "reason": "x" * 1001}, "reason"),
        ({**BODY, "for": "soon"}, "for: allowed"),
        ({**BODY, "until": "1999-01-01T00:00:00Z"}, "until: 1999"),
        ({"kind": "trusted", "client_id": None, "reason": "x"}, "trusting everybody"),
        ({"kind": "limit", "client_id": "app", "reason": "x"}, "limits"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": []}}, "limits.user"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": ["0/minute"]}}, "limits.user[0]"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"users": ["1/minute"]}}, "limits"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": ["{limit: ["]}}, "YAML"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": ["{" * 30_000]}}, "1000"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": ["{" * 900]}}, "nested deeper"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_change_is_explained_and_not_stored(page: Page, body: Any, words: str) -> None:
    for name in ("preview", "apply"):
        response = page.send(name, body)
        assert (400, "input") == (response.status_code, response.json["problem"]["kind"]), response.text
        assert words in response.json["problem"]["text"]
    assert [] == page.query("overrides")["history"]


def test_operator_name_with_markup_is_escaped(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(authorize=lambda: "<b>ann</b>\ud800", store={"uri": mongo_uri})

    assert "&lt;b&gt;ann&lt;/b&gt;?" in page.get("overrides").text
    assert 200 == page.send("apply", LIMIT).status_code
