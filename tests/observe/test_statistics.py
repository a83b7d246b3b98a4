"""What a process counts by client and minute, and how it gets that to MongoDB."""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config.settings import StatisticsSettings
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Peak, Share, Source, Tally, UserLoad
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe import statistics
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from tests.support.helpers import Clock

CREDENTIALS, PASSWORD, REFRESH = "client_credentials", "password", "refresh_token"
LIMITS = {"client": ["4/minute"], "user": ["2/minute"], "client_total": []}


@dataclass
class Written:
    """A store that keeps the last of what each writer wrote, and does what it is told to once in a while."""

    shares: dict[tuple[str, str, int], Share] = field(default_factory=dict)
    bulks: list[int] = field(default_factory=list)
    error: Exception | None = None
    refused: list[int] = field(default_factory=list)

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        self.bulks.append(len(shares))
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


class OperatorContext:
    """A limiter whose decisions go to a recorder."""

    def __init__(self, clock: Clock, *, mode: str = "enforce", **settings: float) -> None:
        self.clock = clock
        self.written = Written()
        self.settings = replace(StatisticsSettings(), **settings)
        endpoints = {"revocation": {"limits": {"client": ["2/minute"]}}}
        config = {"mode": mode, "limits": LIMITS, "trusted_clients": ["mobile"], "endpoints": endpoints}
        self.limiter = Limiter(load_config(config), clock=clock)
        self.recorder = StatisticsRecorder(self.written, settings=lambda: self.settings, clock=clock)

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
            self.recorder.count(decision, client_id, username=username, grant=grant or "none", endpoint=endpoint)

    def run(self, after_s: float = 10.0) -> None:
        """Let time pass, and the background thread do its duty."""
        self.clock.advance(after_s)
        self.recorder.run(self.clock())


@pytest.fixture
def context(clock: Clock) -> OperatorContext:
    """A limiter with a recorder, enforcing."""
    return OperatorContext(clock)


def test_requests_of_all_kinds(context: OperatorContext) -> None:
    """A minute tells requests apart by grant, by whether they are for a user, and by what became of them."""
    context.ask("shop", times=5)
    context.ask("shop", "alice", times=4, grant=PASSWORD)
    context.ask("shop", "alice", grant=REFRESH)
    context.ask("mobile", "bob", times=3, grant=PASSWORD)
    context.run()

    shop, mobile = context.written.minutes
    assert {
        Source("client", CREDENTIALS): Tally(allowed=4, denied=1),
        Source("user", PASSWORD): Tally(allowed=2, denied=2, retries=1),
        Source("user", REFRESH): Tally(denied=1, retries=1),
    } == shop.tallies
    assert Tally(allowed=2, denied=3, retries=2) == shop.tally("user")
    assert {Source("user", PASSWORD): Tally(trusted=3)} == mobile.tallies


def test_dry_run(clock: Clock) -> None:
    """In a dry run what would be denied is told apart, and nobody retries, because nobody was told to wait."""
    context = OperatorContext(clock, mode="dry-run")
    context.ask("shop", times=7)
    context.run()

    assert Tally(allowed=4, would_deny=3) == context.written.minutes[0].tally()


def test_other_endpoint(context: OperatorContext) -> None:
    """Another endpoint stands in the place of the grant type, and before the names of its policies."""
    context.ask("shop", times=4, endpoint="revocation", grant=None)
    context.ask("shop", times=2)
    context.run()

    (minute,) = context.written.minutes
    assert Tally(allowed=2, denied=2, retries=1) == minute.tallies[Source("client", "endpoint:revocation")]
    assert {"revocation/client": Peak(1.0, 2.0, 2, 60), "client": Peak(0.5, 2.0, 4, 60)} == minute.peaks


def test_peaks(clock: Clock) -> None:
    """The peak of a policy is the most that was used of it, by any user; denied requests do not raise it."""
    context = OperatorContext(clock)
    context.ask("shop", "alice", grant=PASSWORD)
    context.ask("shop", "bob", times=4, grant=PASSWORD)
    context.ask("shop", times=3)
    context.run()

    assert {"user": Peak(1.0, 2.0, 2, 60), "client": Peak(0.75, 3.0, 4, 60)} == context.written.minutes[0].peaks


def test_users(context: OperatorContext) -> None:
    """When the minute is over, the heaviest users are told of, and how many there were."""
    context.ask("shop", "alice", times=3, grant=PASSWORD)
    context.ask("shop", "bob", grant=PASSWORD)
    context.run()
    assert () == context.written.minutes[0].users
    assert 0.0 == context.written.minutes[0].user_count

    context.run(60.0)
    assert (UserLoad("alice", 3, denied=1), UserLoad("bob", 1)) == context.written.minutes[0].users
    assert 2 == round(context.written.minutes[0].user_count)


