"""Steps of a rollout."""

from typing import Any

import pytest

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.statistics import GUARD, ClientMinute, Source, Tally
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.status import Rollout
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat
from tests.operations.conftest import ContextOf, alone

FILE = "# in the configuration file:"
CANARY = "mode: enforce, canary: {percent: 5}"


@pytest.mark.parametrize(
    ("config", "step", "following"),
    (
        ({"mode": "off"}, "off", f"{FILE} mode: dry-run"),
        ({"mode": "dry-run"}, "dry run", f"{FILE} {CANARY}"),
        ({"mode": "dry-run", "canary": {"percent": 9}}, "dry run", f"{FILE} {CANARY}"),
        ({"mode": "enforce", "canary": {"percent": 5}}, "canary", f"{FILE} mode: enforce, canary: {{percent: 20}}"),
        ({"mode": "enforce", "canary": {"percent": 20}}, "canary", f"{FILE} mode: enforce, canary: {{percent: 50}}"),
        ({"mode": "enforce", "canary": {"percent": 50}}, "canary", f"{FILE} mode: enforce, without canary"),
        ({"mode": "enforce", "canary": {"instances": ["a"]}}, "canary", f"{FILE} {CANARY}"),
        ({"mode": "dry-run", "clients": {"shop": {"mode": "enforce"}}}, "dry run", f"{FILE} {CANARY}"),
        ({"mode": "enforce", "canary": {"percent": 100}}, "enforce", None),
        ({"mode": "enforce"}, "enforce", None),
    ),
)
def test_step_follows_from_modes_and_canary(config: dict[str, Any], step: str, following: str | None) -> None:
    """Without a store there are no overrides, so only the file can change."""
    rollout = Rollout(alone(config))
    data = rollout.data()

    assert (step, following) == (data["step"], next(iter(rollout.next_commands), None))
    assert (step != "off") is any(command.startswith(f"{FILE} mode: ") for command in rollout.back_commands)
    assert (False, None) == (data["may_go_on"], data["last_day"])
    assert "Nothing is shared with other hosts" in rollout.problems[0]


OWN = Source("client", "client_credentials")
ENFORCED = {"mode": "enforce"}


