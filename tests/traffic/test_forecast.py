"""The forecast of a change against what limiters then do with real load: eleven scenarios, in simulated time."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, PolicySet
from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally
from oauth_ratelimit.observe.minute import OpenMinute
from oauth_ratelimit.operations.changes import amount_overrides
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.traffic.forecast import Forecaster, recent_minutes
from oauth_ratelimit.traffic.impact import client_impact
from oauth_ratelimit.traffic.replayed import quiet_limiter
from oauth_ratelimit.traffic.suggest import rounded_up

START_S = 1_790_000_040.0  # a full minute
PAST_MINUTES = 12
PASSWORD, MACHINE = "password", "client_credentials"

Requests = list[tuple[float, str | None]]
"""The second of the minute and the user of each request."""


@dataclass
class Scenario:
    """Limits, the amounts after a change, and the requests of each minute."""

    limits: dict[str, list[Any]]
    raised: dict[LimitKind, dict[str, int]]
    requests: Callable[[random.Random, int], Requests]
    words: str  # in the impact of the change
    blocker: str | None = None  # the policy that denies most afterwards
    instance_count: int = 1
    grants: dict[str, Any] = field(default_factory=dict)


def steady(count: int, users: int = 0) -> Callable[[random.Random, int], Requests]:
    """Return requests that come at random."""
    return lambda rng, _: [(rng.uniform(0, 60), f"u{rng.randrange(users)}" if users else None) for _ in range(count)]


def even(count: int) -> Callable[[random.Random, int], Requests]:
    return lambda _, __: [(60 * (number + 0.5) / count, None) for number in range(count)]


def burst(count: int, *, every: int = 1, second: float = 2.0) -> Callable[[random.Random, int], Requests]:
    """Return requests that come within three seconds of a minute, in every so many minutes."""
    return lambda rng, number: [(second + rng.uniform(0, 3), None) for _ in range(0 if number % every else count)]


def one_heavy(rng: random.Random, _: int) -> Requests:
    """Return the requests of one heavy user and of several light ones."""
    return [(rng.uniform(0, 60), "heavy" if number < 40 else f"u{number}") for number in range(46)]


TWO = {"client": ["12/minute", "600/hour"]}
SCENARIOS = {
    "raising the minute alone fills the hour": Scenario(
        TWO, {LimitKind.CLIENT: {"client-60s": 40}}, steady(70), "does not help", "client-3600s"
    ),
    "raising both tiers helps": Scenario(
        TWO, {LimitKind.CLIENT: {"client-60s": 150, "client-3600s": 5400}}, steady(70), "This helps."
    ),
    "raising enough for even requests": Scenario(
        {"client": ["30/minute"]}, {LimitKind.CLIENT: {"client": 63}}, even(60), "This helps."
    ),
    "raising by a half what gets twice as much": Scenario(
        {"client": ["20/minute"]}, {LimitKind.CLIENT: {"client": 40}}, steady(80), "This helps.", "client"
    ),
    "raising what a grant type that is counted apart inherits": Scenario(
        {"client": ["20/minute"]},
        {LimitKind.CLIENT: {"client": 40}},
        steady(80),
        "This helps.",
        "client",
        grants={MACHINE: {"mode": "enforce"}},
    ),
    "raising hardly": Scenario(
        {"client": ["20/minute"]}, {LimitKind.CLIENT: {"client": 22}}, steady(80), "does not help", "client"
    ),
    "lowering": Scenario(
        {"client": ["40/minute"]}, {LimitKind.CLIENT: {"client": 20}}, steady(50), "denies more", "client"
    ),
    "raising the wrong kind: the total denies": Scenario(
        {"user": ["30/minute"], "client_total": ["20/minute"]},
        {LimitKind.USER: {"user": 90}},
        steady(60, users=3),
        "does not help",
        "client_total",
    ),
    "raising for one heavy user": Scenario({"user": ["10/minute"]}, {LimitKind.USER: {"user": 60}}, one_heavy, "helps"),
    "bursts against a window that minutes cannot show": Scenario(
        {"client": ["10/5s"]}, {LimitKind.CLIENT: {"client": 14}}, burst(40), "recorded minutes do not show"
    ),
    "a burst every fifth minute, on two instances": Scenario(
        {"client": ["20/minute", "400/hour"]},
        {LimitKind.CLIENT: {"client-60s": 100}},
        burst(100, every=5),
        "client-3600s",
        "client-3600s",
        instance_count=2,
    ),
}


class Service:
    """Instances that share counters, and the statistics of one client."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now_s = START_S
        self.settings = load_config({"mode": "enforce", "limits": scenario.limits, "grants": scenario.grants})
        self.store = MemoryStore(lambda: self.now_s)
        self.limiters = [
            quiet_limiter(self.settings, self.store, lambda: self.now_s) for _ in range(scenario.instance_count)
        ]
        self.rng = random.Random(7)
        self.number = 0

    def apply(self, policies: PolicySet) -> None:
        for limiter in self.limiters:
            limiter.reconfigure(type(self.settings)(policies=policies))

    def minute(self) -> ClientMinute:
        """Send the requests of the next minute and return what all instances record of it."""
        begin_s = START_S + 60 * self.number
        minute = OpenMinute("app", max_users=20)
        next_sync_s = begin_s
        for offset_s, username in sorted(self.scenario.requests(self.rng, self.number), key=lambda each: each[0]):
            self.now_s = begin_s + offset_s
            if self.now_s >= next_sync_s:
                next_sync_s = self.now_s + 1
                self.sync()
            grant = PASSWORD if username else MACHINE
            limiter = self.rng.choice(self.limiters)
            decision = limiter.check("app", username, grant_type=grant)
            minute.count(decision, "user" if username else "client", grant, now_s=self.now_s, policy_prefix="")
            minute.count_token_request(decision, username, self.now_s)
        self.number += 1
        self.now_s = START_S + 60 * self.number
        self.sync()
        return minute.snapshot(int(begin_s), is_complete=True)

    def sync(self) -> None:
        for limiter in self.limiters:
            limiter.sync()

    def denied(self, minutes: int) -> float:
        """Send the requests of some minutes and return the denials per minute."""
        return sum(self.minute().tally().denied for _ in range(minutes)) / minutes

    def past(self) -> Iterator[ClientMinute]:
        """Send the requests before the change and yield what was recorded."""
        for _ in range(PAST_MINUTES):
            yield self.minute()
        self.now_s += 21  # instances have written the last minute


