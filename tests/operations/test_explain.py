"""Explanation of a decision, from counter documents and overrides."""

from collections.abc import Mapping
from typing import Any

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.operations.context import similar_client_ids, unknown_client_hint
from oauth_ratelimit.operations.explain import GUARD_SWITCH, LimitExplanation, guess_texts
from testbed.clock import Clock
from tests.operations.conftest import LIMITS, ContextOf, alone
from tests.support.limiters import send_hits

REFRESH = "refresh_token"


def count(mongo_uri: str, clock: Clock, config: Mapping[str, Any], *hits: tuple[Any, ...]) -> None:
    """Count and flush requests: number, client, user, as an instance does."""
    limiter = Limiter(load_config({**config, "store": {"uri": mongo_uri}}), clock=clock, monotonic=clock)
    for number, *key in hits:
        send_hits(limiter, number, *key)
    limiter.close()


def test_forecast_names_the_limit_that_denies_and_not_a_dry_run_that_lasts_longer(
    context_of: ContextOf, mongo_uri: str, clock: Clock
) -> None:
    trial = {"name": "trial", "limit": 3, "window": "1d", "mode": "dry-run"}
    tiers = {"mode": "enforce", "limits": {"user": [{"name": "burst", "limit": 5, "window": "1h"}, trial]}}
    count(mongo_uri, clock, tiers, (6, "app", "alice"), (4, "app", "bob"), (1, "app", "cat"))

    def forecast(username: str) -> str:
        return LimitExplanation(context_of(tiers), "app", username=username).forecast()[1]

    assert forecast("alice").startswith("denied: over the limit burst for another ")
    assert forecast("bob").startswith("admitted, would be denied: over the limit trial for another ")
    assert "admitted" == forecast("cat")


def test_grant_type_with_a_mode_only_is_explained_by_counters_of_its_own(
    context_of: ContextOf, mongo_uri: str, clock: Clock
) -> None:
    config = {"mode": "enforce", "limits": {"user": ["2/hour"], "client_total": ["9/hour"]}}
    config["grants"] = {"refresh_token": {"mode": "dry-run"}}
    limiter = Limiter(load_config({**config, "store": {"uri": mongo_uri}}), clock=clock, monotonic=clock)
    for _ in range(3):
        limiter.check("app", "alice", grant_type="refresh_token")
    limiter.check("app", "alice", grant_type="password")
    limiter.close()
    context = context_of(config)
    apart, plain = (LimitExplanation(context, "app", username="alice", grant_type=each) for each in (REFRESH, None))

    assert apart.forecast()[1].startswith("admitted, would be denied: over the limit user for another ")
    assert [("user", 2, "limits"), ("client_total", 2, "limits")] == [
        (usage.policy.name, usage.estimate, origin.name) for usage, origin in apart.usages
    ]
    assert ("admitted", [1, 1]) == (plain.forecast()[1], [usage.estimate for usage, _ in plain.usages])


def test_forecast_of_a_limit_with_reuse_names_the_token(context_of: ContextOf, mongo_uri: str, clock: Clock) -> None:
    config = {"mode": "enforce", "limits": {"client": [{"limit": 2, "window": "1h", "on_limit": "reuse"}]}}
    count(mongo_uri, clock, config, (2, "nightly", None))
    kind, forecast = LimitExplanation(context_of(config), "nightly", username=None).forecast()

    assert "reused" == kind
    assert (
        forecast.startswith("gets the token that the client has") and ": over the limit client for another " in forecast
    )
    config["limits"] = {"client": [{"limit": 2, "window": "1h", "on_limit": "reuse"}, "2/day"]}
    count(mongo_uri, clock, config, (2, "other", None))
    assert "denied" == LimitExplanation(context_of(config), "other", username=None).forecast()[0], "the other one wins"


