"""Changes: preview, apply, remove, and what followed."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.admin import changes
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.statistics import ClientMinute, Denials, Source
from oauth_ratelimit.operations.changes import STAYS_OFF
from oauth_ratelimit.operations.format import override_text
from oauth_ratelimit.store.mongo.client import OVERRIDES, Connection
from oauth_ratelimit.store.mongo.overrides import MAX_OVERRIDES, OverrideStore
from oauth_ratelimit.traffic.preview import UNCHANGED
from tests.admin.conftest import DRY_RUN, LIMIT, Page, minute, record
from tests.support.apps import app_limiter_of
from tests.support.limiters import send_hits

REUSE = {"kind": "limit", "client_id": "app", "on_limit": "reuse", "reason": "ticket 4711"}
TOTAL = {**LIMIT, "limits": {"client_total": {"client_total": 4000}}}


def storm(ago: int) -> ClientMinute:
    """Return a minute in which a client without users was denied most of its requests."""
    source = Source("client", "client_credentials")
    return minute(ago, source=source, window_s=3600, allowed=10, denied=90)


def test_preview_names_the_tier_that_denies_next_and_what_would_be_enough(
    open_page: Callable[..., Page], mongo_uri: str
) -> None:
    page = open_page(store={"uri": mongo_uri}, limits={"client": ["10/minute", "600/hour"]})
    record(mongo_uri, [storm(ago) for ago in range(1, 11)])
    one = page.send("preview", {**LIMIT, "limits": {"client": {"client-60s": 50}}}).json
    enough = page.send("preview", {**LIMIT, "limits": one["proposal"]}).json

    assert {"client-60s", "client-3600s"} == set(one["proposal"]["client"])
    assert "90 of 100 requests per minute denied" in one["lines"][0]
    assert "This does not help: client-3600s" in one["lines"][1]
    assert "client-3600s from" in one["lines"][1]
    assert "This helps." in enough["lines"][1]
    assert [] == page.history()


@pytest.mark.parametrize(
    ("grant", "words"),
    [
        ("guard:client_secret", "denied by the guard, 90 per minute: see denials app --where guard."),
        ("endpoint:revocation", "denied at other endpoints, 90 per minute: see denials app --where endpoint."),
    ],
)
def test_preview_says_first_that_a_limit_does_not_change_what_is_denied_elsewhere(
    page: Page, mongo_uri: str, grant: str, words: str
) -> None:
    source = Source("client", grant)
    record(mongo_uri, [minute(ago, source=source, allowed=10, denied=90) for ago in range(1, 12)])
    line, *_ = page.send("preview", TOTAL).json["lines"]

    assert f"No limit of tokens changes what is {words}" == line
    assert "None of these limits changes what was denied last: " in page.part("amounts", id="app")
    assert "No limit" not in str(page.send("preview", {**DRY_RUN, "client_id": "app"}).json["lines"])


def test_form_has_the_limit_that_denies_first(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, limits={"client": ["10/minute", "600/hour"]})
    assert page.part("amounts", id="app").startswith("client-60s")
    record(mongo_uri, [replace(storm(1), denials={("client-3600s", "x", "denied"): Denials(9, 1, 2, 600, 3600)})])
    assert page.part("amounts", fresh=True, id="app").startswith("client-3600s"), "and no other words before it"


def test_panel_of_a_user_has_the_numbers_of_the_user(page: Page, mongo_uri: str, limiter: Limiter) -> None:
    record(mongo_uri, [storm(ago) for ago in range(1, 11)])
    send_hits(limiter, 5, "app", "alice")
    raised, *_ = page.send("preview", {**LIMIT, "limits": {"user": {"user": 9}}, "user": "alice"}).json["lines"]
    trusted, whole, *_ = page.send("preview", {"kind": "trusted", "client_id": "app", "user": "alice"}).json["lines"]
    before = (
        "alice: user: 5 of 5/hour; client_total: 5 of 50/hour; next request denied: over the limit user for another "
    )

    assert page.part("panel", id="app", user="alice").partition(before)[2]
    assert before in raised and raised.endswith(
        ". With this change: user: 5 of 9/hour; client_total: 5 of 50/hour; next request admitted."
    )
    assert trusted.endswith("With this change: next request admitted: trusted.")
    assert "All users of app together:" == whole
    assert "user per hour" in (form := page.part("amounts", id="app", user="alice"))
    assert "client per hour" not in form, "which is for grants without a user"
    assert "alice" not in page.part("panel", id="app")


def test_preview_of_trust_and_dry_run_counts_whom_they_spare(page: Page, mongo_uri: str) -> None:
    record(mongo_uri, [storm(ago) for ago in range(1, 11)])
    for form in ({"kind": "trusted", "client_id": "app"}, {**DRY_RUN, "client_id": "app"}):
        lines = page.send("preview", form).json["lines"]
        assert "This helps. With this change: none denied in the next 1 h 10 min." == lines[1]
    everybody = page.send("preview", DRY_RUN).json["lines"]
    assert "In the last hour this would have spared 900 of 1,000 requests, of 1 of 1 client:" == everybody[0]


def test_preview_of_a_dry_run_in_a_dry_run_says_that_there_is_one(
    open_page: Callable[..., Page], mongo_uri: str
) -> None:
    page = open_page(store={"uri": mongo_uri}, mode="dry-run")
    record(mongo_uri, [minute(ago, allowed=10, would_deny=90) for ago in range(1, 11)])
    for client_id in ("app", None):
        answer = page.send("preview", {**DRY_RUN, "client_id": client_id}).json
        assert {"lines": [changes.IN_DRY_RUN], "proposal": {}} == answer
    assert "would be denied" in page.send("preview", {"kind": "trusted", "client_id": "app"}).json["lines"][0]


@pytest.mark.parametrize(("kind", "mode"), [("mode", Mode.DRY_RUN), ("trusted", None)])
def test_preview_of_what_applies_already_says_that_it_gets_an_end(
    page: Page, connection: Connection, kind: str, mode: Mode | None
) -> None:
    """It would be gone then, and everybody denied again."""
    target = Target(OverrideKind(kind), "app" if mode is None else None)
    OverrideStore(connection).put(Override(target, "bob", "incident 17", time.time(), mode=mode))
    form = {"kind": kind, "client_id": target.client_id, "mode": mode and mode.value}
    assert [UNCHANGED] == page.send("preview", form).json["lines"]

    (end,) = page.send("preview", {**form, "for": "2h"}).json["lines"]
    assert re.fullmatch(
        "This replaces the override by bob, which has no end, with one that ends at 20.*T.*Z[.]", end
    ), end


def test_preview_of_a_mode_says_once_that_the_file_switches_it_off(
    open_page: Callable[..., Page], mongo_uri: str, connection: Connection
) -> None:
    page = open_page(store={"uri": mongo_uri}, mode="off")
    for client_id in (None, "app"):
        lines = page.send("preview", {**DRY_RUN, "client_id": client_id}).json["lines"]
        assert [STAYS_OFF] == [line for line in lines if "No counters" not in line]

    page = open_page(store={"uri": mongo_uri})
    for client_id, mode in ((None, Mode.OFF), ("app", Mode.DRY_RUN)):
        target = Target(OverrideKind.MODE, client_id)
        OverrideStore(connection).put(Override(target, "ann", "incident 17", time.time(), mode=mode))
    lines = page.send("preview", {**DRY_RUN, "client_id": "app"}).json["lines"]
    assert (False, True) == (STAYS_OFF in lines, UNCHANGED in lines), "the file has no mode: off"


def test_preview_of_reuse_counts_the_denials_that_it_would_have_spared(page: Page, mongo_uri: str) -> None:
    (source, tally), *_ = storm(1).tallies.items()
    record(mongo_uri, [replace(storm(ago), tallies={source: tally._replace(would_reuse=81)}) for ago in range(1, 11)])
    share, why = "90 % of 900 requests over a limit", "the client had a token that was still valid"
    expected = f"In the last hour reuse would have spared {share}: {why}."

    assert [expected] == page.send("preview", REUSE).json["lines"]
    page.send("apply", REUSE)
    assert "client limit 10/hour reuse" in page.part("panel", id="app")
    assert ["This applies already, so nothing changes."] == page.send("preview", REUSE).json["lines"]


GRANTS = {"password": {"limits": {"user": ["9/hour"]}}, "implicit": {"limits": {"client": ["9/hour"]}}}


def test_preview_says_what_a_change_leaves_as_it_is(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, trusted_clients=["friend"], grants=GRANTS)
    friend = page.send("preview", {**LIMIT, "client_id": "friend"}).json["lines"]
    everybody = page.send("preview", {**LIMIT, "client_id": None}).json["lines"]

    assert any("trusted" in line for line in friend)
    assert "Grant types with user limits of their own keep them: password." in friend
    assert "Clients with limits of their own keep them." in everybody


def test_a_second_preview_waits_for_no_other_one(page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes meanwhile is refused at once."""
    meanwhile: list[str] = []
    compute = changes.impact_of

    def slow(*args: Any) -> Any:
        meanwhile.append(page.send("preview", TOTAL).json["problem"]["text"])
        return compute(*args)

    monkeypatch.setattr(changes, "impact_of", slow)
    assert 200 == page.send("preview", TOTAL).status_code
    assert [changes.BUSY] == meanwhile


