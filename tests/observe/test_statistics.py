"""Counts by client and minute, and how they are written."""

import threading
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.decision import DecidedRequest
from oauth_ratelimit.core.failed_auth import ANYONE, networks_of, password_keys, secret_keys
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Denials, Peak, Source, Tally, UserLoad
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.guard import Guard, Guess
from oauth_ratelimit.observe import statistics
from oauth_ratelimit.observe.statistics import CLIENT_SIZE, MAX_LIFETIMES, StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from testbed.clock import Clock

CREDENTIALS, PASSWORD, REFRESH = "client_credentials", "password", "refresh_token"
LIMITS = {"client": ["4/minute"], "user": ["2/minute"], "client_total": []}
MINUTE_S = 2_000_000_040


@dataclass
class FakeWriter:
    """Keeps the last counts of each writer in memory, fails, or refuses some."""

    written: dict[tuple[str, str, int], ClientMinute] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    error: Exception | None = None
    refused: list[int] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def put(self, writer: str, minutes: Sequence[ClientMinute], *, keep_s: float) -> list[int]:
        self.batches.append(len(minutes))
        self.meanwhile()
        if self.error is not None:
            raise self.error
        for minute in minutes:
            self.written[writer, minute.client_id, minute.minute_s] = minute
        return self.refused

    @property
    def minutes(self) -> list[ClientMinute]:
        return list(self.written.values())


class Instance:
    """A limiter whose decisions are counted by a recorder."""

    def __init__(self, clock: Clock, *, mode: str = "enforce", **settings: float) -> None:
        clock.now_s = MINUTE_S + 5.5
        self.clock = clock
        self.writer = FakeWriter()
        self.settings = replace(StatisticsSettings(), **settings)
        endpoints = {"revocation": {"limits": {"client": ["2/minute"]}}}
        config = {"mode": mode, "limits": LIMITS, "trusted_clients": ["mobile"], "endpoints": endpoints}
        self.limiter = Limiter(load_config(config), clock=clock)
        self.recorder = StatisticsRecorder(self.writer, settings=lambda: self.settings, clock=clock)

    def ask(
        self,
        client_id: str = "shop",
        username: str | None = None,
        *,
        times: int = 1,
        grant: str | None = None,
        endpoint: str = "token",
        pause_s: float = 0.0,
        lifetime_s: object = None,
    ) -> None:
        """Have requests decided and counted, and let time pass."""
        grant = grant or (CREDENTIALS if username is None else PASSWORD)
        for _ in range(times):
            decision = self.limiter.check(client_id, username, grant_type=grant, endpoint=endpoint)
            request = DecidedRequest(decision, client_id, username, grant, endpoint, self.clock(), 3e-6)
            self.recorder.count([request])
            self.recorder.count_lifetimes([(request, lifetime_s)])
        self.clock.advance(pause_s)

    def run(self, after_s: float = 10.0) -> None:
        self.clock.advance(after_s)
        self.recorder.run()

    def end_minute(self) -> list[ClientMinute]:
        """Return what is written when the minute is over."""
        self.run(60.0)
        return self.writer.minutes


def offered(instance: Instance) -> int:
    """Return the number of requests in everything written."""
    return sum(minute.tally().offered for minute in instance.writer.minutes)


@pytest.fixture
def instance(clock: Clock) -> Instance:
    return Instance(clock)


def in_seconds(counts: Mapping[int, int]) -> tuple[int, ...]:
    """Return requests by second of the minute."""
    return tuple(counts.get(second, 0) for second in range(60))