def test_more_users_than_are_told_of(clock: Clock) -> None:
    """Of many users the heaviest stay, even if they come late, and the number of users stays about right."""
    context = OperatorContext(clock, users_per_client=5)
    for turn in range(3):
        for number in range(200):
            context.ask("shop", f"user-{number}", grant=PASSWORD)
        context.ask("shop", "heavy", times=30 + turn, grant=PASSWORD)
    context.run()
    context.run(60.0)

    (minute,) = context.written.minutes
    assert 5 == len(minute.users)
    assert UserLoad("heavy", 93, denied=91) == minute.users[0]
    assert 201 == pytest.approx(minute.user_count, rel=0.15)
    assert 600 + 93 == minute.tally().offered


def test_no_user_names(clock: Clock) -> None:
    """With no room for users, no name is kept, but their number is."""
    context = OperatorContext(clock, users_per_client=0)
    context.ask("shop", "alice", times=3, grant=PASSWORD)
    context.run(70.0)

    assert () == context.written.minutes[0].users
    assert 1 == round(context.written.minutes[0].user_count)


def test_enormous_names(context: OperatorContext) -> None:
    """A name of megabytes is kept cut, and as one user."""
    context.ask("x" * 3_000_000, "y" * 3_000_000, times=2, grant=PASSWORD)
    context.run(70.0)

    (minute,) = context.written.minutes
    assert 200 > len(minute.client_id)
    assert [2] == [user.offered for user in minute.users]
    assert 200 > len(minute.users[0].username)


def test_burst(context: OperatorContext) -> None:
    """A burst is the most requests within one second."""
    for times in (2, 5, 3):
        context.ask("shop", times=times)
        context.clock.advance(1.0)
    context.run()

    assert 5 == context.written.minutes[0].burst


def test_more_clients_than_are_told_apart(clock: Clock) -> None:
    """Clients for which there is no room in a minute are counted as one; the next minute has room again."""
    context = OperatorContext(clock, clients_per_minute=2)
    for client_id in ("a", "b", "c", "d", "a", "c"):
        context.ask(client_id)
    context.run(60.0)
    context.ask("c")
    context.run()

    counts = [(minute.client_id, minute.tally().offered) for minute in context.written.minutes]
    assert [("a", 2), ("b", 1), (OTHER_CLIENTS, 3), ("c", 1)] == counts


def test_writing_now_and_then(context: OperatorContext) -> None:
    """Every ten seconds one bulk is written, with the clients that have asked since; without any there is none."""
    context.ask("a")
    context.ask("b")
    context.run(10.0)
    context.ask("a")
    context.run(1.0)
    assert [2] == context.written.bulks

    context.run(9.0)
    context.run(10.0)
    assert [2, 1] == context.written.bulks
    assert 3 == context.written.offered()


