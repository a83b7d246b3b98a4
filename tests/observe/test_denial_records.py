"""Logged denials on their way to MongoDB."""

import time
from collections import deque
from collections.abc import Iterator, Sequence

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.core.denial_record import DenialRecord, Trace
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe import denials, events
from oauth_ratelimit.observe.denials import WRITE_EVERY_S, DenialRecorder
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.observer import Callbacks
from tests.support.helpers import Clock

CONFIG = {"mode": "enforce", "limits": {"user": ["1/hour"]}, "events": {"per_minute": 10_000}}


class Shelf:
    """Keeps records as the store does, or refuses to."""

    def __init__(self) -> None:
        self.kept: dict[int, DenialRecord] = {}
        self.bulks: list[int] = []
        self.error: Exception | None = None

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None:
        """Keep records."""
        if self.error is not None:
            raise self.error
        self.bulks.append(len(records))
        self.kept |= {record.denial.first_id: record for record in records}


class OperatorContext:
    """A limiter that admits one request per key, and the recorder of its denials."""

    def __init__(self, clock: Clock, *, mode: str = "enforce") -> None:
        settings = load_config({**CONFIG, "mode": mode})
        events = DenialEvents(10_000, trace_of=lambda: Trace("4bf92f", "r-1"), keeps_records=True)
        self.limiter = Limiter(settings, clock=clock, denial_events=events)
        self.shelf = Shelf()
        self.keep_s = 60.0
        self.recorder = DenialRecorder(
            self.limiter.denial_events, self.shelf, instance="node-1", keep_s=lambda: self.keep_s
        )
        self.clock = clock

    def deny(self, username: str, times: int = 1) -> list[int]:
        """Have requests denied, and return their ids as numbers."""
        self.limiter.check("app", username, grant_type="password")
        decisions = [self.limiter.check("app", username, grant_type="password") for _ in range(times)]
        return [int(decision.decision_id or "0", 16) for decision in decisions]

    def run(self) -> None:
        """Let the background thread come by when something may be due."""
        self.clock.advance(WRITE_EVERY_S)
        self.recorder.run(self.clock())


@pytest.fixture
def context(clock: Clock) -> Iterator[OperatorContext]:
    """A desk under enforce."""
    context = OperatorContext(clock)
    yield context
    context.limiter.close()


def test_record_of_a_denial(context: OperatorContext) -> None:
    """A record tells whose denial it was, by which policy, when and where, and the trace of the request."""
    at_s = context.clock()
    [number] = context.deny("alice")
    context.run()
    record = context.shelf.kept[number]

    assert ("node-1", at_s, 0) == (record.instance, record.last_at_s, record.suppressed_count)
    assert {
        "first_id": number,
        "at_s": at_s,
        "client_id": "app",
        "username": "alice",
        "scope": None,
        "grant_type": "password",
        "policy": "user",
        "limit": 1,
        "window_s": 3600,
        "mode": "enforce",
        "is_canary": False,
        "trace": Trace("4bf92f", "r-1"),
    } == {name: getattr(record.denial, name) for name in record.denial.__dataclass_fields__ if name != "retry_after_s"}
    assert 0.0 < record.denial.retry_after_s <= 7200.0


def test_denials_that_follow(context: OperatorContext) -> None:
    """The same record counts the denials that are not logged, as long as there are any."""
    numbers = context.deny("alice", times=3)
    context.run()
    numbers += context.deny("alice", times=2)
    context.run()
    context.run()

    assert [numbers[0]] == list(context.shelf.kept)
    record = context.shelf.kept[numbers[0]]
    assert (5, 5) == (record.suppressed_count, numbers[-1] - numbers[0])
    assert record.denial.at_s + 10.0 <= record.last_at_s <= record.denial.at_s + 20.0
    assert [1, 1] == context.shelf.bulks


def test_nothing_before_it_is_time(context: OperatorContext) -> None:
    """Between two rounds nothing is written, however often the background thread comes by."""
    context.run()
    context.deny("alice")
    context.recorder.run(context.clock())
    assert {} == context.shelf.kept
    context.run()
    assert 1 == len(context.shelf.kept)


