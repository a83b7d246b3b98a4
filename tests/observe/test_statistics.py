"""Counts by client and minute, and how they are written."""

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Peak, Share, Source, Tally, UserLoad
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe import statistics
from oauth_ratelimit.observe.minute import MAX_LIFETIMES, OpenMinute
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from tests.support.helpers import Clock

CREDENTIALS, PASSWORD, REFRESH = "client_credentials", "password", "refresh_token"
LIMITS = {"client": ["4/minute"], "user": ["2/minute"], "client_total": []}


@dataclass
class FakeWriter:
    """Keeps the last counts of each writer in memory, fails, or refuses some."""

    shares: dict[tuple[str, str, int], Share] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    error: Exception | None = None
    refused: list[int] = field(default_factory=list)

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        self.batches.append(len(shares))
        if self.error is not None:
            raise self.error
        for share in shares:
            self.shares[writer, share.minute.client_id, share.minute.minute_s] = share
        return self.refused

    @property
    def minutes(self) -> list[ClientMinute]:
        """Everything written, in the order of the first writes."""
        return [share.minute for share in self.shares.values()]

    def offered(self) -> int:
        """Return the requests in everything written."""
        return sum(minute.tally().offered for minute in self.minutes)


class Instance:
    """A limiter whose decisions are counted by a recorder."""

    def __init__(self, clock: Clock, *, mode: str = "enforce", **settings: float) -> None:
        self.clock = clock
        self.writer = FakeWriter()
        self.settings = replace(StatisticsSettings(), **settings)
        endpoints = {"revocation": {"limits": {"client": ["2/minute"]}}}
        config = {"mode": mode, "limits": LIMITS, "trusted_clients": ["mobile"], "endpoints": endpoints}
        self.limiter = Limiter(load_config(config), clock=clock)
        self.recorder = StatisticsRecorder(self.writer, settings=lambda: self.settings, clock=clock)

    def ask(
        self,
        client_id: str,
        username: str | None = None,
        *,
        times: int = 1,
        grant: str | None = CREDENTIALS,
        endpoint: str = "token",
    ) -> None:
        """Have requests decided and counted."""
        for _ in range(times):
            decision = self.limiter.check(client_id, username, grant_type=grant, endpoint=endpoint)
            self.recorder.count(
                decision,
                client_id,
                username=username,
                grant=grant or "none",
                endpoint=endpoint,
                now_s=self.clock(),
            )

    def run(self, after_s: float = 10.0) -> None:
        """Let time pass, and run the background task."""
        self.clock.advance(after_s)
        self.recorder.run()


@pytest.fixture
def instance(clock: Clock) -> Instance:
    """An instance that enforces."""
    return Instance(clock)


def test_requests_are_counted_by_grant_kind_and_outcome(instance: Instance) -> None:
    """A request for a user is of another kind than one without."""
    instance.ask("shop", times=5)
    instance.ask("shop", "alice", times=4, grant=PASSWORD)
    instance.ask("shop", "alice", grant=REFRESH)
    instance.ask("mobile", "bob", times=3, grant=PASSWORD)
    instance.run()

    shop, mobile = instance.writer.minutes
    assert {
        Source("client", CREDENTIALS): Tally(allowed=4, denied=1),
        Source("user", PASSWORD): Tally(allowed=2, denied=2, retries=1),
        Source("user", REFRESH): Tally(denied=1, retries=1),
    } == shop.tallies
    assert Tally(allowed=2, denied=3, retries=2) == shop.tally("user")
    assert {Source("user", PASSWORD): Tally(trusted=3)} == mobile.tallies


def test_dry_run_counts_would_be_denials(clock: Clock) -> None:
    """Nobody retries, because nobody was asked to wait."""
    instance = Instance(clock, mode="dry-run")
    instance.ask("shop", times=7)
    instance.run()

    assert Tally(allowed=4, would_deny=3) == instance.writer.minutes[0].tally()


