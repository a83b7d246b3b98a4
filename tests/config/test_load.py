"""From a file or a mapping to settings."""

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from oauth_ratelimit.config import DenialSettings, StoreSettings, SyncSettings, load_config
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, Limits, OwnLimits, Policy, PolicySet, Rules
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "config" / "oauth_ratelimit.yaml"

BUILT_IN = Limits(
    client=(Policy("client", 9000, Window(60, 10)),),
    user=(Policy("user-1s", 10, Window(1, 1)), Policy("user-10s", 50, Window(10, 10))),
)


def users(values: dict[str, Any]) -> tuple[Policy, ...]:
    """Return the default limits per user that a configuration has."""
    return load_config(values).policies.limits.user


def test_nothing_configured() -> None:
    """Without any key it is a dry run with the built-in limits, in this process only."""
    settings = load_config({})
    assert PolicySet(mode=Mode.DRY_RUN, limits=BUILT_IN, instance=socket.gethostname()) == settings.policies
    assert StoreSettings(uri=None, collection="ratelimits", namespace=None, timeout_s=2.0) == settings.store
    assert SyncSettings(interval_s=1.0, near_limit="flush", deadline_s=0.02) == settings.sync
    assert DenialSettings(error="temporarily_unavailable", headers=("ietf", "x-ratelimit")) == settings.denial
    assert 1_000_000 == settings.max_keys


def test_limits_of_one_kind() -> None:
    """A limits key says all: a kind that it leaves out has no limit, not the built-in one."""
    policies = load_config({"limits": {"user": ["100/minute"]}}).policies
    assert Limits(user=(Policy("user", 100, Window(60, 10)),)) == policies.limits


def test_every_option_of_a_limit() -> None:
    """All options of a limit arrive."""
    written = {
        "limit": MAX_LIMIT,
        "window": "2m",
        "name": "burst, at night",
        "frames": 60,
        "estimator": "proportional",
        "count_denied": True,
        "mode": "enforce",
    }
    expected = Policy("burst, at night", 2**53, Window(120, 60), Estimator.PROPORTIONAL, True, Mode.ENFORCE)
    assert (expected,) == users({"limits": {"user": [written]}})


@pytest.mark.parametrize("amount", [1, 10**9, 2**53])
def test_any_amount(amount: int) -> None:
    """Any amount from 1 to 2^53 is a limit."""
    assert [amount] == [policy.limit for policy in users({"limits": {"user": [{"limit": amount, "window": 60}]}})]


@pytest.mark.parametrize(
    ("window", "expected_s"), [(60, 60), (60.0, 60), ("2000ms", 2), ("1h", 3600), ("366d", 31_622_400)]
)
def test_window(window: object, expected_s: int) -> None:
    """A window may be written in any unit that comes to whole seconds."""
    assert Window.of(expected_s) == users({"limits": {"user": [{"limit": 1, "window": window}]}})[0].window


@pytest.mark.parametrize(("window", "frames"), [(60, 10), (7, 7), (11, 1), (90, 10), (3600, 10), (1, 1), (26, 2)])
def test_default_frames(window: int, frames: int) -> None:
    """By default a window has as many frames as its largest divisor up to 10."""
    assert frames == users({"limits": {"user": [{"limit": 1, "window": window}]}})[0].window.frame_count


def test_default_names() -> None:
    """The only limit of its list is named by the kind; of several each is named by its window, or as it says itself."""
    several: list[Any] = ["1/second; 2/minute", {"limit": 3, "window": "1h", "name": "hourly"}]
    limits = load_config(
        {"limits": {"user": several, "client": ["9/minute"], "client_total": ["5/day"]}}
    ).policies.limits
    assert ["user-1s", "user-60s", "hourly"] == [policy.name for policy in limits.user]
    assert ["client", "client_total"] == [policy.name for policy in (*limits.client, *limits.client_total)]


def test_limit_that_is_switched_off() -> None:
    """``enabled: false`` is mode off, whatever the mode says."""
    values = {"limit": 1, "window": 1, "mode": "enforce", "enabled": False}
    assert Mode.OFF is users({"limits": {"user": [values]}})[0].mode


def test_modes() -> None:
    """Modes arrive at every level, ``enabled: false`` as mode off."""
    policies = load_config(
        {
            "mode": "enforce",
            "grants": {"password": {"mode": "dry-run"}},
            "plans": {"gold": {"mode": "off"}},
            "clients": {"app": {"mode": "enforce"}, "old": {"mode": "enforce", "enabled": False}, "plain": {}},
            "endpoints": {"revocation": {"enabled": False}},
        }
    ).policies
    assert Mode.ENFORCE is policies.mode
    assert Mode.DRY_RUN is policies.grants["password"].mode
    assert Mode.OFF is policies.plans["gold"].mode
    assert [Mode.ENFORCE, Mode.OFF, None] == [rules.mode for rules in policies.clients.values()]
    assert Mode.OFF is policies.endpoints["revocation"].mode