def record(context: OperatorContext, *, hours: int, over: int) -> None:
    now_s = int(context.now_s // 60) * 60
    shares = [
        ClientMinute(client_id, now_s - 60 - 3600 * hour, {OWN: tally})
        for hour in range(hours)
        for client_id, tally in (("calm", Tally(1000)), ("wasteful", Tally(10, would_deny=over, would_reuse=over // 2)))
    ]
    context.stores.statistics.put("one-0", shares, keep_s=5 * 86_400.0)


def beat(context: OperatorContext, *, mode: str, lag_s: float = 1.0, at_s: float | None = None) -> None:
    facts = context.stores.documents.facts()
    beat_at_s = facts.clock_s if at_s is None else facts.clock_s + at_s
    context.stores.heartbeats.put(
        Heartbeat("node-1:1:aa", beat_at_s, beat_at_s - 60, version="1", mode=mode, interval_s=1.0, lag_s=lag_s)
    )


def override(context: OperatorContext, mode: str, client_id: str | None = None, **more: Any) -> None:
    target = Target(OverrideKind.MODE, client_id)
    context.stores.overrides.put(Override(target, "ann", "why", context.now_s, mode=Mode(mode), **more))


def test_quiet_day_with_healthy_instances_lets_the_next_step_follow(context_of: ContextOf) -> None:
    context = context_of({"mode": "dry-run"})
    record(context, hours=40, over=2)
    beat(context, mode="dry-run")
    data: Any = Rollout(context).data()

    assert ("dry run", True, [], 1) == (data["step"], data["may_go_on"], data["problems"], data["instance_count"])
    assert [{"client_id": "wasteful", "over": 48}] == data["last_day"]["clients"]
    names = ("requests", "denied", "would_deny", "would_reuse")
    assert (24 * 1012, 0, 48, 24) == tuple(data["last_day"][name] for name in names)
    reuse = f"{FILE} on_limit: reuse in limits of kind client (spares 24 of 48, 50 % of those over a limit)"
    assert [reuse, 'mode set enforce --canary 5 --reason "canary"'] == data["next"]
    has_reuse = {"mode": "dry-run", "limits": {"client": [{"limit": 9, "window": "1m", "on_limit": "reuse"}]}}
    assert data["next"][1:] == Rollout(context_of(has_reuse)).next_commands


def test_each_step_is_one_command_until_the_file_says_it(context_of: ContextOf) -> None:
    dry_run, enforced = {"mode": "dry-run", "canary": {"percent": 9}}, {"mode": "enforce"}
    steps = []
    for percent in (5, 20, 50, 100):
        override(context_of(dry_run), "enforce", canary_percent=percent)
        rollout = Rollout(context_of(dry_run))
        steps.append((rollout.step.value, rollout.next_commands))
        assert ("dry-run", "override") == (rollout.data()["file_mode"], rollout.data()["mode_origin"]["layer"])

    assert [
        ("canary", ['mode set enforce --canary 20 --reason "canary"']),
        ("canary", ['mode set enforce --canary 50 --reason "canary"']),
        ("canary", ['mode set enforce --canary 100 --reason "for all clients"']),
        ("enforce", ["# in the configuration file: mode: enforce, without canary"]),
    ] == steps
    assert ['mode unset --reason "the configuration enforces"'] == Rollout(context_of(enforced)).next_commands


def test_limits_of_an_override_are_to_be_in_the_file(context_of: ContextOf) -> None:
    limit = Policy("user", 7, Window.of(60))
    target = Target(OverrideKind.LIMIT, None, LimitKind.USER)
    store = context_of(ENFORCED).stores.overrides
    store.put(Override(target, "ann", "second step", 0.0, policies=(limit,)))
    in_file = f"{FILE} limits of kind user, now those of an override: see limit list"
    assert [in_file] == Rollout(context_of(ENFORCED)).next_commands
    unset = 'limit unset --everybody --kind user --reason "the configuration has it"'
    has_it = {**ENFORCED, "limits": {"user": ["7/minute"]}}
    assert [unset] == Rollout(context_of(has_it)).next_commands
    store.remove(target, author="ann", reason="the configuration has it")
    assert [] == Rollout(context_of(has_it)).next_commands


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_way_back_from_an_emergency_says_how_many_requests_were_denied(context_of: ContextOf, mode: str) -> None:
    """Nothing else may have changed since."""
    context = context_of(ENFORCED)
    record(context, hours=40, over=900)
    override(context, mode)
    beat(context, mode=mode)
    rollout = Rollout(context_of(ENFORCED))

    assert (mode.replace("-", " "), ['mode unset --reason "the incident is over"']) == (
        rollout.step,
        rollout.next_commands,
    )
    assert ["47 % of the requests are over a limit. Are these clients the ones you mean?"] == rollout.problems


def test_dry_run_of_an_operator_is_a_dry_run_for_clients_that_are_enforced(context_of: ContextOf) -> None:
    override(context_of(ENFORCED), "dry-run")
    override(context_of(ENFORCED), "enforce", "shop")
    rollout = Rollout(context_of(ENFORCED))
    assert "dry run" == rollout.step
    back_to_the_file = ['mode unset --reason "the incident is over"']
    assert (back_to_the_file, []) == (rollout.next_commands, rollout.back_commands)
    override(context_of(ENFORCED), "enforce")
    assert "enforce" == Rollout(context_of(ENFORCED)).step


@pytest.mark.parametrize(
    ("more", "back"),
    [({}, "mode unset"), ({"clients": {"shop": {"mode": "enforce"}}}, "mode set dry-run")],
    ids=["the file denies nobody", "the file denies a client"],
)
def test_way_back_from_an_override_is_the_file_unless_that_denies(
    context_of: ContextOf, more: dict[str, Any], back: str
) -> None:
    config = {"mode": "dry-run", **more}
    override(context_of(config), "enforce")
    assert [f'{back} --reason "too many complaints"'] == Rollout(context_of(config)).back_commands


def test_few_statistics_many_denials_and_lag_are_reasons_to_wait(context_of: ContextOf) -> None:
    context = context_of(ENFORCED)
    record(context, hours=3, over=900)
    beat(context, mode="dry-run", lag_s=60.0, at_s=-100.0)
    rollout = Rollout(context)

    assert [
        "1 instance late with the heartbeat: see flask oauth-ratelimit status.",
        "1 instance behind with the synchronisation: see flask oauth-ratelimit status.",
        "1 instance not in mode enforce: see flask oauth-ratelimit status.",
        "Less than a day of statistics: wait for the peaks that you know of.",
        "47 % of the requests are over a limit. Are these clients the ones you mean?",
    ] == rollout.problems
    assert ['mode set dry-run --reason "too many complaints"'] == rollout.back_commands


def test_empty_database_has_no_statistics_and_no_instances(context_of: ContextOf) -> None:
    problems = Rollout(context_of(ENFORCED)).problems
    assert ["No instance seen in the last 10 minutes.", "No statistics of the last day."] == problems


def test_what_the_guard_denies_is_said_apart_from_the_limits_of_tokens(context_of: ContextOf) -> None:
    """It has a mode of its own, so no step of the rollout changes it, but a dry run for everybody does."""
    context = context_of({"mode": "dry-run", "guard": {"mode": "enforce"}})
    at_s = int(context.now_s // 60) * 60 - 60
    guesses = {Source("client", f"{GUARD}address"): Tally(60, denied=50, would_deny=9)}
    context.stores.statistics.put("one-0", [ClientMinute("calm", at_s, {OWN: Tally(7), **guesses})], keep_s=86_400.0)
    day: Any = Rollout(context).data()["last_day"]
    assert (7, 0, 0) == (day["requests"], day["denied"], day["would_deny"])
    assert {"mode": "enforce", "denied": 50, "would_deny": 9} == day["guard"]
    override(context, "dry-run")
    after = Rollout(context_of({"mode": "enforce", "guard": {"mode": "enforce"}})).data()["last_day"]
    assert "dry-run" == after["guard"]["mode"]