def test_other_endpoint_replaces_the_grant_type(instance: Instance) -> None:
    """It is also the prefix of its policies."""
    instance.ask("shop", times=4, endpoint="revocation", grant=None)
    instance.ask("shop", times=2)
    instance.run()

    (minute,) = instance.writer.minutes
    assert Tally(allowed=2, denied=2, retries=1) == minute.tallies[Source("client", "endpoint:revocation")]
    assert {"revocation/client": Peak(1.0, 2.0, 2, 60), "client": Peak(0.5, 2.0, 4, 60)} == minute.peaks


def test_peak_is_the_most_used_of_a_policy_by_any_user(clock: Clock) -> None:
    instance = Instance(clock)
    instance.ask("shop", "alice", grant=PASSWORD)
    instance.ask("shop", "bob", times=4, grant=PASSWORD)
    instance.ask("shop", times=3)
    instance.run()

    assert {"user": Peak(1.0, 2.0, 2, 60), "client": Peak(0.75, 3.0, 4, 60)} == instance.writer.minutes[0].peaks


def test_heaviest_users_are_reported_when_the_minute_is_over(instance: Instance) -> None:
    instance.ask("shop", "alice", times=3, grant=PASSWORD)
    instance.ask("shop", "bob", grant=PASSWORD)
    instance.run()
    assert () == instance.writer.minutes[0].users
    assert 0.0 == instance.writer.minutes[0].user_count

    instance.run(60.0)
    assert (UserLoad("alice", 3, denied=1), UserLoad("bob", 1)) == instance.writer.minutes[0].users
    assert 2 == round(instance.writer.minutes[0].user_count)


def test_heaviest_of_many_users_are_found(clock: Clock) -> None:
    """Even if they come late; the number of users stays about right."""
    instance = Instance(clock, users_per_client=5)
    for turn in range(3):
        for number in range(200):
            instance.ask("shop", f"user-{number}", grant=PASSWORD)
        instance.ask("shop", "heavy", times=30 + turn, grant=PASSWORD)
    instance.run()
    instance.run(60.0)

    (minute,) = instance.writer.minutes
    assert 5 == len(minute.users)
    assert UserLoad("heavy", 93, denied=91) == minute.users[0]
    assert 201 == pytest.approx(minute.user_count, rel=0.15)
    assert 600 + 93 == minute.tally().offered


def test_no_names_are_kept_with_users_per_client_at_zero(clock: Clock) -> None:
    instance = Instance(clock, users_per_client=0)
    instance.ask("shop", "alice", times=3, grant=PASSWORD)
    instance.run(70.0)

    assert () == instance.writer.minutes[0].users
    assert 1 == round(instance.writer.minutes[0].user_count)


def test_names_of_megabytes_are_shortened(instance: Instance) -> None:
    instance.ask("x" * 3_000_000, "y" * 3_000_000, times=2, grant=PASSWORD)
    instance.run(70.0)

    (minute,) = instance.writer.minutes
    assert 200 > len(minute.client_id)
    assert [2] == [user.offered for user in minute.users]
    assert 200 > len(minute.users[0].username)


def test_burst_is_the_most_requests_within_one_second(instance: Instance) -> None:
    for times in (2, 5, 3):
        instance.ask("shop", times=times)
        instance.clock.advance(1.0)
    instance.run()

    assert 5 == instance.writer.minutes[0].burst


def test_clients_beyond_the_maximum_are_counted_as_one(clock: Clock) -> None:
    instance = Instance(clock, clients_per_minute=2)
    for client_id in ("a", "b", "c", "d", "a", "c"):
        instance.ask(client_id)
    instance.run(60.0)
    instance.ask("c")
    instance.run()

    counts = [(minute.client_id, minute.tally().offered) for minute in instance.writer.minutes]
    assert [("a", 2), ("b", 1), (OTHER_CLIENTS, 3), ("c", 1)] == counts


