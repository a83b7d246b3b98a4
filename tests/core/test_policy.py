"""Which policies a request meets."""

import pytest

from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import ClientPolicies, Limits, OwnLimits, Policy, PolicySet, Rules
from oauth_ratelimit.core.window import Window


def a_policy(name: str, *, mode: Mode | None = None) -> Policy:
    """Return a policy that only its name and mode tell from others."""
    return Policy(name, 10, Window.of(60), mode=mode)


CLIENT, USER, TOTAL, OTHER = (a_policy(name) for name in ("client", "user", "total", "other"))
DEFAULTS = Limits(client=(CLIENT,), user=(USER,), client_total=(TOTAL,))

OFF, DRY_RUN, ENFORCE = Mode.OFF, Mode.DRY_RUN, Mode.ENFORCE


def test_unknown_client() -> None:
    """A client that the configuration does not name has the defaults and the global mode."""
    policies = PolicySet(mode=ENFORCE, limits=DEFAULTS)
    assert ClientPolicies(DEFAULTS, ENFORCE, trusted=False, scope=None) == policies.matching("anybody")


def test_client_with_limits() -> None:
    """A client's limits replace the defaults kind by kind: a kind left out is inherited, an empty one is no limit."""
    own = OwnLimits(user=(OTHER,), client_total=())
    policies = PolicySet(limits=DEFAULTS, clients={"app": Rules(limits=own)})
    assert Limits(client=(CLIENT,), user=(OTHER,), client_total=()) == policies.matching("app").limits
    assert DEFAULTS == policies.matching("another").limits


def test_client_with_a_plan() -> None:
    """A plan comes between the defaults and what the client itself says."""
    policies = PolicySet(
        limits=DEFAULTS,
        plans={"gold": Rules(mode=ENFORCE, limits=OwnLimits(client=(OTHER,), user=()))},
        clients={
            "plain": Rules(plan="gold"),
            "special": Rules(plan="gold", mode=DRY_RUN, limits=OwnLimits(user=(USER,))),
        },
    )
    plain, special = policies.matching("plain"), policies.matching("special")
    assert (Limits((OTHER,), (), (TOTAL,)), ENFORCE) == (plain.limits, plain.mode)
    assert (Limits((OTHER,), (USER,), (TOTAL,)), DRY_RUN) == (special.limits, special.mode)


def test_other_endpoint() -> None:
    """An endpoint has its own limits and counters, and inherits none of the token endpoint's, nor of a client there."""
    policies = PolicySet(
        limits=DEFAULTS,
        endpoints={"revocation": Rules(limits=OwnLimits(client=(OTHER,)))},
        clients={"app": Rules(limits=OwnLimits(user=()))},
    )
    expected = ClientPolicies(Limits(client=(OTHER,)), DRY_RUN, scope="revocation")
    assert expected == policies.matching("app", endpoint="revocation")


def test_endpoint_that_is_not_configured() -> None:
    """An endpoint that nobody configured has no limits."""
    policies = PolicySet(limits=DEFAULTS)
    assert Limits() == policies.matching("app", endpoint="userinfo").limits


def test_client_at_an_endpoint() -> None:
    """Client and plan may have limits and a mode of their own at an endpoint."""
    policies = PolicySet(
        endpoints={"revocation": Rules(limits=OwnLimits(client=(CLIENT,), user=(USER,)))},
        plans={"gold": Rules(endpoints={"revocation": Rules(limits=OwnLimits(client_total=(TOTAL,)))})},
        clients={
            "app": Rules(plan="gold", endpoints={"revocation": Rules(mode=ENFORCE, limits=OwnLimits(user=(OTHER,)))})
        },
    )
    expected = ClientPolicies(Limits((CLIENT,), (OTHER,), (TOTAL,)), ENFORCE, scope="revocation")
    assert expected == policies.matching("app", endpoint="revocation")