def raised(service: Service, scenario: Scenario) -> PolicySet:
    """Return the policies after the change of a scenario."""
    template = Override(Target(OverrideKind.LIMIT, "app", LimitKind.USER), "ann", "a test", 0.0)
    policies = service.settings.policies
    return apply_overrides(policies, amount_overrides(policies, "app", scenario.raised, template))


@pytest.mark.parametrize(
    ("grants", "needed"), [({}, 140 * 1.25), ({MACHINE: {}}, 80 * 1.25)], ids=["together", "apart"]
)
def test_total_that_a_client_needs_is_that_of_its_busiest_counter(grants: dict[str, Any], needed: float) -> None:
    policies = load_config({"limits": {"client_total": ["9/minute"]}, "grants": grants}).policies
    tallies = {Source("user", PASSWORD): Tally(60), Source("client", MACHINE): Tally(80)}
    minutes = [ClientMinute("app", int(START_S), tallies)] * 3
    forecaster = Forecaster("app", minutes, [], policies=policies, now_s=START_S)
    assert rounded_up(needed) == forecaster.needed(LimitKind.CLIENT_TOTAL, policies.limits.client_total[0])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_measured_denials_lie_within_the_bounds_of_the_forecast(scenario: Scenario) -> None:
    service, unchanged = Service(scenario), Service(scenario)
    minutes, _ = list(service.past()), list(unchanged.past())
    forecaster = Forecaster(
        "app",
        recent_minutes(minutes, "app", service.now_s),
        [(key, snapshot) for key, snapshot in service.store.latest(100).items()],
        policies=service.settings.policies,
        now_s=service.now_s,
    )
    after = raised(service, scenario)
    assert after != service.settings.policies
    outlook = forecaster.outlook(after)
    text = " ".join(client_impact(forecaster, "app", service.settings.policies, after).lines)
    service.apply(after)
    measured, without = service.denied(outlook.length), unchanged.denied(outlook.length)

    assert outlook.at_least <= measured <= outlook.at_most, (outlook, measured)
    assert scenario.words in text, text
    assert next(iter(outlook.first_s), None) == scenario.blocker
    if "This helps." in text:
        assert measured < 0.9 * without, (measured, without)