def test_counts_are_written_every_ten_seconds(instance: Instance) -> None:
    """Only of clients that sent requests since."""
    instance.ask("a")
    instance.ask("b")
    instance.run(10.0)
    instance.ask("a")
    instance.run(1.0)
    assert [2] == instance.writer.batches

    instance.run(9.0)
    instance.run(10.0)
    assert [2, 1] == instance.writer.batches
    assert 3 == instance.writer.offered()


def test_many_clients_are_written_in_batches(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch in each sync cycle, until all are written."""
    monkeypatch.setattr(statistics, "BATCH", 10)
    for number in range(25):
        instance.ask(f"client-{number}")
    for _ in range(4):
        instance.run(1.0)
    assert [10, 10, 5] == instance.writer.batches

    for number in range(25):
        instance.ask(f"client-{number}")
    instance.run(60.0)
    assert [10, 10, 5, 10] == instance.writer.batches
    for _ in range(3):
        instance.run(1.0)
    assert [10, 10, 5] * 2 == instance.writer.batches


def test_request_after_the_end_of_a_minute_counts_in_the_next(instance: Instance) -> None:
    instance.ask("shop", times=3)
    instance.run(60.0)
    instance.ask("shop", times=2)
    instance.recorder.close()

    assert [3, 2] == [minute.tally().offered for minute in instance.writer.minutes]
    assert [60] == [
        b.minute_s - a.minute_s for a, b in zip(instance.writer.minutes, instance.writer.minutes[1:], strict=False)
    ]
    assert all(share.is_complete for share in instance.writer.shares.values())


def test_request_of_a_late_thread_counts_in_the_present_minute(instance: Instance) -> None:
    instance.ask("shop")
    instance.run(60.0)
    instance.ask("shop")
    instance.clock.advance(-30.0)
    instance.ask("shop")
    instance.clock.advance(30.0)
    instance.recorder.close()

    assert [1, 2] == [minute.tally().offered for minute in instance.writer.minutes]


def test_clock_that_is_put_back_makes_another_writer(instance: Instance) -> None:
    """Minutes that are counted again add up."""
    instance.ask("shop", times=3)
    instance.run(600.0)
    instance.ask("shop")
    instance.clock.advance(-600.0)
    instance.ask("shop", times=2)
    instance.recorder.close()

    writers = [
        (writer[-1], minute_s, share.minute.tally().offered)
        for (writer, _, minute_s), share in instance.writer.shares.items()
    ]
    start_s = writers[0][1]
    assert [("0", start_s, 3), ("0", start_s + 600, 1), ("1", start_s, 2)] == writers


@pytest.mark.parametrize("is_late", (False, True), ids=("at once", "in the next minutes"))
def test_counts_are_written_after_an_outage(instance: Instance, is_late: bool) -> None:
    """Together with those that came in the meantime."""
    instance.writer.error = StoreUnavailable("out of reach")
    for _ in range(5):
        instance.ask("shop", times=2)
        instance.run(70.0 if is_late else 10.0)
    assert 0 == instance.writer.offered()

    instance.writer.error = None
    for _ in range(3):
        instance.run(10.0)
    assert 10 == instance.writer.offered()


def test_long_outage_drops_the_oldest_minutes(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and their number is logged."""
    monkeypatch.setattr(statistics, "MAX_WAITING", 10)
    for _ in range(8):
        instance.ask("a")
        instance.ask("b", "alice", grant=PASSWORD)
        instance.clock.advance(60.0)
    with capture_logs() as logs:
        instance.run()
        instance.run()

    assert 6 == instance.writer.offered()
    expected = {"event": "statistics_unrecorded", "count": 10, "reason": "MongoDB did not answer for too long"}
    assert [{**expected, "log_level": "warning"}] == logs


def test_missing_rights_are_logged_every_ten_minutes(instance: Instance) -> None:
    """Ended minutes are lost, and nothing else happens."""
    instance.writer.error = StoreRejected("not authorized")
    with capture_logs() as logs:
        for _ in range(5):
            instance.ask("shop")
            instance.run(60.0)

    assert [(1, "not authorized")] == [(entry["count"], entry["reason"]) for entry in logs]
    instance.writer.error = None
    instance.ask("shop")
    instance.recorder.close()
    assert 1 == instance.writer.offered()


def test_minute_that_mongodb_refuses_is_dropped(instance: Instance) -> None:
    instance.ask("a")
    instance.ask("b")
    instance.writer.refused = [1]
    with capture_logs() as logs:
        instance.run(60.0)
        instance.run(60.0)

    assert [(1, "a document of another form has the same _id")] == [(entry["count"], entry["reason"]) for entry in logs]
    assert [2] == instance.writer.batches


def test_reload_that_keeps_nothing_drops_the_counts(instance: Instance) -> None:
    instance.ask("shop")
    instance.settings = replace(instance.settings, keep_s=0.0)
    instance.run()
    instance.ask("shop")
    instance.run()
    assert [] == instance.writer.batches

    instance.settings = replace(instance.settings, keep_s=60.0)
    instance.run()
    instance.ask("shop")
    instance.run()
    assert 1 == instance.writer.offered()


def test_closing_during_an_outage_logs_what_is_lost(instance: Instance) -> None:
    instance.ask("a")
    instance.ask("b")
    instance.writer.error = StoreUnavailable("out of reach")
    with capture_logs() as logs:
        instance.recorder.close()

    assert [("statistics_unrecorded", 2)] == [(entry["event"], entry["count"]) for entry in logs]


def test_closing_ends_at_the_deadline(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of minutes that are not written is logged."""
    clock = Clock()
    put = instance.writer.put

    def put_slowly(writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        clock.advance(1.2)
        return put(writer, shares, keep_s=keep_s)

    monkeypatch.setattr(statistics, "BATCH", 10)
    monkeypatch.setattr(instance.writer, "put", put_slowly)
    for number in range(55):
        instance.ask(f"client-{number}")
    with capture_logs() as logs:
        instance.recorder.close(Deadline(2.0, monotonic=clock))

    assert [10, 10] == instance.writer.batches
    assert [("statistics_unrecorded", 35)] == [(entry["event"], entry["count"]) for entry in logs]


def test_concurrent_requests_lose_no_count(clock: Clock) -> None:
    """Even where all threads see a client for the first time."""
    instance = Instance(clock, mode="off", clients_per_minute=2000)
    decision = instance.limiter.check("shop")
    start = threading.Barrier(4, timeout=10.0)

    def ask(number: int) -> None:
        start.wait()
        for client in range(1500):
            instance.recorder.count(
                decision, f"client-{client}", username=f"user-{number}", grant=PASSWORD, now_s=clock()
            )

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(4)))
    finally:
        sys.setswitchinterval(interval_s)
    instance.recorder.close()

    assert 4 * 1500 == instance.writer.offered()
    assert 1500 == len(instance.writer.minutes)


def test_lifetimes_of_a_minute_are_counted_up_to_a_bound() -> None:
    minute = OpenMinute("shop", 20)
    for lifetime_s in (3600, 600, 3600, *range(1, 100)):
        minute.count_lifetime(lifetime_s)
    lifetimes = minute.snapshot(0, is_complete=False).lifetimes
    assert (2, 1, MAX_LIFETIMES) == (lifetimes[3600], lifetimes[600], len(lifetimes))


def test_lifetime_of_a_token_whose_minute_is_over_is_left_out() -> None:
    writer = FakeWriter()
    recorder = StatisticsRecorder(writer, settings=StatisticsSettings, clock=Clock())
    recorder.count_lifetime("shop", 3600)
    recorder.close()
    assert not writer.minutes
