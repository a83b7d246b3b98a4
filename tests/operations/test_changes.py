"""Overrides from what operators type."""

from typing import Any

import pytest

from oauth_ratelimit import ConfigError, load_config
from oauth_ratelimit.config.diff import values_of
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, OnLimit, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.operations.changes import (
    GUESSES,
    STAYS_OFF,
    checked_client_id,
    end_after,
    limit_override,
    notes_on_mode,
    storable_text,
)
from oauth_ratelimit.operations.marks import Mark, change_before, changes_of, last_change_s
from tests.operations.conftest import LIMITS, ContextOf

NOW_S = 1_790_000_000.0
CONFIG: dict[str, Any] = {"mode": "enforce", "limits": {"user": ["5/hour"], "client_total": ["50/hour"]}}


def limits(kind: LimitKind, *texts: str, on_limit: OnLimit | None = None) -> tuple[Policy, ...]:
    template = Override(Target(OverrideKind.LIMIT, "app", kind), "ann", "ticket 4711", NOW_S)
    override = limit_override(load_config(CONFIG).policies, template, texts, on_limit=on_limit)
    assert (template.target, "ann") == (override.target, override.author)
    return override.policies


@pytest.mark.parametrize(
    ("texts", "policies"),
    [
        (["none"], ()),
        (["100/minute"], (Policy("user", 100, Window.of(60)),)),
        (
            ["5/second", "{limit: 9, window: 1m, name: trial, frames: 6, mode: dry-run, count_denied: true}"],
            (
                Policy("user-1s", 5, Window.of(1)),
                Policy("trial", 9, Window.of(60, 6), count_denied=True, mode=Mode.DRY_RUN),
            ),
        ),
    ],
)
def test_limits_can_be_typed(texts: list[str], policies: tuple[Policy, ...]) -> None:
    assert policies == limits(LimitKind.USER, *texts)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["0/minute"], 'limits.user[0]: got "0/minute", allowed: 1 to 2^53'),
        (["many"], "limits.user[0]: got"),
        (["{limit: 1, windw: 1m}"], "limits.user[0].windw: unknown key"),
        (["{limit: 1"], 'limits.user[0]: got "{limit: 1", allowed'),
        (["many", "1/second", "none"], 'limits.user[2]: got "none", allowed'),
        (["1/second", "2/second"], "several limits have the name"),
        (["{limit: 1, window: 1m, name: client_total}"], "give each a name of its own"),
        (["1" * 1001], "characters of text such as"),
    ],
)
def test_invalid_limit_is_refused_with_its_place(texts: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        limits(LimitKind.USER, *texts)

    assert problem in "\n".join(error.value.problems)


def test_reuse_is_set_for_each_limit_of_a_client_and_refused_for_those_of_users() -> None:
    found = limits(LimitKind.CLIENT, "5/second; 9/minute", "{limit: 99, window: 1h}", on_limit=OnLimit.REUSE)

    assert [("client-1s", 5), ("client-60s", 9), ("client-3600s", 99)] == [(each.name, each.limit) for each in found]
    assert {OnLimit.REUSE} == {each.on_limit for each in found}
    with pytest.raises(ConfigError, match="a user's token is never given out again"):
        limits(LimitKind.USER, "5/second", on_limit=OnLimit.REUSE)
    with pytest.raises(ConfigError, match='got "many"'):
        limits(LimitKind.CLIENT, "many", on_limit=OnLimit.REUSE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checked_client_id(""), "1 to 1024 characters"),
        (lambda: checked_client_id("\udc80"), "1 to 1024 characters"),
        (lambda: storable_text("x" * 1001), "up to 1000 characters"),
        (lambda: end_after("soon", now_s=NOW_S), "allowed: seconds"),
        (lambda: end_after("1e9d", now_s=NOW_S), "allowed: seconds"),
        (lambda: end_after("9" * 400, now_s=NOW_S), "allowed: seconds"),
        (lambda: end_after("0s", now_s=NOW_S), "more than 0 s"),
        (lambda: end_after("0", now_s=NOW_S), "more than 0 s"),
        (lambda: end_after("4000d", now_s=NOW_S), "up to 10 years"),
    ],
)
def test_what_cannot_be_stored_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_typed_text_and_times_are_stored() -> None:
    assert "f?r alle" == storable_text(" f\udcfcr alle ")
    for text, length_s in (("7d", 7 * 86_400), ("3600", 3600), ("1.5", 1.5)):
        assert length_s == end_after(text, now_s=NOW_S) - NOW_S