@pytest.mark.parametrize("values", [{"mode": "off"}, {"mode": False}, {"enabled": False}, {"mode": Mode.OFF}], ids=str)
def test_everything_switched_off(values: dict[str, Any]) -> None:
    """There are several ways to write off; YAML 1.1 reads the bare word as false."""
    assert Mode.OFF is load_config(values).policies.mode


def test_clients_plans_and_grants() -> None:
    """What differs for clients, plans, grant types and endpoints arrives, with what each leaves out as None."""
    policies = load_config(
        {
            "grants": {"refresh_token": {"limits": {"user": ["5/second"]}}},
            "plans": {"gold": {"limits": {"client": []}}},
            "clients": {
                "app": {"plan": "gold", "limits": {"user": ["9/second"]}},
                "batch": {"grants": {"device_code": {"mode": "off"}}, "endpoints": {"x": {"limits": {}}}},
            },
            "endpoints": {"x": {"path": ["/x/*"], "method": ["POST"], "limits": {"client": ["7/second"]}}},
        }
    ).policies
    device_code = "urn:ietf:params:oauth:grant-type:device_code"
    assert {"gold": Rules(limits=OwnLimits(client=()))} == policies.plans
    assert {
        "app": Rules(plan="gold", limits=OwnLimits(user=(Policy("user", 9, Window(1, 1)),))),
        "batch": Rules(grants={device_code: Rules(mode=Mode.OFF)}, endpoints={"x": Rules(limits=OwnLimits())}),
    } == policies.clients
    assert {
        device_code: Rules(),
        "refresh_token": Rules(limits=OwnLimits(user=(Policy("user", 5, Window(1, 1)),))),
    } == policies.grants
    limits = OwnLimits(client=(Policy("client", 7, Window(1, 1)),))
    assert {"x": Rules(paths=("/x/*",), methods=("POST",), limits=limits)} == policies.endpoints


def test_same_name_where_they_never_meet() -> None:
    """Limits of users and of clients may share a name, because no request meets both."""
    one = [{"limit": 1, "window": 1, "name": "tokens"}]
    limits = load_config({"limits": {"user": one, "client": one}}).policies.limits
    assert {"tokens"} == {policy.name for policy in (*limits.user, *limits.client)}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"percent": 10}, Canary(10.0)),
        ({"percent": 0.5, "salt": "x"}, Canary(0.5, "x")),
        ({"instances": ["node-1*"]}, Canary(instances=("node-1*",))),
    ],
)
def test_canary(written: dict[str, Any], expected: Canary) -> None:
    """A canary is by clients or by instances."""
    assert expected == load_config({"canary": written}).policies.canary


def test_other_sections() -> None:
    """Store, sync, denial and the rest arrive, durations in seconds."""
    settings = load_config(
        {
            "instance": "node-7",
            "trusted_clients": ["mobile", "mob*", "mobile"],
            "store": {"uri": "mongodb+srv://db/x", "collection": "c", "namespace": "shop", "timeout": "500ms"},
            "sync": {"interval": "5s", "near_limit": "reserve", "deadline": 0.05},
            "denial": {"error": "slow", "error_description": "Wait.", "error_uri": "https://e.org", "headers": []},
            "max_keys": 5,
        }
    )
    assert ("node-7", ("mobile", "mob*")) == (settings.policies.instance, settings.policies.trusted)
    assert StoreSettings("mongodb+srv://db/x", "c", "shop", 0.5) == settings.store
    assert SyncSettings(5.0, "reserve", 0.05) == settings.sync
    assert DenialSettings("slow", "Wait.", "https://e.org", ()) == settings.denial
    assert 5 == settings.max_keys


def test_overrides() -> None:
    """What the caller gives takes the place of the global mode and of the URI, and leaves a client's mode alone."""
    values = {"mode": "enforce", "enabled": False, "clients": {"app": {"mode": "enforce"}}}
    settings = load_config(values, mode="dry-run", uri="mongodb://other/db")
    assert (Mode.DRY_RUN, "mongodb://other/db") == (settings.policies.mode, settings.store.uri)
    assert Mode.ENFORCE is settings.policies.matching("app").mode
    assert Mode.OFF is load_config(values, mode="off").policies.matching("app").mode


def test_shipped_example() -> None:
    """The example file loads, as file and as the mapping that any YAML reader makes of it."""
    settings = load_config(EXAMPLE)
    assert settings == load_config(str(EXAMPLE)) == load_config(yaml.safe_load(EXAMPLE.read_text()))
    assert Mode.ENFORCE is settings.policies.matching("partner-app").mode


def test_error_of_a_file(tmp_path: Path) -> None:
    """An error names the file and every problem in it."""
    path = tmp_path / "limits.yaml"
    path.write_text("mode: on\nlimits: {user: [{limit: 0, window: 1s}]}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    amount = "a whole number from 1 to 2^53 (9007199254740992)"
    problems = ('mode: got "on", allowed: off, dry-run or enforce', f"limits.user[0].limit: got 0, allowed: {amount}")
    assert problems == caught.value.problems
    assert f"{path}: {'; '.join(problems)}" == str(caught.value)
    assert isinstance(caught.value, ValueError)