def test_explanation_of_a_canary_by_instance_is_the_same_on_every_machine(
    context_of: ContextOf, mongo_uri: str, clock: Clock
) -> None:
    config = {"mode": "enforce", "limits": {"client": ["2/hour"]}, "canary": {"instances": ["node-1*"]}}
    config["clients"] = {"apart": {"mode": "enforce"}}
    count(mongo_uri, clock, {**config, "instance": "node-1"}, (2, "nightly", None), (2, "apart", None))

    def explanation(instance: str, client_id: str) -> LimitExplanation:
        return LimitExplanation(context_of({**config, "instance": instance}), client_id, username=None)

    of_instances = "instances node-1*; the others make a dry run"
    for instance in ("node-1", "node-2", "bastion"):
        found = explanation(instance, "nightly")
        kind, text = found.forecast()
        assert ("denied", Mode.ENFORCE, of_instances) == (kind, found.matched.mode, found.canary)
        assert text.startswith("denied: over the limit client for another ") and text.endswith(f" ({of_instances})")
    apart = explanation("node-2", "apart")
    assert "instances node-1*, not for this client: it has a mode of its own" == apart.canary
    assert "instances" not in apart.forecast()[1]


def test_guesses_at_one_name_from_many_addresses_are_named_once() -> None:
    claims = {f"198.51.100.{each} victim": each for each in range(1, 40)} | {
        "192.0.2.7": 5,
        "192.0.2.8 bob": 4,
        None: 1,
    }
    both = {"192.0.2.7 alice": 1, "192.0.2.8 alice": 2}

    assert ["victim from 198.51.100.39 and 38 other addresses", "192.0.2.7", "bob from 192.0.2.8", ""] == guess_texts(
        claims
    )
    assert ["alice from 192.0.2.8 and 1 other address"] == guess_texts(both)
    assert "mode set dry-run" in GUARD_SWITCH, "the guard obeys it"


def test_origin_of_an_overridden_value_is_author_and_reason(context_of: ContextOf, clock: Clock) -> None:
    context = context_of(LIMITS)
    hourly = (Policy("client", 1, Window.of(3600)),)
    limit = Override(Target(OverrideKind.LIMIT, "partner", LimitKind.CLIENT), "ann", "why", clock(), policies=hourly)
    for override in (limit, Override(Target(OverrideKind.MODE, None), "ann", "why", clock(), mode=Mode.DRY_RUN)):
        context.stores.overrides.put(override)
    data: Any = LimitExplanation(context, "partner", username=None).data()
    origin = {"layer": "override", "by": "ann", "reason": "why", "until": None}

    assert (origin, "dry-run", origin) == (data["mode_origin"], data["mode"], data["limits"][0]["origin"])


def test_trusted_client_is_admitted_without_limits() -> None:
    data: Any = LimitExplanation(alone(LIMITS), "mobile-1", username="alice").data()

    assert ({"layer": "trusted_clients[mobile-*]"}, "admitted: trusted", []) == (
        data["trusted"],
        data["forecast"]["text"],
        data["limits"],
    )


def test_unknown_client_gets_similar_ones(context_of: ContextOf, mongo_uri: str, clock: Clock) -> None:
    count(mongo_uri, clock, LIMITS, (1, "web-shop", "alice"))
    context = context_of(LIMITS)
    unknown = "No counters, statistics or configuration for"

    assert f"{unknown} 'wbe-shop'; did you mean 'web-shop'?" == unknown_client_hint(context, "wbe-shop")
    assert f"{unknown} 'unheard-of'." == unknown_client_hint(context, "unheard-of")
    assert f"{unknown} 'x-*', taken literally" == str(unknown_client_hint(context, "x-*")).partition(":")[0]
    assert ["partner"] == similar_client_ids(context, "Partnr")
    assert [None] * 3 == [unknown_client_hint(context, known) for known in ("web-shop", "partner", "mobile-7")]
    assert None is unknown_client_hint(alone(LIMITS), "unheard-of")