@pytest.mark.parametrize(
    "form",
    [LIMIT, {"kind": "trusted", "client_id": "app", "reason": "x"}, DRY_RUN, REUSE],
    ids=["limit", "trust", "dry run", "reuse"],
)
def test_a_form_that_is_sent_three_times_makes_one_override(page: Page, form: dict[str, Any]) -> None:
    answers = [page.send("apply", form) for _ in range(3)]

    assert [200] * 3 == [each.status_code for each in answers]
    assert len(page.history()) == len({entry.target for entry in page.history()})


@pytest.mark.parametrize("form", [LIMIT, {"kind": "trusted", "client_id": "app", "reason": "x"}, DRY_RUN, REUSE])
def test_a_form_with_another_end_replaces_the_first_and_is_no_second_click(page: Page, form: dict[str, Any]) -> None:
    """Amounts that apply already get another end, too."""
    page.send("apply", {**form, "for": "30m"})
    ends = page.send("preview", {**form, "for": "1d"}).json["lines"]
    for length in ("1d", "1d"):
        assert 200 == page.send("apply", {**form, "for": length}).status_code

    words = "This replaces the override by ann, which ends at .*Z, with one that ends at .*Z[.]"
    assert ends and all(re.fullmatch(words, end) for end in ends)
    lengths = [entry.override.lasts_ms for entry in page.history() if entry.override]
    assert {1_800_000, 86_400_000} == set(lengths)
    assert len(lengths) == 2 * len({entry.target for entry in page.history()})


