"""Selection of the policies that apply to a client."""

import pytest

from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.policy import ClientPolicies, Limits, OwnLimits, Policy, PolicySet, Rules
from oauth_ratelimit.core.window import Window


def a_policy(name: str, *, mode: Mode | None = None) -> Policy:
    return Policy(name, 10, Window.of(60), mode=mode)


CLIENT, USER, TOTAL, OTHER = (a_policy(name) for name in ("client", "user", "total", "other"))
DEFAULTS = Limits(client=(CLIENT,), user=(USER,), client_total=(TOTAL,))

OFF, DRY_RUN, ENFORCE = Mode.OFF, Mode.DRY_RUN, Mode.ENFORCE


def test_plan_comes_between_the_defaults_and_the_client() -> None:
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


def test_endpoint_inherits_nothing_from_the_token_endpoint() -> None:
    policies = PolicySet(
        limits=DEFAULTS,
        endpoints={"revocation": Rules(limits=OwnLimits(client=(OTHER,)))},
        clients={"app": Rules(limits=OwnLimits(user=()))},
    )
    expected = ClientPolicies(Limits(client=(OTHER,)), DRY_RUN, scope="revocation")
    assert expected == policies.matching("app", endpoint="revocation")
    assert Limits() == policies.matching("app", endpoint="userinfo").limits


def test_client_and_plan_may_differ_at_an_endpoint() -> None:
    policies = PolicySet(
        endpoints={"revocation": Rules(limits=OwnLimits(client=(CLIENT,), user=(USER,)))},
        plans={"gold": Rules(endpoints={"revocation": Rules(limits=OwnLimits(client_total=(TOTAL,)))})},
        clients={
            "app": Rules(plan="gold", endpoints={"revocation": Rules(mode=ENFORCE, limits=OwnLimits(user=(OTHER,)))})
        },
    )
    expected = ClientPolicies(Limits((CLIENT,), (OTHER,), (TOTAL,)), ENFORCE, scope="revocation")
    assert expected == policies.matching("app", endpoint="revocation")


NAMED = {"refresh_token": Rules()}


@pytest.mark.parametrize(
    "policies",
    [
        PolicySet(grants=NAMED),
        PolicySet(plans={"gold": Rules(grants=NAMED)}, clients={"app": Rules(plan="gold")}),
        PolicySet(clients={"app": Rules(grants=NAMED)}),
        PolicySet(grants={"refresh_token": Rules(mode=ENFORCE)}),
    ],
    ids=["for all", "in the plan", "in the client", "with a mode only"],
)
def test_grant_type_with_a_section_is_counted_apart(policies: PolicySet) -> None:
    """Whatever the section names. Other grant types, and clients without the section, share the plain token counter."""
    policies = policies._replace(limits=DEFAULTS)
    found = policies.matching("app", grant_type="refresh_token")
    assert ("grant:refresh_token", DEFAULTS) == (found.scope, found.limits)
    assert (["refresh_token"], ["refresh_token"]) == (policies.grants_of("app"), policies.named_grants)
    assert ClientPolicies(DEFAULTS, DRY_RUN) == policies.matching("app", grant_type="password")
    assert ClientPolicies(DEFAULTS, DRY_RUN) == policies.matching("app")
    is_for_all = bool(policies.grants)
    assert (["refresh_token"] if is_for_all else []) == policies.grants_of("another")
    assert ("grant:refresh_token" if is_for_all else None) == policies.scope_of("another", grant_type="refresh_token")


def test_grant_type_inherits_the_limits_of_the_client_that_it_does_not_name() -> None:
    """Kind by kind: the sections of the grant type come before the client, its plan and the defaults."""
    for_all, of_plan, of_client, by_client = (a_policy(name) for name in ("for-all", "plan", "own", "client-user"))
    policies = PolicySet(
        limits=DEFAULTS,
        grants={"refresh_token": Rules(limits=OwnLimits(client=(for_all,), client_total=(for_all,)))},
        plans={
            "gold": Rules(
                limits=OwnLimits(user=(OTHER,)),
                grants={"refresh_token": Rules(limits=OwnLimits(client_total=(of_plan,)))},
            )
        },
        clients={
            "app": Rules(
                plan="gold",
                limits=OwnLimits(client=(OTHER,), user=(by_client,)),
                grants={"refresh_token": Rules(limits=OwnLimits(client_total=(of_client,)))},
            ),
            "golden": Rules(plan="gold"),
            "free": Rules(grants={"refresh_token": Rules(limits=OwnLimits(user=()))}),
        },
    )
    expected = {
        "app": Limits((for_all,), (by_client,), (of_client,)),
        "golden": Limits((for_all,), (OTHER,), (of_plan,)),
        "free": Limits((for_all,), (), (for_all,)),
        "another": Limits((for_all,), (USER,), (for_all,)),
    }
    assert expected == {name: policies.limits_at(name, grant_type="refresh_token")[1] for name in expected}
    assert Limits((OTHER,), (by_client,), (TOTAL,)) == policies.matching("app").limits