OWN, LOGIN, RENEWAL = Source("client", CREDENTIALS), Source("user", PASSWORD), Source("user", REFRESH)
REVOCATION = Source("client", "endpoint:revocation")
CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "by grant and kind": (
        "enforce",
        [{"times": 5}, {"username": "alice", "times": 4}, {"username": "alice", "grant": REFRESH}, {"username": "bob"}],
        {
            "tallies": {OWN: Tally(4, 1), LOGIN: Tally(3, 2), RENEWAL: Tally(denied=1)},
            "peaks": {"client": Peak(1.0, 4.0, 4, 60), "user": Peak(1.0, 2.0, 2, 60)},
            "users": (UserLoad("alice", 5, denied=3), UserLoad("bob", 1)),
            "seconds": in_seconds({5: 11}),
            "denials": {
                ("client", CREDENTIALS, "denied"): Denials(1, MINUTE_S + 5, MINUTE_S + 5, 4, 60),
                ("user", PASSWORD, "denied"): Denials(2, MINUTE_S + 5, MINUTE_S + 5, 2, 60),
                ("user", REFRESH, "denied"): Denials(1, MINUTE_S + 5, MINUTE_S + 5, 2, 60),
            },
        },
    ),
    "in a dry run nobody retries": (
        "dry-run",
        [{"times": 6, "pause_s": 1.0}, {"times": 1}],
        {
            "tallies": {OWN: Tally(4, would_deny=3)},
            "denials": {("client", CREDENTIALS, "would_deny"): Denials(3, MINUTE_S + 5, MINUTE_S + 6, 4, 60)},
        },
    ),
    "at another endpoint": (
        "enforce",
        [{"times": 4, "endpoint": "revocation"}, {"times": 2}],
        {
            "tallies": {REVOCATION: Tally(2, 2), OWN: Tally(2)},
            "peaks": {"revocation/client": Peak(1.0, 2.0, 2, 60), "client": Peak(0.5, 2.0, 4, 60)},
            "seconds": in_seconds({5: 2}),
            "denials": {
                ("revocation/client", REVOCATION.grant, "denied"): Denials(2, MINUTE_S + 5, MINUTE_S + 5, 2, 60)
            },
        },
    ),
    "retries before Retry-After": (
        "enforce",
        [{"times": 6, "pause_s": 0.1}, {"times": 2, "pause_s": 20.0}, {"username": "alice", "times": 3}],
        {"tallies": {OWN: Tally(4, 4, retries=2), LOGIN: Tally(2, 1)}},
    ),
    "within several seconds": (
        "enforce",
        [{"times": 6, "pause_s": 20.0}, {"times": 2, "pause_s": 1.0}, {"times": 3}],
        {
            "seconds": in_seconds({5: 6, 25: 2, 26: 3}),
            "denials": {("client", CREDENTIALS, "denied"): Denials(7, MINUTE_S + 5, MINUTE_S + 26, 4, 60)},
        },
    ),
}