def test_another_end_is_for_the_kinds_that_are_named_with_the_amounts_that_apply(page: Page) -> None:
    page.send("apply", {**LIMIT, "limits": {"client": {"client": 2}, "user": {"user": 3}}})
    page.send("apply", {**LIMIT, "limits": {"client_total": {"client_total": 9}}, "for": "2h"})
    page.send("apply", {**LIMIT, "limits": {"user": {}, "client_total": {}}, "for": "1h"})
    assert {"client": (2, 168), "user": (3, 1), "client_total": (9, 1)} == {
        entry.override.target.limit_kind: (entry.override.policies[0].limit, (entry.override.lasts_ms or 0) / 3_600_000)
        for entry in page.history()
        if entry.override
    }


def test_numbers_after_a_change_say_whether_it_worked(
    still: None, page: Page, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(mongo_uri, [storm(2), storm(1)])
    before = page.part("panel", id="app", since=str(storm(2).minute_s - 300))
    since_s = page.send("apply", LIMIT).json["since_s"]
    changed_s = page.history()[-1].at_s  # by MongoDB's clock, which does not stand still
    monkeypatch.setattr(app_limiter_of(page.app), "now_s", lambda: changed_s)
    after = page.part("panel", fresh=True, id="app", since=str(since_s))
    monkeypatch.setattr(app_limiter_of(page.app), "now_s", lambda: changed_s + 20.0)
    later = page.part("panel", fresh=True, id="app", since=str(since_s))

    assert re.search(r"Still denied\. Denied since .* by the limit client .* 100 10 90 0 0 .* 100 10 90 0 0", before)
    assert re.search(r"Applied\. Changed at .* Its effect shows from", after)
    assert "Applied. Not denied since the change at" in later
    assert "Still denied" not in page.part("panel", id="app", since=str(since_s - 700)), "that was long ago"


def test_all_errors_of_a_form_are_answered_with_their_fields(page: Page) -> None:
    body = {
        "kind": "limit",
        "client_id": "",
        "limits": {"user": {"user": 0}, "client": {"client": "many"}},
        "reason": " ",
        "for": "soon",
    }
    problem = page.send("preview", body).json["problem"]

    assert ["client_id", "reason", "for", "limits.client.client", "limits.user.user"] == [
        error["field"] for error in problem["fields"]
    ]
    assert all(error["text"] for error in problem["fields"])
    assert "for example" not in problem["text"], "an example of the file's notation would be wrong in a field"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LIMIT, "user limit 2/hour"),
        ({"kind": "mode", "client_id": None, "mode": "dry-run", "reason": "x"}, "mode dry-run"),
        ({"kind": "trusted", "client_id": "mobile-*", "reason": "x"}, "trusted"),
    ],
    ids=["limit", "mode", "trust"],
)
def test_override_is_applied_and_removed_under_the_operators_name(
    page: Page, body: dict[str, Any], expected: str
) -> None:
    with capture_logs() as logs:
        assert 200 == page.send("apply", body).status_code
        (found,) = page.history()
        assert isinstance(found.target, Target) and found.override
        target = {name: getattr(found.target, name) for name in ("kind", "client_id", "limit_kind")}
        assert page.send("remove", {**target, "reason": "done"}).json["is_removed"]
        assert not page.send("remove", {**target, "reason": "done"}).json["is_removed"]

    assert expected == override_text(found.override)
    assert [("set", "ann", body["reason"]), ("unset", "ann", "done")] == [
        (entry.action, entry.author, entry.reason) for entry in page.history()
    ]
    assert "No overrides: the configuration applies." in page.part("overrides")
    changes = [entry for entry in logs if entry["event"] == "override_changed"]
    assert [("ann", "set"), ("ann", "unset")] == [(entry["operator"], entry["action"]) for entry in changes]