def test_grant_with_limits() -> None:
    """A grant type with limits of its own is counted apart and has only those; other grant types are not affected."""
    policies = PolicySet(limits=DEFAULTS, grants={"refresh_token": Rules(limits=OwnLimits(user=(OTHER,)))})
    expected = ClientPolicies(Limits(user=(OTHER,)), DRY_RUN, scope="grant:refresh_token")
    assert expected == policies.matching("app", grant_type="refresh_token")
    assert ClientPolicies(DEFAULTS, DRY_RUN) == policies.matching("app", grant_type="password")
    assert ClientPolicies(DEFAULTS, DRY_RUN) == policies.matching("app")


def test_grant_with_a_mode_only() -> None:
    """A grant type that differs in its mode alone is counted with all others."""
    policies = PolicySet(limits=DEFAULTS, mode=ENFORCE, grants={"refresh_token": Rules(mode=DRY_RUN)})
    assert ClientPolicies(DEFAULTS, DRY_RUN) == policies.matching("app", grant_type="refresh_token")


def test_grant_of_one_client() -> None:
    """A client may have limits for a grant type that nobody else has."""
    own = {"refresh_token": Rules(limits=OwnLimits(user=(OTHER,)))}
    policies = PolicySet(limits=DEFAULTS, grants={"refresh_token": Rules()}, clients={"app": Rules(grants=own)})
    assert "grant:refresh_token" == policies.matching("app", grant_type="refresh_token").scope
    assert policies.matching("another", grant_type="refresh_token").scope is None


def test_grant_at_another_endpoint() -> None:
    """Grant types matter at the token endpoint only."""
    policies = PolicySet(
        grants={"refresh_token": Rules(limits=OwnLimits(user=(USER,)))},
        endpoints={"revocation": Rules(limits=OwnLimits(user=(OTHER,)))},
    )
    found = policies.matching("app", endpoint="revocation", grant_type="refresh_token")
    assert ("revocation", (OTHER,)) == (found.scope, found.limits.user)


@pytest.mark.parametrize(
    ("top", "place", "plan", "client", "client_place", "expected"),
    [
        (DRY_RUN, None, None, None, None, DRY_RUN),
        (DRY_RUN, ENFORCE, None, None, None, ENFORCE),
        (DRY_RUN, None, ENFORCE, None, None, ENFORCE),
        (ENFORCE, None, ENFORCE, DRY_RUN, None, DRY_RUN),
        (ENFORCE, None, None, ENFORCE, DRY_RUN, DRY_RUN),
        (ENFORCE, DRY_RUN, None, ENFORCE, None, ENFORCE),
        (ENFORCE, None, None, OFF, None, OFF),
        (ENFORCE, None, OFF, ENFORCE, None, ENFORCE),
        (OFF, ENFORCE, ENFORCE, ENFORCE, ENFORCE, OFF),
        (ENFORCE, OFF, ENFORCE, ENFORCE, ENFORCE, OFF),
    ],
)
def test_nearest_mode(
    top: Mode, place: Mode | None, plan: Mode | None, client: Mode | None, client_place: Mode | None, expected: Mode
) -> None:
    """The nearest mode wins, at an endpoint and for a grant type alike; off at the top or at the place is final."""
    at = {"somewhere": Rules(mode=client_place)}
    policies = PolicySet(
        mode=top,
        endpoints={"somewhere": Rules(mode=place)},
        grants={"somewhere": Rules(mode=place)},
        plans={"gold": Rules(mode=plan)},
        clients={"app": Rules(mode=client, plan="gold", endpoints=at, grants=at)},
    )
    assert expected is policies.matching("app", endpoint="somewhere").mode
    assert expected is policies.matching("app", grant_type="somewhere").mode


def test_policy_with_a_mode() -> None:
    """A policy's own mode stands only where it differs from the client's, and a policy that is off is left out."""
    tiers = tuple(a_policy(mode or "none", mode=mode) for mode in (None, OFF, DRY_RUN, ENFORCE))
    found = PolicySet(mode=ENFORCE, limits=Limits(user=tiers)).matching("app").limits.user
    assert [("none", None), ("dry-run", DRY_RUN), ("enforce", None)] == [(tier.name, tier.mode) for tier in found]


