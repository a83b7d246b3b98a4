"""Which layer has won."""

from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.origin import Origins
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window

LIMITS = {"client": ["1/second"]}
OWN = Override(
    Target(OverrideKind.LIMIT, "app", LimitKind.CLIENT), "ann", "own", 0.0, policies=(Policy("o", 1, Window.of(1)),)
)
ALL = Override(
    Target(OverrideKind.LIMIT, None, LimitKind.CLIENT), "ann", "all", 0.0, policies=(Policy("a", 1, Window.of(1)),)
)

GRANT = {"grant_type": "password"}
ENDPOINT = {"endpoint": "revocation"}
ENDPOINTS = {"endpoints": {"revocation": {"limits": LIMITS}}}


def mode_override(mode: str, client_id: str | None = None) -> Override:
    """Return an override of a mode."""
    return Override(Target(OverrideKind.MODE, client_id), "ann", mode, 0.0, mode=Mode(mode))


@pytest.mark.parametrize(
    ("config", "overrides", "place", "expected"),
    [
        ({}, [], {}, "limits"),
        ({}, [], GRANT, "limits"),
        ({}, [ALL], {}, "all"),
        ({}, [ALL, OWN], {}, "own"),
        ({"clients": {"app": {"limits": LIMITS}}}, [], {}, "clients.app"),
        ({"clients": {"app": {"limits": {"user": []}}}}, [], {}, "limits"),
        ({"clients": {"app": {"limits": LIMITS}}}, [ALL], {}, "clients.app"),
        ({"clients": {"app": {"limits": LIMITS}}}, [OWN], {}, "own"),
        ({"plans": {"gold": {"limits": LIMITS}}, "clients": {"app": {"plan": "gold"}}}, [], {}, "plans.gold"),
        ({"plans": {"gold": {"limits": LIMITS}}, "clients": {"app": {"plan": "gold"}}}, [ALL], {}, "plans.gold"),
        ({"grants": {"password": {"limits": LIMITS}}}, [OWN], GRANT, "grants.password"),
        ({"grants": {"password": {"limits": LIMITS}}}, [OWN], {}, "own"),
        (
            {"clients": {"app": {"grants": {"password": {"limits": LIMITS}}}}},
            [ALL],
            GRANT,
            "clients.app.grants.password",
        ),
        (ENDPOINTS, [OWN], ENDPOINT, "endpoints.revocation"),
        (
            {**ENDPOINTS, "clients": {"app": {"endpoints": {"revocation": {"limits": LIMITS}}}}},
            [],
            ENDPOINT,
            "clients.app.endpoints.revocation",
        ),
    ],
)
def test_layer_of_a_limit(config: Any, overrides: list[Override], place: Any, expected: str) -> None:
    """The layer that is named has the limits that are in force."""
    layer = Origins(load_config(config).policies, overrides).of_limits("app", LimitKind.CLIENT, **place)

    assert expected == (layer.override.reason if layer.override else layer.name)


@pytest.mark.parametrize(
    ("config", "overrides", "place", "expected"),
    [
        ({}, [], {}, ("mode", "dry-run")),
        ({"mode": "enforce"}, [mode_override("off")], {}, ("off", "off")),
        ({}, [mode_override("enforce", "app")], {}, ("enforce", "enforce")),
        ({"mode": "off"}, [mode_override("enforce", "app")], {}, ("mode", "off")),
        ({"mode": "off", "clients": {"app": {"mode": "enforce"}}}, [], {}, ("mode", "off")),
        ({"clients": {"app": {"mode": "enforce"}}}, [], {}, ("clients.app", "enforce")),
        ({"clients": {"app": {"mode": "enforce"}}}, [mode_override("dry-run")], {}, ("dry-run", "dry-run")),
        ({"clients": {"app": {"mode": "off"}}}, [mode_override("dry-run")], {}, ("clients.app", "off")),
        ({"clients": {"app": {"mode": "enforce"}}}, [mode_override("enforce")], {}, ("clients.app", "enforce")),
        (
            {"clients": {"app": {"grants": {"password": {"mode": "enforce"}}}}},
            [],
            GRANT,
            ("clients.app.grants.password", "enforce"),
        ),
        (
            {"clients": {"app": {"grants": {"password": {"mode": "enforce"}}}}},
            [mode_override("off", "app")],
            GRANT,
            ("off", "off"),
        ),
        (
            {"clients": {"app": {"grants": {"password": {"mode": "enforce"}}}}},
            [mode_override("dry-run", "app")],
            GRANT,
            ("dry-run", "dry-run"),
        ),
        ({"grants": {"password": {"mode": "enforce"}}}, [], GRANT, ("grants.password", "enforce")),
        ({"grants": {"password": {"mode": "off"}}}, [mode_override("dry-run")], GRANT, ("grants.password", "off")),
        (
            {"plans": {"gold": {"mode": "enforce"}}, "clients": {"app": {"plan": "gold"}}},
            [],
            {},
            ("plans.gold", "enforce"),
        ),
    ],
)
def test_layer_of_a_mode(config: Any, overrides: list[Override], place: Any, expected: tuple[str, str]) -> None:
    """The layer that is named has the mode that is in force."""
    policies = load_config(config).policies
    layer = Origins(policies, overrides).of_mode("app", **place)
    name = layer.override.reason if layer.override else layer.name

    assert expected == (name, apply_overrides(policies, overrides).matching("app", **place).mode.value)


def test_layer_of_trust() -> None:
    """What makes a client trusted is named: an override, or a pattern of the file."""
    override = Override(Target(OverrideKind.TRUSTED, "mobile-*"), "ann", "", 0.0)
    origins = Origins(load_config({"trusted_clients": ["own-*", "own-1"]}).policies, [override])

    assert override == getattr(origins.of_trust("mobile-1"), "override", None)
    assert "trusted_clients[own-*]" == getattr(origins.of_trust("own-1"), "name", None)
    assert None is origins.of_trust("other")