def test_form_has_the_present_amounts_and_changes_nothing_else_of_a_limit(
    open_page: Callable[..., Page], mongo_uri: str
) -> None:
    limits = ["1/hour", {"name": "fine", "limit": 9, "window": 60, "frames": 60, "estimator": "strict"}]
    page = open_page(store={"uri": mongo_uri}, clients={"app": {"mode": "dry-run", "limits": {"user": limits}}})
    everybody, app = page.part("amounts"), page.part("amounts", id="app")
    page.send("apply", {**LIMIT, "limits": {"user": {"fine": 12}}})
    changed = page.part("amounts", id="app")

    assert "user per hour, now 5" in everybody
    assert "per hour, now 1 " in app and "fine per minute, now 9" in app
    assert app.replace("now 9", "now 12") == changed
    (entry,) = page.history()
    assert entry.override and ("strict", 60) == (
        entry.override.policies[1].estimator,
        entry.override.policies[1].window.frame_count,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "must be a JSON object"),
        ({}, "kind"),
        ({**DRY_RUN, "kind": ["mode"]}, "kind"),
        ({**DRY_RUN, "mode": "on"}, "mode"),
        ({**DRY_RUN, "client_id": 7}, "client_id"),
        ({**DRY_RUN, "client_id": "\ud800"}, "client_id"),
        ({**DRY_RUN, "reason": "x" * 1001}, "reason"),
        ({"kind": "trusted", "client_id": None, "reason": "x"}, "trusting everybody"),
        ({**DRY_RUN, "mode": "enforce"}, "allowed: dry-run"),
        ({"kind": "limit", "client_id": "app", "reason": "x"}, "limits"),
        ({**LIMIT, "limits": {}}, "these apply already"),
        ({**LIMIT, "limits": {"user": {"user": 5}}}, "these apply already"),
        ({**LIMIT, "limits": {"user": {}}}, "these apply already"),
        ({**LIMIT, "limits": {"user": ["1/minute"]}}, "limits.user"),
        ({**LIMIT, "limits": {"user": {"other": 3}}}, "the name of a limit that applies now"),
        ({**LIMIT, "limits": {"users": {"user": 3}}}, "limits"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_change_is_explained_and_not_stored(page: Page, body: Any, words: str) -> None:
    for name in ("preview", "apply"):
        response = page.send(name, body)
        assert (400, "input") == (response.status_code, response.json["problem"]["kind"]), response.text
        assert words in response.json["problem"]["text"]
    assert [] == page.history()


def test_change_that_instances_do_not_see_is_an_error(page: Page, connection: Connection) -> None:
    """A dry run for everybody works all the same."""
    connection.collection(OVERRIDES).insert_many(
        {"_id": {"kind": "mode", "clientId": f"{number:05}"}, "active": True} for number in range(MAX_OVERRIDES + 1)
    )
    refused = page.send("apply", {"kind": "trusted", "client_id": "zebra", "reason": "ticket 4711"})
    assert (424, True) == (
        refused.status_code,
        "instances do not see the change of ratelimit_overrides" in refused.text,
    )
    assert 200 == page.send("apply", DRY_RUN).status_code