@pytest.mark.parametrize(
    ("top", "section", "plan", "client", "client_section", "expected"),
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
def test_most_specific_mode_wins(
    top: Mode, section: Mode | None, plan: Mode | None, client: Mode | None, client_section: Mode | None, expected: Mode
) -> None:
    """Off is final as the global mode and as that of the endpoint or grant type."""
    own = {"somewhere": Rules(mode=client_section)}
    policies = PolicySet(
        mode=top,
        endpoints={"somewhere": Rules(mode=section)},
        grants={"somewhere": Rules(mode=section)},
        plans={"gold": Rules(mode=plan)},
        clients={"app": Rules(mode=client, plan="gold", endpoints=own, grants=own)},
    )
    assert expected is policies.matching("app", endpoint="somewhere").mode
    assert expected is policies.matching("app", grant_type="somewhere").mode


def test_policy_keeps_a_mode_that_differs_from_the_clients() -> None:
    tiers = tuple(a_policy(mode or "none", mode=mode) for mode in (None, OFF, DRY_RUN, ENFORCE))
    found = PolicySet(mode=ENFORCE, limits=Limits(user=tiers)).matching("app").limits.user
    assert [("none", None), ("dry-run", DRY_RUN), ("enforce", None)] == [(tier.name, tier.mode) for tier in found]


def test_no_policy_is_left_where_the_mode_is_off() -> None:
    """Not even one that enforces, but the limits can be looked up."""
    limits = Limits(user=(a_policy("strict", mode=ENFORCE),))
    policies = PolicySet(mode=OFF, limits=limits)
    assert ClientPolicies(Limits(), OFF) == policies.matching("app")
    assert (None, limits) == policies.limits_at("app")


def test_client_outside_of_the_canary_makes_a_dry_run() -> None:
    """Unless it or its plan has a mode of its own."""
    strict = Limits(user=(USER, a_policy("strict", mode=ENFORCE), a_policy("off", mode=OFF)))
    policies = PolicySet(
        mode=ENFORCE,
        limits=strict,
        canary=Canary(percent=0),
        endpoints={"x": Rules(mode=ENFORCE)},
        plans={"gold": Rules(mode=ENFORCE)},
        clients={"own": Rules(mode=ENFORCE), "planned": Rules(plan="gold")},
    )
    found = policies.matching("app")
    assert (DRY_RUN, [None, None]) == (found.mode, [policy.mode for policy in found.limits.user])
    assert DRY_RUN is policies.matching("app", endpoint="x").mode
    assert [ENFORCE, ENFORCE] == [policies.matching(client_id).mode for client_id in ("own", "planned")]


def test_canary_of_instances_enforces_on_those_alone() -> None:
    canary = Canary(instances=("node-1*", "edge"))
    modes = {
        name: PolicySet(mode=ENFORCE, canary=canary, instance=name).matching("app").mode
        for name in ("node-1", "node-12", "node-2", "edge", "")
    }
    assert {"node-1": ENFORCE, "node-12": ENFORCE, "node-2": DRY_RUN, "edge": ENFORCE, "": DRY_RUN} == modes


def test_client_is_trusted_by_id_or_pattern_at_every_endpoint() -> None:
    policies = PolicySet(trusted=("mobile", "mob*", "batch-?"), endpoints={"x": Rules()})
    clients = ("mobile", "mob", "batch-1", "batch-10", "Mobile", "")
    found = [client_id for client_id in clients if policies.matching(client_id).trusted]
    assert ["mobile", "mob", "batch-1"] == found
    assert policies.matching("mobile", endpoint="x").trusted


def test_endpoint_is_found_by_its_paths_or_name_and_by_its_methods() -> None:
    policies = PolicySet(
        endpoints={
            "revocation": Rules(),
            "profile": Rules(paths=("/api/profile*", "/me"), methods=("GET",)),
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
        policies.endpoint_of(name, paths=[path], method=method) for name, path, method in requests
    ]