def test_everything_off() -> None:
    """Where the mode is off no policy is left, not even one that enforces."""
    limits = Limits(user=(a_policy("strict", mode=ENFORCE),))
    assert ClientPolicies(Limits(), OFF) == PolicySet(mode=OFF, limits=limits).matching("app")


def test_client_outside_of_the_canary() -> None:
    """Outside of the canary all that would be enforced is a dry run: the global mode, an endpoint's and a policy's."""
    strict = Limits(user=(USER, a_policy("strict", mode=ENFORCE), a_policy("off", mode=OFF)))
    policies = PolicySet(mode=ENFORCE, limits=strict, endpoints={"x": Rules(mode=ENFORCE)}, canary=Canary(percent=0))
    found = policies.matching("app")
    assert (DRY_RUN, [None, None]) == (found.mode, [policy.mode for policy in found.limits.user])
    assert DRY_RUN is policies.matching("app", endpoint="x").mode


def test_client_in_the_canary() -> None:
    """Inside of the canary the modes are what the configuration says; a canary enforces nothing by itself."""
    assert ENFORCE is PolicySet(mode=ENFORCE, canary=Canary(percent=100)).matching("app").mode
    assert DRY_RUN is PolicySet(mode=DRY_RUN, canary=Canary(percent=100)).matching("app").mode


def test_client_with_a_mode_outside_of_the_canary() -> None:
    """Who names a client's or a plan's mode means it, canary or not."""
    policies = PolicySet(
        canary=Canary(percent=0),
        plans={"gold": Rules(mode=ENFORCE)},
        clients={"app": Rules(mode=ENFORCE), "planned": Rules(plan="gold")},
    )
    assert [ENFORCE, ENFORCE] == [policies.matching(client_id).mode for client_id in ("app", "planned")]


def test_canary_by_instance() -> None:
    """A canary by instance enforces where the instance's name matches."""
    canary = Canary(instances=("node-1*", "edge"))
    modes = {
        name: PolicySet(mode=ENFORCE, canary=canary, instance=name).matching("app").mode
        for name in ("node-1", "node-12", "node-2", "edge", "")
    }
    assert {"node-1": ENFORCE, "node-12": ENFORCE, "node-2": DRY_RUN, "edge": ENFORCE, "": DRY_RUN} == modes


def test_trusted_clients() -> None:
    """A client is trusted by id or pattern, everywhere; patterns may overlap."""
    policies = PolicySet(trusted=("mobile", "mob*", "batch-?"), endpoints={"x": Rules()})
    clients = ("mobile", "mob", "batch-1", "batch-10", "Mobile", "")
    found = [client_id for client_id in clients if policies.matching(client_id).trusted]
    assert ["mobile", "mob", "batch-1"] == found
    assert policies.matching("mobile", endpoint="x").trusted


def test_limits_whatever_the_modes() -> None:
    """The limits at a place can be asked for where everything is off."""
    policies = PolicySet(mode=OFF, limits=DEFAULTS)
    assert (None, DEFAULTS) == policies.limits_at("app")


def test_endpoint_of_a_request() -> None:
    """An endpoint is found by its path patterns if it has some, else by its name, and by its methods if it has some."""
    policies = PolicySet(
        endpoints={
            "revocation": Rules(),
            "profile": Rules(paths=("/api/profile*", "/me"), methods=("GET", "HEAD")),
            "api": Rules(paths=("/api/*",)),
            "userinfo": Rules(methods=("POST",)),
        }
    )
    requests = [
        ("revocation", "/oauth/revoke", "POST"),
        ("profile", "/elsewhere", "GET"),
        ("views.show", "/api/profile/1", "GET"),
        ("views.show", "/api/profile/1", "POST"),
        ("views.show", "/me", "HEAD"),
        ("views.show", "/me/too", "HEAD"),
        ("userinfo", "/userinfo", "GET"),
        ("userinfo", "/userinfo", "POST"),
        (None, "/api/x", "PUT"),
        (None, "/", "GET"),
    ]
    assert ["revocation", None, "profile", "api", "profile", None, None, "userinfo", "api", None] == [
        policies.endpoint_of(name, path=path, method=method) for name, path, method in requests
    ]
