"""The preview of a change beside what limiters then do with real load: eleven scenarios, in simulated time."""

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, PolicySet
from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally
from oauth_ratelimit.observe.statistics import OpenMinute
from oauth_ratelimit.operations.changes import amount_overrides
from oauth_ratelimit.operations.format import rounded_up
from oauth_ratelimit.traffic.judge import Judged
from oauth_ratelimit.traffic.minutes import quiet_limiter
from oauth_ratelimit.traffic.outlook import ClientLoad, Outlook, recent_minutes
from oauth_ratelimit.traffic.preview import client_impact, verdict_of
from testbed.memory_store import MemoryStore

START_S = 1_790_000_040.0  # a full minute
PAST_MINUTES = 12
TOLERANCE = 0.03  # of the requests
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
        {"client": ["20/minute"]},
        {LimitKind.CLIENT: {"client": 40}},
        steady(80),
        "hardly helps: client still",
        "client",
    ),
    "raising what a grant type that is counted apart inherits": Scenario(
        {"client": ["20/minute"]},
        {LimitKind.CLIENT: {"client": 40}},
        steady(80),
        "hardly helps: client still",
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
    "bursts against a window of seconds": Scenario(
        {"client": ["10/5s"]},
        {LimitKind.CLIENT: {"client": 14}},
        burst(40),
        "hardly helps: client still denies 26 of 30",
        "client",
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
        minute = OpenMinute("app", int(begin_s), max_users=20)
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
        return minute.snapshot(is_complete=True)

    def sync(self) -> None:
        for limiter in self.limiters:
            limiter.sync()

    def denied(self, minutes: int) -> float:
        """Send the requests of some minutes and return the denials per minute."""
        return sum(self.minute().tally().denied for _ in range(minutes)) / minutes

    def load(self, minute_count: int = PAST_MINUTES) -> ClientLoad:
        """Send the requests before the change and return what is recorded of them."""
        minutes = [self.minute() for _ in range(minute_count)]
        self.now_s += 21  # instances have written the last minute
        recent = recent_minutes(minutes, "app", self.now_s)
        documents, policies = self.store.latest(100), self.settings.policies
        return ClientLoad("app", recent, documents, policies=policies, now_s=self.now_s)

    def raised(self) -> PolicySet:
        """Return the policies after the change."""
        template = Override(Target(OverrideKind.LIMIT, "app", LimitKind.USER), "ann", "a test", 0.0)
        policies = self.settings.policies
        return apply_overrides(policies, amount_overrides(policies, "app", self.scenario.raised, template))


@pytest.mark.parametrize(
    ("grants", "needed"), [({}, 140 * 1.25), ({MACHINE: {}}, 80 * 1.25)], ids=["together", "apart"]
)
def test_total_that_a_client_needs_is_that_of_its_busiest_counter(grants: dict[str, Any], needed: float) -> None:
    policies = load_config({"limits": {"client_total": ["9/minute"]}, "grants": grants}).policies
    tallies = {Source("user", PASSWORD): Tally(60), Source("client", MACHINE): Tally(80)}
    minutes = [ClientMinute("app", int(START_S), tallies)] * 3
    load = ClientLoad("app", minutes, {}, policies=policies, now_s=START_S)
    assert rounded_up(needed) == load.needed(LimitKind.CLIENT_TOTAL, policies.limits.client_total[0])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_preview_is_within_three_points_of_what_limiters_then_deny(scenario: Scenario) -> None:
    service = Service(scenario)
    load, after = service.load(), service.raised()
    assert after != service.settings.policies
    outlook, text = load.outlook(after), " ".join(client_impact(load, after).lines)
    service.apply(after)
    measured = service.denied(outlook.length)

    assert outlook.at_least <= measured <= outlook.at_most, (outlook, measured)
    if scenario.instance_count == 1:
        assert TOLERANCE * outlook.offered >= abs(outlook.denied - measured), (outlook, measured)
    assert scenario.words in text, text
    assert next(iter(outlook.judged.by_policy), None) == scenario.blocker


def outlook_of(denied: int, policy: str = "client-600s", *, at_most: int = 0, is_trial: bool = False) -> Outlook:
    """Return the outlook with these denials per minute."""
    by_policy = {policy: denied} if denied else {}
    judged = Judged(70, denied, denied, max(denied, at_most), by_policy, dict.fromkeys(by_policy, START_S), 70, True)
    return Outlook(1, 70.0, judged, int(START_S), is_trial)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (0, 0, "Nobody is denied either way."),
        (0, 1, "This denies more: client-600s denies 1 per minute."),
        (50, 56, "This denies more: client-600s denies 56 per minute."),
        (50, 55, "This does not help: client-600s still denies 55 per minute."),
        (50, 46, "This does not help: client-600s still denies 46 per minute."),
        (50, 45, "This hardly helps: client-600s still denies 45 of 50 per minute."),
        (50, 26, "This hardly helps: client-600s still denies 26 of 50 per minute."),
        (50, 25, "This helps in part: client-600s still denies 25 of 50 per minute."),
        (50, 6, "This helps in part: client-600s still denies 6 of 50 per minute."),
        (50, 5, "This helps."),
        (50, 0, "This helps."),
    ],
)
def test_verdict_follows_from_the_share_of_the_denials_that_stay(was: int, now: int, expected: str) -> None:
    assert expected == verdict_of(outlook_of(was), outlook_of(now))


