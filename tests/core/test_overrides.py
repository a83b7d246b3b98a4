"""Overrides on top of the configuration."""

from collections.abc import Callable
from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Origin, Origins, Override, OverrideKind, Target, active, apply_overrides
from oauth_ratelimit.core.policy import ClientPolicies, LimitKind, Limits, Policy
from oauth_ratelimit.core.window import Window

LIMIT, MODE, TRUSTED = OverrideKind.LIMIT, OverrideKind.MODE, OverrideKind.TRUSTED
POLICY = Policy("client", 7, Window.of(60))


def override(kind: OverrideKind = LIMIT, client_id: str | None = "app", **more: Any) -> Override:
    """Return an override. A limit override replaces limits of kind ``client``."""
    limit_kind = more.pop("limit_kind", LimitKind.CLIENT if kind is LIMIT else None)
    return Override(Target(kind, client_id, limit_kind), "ann", "a test", made_at_s=1000.0, **more)


def found(config: Any, *overrides: Override, client_id: str = "app", **at: str) -> ClientPolicies:
    return apply_overrides(load_config(config).policies, overrides).matching(client_id, **at)


def test_override_is_active_until_its_end() -> None:
    lasting, ending = override(policies=(POLICY,)), override(TRUSTED, until_s=2000.0)
    assert (lasting, ending) == active([lasting, ending], 1999.9)
    assert (lasting,) == active([lasting, ending], 2000.0)


@pytest.mark.parametrize(
    "config",
    [
        {"clients": {"app": {"limits": {"user": ["3/second"], "client_total": ["9/minute"]}}}},
        {"plans": {"gold": {"limits": {"client": ["100/minute"]}}}, "clients": {"app": {"plan": "gold"}}},
    ],
    ids=["limits", "plan"],
)
@pytest.mark.parametrize("policies", [(POLICY,), ()], ids=["another", "none"])
def test_limit_of_a_client_replaces_only_that_kind_of_that_client(config: Any, policies: tuple[Policy, ...]) -> None:
    """It comes before the limits of the client's plan. An empty one means no limit."""
    change, before = override(policies=policies), found(config).limits
    assert Limits(policies, before.user, before.client_total) == found(config, change).limits
    assert found(config, client_id="other") == found(config, change, client_id="other")


def test_limit_of_all_clients_replaces_the_default() -> None:
    """A client with a limit of its own keeps it."""
    change = override(client_id=None, policies=(POLICY,))
    config = {"clients": {"app": {"limits": {"client": ["100/minute"]}}}}
    assert (POLICY,) == found(config, change, client_id="other").limits.client
    assert found(config).limits.client == found(config, change).limits.client


@pytest.mark.parametrize("client_id", [None, "app"])
def test_limit_reaches_grant_types_that_inherit_the_kind(client_id: str | None) -> None:
    """One that names the kind keeps its own."""
    own = {"limits": {"client": ["9/minute"]}}
    config = {"grants": {"password": {"mode": "enforce"}, "refresh_token": own}}
    change = override(client_id=client_id, policies=(POLICY,))
    inherited, kept = (found(config, change, grant_type=grant) for grant in ("password", "refresh_token"))
    assert ("grant:password", (POLICY,)) == (inherited.scope, inherited.limits.client)
    assert ("grant:refresh_token", [9]) == (kept.scope, [policy.limit for policy in kept.limits.client])


@pytest.mark.parametrize("client_id", ["star*", "app-?", "[a]", "*"])
def test_client_that_is_trusted_at_run_time_is_taken_literally(client_id: str) -> None:
    """Its id may look like a pattern."""
    names = (client_id, "star-anything", "app-1", "a")
    assert [True, False, False, False] == [found({}, override(TRUSTED, client_id), client_id=n).trusted for n in names]


@pytest.mark.parametrize("mode", list(Mode), ids=str)
def test_mode_of_a_client_leaves_others_alone(mode: Mode) -> None:
    """The mode of all clients replaces the global mode."""
    config = {"mode": "enforce", "clients": {"app": {"mode": "enforce"}}}
    assert mode is found(config, override(MODE, mode=mode)).mode
    assert Mode.ENFORCE is found(config, override(MODE, mode=mode), client_id="other").mode
    assert mode is found(config, override(MODE, None, mode=mode), client_id="other").mode


@pytest.mark.parametrize("client_id", [None, "app"])
@pytest.mark.parametrize("at", [{}, {"grant_type": "password"}], ids=["any grant", "password"])
def test_dry_run_denies_nothing_whatever_the_file_enforces(client_id: str | None, at: dict[str, str]) -> None:
    """Clients, grant types and policies may have a mode of their own there."""
    config = {
        "mode": "enforce",
        "limits": {"client": [{"limit": 1, "window": 60, "mode": "enforce"}]},
        "clients": {"app": {"mode": "enforce", "grants": {"password": {"mode": "enforce"}}}},
    }
    policies = found(config, override(MODE, client_id, mode=Mode.DRY_RUN), **at)
    assert (Mode.DRY_RUN, [None]) == (policies.mode, [policy.mode for policy in policies.limits.client])


def test_client_that_an_override_enforces_is_not_part_of_the_canary() -> None:
    config, change = {"mode": "enforce", "canary": {"percent": 0}}, override(MODE, mode=Mode.ENFORCE)
    assert Mode.DRY_RUN is found(config).mode
    policies = found(config, change)
    assert (Mode.ENFORCE, False) == (policies.mode, policies.is_canary)
    assert found({"mode": "enforce", "canary": {"percent": 100}}).is_canary


def test_override_has_a_canary_of_its_own_that_keeps_the_order_of_the_files() -> None:
    """Raising the share only adds clients. All of them is no canary."""
    names = [f"app-{number}" for number in range(200)]
    config = {"mode": "dry-run", "canary": {"percent": 20, "salt": "spring"}}

    def enforced(*changes: Override, **more: Any) -> set[str]:
        return {name for name in names if found({**config, **more}, *changes, client_id=name).mode is Mode.ENFORCE}

    def share(percent: float) -> Override:
        return override(MODE, None, mode=Mode.ENFORCE, canary_percent=percent)

    assert enforced(mode="enforce") == enforced(share(20))
    assert set() < enforced(share(10)) < enforced(share(20)) < enforced(share(60)) < set(names)
    assert set(names) == enforced(share(100))
    assert not found(config, share(100)).is_canary
    assert enforced(mode="enforce") == enforced(override(MODE, None, mode=Mode.ENFORCE))


MISFITS: dict[str, Callable[[], object]] = {
    "limit of no kind": lambda: Target(LIMIT, "app"),
    "mode with a kind": lambda: Target(MODE, "app", LimitKind.USER),
    "all trusted": lambda: Target(TRUSTED),
    "no mode": lambda: override(MODE),
    "a mode": lambda: override(TRUSTED, mode=Mode.OFF),
    "canary of a dry run": lambda: override(MODE, None, mode=Mode.DRY_RUN, canary_percent=5),
    "canary of a client": lambda: override(MODE, mode=Mode.ENFORCE, canary_percent=5),
    "empty canary": lambda: override(MODE, None, mode=Mode.ENFORCE, canary_percent=0),
    "canary that is no number": lambda: override(MODE, None, mode=Mode.ENFORCE, canary_percent=float("nan")),
    "limits": lambda: override(TRUSTED, policies=(POLICY,)),
}


@pytest.mark.parametrize("build", MISFITS.values(), ids=MISFITS)
def test_override_that_does_not_fit_its_target_is_rejected(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"override|trusting|canary"):
        build()


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