def mode_of(mode: str, client_id: str | None = None) -> Override:
    return Override(Target(OverrideKind.MODE, client_id), "ann", "ticket 4711", NOW_S, mode=Mode(mode))


STAYS = "app stays in mode {}, because this comes first: override by ann: ticket 4711."
OWN = "These have a mode of their own, which stays: app (dry-run)."


@pytest.mark.parametrize(
    ("config", "before", "change", "effective", "sentences"),
    [
        ({}, mode_of("dry-run"), mode_of("enforce", "app"), "dry-run", [STAYS.format("dry-run")]),
        ({}, mode_of("off"), mode_of("dry-run", "app"), "off", [STAYS.format("off")]),
        ({}, mode_of("dry-run", "app"), mode_of("enforce"), "dry-run", [OWN]),
        ({}, mode_of("enforce", "app"), mode_of("dry-run"), "dry-run", []),
        ({}, mode_of("dry-run"), mode_of("off", "app"), "off", []),
        ({"guard": {"mode": "enforce"}}, mode_of("enforce"), mode_of("dry-run"), "dry-run", [GUESSES]),
        ({"guard": {"mode": "enforce"}}, mode_of("enforce"), mode_of("off"), "off", [GUESSES]),
        ({"guard": {"mode": "enforce"}}, mode_of("enforce"), mode_of("off", "app"), "off", []),
        ({"guard": {"mode": "dry-run"}}, mode_of("enforce"), mode_of("dry-run"), "dry-run", []),
        ({"mode": "off"}, mode_of("dry-run"), mode_of("enforce", "app"), "off", [STAYS_OFF]),
        (
            {
                "clients": {f"app-{number}": {"mode": "dry-run"} for number in range(6)},
                "grants": {"password": {"mode": "off"}},
                "canary": {"percent": 10},
            },
            mode_of("dry-run"),
            mode_of("enforce"),
            None,
            [
                "These have a mode of their own, which stays: app-0 (dry-run), app-1 (dry-run), "
                "app-2 (dry-run), app-3 (dry-run), app-4 (dry-run), and 2 more.",
                "The canary has 10 % of the clients; the others stay in a dry run.",
            ],
        ),
    ],
)
def test_mode_that_is_not_effective_says_what_comes_first(
    config: dict[str, Any], before: Override, change: Override, effective: str | None, sentences: list[str]
) -> None:
    settings = load_config({**CONFIG, **config})
    applied = apply_overrides(settings.policies, [*([before] if before.target != change.target else []), change])

    assert sentences == notes_on_mode(settings, [before], change)
    assert effective in (None, applied.matching("app").mode)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["limits.client[client]: 60/minute → 9/minute", "mode: off → enforce"],
            "mode: off → enforce and 1 other change",
        ),
        (["canary.percent: 5.0 → 20.0"], "canary.percent: 5.0 → 20.0"),
        (["clients.app.mode: added off"], "clients.app.mode: added off"),
        (["limits.client[mode]: 60/minute → 9/minute"], ""),
    ],
)
def test_change_of_a_mode_is_told_from_other_changes_of_a_file(lines: list[str], said: str) -> None:
    more = " and 1 other change" if len(lines) > 1 else ""
    mark = Mark(0.0, f"configuration: {lines[0]}{more}", lines=lines)
    assert (said and f"configuration: {said}") == mark.mode_text


def test_change_that_cannot_deny_is_not_named_as_the_cause_of_denials(context_of: ContextOf) -> None:
    context = context_of(LIMITS)
    store, mode, trusted = (
        context.stores.overrides,
        Target(OverrideKind.MODE),
        Target(OverrideKind.TRUSTED, "app"),
    )

    def cause(policy: str = "client", *, is_real: bool = True) -> str:
        marks = changes_of(context, "app")
        return change_before(marks, marks[-1].at_s, {policy}, is_real=is_real)

    store.put(Override(mode, "ann", "canary", NOW_S, mode=Mode.ENFORCE))
    store.put(Override(mode, "bob", "incident", NOW_S, mode=Mode.DRY_RUN))
    store.put(Override(mode, "bob", "incident", NOW_S, mode=Mode.OFF))
    store.put(Override(trusted, "cyd", "ticket 4711", NOW_S))
    store.note_reset(Counters("app"), author="dan", reason="ticket 4711")
    by_app = "{limit: 9, window: 1h, name: by/app}"
    for kind, limit in ((LimitKind.CLIENT_TOTAL, by_app), (LimitKind.USER, "9/hour"), (LimitKind.CLIENT, "none")):
        target = Target(OverrideKind.LIMIT, "app", kind)
        store.put(Override(target, "fay", "ticket 4711", NOW_S, policies=limits(kind, limit)))
    assert "mode enforce for everybody (ann)" in cause()
    for policy, said in (("user", "user limit 9/hour"), ("by/app", "limit by/app"), ("revocation/by/app", "by/app")):
        assert said in cause(policy)
    assert "" == cause(is_real=False), "a mode sends no requests"

    store.remove(trusted, author="eve", reason="ticket 4711")
    assert "override removed, trusted for app (eve)" in cause()
    for each in (Mode.DRY_RUN, Mode.ENFORCE):
        context.stores.heartbeats.note_configuration("node-1:1:a", {"mode": each}, at_s=store.history()[-1].at_s + 1)
    assert "configuration: mode: dry-run → enforce" in cause()
    assert "override removed, trusted for app (eve)" in cause(is_real=False)