@pytest.mark.parametrize("offset_s", (-90.0, 90.0))
def test_clock_that_is_off(context: OperatorContext, offset_s: float) -> None:
    """Denials that follow are counted, too, and dated right, where the clock of the machine is off."""
    context.limiter.correct_clock(offset_s)
    context.recorder = DenialRecorder(
        context.limiter.denial_events, context.shelf, instance="node-1", keep_s=lambda: 60.0, offset_s=lambda: offset_s
    )
    at_s = context.clock() + offset_s
    [first] = context.deny("alice")
    context.run()
    context.deny("alice", times=49)
    context.run()

    record = context.shelf.kept[first]
    assert (50, at_s, at_s + 20.0) == (record.suppressed_count, record.denial.at_s, record.last_at_s)


def test_process_whose_clock_is_off(mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process records of denials goes by the same clock as its limiter."""
    monkeypatch.setattr(Limiter, "clock_offset_s", -90.0)
    live = LiveSettings(load_config({**CONFIG, "store": {"uri": mongo_uri}}), lambda: None)
    worker = Worker(live, callbacks=Callbacks(has_grant=bool), clock=time.time)
    worker._tick(worker.health_monitor.sync())
    [recorder] = [duty for duty in worker._tasks if isinstance(duty, DenialRecorder)]
    recorded_at_s, decided_at_s = recorder._now_s, worker.limiter._clock()
    worker.stop()

    assert decided_at_s == pytest.approx(recorded_at_s, abs=5.0)


def test_end_of_the_process(context: OperatorContext) -> None:
    """What is left is written at the end, the last count included."""
    [first, *_] = context.deny("alice", times=2)
    context.run()
    context.deny("alice", times=3)
    context.recorder.close()

    assert 5 == context.shelf.kept[first].suppressed_count


def test_last_denials_of_a_minute(context: OperatorContext) -> None:
    """
    Denials that came after the last look within their minute are counted by the next one, then the entry is forgotten.
    """
    [first] = context.deny("alice")
    for _ in range(5):
        context.run()
    context.clock.advance(5.0)
    context.deny("alice", times=2)
    context.clock.advance(60.0)
    context.run()
    assert 3 == context.shelf.kept[first].suppressed_count

    context.run()
    assert [] == context.recorder._entries


def test_denial_while_its_record_is_written(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request counts while the last record of its minute is on its way goes with the next round."""
    [first] = context.deny("alice")
    put = context.shelf.put

    def put_slowly(records: Sequence[DenialRecord], *, keep_s: float) -> None:
        put(records, keep_s=keep_s)
        monkeypatch.setattr(context.shelf, "put", put)
        context.deny("alice")

    monkeypatch.setattr(context.shelf, "put", put_slowly)
    context.recorder.run(context.clock() + 60.0)
    assert 0 == context.shelf.kept[first].suppressed_count
    context.recorder.run(context.clock() + 70.0)

    assert 2 == context.shelf.kept[first].suppressed_count


def test_many_denials(context: OperatorContext) -> None:
    """Many records go in bulks of a bounded size, one in a cycle, however long the last was ago; none is left out."""
    for number in range(1200):
        context.deny(f"user-{number}")
    context.run()
    assert [500] == context.shelf.bulks

    context.recorder.run(context.clock() + 1.0)
    context.recorder.run(context.clock() + 2.0)
    context.recorder.run(context.clock() + 3.0)
    assert [500, 500, 200] == context.shelf.bulks
    assert 1200 == len(context.shelf.kept)


def test_new_records_come_first(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are only to be brought up to date do not keep new ones waiting."""
    monkeypatch.setattr(denials, "BATCH", 1)
    [old] = context.deny("alice")
    context.run()
    context.deny("alice")
    [new] = context.deny("bob")
    context.run()

    assert [old, new] == list(context.shelf.kept)
    assert 0 == context.shelf.kept[old].suppressed_count


def test_slow_end_of_the_process(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end no bulk begins after two seconds; how many records are missing is logged."""
    clock = Clock()
    put = context.shelf.put

    def put_slowly(records: Sequence[DenialRecord], *, keep_s: float) -> None:
        clock.advance(1.2)
        put(records, keep_s=keep_s)

    monkeypatch.setattr(denials, "BATCH", 1)
    monkeypatch.setattr(denials, "monotonic", clock)
    monkeypatch.setattr(context.shelf, "put", put_slowly)
    for number in range(5):
        context.deny(f"user-{number}")
    with capture_logs() as logs:
        context.recorder.close()

    assert [1, 1] == context.shelf.bulks
    assert [("denials_unrecorded", 3)] == [(entry["event"], entry["count"]) for entry in logs]


def test_outage(context: OperatorContext) -> None:
    """What MongoDB did not take is written when it answers again."""
    context.shelf.error = StoreUnavailable("away")
    first, second = context.deny("alice"), context.deny("bob")
    context.run()
    context.shelf.error = None
    context.run()

    assert {*first, *second} == set(context.shelf.kept)


def test_long_outage(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded: a denial that finds no room gets no id, and how many that were is logged."""
    monkeypatch.setattr(events, "MAX_WAITING", 10)
    numbers = [number for index in range(15) for number in context.deny(f"user-{index}")]
    with capture_logs() as logs:
        context.run()

    assert [0] * 5 == numbers[10:]
    assert set(numbers[:10]) == set(context.shelf.kept)
    assert [5] == [entry["count"] for entry in logs if entry["event"] == "denials_unrecorded"]


def test_outage_of_writes_only(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is what was taken over and cannot be written; every id that was given is found later."""
    monkeypatch.setattr(denials, "MAX_ENTRIES", 10)
    monkeypatch.setattr(events, "MAX_WAITING", 3)
    context.shelf.error = StoreUnavailable("away")
    with capture_logs() as logs:
        numbers = []
        for index in range(15):
            numbers += context.deny(f"user-{index}")
            context.run()

    assert 10 == len(context.recorder._entries)
    context.shelf.error = None
    context.run()
    context.run()
    assert [0] * 2 == numbers[13:]
    assert set(numbers[:13]) == set(context.shelf.kept)
    assert [1] == [entry["count"] for entry in logs if entry["event"] == "denials_unrecorded"]


def test_missing_rights(context: OperatorContext) -> None:
    """A database user without the right to write is told of once in a while, not every ten seconds."""
    context.shelf.error = StoreRejected("not authorized")
    with capture_logs() as logs:
        for index in range(5):
            context.deny(f"user-{index}")
            context.run()

    assert [("not authorized", 1)] == [
        (entry["reason"], entry["count"]) for entry in logs if entry["event"] == "denials_unrecorded"
    ]


def test_record_that_cannot_be_written(context: OperatorContext) -> None:
    """A record that nobody has thought of is given up, which is said; those after it are written."""
    context.shelf.error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    context.deny("alice")
    with capture_logs() as logs:
        context.run()
    context.shelf.error = None
    [number] = context.deny("bob")
    context.run()

    assert [number] == list(context.shelf.kept)
    [event] = [entry for entry in logs if entry["event"] == "denials_unrecorded"]
    assert 1 == event["count"]
    assert "surrogates not allowed" in event["reason"]


def test_more_denials_than_are_logged(context: OperatorContext) -> None:
    """Denials that the log has no room for are recorded all the same: each id that was given is found."""
    context.limiter.denial_events.reconfigure(8)
    numbers = [context.deny(f"user-{index}", times=2) for index in range(300)]
    context.run()

    assert {first for first, _ in numbers} == set(context.shelf.kept)
    assert {(1, 1)} == {(second - first, context.shelf.kept[first].suppressed_count) for first, second in numbers}

    context.clock.advance(60.0)
    *_, again = [context.deny(f"user-{index}")[0] for index in (297, 298, 299)]  # of which two are logged
    context.run()
    record = context.shelf.kept[again - 1]
    assert (1, context.clock()) == (record.suppressed_count, record.last_at_s)


def test_denial_while_records_are_taken(context: OperatorContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denial that finds all places taken does not disturb the thread that is emptying them."""

    class Busy(deque[events.Logged]):
        def __len__(self) -> int:
            count = super().__len__()
            if count == 2 and not late:
                late.append(0)
                late[0] = context.deny("carol")[0]  # what another thread does meanwhile
            return count

    late: list[int] = []
    numbers = context.deny("alice") + context.deny("bob")
    monkeypatch.setattr(events, "MAX_WAITING", 2)
    context.limiter.denial_events._waiting = Busy(context.limiter.denial_events._waiting)
    context.run()

    assert [0] == late
    assert numbers == list(context.shelf.kept)


def test_nothing_is_to_be_kept(context: OperatorContext) -> None:
    """With keep_denials at zero nothing is written, from the moment that the configuration says so."""
    context.deny("alice")
    context.keep_s = 0.0
    context.run()

    assert {} == context.shelf.kept


def test_dry_run(clock: Clock) -> None:
    """In a dry run nothing is denied, so there is nothing that could be asked for by an id."""
    context = OperatorContext(clock, mode="dry-run")
    context.deny("alice", times=2)
    context.run()
    context.limiter.close()

    assert {} == context.shelf.kept