def test_many_clients(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle writes one bulk at most, however long the last one was ago; the next ones take the rest."""
    monkeypatch.setattr(statistics, "BATCH", 10)
    for number in range(25):
        context.ask(f"client-{number}")
    for _ in range(4):
        context.run(1.0)
    assert [10, 10, 5] == context.written.bulks

    for number in range(25):
        context.ask(f"client-{number}")
    context.run(60.0)
    assert [10, 10, 5, 10] == context.written.bulks
    for _ in range(3):
        context.run(1.0)
    assert [10, 10, 5] * 2 == context.written.bulks


def test_minute_that_ends(context: OperatorContext) -> None:
    """A request after the end of a minute belongs to the next; both are written whole."""
    context.ask("shop", times=3)
    context.run(60.0)
    context.ask("shop", times=2)
    context.recorder.close()

    assert [3, 2] == [minute.tally().offered for minute in context.written.minutes]
    assert [60] == [
        b.minute_s - a.minute_s for a, b in zip(context.written.minutes, context.written.minutes[1:], strict=False)
    ]
    assert all(share.is_complete for share in context.written.shares.values())


def test_late_thread(context: OperatorContext) -> None:
    """
    A request that a slow thread brings after the end of its minute counts in the new one: numbers written never shrink.
    """
    context.ask("shop")
    context.run(60.0)
    context.ask("shop")
    context.clock.advance(-30.0)
    context.ask("shop")
    context.clock.advance(30.0)
    context.recorder.close()

    assert [1, 2] == [minute.tally().offered for minute in context.written.minutes]


def test_clock_that_is_put_back(context: OperatorContext) -> None:
    """After a clock is put back the process writes under another name, so that minutes it counts again add up."""
    context.ask("shop", times=3)
    context.run(600.0)
    context.ask("shop")
    context.clock.advance(-600.0)
    context.ask("shop", times=2)
    context.recorder.close()

    writers = [
        (writer[-1], minute_s, share.minute.tally().offered)
        for (writer, _, minute_s), share in context.written.shares.items()
    ]
    start_s = writers[0][1]
    assert [("0", start_s, 3), ("0", start_s + 600, 1), ("1", start_s, 2)] == writers


def test_clock_that_is_off(clock: Clock) -> None:
    """A correction of the clock applies here, too."""
    context = OperatorContext(clock)
    recorder = StatisticsRecorder(
        context.written, settings=lambda: context.settings, clock=clock, offset_s=lambda: 3600.0
    )
    context.recorder = recorder
    context.ask("shop")
    context.recorder.close()

    assert clock() + 3600.0 == pytest.approx(context.written.minutes[0].minute_s, abs=60.0)


@pytest.mark.parametrize("is_late", (False, True), ids=("at once", "in the next minutes"))
def test_mongodb_that_does_not_answer(context: OperatorContext, is_late: bool) -> None:
    """What could not be written is written later, with what came in the meantime."""
    context.written.error = StoreUnavailable("out of reach")
    for _ in range(5):
        context.ask("shop", times=2)
        context.run(70.0 if is_late else 10.0)
    assert 0 == context.written.offered()

    context.written.error = None
    for _ in range(3):
        context.run(10.0)
    assert 10 == context.written.offered()


def test_long_outage(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long outage the oldest minutes are dropped, and their number is logged; memory is bounded."""
    monkeypatch.setattr(statistics, "MAX_WAITING", 10)
    for _ in range(8):
        context.ask("a")
        context.ask("b", "alice", grant=PASSWORD)
        context.clock.advance(60.0)
    with capture_logs() as logs:
        context.run()
        context.run()

    assert 6 == context.written.offered()
    expected = {"event": "statistics_unrecorded", "count": 10, "reason": "MongoDB did not answer for too long"}
    assert [{**expected, "log_level": "warning"}] == logs


def test_missing_rights(context: OperatorContext) -> None:
    """Without the right to write, minutes that are over are lost, which is logged once in a while and stops nothing."""
    context.written.error = StoreRejected("not authorized")
    with capture_logs() as logs:
        for _ in range(5):
            context.ask("shop")
            context.run(60.0)

    assert [(1, "not authorized")] == [(entry["count"], entry["reason"]) for entry in logs]
    context.written.error = None
    context.ask("shop")
    context.recorder.close()
    assert 1 == context.written.offered()


def test_document_of_another_form(context: OperatorContext) -> None:
    """A minute that MongoDB refuses for what stands in its place is given up, and logged."""
    context.ask("a")
    context.ask("b")
    context.written.refused = [1]
    with capture_logs() as logs:
        context.run(60.0)
        context.run(60.0)

    assert [(1, "something else is in their place")] == [(entry["count"], entry["reason"]) for entry in logs]
    assert [2] == context.written.bulks


def test_switched_off_while_running(context: OperatorContext) -> None:
    """A reload that keeps nothing drops what is there; one that keeps something counts again."""
    context.ask("shop")
    context.settings = replace(context.settings, keep_s=0.0)
    context.run()
    context.ask("shop")
    context.run()
    assert [] == context.written.bulks

    context.settings = replace(context.settings, keep_s=60.0)
    context.run()
    context.ask("shop")
    context.run()
    assert 1 == context.written.offered()


def test_closing_without_an_answer(context: OperatorContext) -> None:
    """At the end of the process it is tried once, and what is lost is logged."""
    context.ask("a")
    context.ask("b")
    context.written.error = StoreUnavailable("out of reach")
    with capture_logs() as logs:
        context.recorder.close()

    assert [("statistics_unrecorded", 2)] == [(entry["event"], entry["count"]) for entry in logs]


def test_closing_with_a_slow_mongodb(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end no bulk begins after two seconds, and what is lost is logged."""
    clock = Clock()
    put = context.written.put

    def put_slowly(writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        clock.advance(1.2)
        return put(writer, shares, keep_s=keep_s)

    monkeypatch.setattr(statistics, "BATCH", 10)
    monkeypatch.setattr(statistics, "monotonic", clock)
    monkeypatch.setattr(context.written, "put", put_slowly)
    for number in range(55):
        context.ask(f"client-{number}")
    with capture_logs() as logs:
        context.recorder.close()

    assert [10, 10] == context.written.bulks
    assert [("statistics_unrecorded", 35)] == [(entry["event"], entry["count"]) for entry in logs]


def test_requests_of_many_threads(clock: Clock, race: Callable[[Callable[[int], None]], None]) -> None:
    """Threads that ask at the same time lose no count, even where all of them see a client for the first time."""
    context = OperatorContext(clock, mode="off", clients_per_minute=2000)
    decision = context.limiter.check("shop")

    def ask(number: int) -> None:
        for client in range(1500):
            context.recorder.count(decision, f"client-{client}", username=f"user-{number}", grant=PASSWORD)

    race(ask)
    context.recorder.close()

    assert 4 * 1500 == context.written.offered()
    assert 1500 == len(context.written.minutes)


@pytest.fixture
def race() -> Callable[[Callable[[int], None]], None]:
    """Run something in four threads at once."""

    def run(ask: Callable[[int], None]) -> None:
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        start = threading.Barrier(4, timeout=10.0)

        def begin(number: int) -> None:
            start.wait()
            ask(number)

        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(begin, range(4)))
        finally:
            sys.setswitchinterval(interval_s)

    return run