LOWER = {"limits": {"user": ["1/minute"]}}
HERE = {"endpoints": {"revocation": {"limits": {"client": ["9/minute"]}}}}
PLANS = {"gold": {"limits": {"user": ["9/minute"]}}, "silver": LOWER}


@pytest.mark.parametrize(
    ("client_id", "own"),
    [
        ("app", LOWER),
        ("acme/portal", LOWER),
        ("com.example.limits.app", LOWER),
        ('say "hi" \\ \n\u00e9\U0001f600', LOWER),
        ("app", {"mode": "off"}),
        ("app", {"plan": "silver"}),
        ("app", {"grants": {"refresh_token": LOWER}}),
        ("app", {"endpoints": {"revocation": {"mode": "off"}}}),
    ],
)
def test_change_of_one_client_in_the_file_concerns_that_client_alone(
    context_of: ContextOf, client_id: str, own: dict[str, Any]
) -> None:
    context = context_of(LIMITS)
    before = {"plan": "gold"} if "plan" in own else {}
    for at_s, section in ((NOW_S - 9000, before), (NOW_S - 9, {**before, **own})):
        values = values_of(load_config({**CONFIG, **HERE, "plans": PLANS, "clients": {client_id: section}}))
        context.stores.heartbeats.note_configuration("node-1:1:a", values, at_s=at_s)

    assert client_id == changes_of(context, client_id)[-1].client_id
    assert NOW_S - 9 == last_change_s(context, client_id) > last_change_s(context, "other")


@pytest.mark.parametrize("name", ['"\\q"', '"\\ud83"', '"' + 240 * "a" + '"', '"a', '""', '"\n"'])
def test_change_of_a_client_whose_name_cannot_be_read_concerns_all(context_of: ContextOf, name: str) -> None:
    """It may be cut, or planted in the database."""
    context = context_of(LIMITS)
    for at_s, values in ((NOW_S - 9000, {"mode": "off"}), (NOW_S - 9, {"mode": "off", f"clients.{name}.mode": "off"})):
        context.stores.heartbeats.note_configuration("node-1:1:a", values, at_s=at_s)
    assert None is changes_of(context, "app")[-1].client_id


@pytest.mark.parametrize(
    ("former", "values", "is_cause"),
    [
        ({"mode": "enforce"}, {"mode": "dry-run"}, False),
        ({"mode": "enforce"}, {"mode": "off"}, False),
        ({"mode": "enforce"}, {"mode": "enforce", "clients.app.mode": "dry-run"}, False),
        ({"mode": "enforce", "guard.mode": "enforce"}, {"mode": "dry-run", "guard.mode": "dry-run"}, False),
        ({"mode": "off"}, {"mode": "dry-run"}, True),  # of clients with a mode of their own
        ({"mode": "enforce", "clients.app.mode": "dry-run"}, {"mode": "enforce"}, True),
        ({"mode": "enforce"}, {"mode": "dry-run", "limits.client[client]": "9/minute"}, True),
    ],
)
def test_file_that_only_switches_to_a_dry_run_is_no_cause_of_denials(
    context_of: ContextOf, former: dict[str, str], values: dict[str, str], is_cause: bool
) -> None:
    context = context_of(LIMITS)
    for at_s, found in ((NOW_S - 9000, former), (NOW_S - 9, values)):
        context.stores.heartbeats.note_configuration("node-1:1:a", found, at_s=at_s)
    assert is_cause is bool(change_before(changes_of(context, "app"), NOW_S, {"client"}, is_real=True))
