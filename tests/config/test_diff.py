"""Changes of a reload in words."""

from dataclasses import replace
from typing import Any

import pytest

from oauth_ratelimit.config import describe_changes, load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides

BASE: dict[str, Any] = {
    "instance": "node-1",
    "limits": {"user": ["10/second; 50/minute"]},
    "trusted_clients": ["mobile"],
    "clients": {"app": {"mode": "enforce", "limits": {"user": ["5/second"]}}},
}
OPTIONS = {"frames": 2, "mode": "enforce", "count_denied": True}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"mode": "enforce", "guard": {"mode": "dry-run"}}, ["mode: dry-run -> enforce", "guard.mode: off -> dry-run"]),
        ({"sync": {"interval": "500ms", "preload": 0}}, ["sync.interval: 1.0 -> 0.5", "sync.preload: 1000 -> 0"]),
        ({"store": {"uri": "mongodb://u:hunter2@h"}}, ["store.uri: changed"]),
        ({"denial": {"headers": ["ietf"]}}, ["denial.headers[x-ratelimit]: removed"]),
        ({"denial": {"error_uri": "https://e.org"}}, ["denial.error_uri: added https://e.org"]),
        ({"trusted_clients": ["batch-*"]}, ["trusted_clients[mobile]: removed", "trusted_clients[batch-*]: added"]),
        (
            {"limits": {"user": ["1/hour; 20/second; 50/minute"]}},
            ["limits.user[user-1s]: 10/second -> 20/second", "limits.user[user-3600s]: added 1/hour"],
        ),
        (
            {"limits": {"user": ["10/second", {"limit": 50, "window": 60, **OPTIONS}]}},
            ["limits.user[user-60s]: 50/minute -> 50/minute frames=2 count_denied=True mode=enforce"],
        ),
        (
            {"clients": {}},
            [
                "clients.app: removed",
                "clients.app.mode: removed enforce",
                "clients.app.limits.user: removed",
                "clients.app.limits.user[user]: removed 5/second",
            ],
        ),
        (
            {"clients": {"app": {"mode": "enforce", "limits": {"user": []}}}},
            ["clients.app.limits.user[user]: removed 5/second"],
        ),
        ({"endpoints": {"x": {"path": ["/x"]}}}, ["endpoints.x: added", "endpoints.x.path[/x]: added"]),
        ({"canary": {"percent": 10}}, ["canary.percent: added 10.0"]),
        ({"canary": {"instances": ["node-1*"]}}, ["canary.instances[node-1*]: added"]),
    ],
)
def test_each_changed_value_is_one_line_with_its_key(changed: dict[str, Any], expected: list[str]) -> None:
    assert expected == describe_changes(load_config(BASE), load_config(BASE | changed))


def test_many_changes_are_cut_short() -> None:
    new = load_config({"trusted_clients": [f"client-{number}" for number in range(500)]})
    lines = describe_changes(load_config({}), new)
    assert (51, "and 450 more") == (len(lines), lines[-1])


def test_dry_run_by_override_is_shown_as_mode_at_most() -> None:
    """It also holds where the file names a stricter mode."""
    old = load_config({**BASE, "mode": "enforce"})
    override = Override(
        Target(OverrideKind.MODE), author="ann", reason="incident", made_at_s=0.0, until_s=None, mode=Mode.DRY_RUN
    )
    new = replace(old, policies=apply_overrides(old.policies, [override]))

    assert ["mode: enforce -> dry-run", "mode_at_most: added dry-run"] == describe_changes(old, new)
