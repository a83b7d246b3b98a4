"""Overrides on top of a policy set."""

from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, active, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.window import Window

POLICY = Policy("client", 7, Window.of(60))


def override(kind: OverrideKind = OverrideKind.LIMIT, client_id: str | None = "app", **more: Any) -> Override:
    """Return an override; a limit override is about the client's own limits."""
    limit_kind = more.pop("limit_kind", LimitKind.CLIENT if kind is OverrideKind.LIMIT else None)
    return Override(Target(kind, client_id, limit_kind), "ann", "a test", made_at_s=1000.0, **more)


def policies(**config: Any) -> PolicySet:
    """Return the policies of a configuration."""
    return load_config(config).policies


def mode_of(base: PolicySet, *overrides: Override, client_id: str = "app", **place: str) -> Mode:
    """Return the mode of a client under overrides."""
    return apply_overrides(base, overrides).matching(client_id, **place).mode


def test_moment_that_an_override_ends() -> None:
    """An override holds until its end and no longer; one without an end stays."""
    lasting, ending = override(policies=(POLICY,)), override(OverrideKind.TRUSTED, until_s=2000.0)

    assert (lasting, ending) == active([lasting, ending], 1999.9)
    assert (lasting,) == active([lasting, ending], 2000.0)


def test_limit_of_one_client() -> None:
    """A limit replaces that kind of that client, and nothing else."""
    base = policies(clients={"app": {"limits": {"user": ["3/second"], "client_total": ["9/minute"]}}})
    changed = apply_overrides(base, [override(policies=(POLICY,))])

    limits = changed.matching("app").limits
    assert (POLICY,) == limits.client
    assert base.matching("app").limits.user == limits.user
    assert base.matching("app").limits.client_total == limits.client_total
    assert base.matching("other") == changed.matching("other")


def test_limit_of_a_client_with_a_plan() -> None:
    """An override comes before what the client's plan says."""
    base = policies(plans={"gold": {"limits": {"client": ["100/minute"]}}}, clients={"app": {"plan": "gold"}})

    assert (POLICY,) == apply_overrides(base, [override(policies=(POLICY,))]).matching("app").limits.client


def test_limit_that_is_lifted() -> None:
    """An override without limits means no limit of that kind."""
    assert () == apply_overrides(policies(), [override()]).matching("app").limits.client


def test_default_limit() -> None:
    """A limit of everybody replaces the default; a client with a limit of its own keeps it."""
    base = policies(clients={"app": {"limits": {"client": ["100/minute"]}}})
    changed = apply_overrides(base, [override(client_id=None, policies=(POLICY,))])

    assert (POLICY,) == changed.matching("other").limits.client
    assert base.matching("app").limits.client == changed.matching("app").limits.client


def test_trusted_client() -> None:
    """A trusted client joins those of the file, patterns included."""
    changed = apply_overrides(policies(trusted_clients=["own"]), [override(OverrideKind.TRUSTED, "app-*")])

    assert [True, True, False] == [changed.matching(name).trusted for name in ("own", "app-1", "other")]


@pytest.mark.parametrize("mode", list(Mode), ids=str)
def test_mode_of_everybody(mode: Mode) -> None:
    """The global mode is replaced."""
    assert mode is mode_of(policies(mode="enforce"), override(OverrideKind.MODE, None, mode=mode))


@pytest.mark.parametrize("mode", list(Mode), ids=str)
def test_mode_of_one_client(mode: Mode) -> None:
    """A client's mode is replaced, others keep theirs."""
    change = override(OverrideKind.MODE, mode=mode)

    assert mode is mode_of(policies(mode="enforce", clients={"app": {"mode": "enforce"}}), change)
    assert Mode.ENFORCE is mode_of(policies(mode="enforce"), change, client_id="other")


def test_dry_run_for_everybody() -> None:
    """
    Who asks for a dry run wants nobody denied: clients, grant types and policies that enforce by themselves do not.
    """
    base = policies(
        mode="enforce",
        limits={"client": [{"limit": 1, "window": 60, "mode": "enforce"}]},
        clients={"app": {"mode": "enforce", "grants": {"password": {"mode": "enforce"}}}},
    )
    changed = apply_overrides(base, [override(OverrideKind.MODE, None, mode=Mode.DRY_RUN)])

    for place in ({}, {"grant_type": "password"}):
        found = changed.matching("app", **place)
        assert Mode.DRY_RUN is found.mode
        assert [None] == [policy.mode for policy in found.limits.client]


def test_dry_run_of_one_client_beats_its_places() -> None:
    """A client in dry run is denied nowhere."""
    base = policies(clients={"app": {"grants": {"password": {"mode": "enforce"}}}})

    change = override(OverrideKind.MODE, mode=Mode.DRY_RUN)
    assert Mode.ENFORCE is mode_of(base, grant_type="password")
    assert Mode.DRY_RUN is mode_of(base, change, grant_type="password")


def test_off_for_one_client_beats_its_places() -> None:
    """A client that is switched off is off for every grant type and at every endpoint."""
    base = policies(
        endpoints={"revocation": {"limits": {"client": ["1/second"]}}},
        clients={
            "app": {"grants": {"password": {"mode": "enforce"}}, "endpoints": {"revocation": {"mode": "enforce"}}}
        },
    )
    change = override(OverrideKind.MODE, mode=Mode.OFF)

    assert Mode.OFF is mode_of(base, change, grant_type="password")
    assert Mode.OFF is mode_of(base, change, endpoint="revocation")


def test_enforcing_outside_the_canary() -> None:
    """A client that is told to be enforced is, in the canary's share or not; being in it is told apart."""
    base = policies(mode="enforce", canary={"percent": 0})
    change = override(OverrideKind.MODE, mode=Mode.ENFORCE)

    assert Mode.DRY_RUN is mode_of(base)
    assert Mode.ENFORCE is mode_of(base, change)
    assert not apply_overrides(base, [change]).matching("app").is_canary
    assert policies(mode="enforce", canary={"percent": 100}).matching("app").is_canary


def test_overrides_of_one_client_together() -> None:
    """Several overrides of one client hold together."""
    changed = apply_overrides(
        policies(),
        [
            override(OverrideKind.MODE, mode=Mode.ENFORCE),
            override(policies=(POLICY,)),
            override(limit_kind=LimitKind.USER),
        ],
    ).matching("app")

    assert (Mode.ENFORCE, (POLICY,), ()) == (changed.mode, changed.limits.client, changed.limits.user)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Target(OverrideKind.LIMIT, "app"),
        lambda: Target(OverrideKind.MODE, "app", LimitKind.USER),
        lambda: Target(OverrideKind.TRUSTED),
        lambda: override(OverrideKind.MODE),
        lambda: override(OverrideKind.TRUSTED, mode=Mode.OFF),
        lambda: override(OverrideKind.TRUSTED, policies=(POLICY,)),
    ],
    ids=["limit of no kind", "mode with a kind", "everybody trusted", "no mode", "a mode", "limits"],
)
def test_override_that_says_nothing(build: Any) -> None:
    """An override that does not fit its target cannot be made."""
    with pytest.raises(ValueError, match=r"override|trusting"):
        build()
