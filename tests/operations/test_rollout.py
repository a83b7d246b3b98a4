"""Steps of a rollout."""

from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.rollout import Rollout, Step, step_of
from oauth_ratelimit.store.factory import Stores


@pytest.mark.parametrize(
    ("config", "step"),
    (
        ({"mode": "off"}, Step.OFF),
        ({"mode": "dry-run"}, Step.DRY_RUN),
        ({"mode": "dry-run", "canary": {"percent": 5}}, Step.DRY_RUN),
        ({"mode": "enforce", "canary": {"percent": 5}}, Step.CANARY),
        ({"mode": "enforce", "canary": {"instances": ["node-1*"]}}, Step.CANARY),
        ({"mode": "enforce", "canary": {"percent": 100}}, Step.ENFORCE),
        ({"mode": "dry-run", "clients": {"shop": {"mode": "enforce"}}}, Step.SOME),
        ({"mode": "enforce"}, Step.ENFORCE),
    ),
)
def test_step_follows_from_modes_and_canary(config: dict[str, Any], step: Step) -> None:
    assert step is step_of(load_config({"limits": {"client": ["9/minute"]}, **config}).policies)


class Alone(OperatorContext):
    """The context of an application without a store."""

    is_shared = False


def alone(config: dict[str, Any]) -> Rollout:
    """Return the rollout of a configuration without a store."""

    def no_stores() -> Stores:
        raise AssertionError

    return Rollout(Alone(lambda: load_config(config), no_stores, clock=lambda: 1_700_000_000.0))


@pytest.mark.parametrize(
    ("config", "following"),
    (
        ({"mode": "off"}, "in the configuration file: mode: dry-run"),
        ({"mode": "dry-run"}, "canary: {percent: 5}"),
        ({"mode": "enforce", "canary": {"percent": 5}}, "canary: {percent: 20}"),
        ({"mode": "enforce", "canary": {"percent": 20}}, "canary: {percent: 50}"),
        ({"mode": "enforce", "canary": {"percent": 50}}, "remove canary"),
        ({"mode": "dry-run", "clients": {"shop": {"mode": "enforce"}}}, "in the configuration file: mode: enforce"),
    ),
)
def test_next_step_is_named_with_a_command_that_works(config: dict[str, Any], following: str) -> None:
    """Without a store there are no overrides, so only the file can change."""
    rollout = alone(config)
    assert any(following in command for command in rollout.next_commands)
    assert all("in the configuration file: mode: " in command for command in rollout.back_commands)
    assert (None, None) == (rollout.data()["last_day"], rollout.data()["day_before"])


def test_counters_that_are_not_shared_are_a_reason_to_wait() -> None:
    rollout = alone({"mode": "dry-run"})
    assert not rollout.may_go_on
    assert "not shared" in rollout.problems[0]
    assert [] == alone({"mode": "enforce"}).next_commands
