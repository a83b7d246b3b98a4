"""Origins of configured values."""

from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.origin import Origin, Origins
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window

LIMITS = {"limits": {"client": ["1/second"]}}
ENFORCED, ENFORCED_GRANT = {"mode": "enforce"}, {"grants": {"password": {"mode": "enforce"}}}
LIMITED_GRANT, LIMITED_ENDPOINT = {"grants": {"password": LIMITS}}, {"endpoints": {"revocation": LIMITS}}
ENFORCED_ENDPOINT = {"clients": {"app": {"endpoints": {"revocation": ENFORCED}}}}
GRANT, ENDPOINT = {"grant_type": "password"}, {"endpoint": "revocation"}


def app(**own: Any) -> dict[str, Any]:
    return {"clients": {"app": own}}


def gold(**own: Any) -> dict[str, Any]:
    return {"plans": {"gold": own}, **app(plan="gold")}


def limit_override(reason: str, client_id: str | None) -> Override:
    policies = (Policy("client", 1, Window.of(1)),)
    return Override(Target(OverrideKind.LIMIT, client_id, LimitKind.CLIENT), "ann", reason, 0.0, policies=policies)


def mode_override(mode: str, client_id: str | None = None) -> Override:
    return Override(Target(OverrideKind.MODE, client_id), "ann", mode, 0.0, mode=Mode(mode))


def name_of(origin: Origin) -> str:
    """Return the reason of the override, else the section of the configuration."""
    return origin.override.reason if origin.override else origin.name


OWN, ALL = limit_override("own", "app"), limit_override("all", None)


@pytest.mark.parametrize(
    ("config", "overrides", "at", "expected"),
    [
        ({}, [], {}, "limits"),
        ({}, [], GRANT, "limits"),
        ({}, [ALL], {}, "all"),
        ({}, [ALL, OWN], {}, "own"),
        (app(**LIMITS), [], {}, "clients.app"),
        (app(limits={"user": []}), [], {}, "limits"),
        (app(**LIMITS), [ALL], {}, "clients.app"),
        (app(**LIMITS), [OWN], {}, "own"),
        (gold(**LIMITS), [], {}, "plans.gold"),
        (gold(**LIMITS), [ALL], {}, "plans.gold"),
        (LIMITED_GRANT, [OWN], GRANT, "grants.password"),
        (LIMITED_GRANT, [OWN], {}, "own"),
        (app(**LIMITED_GRANT), [ALL], GRANT, "clients.app.grants.password"),
        (ENFORCED_GRANT, [], GRANT, "limits"),
        (ENFORCED_GRANT, [ALL], GRANT, "all"),
        (ENFORCED_GRANT, [ALL, OWN], GRANT, "own"),
        ({**ENFORCED_GRANT, **gold(**LIMITS)}, [ALL], GRANT, "plans.gold"),
        ({"grants": {"password": {"limits": {"user": []}}}, **app(**LIMITS)}, [ALL], GRANT, "clients.app"),
        (LIMITED_ENDPOINT, [OWN], ENDPOINT, "endpoints.revocation"),
        ({"endpoints": {"revocation": {}}}, [ALL, OWN], ENDPOINT, "limits"),
        ({**LIMITED_ENDPOINT, **app(**LIMITED_ENDPOINT)}, [], ENDPOINT, "clients.app.endpoints.revocation"),
    ],
)
def test_origin_of_limits_is_the_most_specific_section_or_override(
    config: Any, overrides: list[Override], at: Any, expected: str
) -> None:
    """Limits that a grant type or endpoint names come from the file. A grant type inherits the others as they are."""
    assert expected == name_of(
        Origins(load_config(config).policies, overrides).of_limits("app", LimitKind.CLIENT, **at)
    )


@pytest.mark.parametrize(
    ("config", "overrides", "at", "expected"),
    [
        ({}, [], {}, ("mode", "dry-run")),
        (ENFORCED, [mode_override("off")], {}, ("off", "off")),
        ({}, [mode_override("enforce", "app")], {}, ("enforce", "enforce")),
        ({"mode": "off"}, [mode_override("enforce", "app")], {}, ("mode", "off")),
        ({"mode": "off"}, [mode_override("enforce")], {}, ("mode", "off")),
        ({"mode": "off", **app(**ENFORCED)}, [], {}, ("mode", "off")),
        (app(**ENFORCED), [], {}, ("clients.app", "enforce")),
        (app(**ENFORCED), [mode_override("dry-run")], {}, ("dry-run", "dry-run")),
        (app(mode="off"), [mode_override("dry-run")], {}, ("clients.app", "off")),
        (app(**ENFORCED), [mode_override("enforce")], {}, ("clients.app", "enforce")),
        (app(**ENFORCED_GRANT), [], GRANT, ("clients.app.grants.password", "enforce")),
        (app(**ENFORCED_GRANT), [mode_override("off", "app")], GRANT, ("off", "off")),
        ({**LIMITED_ENDPOINT, **ENFORCED_ENDPOINT}, [mode_override("off", "app")], ENDPOINT, ("off", "off")),
        (app(**ENFORCED_GRANT), [mode_override("dry-run", "app")], GRANT, ("dry-run", "dry-run")),
        (ENFORCED_GRANT, [], GRANT, ("grants.password", "enforce")),
        ({"grants": {"password": {"mode": "off"}}}, [mode_override("dry-run")], GRANT, ("grants.password", "off")),
        (gold(**ENFORCED), [], {}, ("plans.gold", "enforce")),
    ],
)
def test_origin_of_a_mode_has_the_mode_that_applies(
    config: Any, overrides: list[Override], at: Any, expected: tuple[str, str]
) -> None:
    policies = load_config(config).policies
    name = name_of(Origins(policies, overrides).of_mode("app", **at))
    assert expected == (name, apply_overrides(policies, overrides).matching("app", **at).mode.value)


def test_origin_of_trust_is_an_override_or_a_pattern_of_the_file() -> None:
    override = Override(Target(OverrideKind.TRUSTED, "mobile-1"), "ann", "", 0.0)
    origins = Origins(load_config({"trusted_clients": ["own-*", "own-1"]}).policies, [override])
    assert Origin("override", override) == origins.of_trust("mobile-1")
    assert Origin("trusted_clients[own-*]") == origins.of_trust("own-1")
    assert None is origins.of_trust("other")