def test_verdict_says_what_bursts_may_do_and_what_a_dry_run_would_deny() -> None:
    bursts = verdict_of(outlook_of(0), outlook_of(0, at_most=2))
    assert re.fullmatch(r"Nobody is denied either way, unless .* denser bursts: up to \d+ per minute\.", bursts)
    trial = verdict_of(outlook_of(50, is_trial=True), outlook_of(49, is_trial=True))
    assert "This does not help: client-600s would still deny 49 per minute." == trial


def test_outlook_begins_with_the_present_counters() -> None:
    """A limit that is full now denies in the first minute, not after its amount once more."""
    service = Service(Scenario({"client": ["100/hour"]}, {}, steady(10), ""))
    load = service.load()

    assert load.outlook(load.policies).judged.first_s["client"] < service.now_s + 120
    assert ", over the limit client at once." in client_impact(load, load.policies).lines[0]
    later = replace(load, documents={})
    assert re.search(r", over the limit client from \d\d:\d\d UTC\.", client_impact(later, load.policies).lines[0])


def test_denials_before_the_last_change_are_left_out_unless_nothing_is_later() -> None:
    policies = load_config({"mode": "enforce", "limits": {"client": ["200/minute"]}}).policies
    tallies = [Tally(60, 30), Tally(87, 3), Tally(90), Tally(90)]
    minutes = [
        ClientMinute("app", int(START_S) + 60 * number, {Source("client", MACHINE): tally})
        for number, tally in enumerate(tallies)
    ]
    load = ClientLoad("app", minutes, {}, policies, now_s=START_S + 252, changed_s=START_S + 101)
    expected = "In the last {}: {} of 90 requests per minute denied. Unchanged: none denied in the next 1 h."

    for changed_s, words in (
        (0.0, ("4 minutes", "8.2")),
        (START_S + 101, ("2 minutes, since the last change", 0)),
        (START_S + 250, ("4 minutes, before the last change", "8.2")),
    ):
        assert expected.format(*words) == client_impact(replace(load, changed_s=changed_s), policies).lines[0]


def test_users_without_a_name_have_a_limit_each() -> None:
    """Forty users with one request a minute are within it, though only twenty of them are recorded."""
    limits = {"user": ["2/minute"]}
    service = Service(Scenario(limits, {}, lambda rng, _: [(rng.uniform(0, 60), f"u{n}") for n in range(40)], ""))
    load = service.load()

    assert 0 == load.outlook(load.policies).denied


def test_limit_through_all_clients_is_named_and_not_proposed_for_one_client() -> None:
    """It is one for everybody, so no client can have another amount."""
    limits = {"user": ["20/minute"], "user_total": ["10/minute"]}
    service = Service(Scenario(limits, {LimitKind.USER: {"user": 60}}, steady(60, users=1), ""))
    impact = client_impact(service.load(), service.raised())

    assert "This does not help: user_total still denies" in impact.lines[1]
    assert LimitKind.USER_TOTAL not in impact.proposal


@pytest.mark.slow
def test_preview_of_the_largest_client_takes_seconds() -> None:
    """It has twenty users, four limits with windows of up to a day, and is over all of them."""
    limits = {"user": ["20/minute", "9000/day"], "client_total": ["300/minute", "200000/day"]}
    service = Service(Scenario(limits, {LimitKind.USER: {"user-60s": 25}}, steady(500, users=20), ""))
    load, after, begin_s = service.load(), service.raised(), time.process_time()
    impact = client_impact(load, after)

    assert time.process_time() - begin_s < 5
    assert "client_total-60s" in impact.lines[1]
