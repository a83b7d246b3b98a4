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

    assert [("user limit", "user: 5/hour", "user: 2/hour")] == [
        (row["what"], row["before"], row["after"]) for row in data["changes"]
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


def test_preview_of_a_limit_has_its_effect_on_recorded_traffic(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(ago, allowed=10) for ago in (5, 6, 7)])
    data = page.send("preview", {**LIMIT, "limits": {"user": ["8/minute"], "client": ["1/second"]}}).json
    for span in ("hour", "day"):
        (user,), (client,) = (data["recorded"][span][name] for name in ("limits", "missing"))
        assert ("user", 30, 1, 1) == (user["kind"], user["offered"], user["concerned_count"], user["bearer_count"])
        assert 6 <= user["at_least"] <= user["denied"] <= user["at_most"] <= 16
        assert [("app", "alice", user["denied"])] == [
            (row["client_id"], row["username"], row["denied"]) for row in user["top"]
        ]
        assert ("client", True) == (client["policy"], "by the minute" in client["reason"])


def test_preview_leaves_out_tiers_that_do_not_change(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, limits={"user": ["2/second", "30/minute"]})
    record(mongo_uri, [minute(5, allowed=10)])
    hour = page.send("preview", {**LIMIT, "limits": {"user": ["2/second", "40/minute"]}}).json["recorded"]["hour"]

    assert (["user-60s"], []) == ([limit["policy"] for limit in hour["limits"]], hour["missing"])


def test_preview_counts_a_key_once_although_it_is_over_two_limits(page: Page, limiter: Limiter) -> None:
    send_hits(limiter, 4, "app", "alice")
    tiers = ["few: 2/hour", "more: 3/hour"]
    keys = page.send("preview", {**LIMIT, "limits": {"user": tiers}}).json["keys"]

    assert (0, 1) == (keys["denied_before_count"], keys["denied_after_count"])


def test_preview_of_a_mode_says_what_it_would_have_denied(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, mode="dry-run", clients={"own": {"mode": "dry-run"}})
    record(mongo_uri, [minute(3, f"app-{number}", allowed=9, would_deny=number) for number in range(8)])
    record(mongo_uri, [minute(4, "own", would_deny=50), minute(200, "app-1", would_deny=300)])
    enforce = {"kind": "mode", "client_id": None, "mode": "enforce", "reason": "x"}
    hour = page.send("preview", enforce).json["recorded"]["hour"]
    own = page.send("preview", {**enforce, "client_id": "own"}).json["recorded"]["hour"]

    assert (0, 28, 7) == (hour["denied_before"], hour["denied_after"], hour["client_count"])
    assert [("app-7", 7), ("app-6", 6), ("app-5", 5), ("app-4", 4), ("app-3", 3)] == [
        (row["client_id"], row["denied_after"]) for row in hour["top"]
    ]
    assert (50, ["own"]) == (own["denied_after"], [row["client_id"] for row in own["top"]])


def test_preview_of_a_dry_run_says_what_it_would_have_admitted(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [minute(3, allowed=9, denied=4)])
    data = page.send("preview", {"kind": "mode", "client_id": "app", "mode": "dry-run", "reason": "x"}).json
    hour = data["recorded"]["hour"]

    assert (4, 0, 1) == (hour["denied_before"], hour["denied_after"], hour["client_count"])
    assert ["mode"] == [row["what"] for row in data["changes"]]


def test_preview_says_that_the_file_switches_off(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, mode="off")
    data = page.send("preview", {"kind": "mode", "client_id": None, "mode": "enforce", "reason": "x"}).json

    assert ([], 1) == (data["changes"], len(data["notes"]))
    assert "mode: off, which beats every override" in data["notes"][0]


def test_preview_names_tiers_that_would_be_dropped(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, limits={"user": ["2/second", "30/minute"], "client": ["9/minute"]})
    dropped = page.send("preview", {**LIMIT, "limits": {"user": ["40/minute"]}}).json["dropped_tiers"]

    assert [{"kind": "user", "text": "user-1s: 2/second"}] == dropped


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["40/5s"], ["user: 40/5s"]),
        (["100/minute"], ["user: 100/minute"]),
        (["5 per 10 second; 100/hour"], ["user-10s: 5/10s", "user-3600s: 100/hour"]),
        (["burst: 40/5s enforce"], ["burst: 40/5s enforce"]),
        (["{limit: 7, window: 1m, name: x}"], ["x: 7/minute"]),
        (["none"], []),
    ],
    ids=str,
)
def test_limits_are_read_in_every_notation_and_shown_in_the_form(
    page: Page, typed: list[str], expected: list[str]
) -> None:
    assert 200 == page.send("apply", {**LIMIT, "limits": {"user": typed}}).status_code
    (applied,) = page.query("overrides")["overrides"]
    texts = page.query("current", id="app")["limits"]["user"]["texts"]
    page.send("apply", {**LIMIT, "limits": {"user": texts}})
    (again,) = page.query("overrides")["overrides"]

    assert expected == applied["limits"] == again["limits"]


def test_form_has_the_present_values(open_page: Callable[..., Page], mongo_uri: str) -> None:
    fine = {"name": "fine", "limit": 9, "window": 60, "frames": 60, "estimator": "strict", "count_denied": True}
    page = open_page(store={"uri": mongo_uri}, clients={"app": {"mode": "dry-run", "limits": {"user": [fine]}}})
    everybody, app = page.query("current"), page.query("current", id="app")

    assert ("enforce", ["5/hour"], {"layer": "limits"}) == (
        everybody["mode"],
        everybody["limits"]["user"]["texts"],
        everybody["limits"]["user"]["origin"],
    )
    assert ("dry-run", {"layer": "clients.app"}) == (app["mode"], app["limits"]["user"]["origin"])
    page.send("apply", {**LIMIT, "limits": {"user": app["limits"]["user"]["texts"]}})
    assert app["limits"]["user"]["texts"] == page.query("current", id="app")["limits"]["user"]["texts"]


def test_all_errors_of_a_form_are_answered_with_their_fields(page: Page) -> None:
    body = {
        "kind": "limit",
        "client_id": "",
        "limits": {"user": ["0/minute", "5/minute", "x"], "client": []},
        "reason": " ",
        "for": "soon",
        "until": "1999-01-01T00:00:00Z",
    }
    problem = page.send("preview", body).json["problem"]

    assert ["client_id", "limits.client", "reason", "for", "until", "limits.user[0]", "limits.user[2]"] == [
        error["field"] for error in problem["fields"]
    ]
    assert all(error["text"] for error in problem["fields"])
    assert "for example" not in problem["text"], "an example of the file's notation would be wrong in a field"


def test_ids_with_wildcards_are_taken_literally(page: Page, mongo_uri: str) -> None:
    page.send("apply", {"kind": "trusted", "client_id": "star*", "reason": "x"})
    record(mongo_uri, [minute(3, name, allowed=1) for name in ("star*", "star-anything")])

    assert {"star*": "trusted", "star-anything": "enforce"} == {
        row["client_id"]: row["mode"] for row in page.query("clients")["rows"]
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LIMIT, ("limit", "user", ["user: 2/hour"], None)),
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