@pytest.mark.parametrize(("mode", "asks", "expected"), CASES.values(), ids=CASES)
def test_minute_has_requests_limits_users_and_denials(
    clock: Clock, mode: str, asks: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    instance = Instance(clock, mode=mode)
    for ask in asks:
        instance.ask(**ask)
    (minute,) = instance.end_minute()

    assert expected == {name: getattr(minute, name) for name in expected}


def test_denials_of_an_address_belong_to_no_client_and_not_to_all_others(clock: Clock) -> None:
    instance = Instance(clock)
    settings = load_config({"mode": "enforce", "guard": {"mode": "enforce", "limits": {"address": ["1/minute"]}}})
    guard = Guard(settings, clock=clock, statistics=instance.recorder)
    first, second = (password_keys("app", name, networks_of("192.0.2.1"), is_public=True) for name in ("a", "b"))
    guess = guard.reserve(first)
    assert isinstance(guess, Guess)
    guard.settle(guess, is_wrong=True)
    assert not isinstance(guard.reserve(second), Guess)

    assert {ANYONE: {Source("client", "guard:address"): Tally(denied=1)}} == {
        minute.client_id: minute.tallies for minute in instance.end_minute()
    }


def test_denials_of_the_guard_are_no_token_requests_and_push_out_no_client(clock: Clock) -> None:
    """Anybody can make up client ids for wrong secrets. Clients beyond the maximum are counted as one."""
    instance = Instance(clock, clients_per_minute=10)
    settings = load_config({"mode": "enforce", "guard": {"mode": "enforce", "limits": {"client": ["1/minute"]}}})
    guard = Guard(settings, clock=clock, statistics=instance.recorder)
    for number in range(20):
        keys = secret_keys(f"made-up-{number}", networks_of("192.0.2.1"))
        guess = guard.reserve(keys)
        assert isinstance(guess, Guess)
        guard.settle(guess, is_wrong=True)
        assert not isinstance(guard.reserve(keys), Guess)
    for number in range(7):
        instance.ask(f"shop-{number}")
    found = {minute.client_id: minute for minute in instance.end_minute()}

    assert [1] * 4 == [found[f"shop-{number}"].tally().offered for number in range(4)]
    assert {Source("client", "guard:client"): Tally(denied=15), OWN: Tally(3)} == found[OTHER_CLIENTS].tallies
    assert ({}, 0) == (found["made-up-0"].peaks, found["made-up-0"].tally().offered)
    [(key, denials)] = found["made-up-0"].denials.items()
    assert (("guard/failures-client", "guard:client", "denied"), 1, 60) == (key, denials.limit, denials.window_s)


@pytest.mark.parametrize("max_users", [5, 0])
def test_heaviest_users_are_reported_when_the_minute_is_over(clock: Clock, max_users: int) -> None:
    """Of many, even if they come late; those that led for a moment leave nothing behind. Long names are shortened."""
    instance = Instance(clock, users_per_client=max_users)
    heavy = "heavy" * 100_000
    for turn in range(3):
        for number in range(200):
            instance.ask("shop", f"user-{number}")
        instance.ask("shop", heavy, times=30 + turn)
    instance.run()
    assert ((), {}) == (instance.writer.minutes[0].users, instance.writer.minutes[0].registers)

    (minute,) = instance.end_minute()
    assert max_users == len(minute.users)
    assert [(93, 91, True)] * bool(max_users) == [
        (user.offered, user.denied, len(user.username) < 200) for user in minute.users[:1]
    ]
    assert 201 == pytest.approx(minute.user_count, rel=0.15)
    assert 600 + 93 == minute.tally().offered


def test_lifetimes_of_a_minute_are_counted_up_to_a_bound(instance: Instance) -> None:
    """What is no number of seconds is left out."""
    for lifetime_s in (None, "3600", True, 0, -1, 1.5, 10**11, 3600, 600, 3600, *range(1, 100)):
        instance.ask(lifetime_s=lifetime_s)
    (minute,) = instance.end_minute()

    assert (2, 1, MAX_LIFETIMES) == (minute.lifetimes[3600], minute.lifetimes[600], len(minute.lifetimes))
    assert [3600, 600] == list(minute.lifetimes)[:2]


def test_counts_are_written_every_ten_seconds(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of clients that sent requests since; of many one batch in each sync cycle."""
    monkeypatch.setattr(statistics, "BATCH", 10)
    for client_id, pause_s in (("a", 10.0), ("b", 1.0), ("b", 9.0)):
        instance.ask(client_id)
        instance.run(pause_s)
    instance.run(10.0)
    assert ([1, 1], 3) == (instance.writer.batches, offered(instance))

    for number in range(25):
        instance.ask(f"client-{number}")
    for pause_s in (60.0, 1.0, 1.0, 1.0):
        instance.run(pause_s)
    assert [1, 1, 10, 10, 7] == instance.writer.batches

    instance.ask()
    instance.settings = replace(instance.settings, keep_s=0.0)
    instance.run()
    instance.settings = replace(instance.settings, keep_s=60.0)
    instance.run(60.0)
    assert 28 == offered(instance), "a reload that keeps nothing drops the counts"


def test_client_that_is_denied_for_the_first_time_in_a_minute_is_written_at_once(instance: Instance) -> None:
    """And not again before the ten seconds are over; other clients wait as usual."""
    instance.run()
    instance.ask("fine")
    instance.ask("storm", times=6)
    instance.run(1.0)
    assert [("storm", 2)] == [(each.client_id, each.tally().denied) for each in instance.writer.minutes]
    instance.ask("storm", times=3)
    instance.run(1.0)
    assert [1] == instance.writer.batches
    instance.run(8.0)
    assert [1, 2] == instance.writer.batches


def test_requests_count_in_the_minute_that_is_not_over(instance: Instance) -> None:
    """Those of a late thread in the present one; a clock that is put back makes another writer, whose counts add up."""
    instance.ask(times=3)
    instance.run(60.0)
    instance.ask()
    for step_s in (-30.0, 30.0 - 600.0):
        instance.clock.advance(step_s)
        instance.ask()
    instance.recorder.close(Deadline())

    found = [
        (writer[-1], start_s - MINUTE_S, minute.tally().offered)
        for (writer, _, start_s), minute in instance.writer.written.items()
    ]
    assert [("0", 0, 3), ("0", 60, 2), ("1", -540, 1)] == found


@pytest.mark.parametrize("step_s", [1.0, 70.0], ids=["within a minute", "over several minutes"])
def test_counts_are_written_after_an_outage(instance: Instance, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """If it takes too long the oldest minutes are dropped and logged, because memory is bounded."""
    monkeypatch.setattr(statistics, "MAX_WAITING", 3 * (2 * CLIENT_SIZE + 1))
    instance.writer.error = StoreUnavailable("out of reach")
    lost_count = 10 if step_s > 60 else 0
    with capture_logs() as logs:
        for _ in range(8):
            instance.ask("a")
            instance.ask("b", "alice")
            instance.run(step_s)
        instance.writer.error = None
        for _ in range(3):
            instance.run(60.0)
        instance.recorder.close(Deadline())

    assert 16 - lost_count == offered(instance)
    lost = [entry for entry in logs if entry["event"] == "statistics_unrecorded"]
    assert lost_count == sum(entry["count"] for entry in lost)
    assert {"MongoDB did not answer for too long"} >= {entry["reason"] for entry in lost}


@pytest.mark.parametrize(("client_count", "user_count"), [(1000, 0), (400, 5), (50, 100)])
def test_minutes_that_wait_take_about_25_mb_whoever_asks(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, client_count: int, user_count: int
) -> None:
    part = 20  # of what may wait
    monkeypatch.setattr(statistics, "MAX_WAITING", statistics.MAX_WAITING // part)
    decision, grant = instance.limiter.check("shop"), PASSWORD if user_count else CREDENTIALS
    names = [f"user-{number:04}@example.com" for number in range(user_count)] or [None]

    def count(client_id: str, name: str | None) -> None:
        request = DecidedRequest(decision, client_id, name, grant, "token", instance.clock(), 0.0)
        instance.recorder.count([request])

    tracemalloc.start()
    try:
        for _ in range(3):
            for number, name in product(range(client_count), names):
                count(f"client-{number:04}", name and name + " ")  # each minute has texts of its own
            instance.clock.advance(60.0)
        count("last", None)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 15_000_000 < part * taken < 32_000_000


def test_what_mongodb_refuses_is_lost_and_logged_every_ten_minutes(clock: Clock) -> None:
    rejected, refused = Instance(clock), Instance(clock)
    rejected.writer.error, refused.writer.refused = StoreRejected("not authorized"), [1]
    for instance, reason in ((rejected, "not authorized"), (refused, "a document of another form has the same _id")):
        with capture_logs() as logs:
            instance.ask("a")
            instance.ask("b")
            for _ in range(5):
                instance.run(60.0)
        lost_count = 2 if instance is rejected else 1
        assert [(lost_count, reason)] == [(entry["count"], entry["reason"]) for entry in logs]
        assert [2] == instance.writer.batches, "nothing is tried again"


def test_closing_ends_at_the_deadline(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of minutes that are not written is logged."""
    clock = Clock()
    instance.writer.meanwhile = lambda: clock.advance(1.2)
    monkeypatch.setattr(statistics, "BATCH", 10)
    for number in range(55):
        instance.ask(f"client-{number}")
    with capture_logs() as logs:
        instance.recorder.close(Deadline(2.0, monotonic=clock))

    assert [10, 10] == instance.writer.batches
    assert [("statistics_unrecorded", 35)] == [(entry["event"], entry["count"]) for entry in logs]


@pytest.mark.usefixtures("quick_switches")
def test_concurrent_requests_lose_no_count(clock: Clock) -> None:
    """Even where all threads see a client for the first time."""
    instance = Instance(clock, mode="off", clients_per_minute=2000)
    start = threading.Barrier(4, timeout=10.0)

    def ask(number: int) -> None:
        start.wait()
        for client in range(1500):
            instance.ask(f"client-{client}", f"user-{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    instance.recorder.close(Deadline(60.0))

    assert (4 * 1500, 1500) == (offered(instance), len(instance.writer.minutes))
