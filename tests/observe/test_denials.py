"""Records of denials on their way to the store."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.core.denial_record import DenialRecord, Trace, parse_decision_id
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe import denials
from oauth_ratelimit.observe.denials import WRITE_EVERY_S, DenialQueue, DenialRecorder
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.denials import DenialStore
from tests.support.helpers import Clock

CONFIG: dict[str, Any] = {"limits": {"user": ["1/hour"]}, "events": {"per_minute": 10_000}}


class FakeWriter:
    """Keeps records in memory, or fails."""

    def __init__(self) -> None:
        self.records: dict[int, DenialRecord] = {}
        self.batches: list[int] = []
        self.error: Exception | None = None

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None:
        """Keep records."""
        if self.error is not None:
            raise self.error
        self.batches.append(len(records))
        self.records |= {record.denial.first_id: record for record in records}


class Instance:
    """A limiter that admits one request per user, and the recorder of its denials."""

    def __init__(self, clock: Clock, *, mode: str = "enforce", per_minute: int = 10_000) -> None:
        self.clock = clock
        queue = DenialQueue()
        events = DenialEvents(per_minute, trace_of=lambda: Trace("4bf92f", "r-1"), queue=queue)
        self.limiter = Limiter(load_config({**CONFIG, "mode": mode}), clock=clock, denial_events=events)
        self.writer = FakeWriter()
        self.keep_s = 60.0
        self.recorder = DenialRecorder(queue, self.writer, instance="node-1", keep_s=lambda: self.keep_s, clock=clock)

    def deny(self, username: str, times: int = 1) -> list[int]:
        """Have requests denied, and return their ids as numbers, 0 for none."""
        self.limiter.check("app", username, grant_type="password")
        decisions = [self.limiter.check("app", username, grant_type="password") for _ in range(times)]
        return [int(decision.decision_id or "0", 16) for decision in decisions]

    def run(self, after_s: float = WRITE_EVERY_S) -> None:
        """Let time pass, and run the background task."""
        self.clock.advance(after_s)
        self.recorder.run()


@pytest.fixture
def instance(clock: Clock) -> Iterator[Instance]:
    """An instance that enforces."""
    instance = Instance(clock)
    yield instance
    instance.limiter.close()


@pytest.fixture
def lost() -> Iterator[list[tuple[int, str]]]:
    """Counts and reasons of lost records in the log, when the test looks."""

    class Lost(list[tuple[int, str]]):
        def __iter__(self) -> Iterator[tuple[int, str]]:
            return iter([(entry["count"], entry["reason"]) for entry in log if entry["event"] == "denials_unrecorded"])

    with capture_logs() as log:
        yield Lost()


def test_record_of_a_denial(instance: Instance) -> None:
    """A record has the key, the policy, the instance and the trace of the request."""
    at_s = instance.clock()
    [number] = instance.deny("alice")
    instance.run()
    record = instance.writer.records[number]

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


def test_following_denials_are_counted_in_the_same_record(instance: Instance) -> None:
    """It is written again only while there are more."""
    numbers = instance.deny("alice", times=3)
    instance.run()
    numbers += instance.deny("alice", times=2)
    instance.run()
    instance.run()

    assert [numbers[0]] == list(instance.writer.records)
    record = instance.writer.records[numbers[0]]
    assert (5, 5) == (record.suppressed_count, numbers[-1] - numbers[0])
    assert record.denial.at_s + 10.0 <= record.last_at_s <= record.denial.at_s + 20.0
    assert [1, 1] == instance.writer.batches


@pytest.mark.parametrize("cost", [1, 2], ids=["repeated", "computed-again"])
def test_record_has_the_time_of_the_last_denial(instance: Instance, cost: int) -> None:
    """Not that of its writing, seconds later."""
    [number] = instance.deny("alice")
    instance.clock.advance(3.0)
    at_s = instance.clock()
    instance.limiter.check("app", "alice", grant_type="password", cost=cost)
    instance.run()

    record = instance.writer.records[number]
    assert (1, at_s) == (record.suppressed_count, record.last_at_s)


def test_records_are_written_every_ten_seconds(instance: Instance) -> None:
    instance.run()
    instance.deny("alice")
    instance.run(0.0)
    assert {} == instance.writer.records
    instance.run()
    assert 1 == len(instance.writer.records)


@pytest.mark.parametrize("offset_s", (-90.0, 90.0))
def test_records_of_a_process_have_the_corrected_time(
    mongo_uri: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, offset_s: float
) -> None:
    """The count of those that follow is written, too, where the clock of the machine is wrong."""
    monkeypatch.setattr(MongoStore, "time_s", lambda _: time.time() + offset_s)
    settings = load_config({**CONFIG, "mode": "enforce", "store": {"uri": mongo_uri}})
    worker = Worker(LiveSettings(settings, lambda: None), callbacks=Callbacks(has_grant=bool), clock=time.time)
    worker.limiter.check("another", "bob")  # a cycle without keys measures nothing
    worker.after_cycle(worker.health_monitor.sync())
    ids = [worker.limiter.check("app", "alice").decision_id for _ in range(4)]
    worker.stop()

    record = DenialStore(connection).find(parse_decision_id(ids[1] or ""))
    assert record is not None
    assert 2 == record.suppressed_count
    assert time.time() + offset_s == pytest.approx(record.denial.at_s, abs=30.0)
    assert time.time() + offset_s == pytest.approx(record.last_at_s, abs=30.0)


def test_last_counts_are_written_when_the_process_ends(instance: Instance) -> None:
    """Denials since the last write are counted."""
    [first, *_] = instance.deny("alice", times=2)
    instance.run()
    instance.deny("alice", times=3)
    instance.recorder.close()

    assert 5 == instance.writer.records[first].suppressed_count


def test_last_denials_of_a_minute_are_counted_after_it(instance: Instance) -> None:
    [first] = instance.deny("alice")
    for _ in range(5):
        instance.run()
    instance.clock.advance(5.0)
    instance.deny("alice", times=2)
    instance.run(70.0)
    assert 3 == instance.writer.records[first].suppressed_count

    instance.run()
    assert [1, 1] == instance.writer.batches


def test_denial_while_its_record_is_written_is_counted_next_time(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its minute is over by then."""
    [first] = instance.deny("alice")
    put = instance.writer.put

    def put_slowly(records: Sequence[DenialRecord], *, keep_s: float) -> None:
        put(records, keep_s=keep_s)
        monkeypatch.setattr(instance.writer, "put", put)
        instance.deny("alice")

    monkeypatch.setattr(instance.writer, "put", put_slowly)
    instance.run(50.0)
    assert 0 == instance.writer.records[first].suppressed_count
    instance.run(20.0)

    assert 2 == instance.writer.records[first].suppressed_count


def test_many_records_are_written_in_batches(instance: Instance) -> None:
    """One batch in each sync cycle, until all are written."""
    for number in range(1200):
        instance.deny(f"user-{number}")
    instance.run()
    assert [500] == instance.writer.batches

    for _ in range(3):
        instance.run(1.0)
    assert [500, 500, 200] == instance.writer.batches
    assert 1200 == len(instance.writer.records)


def test_new_records_are_written_before_updates(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id in an answer should be found soon."""
    monkeypatch.setattr(denials, "BATCH", 1)
    [old] = instance.deny("alice")
    instance.run()
    instance.deny("alice")
    [new] = instance.deny("bob")
    instance.run()

    assert [old, new] == list(instance.writer.records)
    assert 0 == instance.writer.records[old].suppressed_count


def test_closing_ends_at_the_deadline(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, lost: list[tuple[int, str]]
) -> None:
    """The number of records that are not written is logged."""
    clock, put = Clock(), instance.writer.put

    def put_slowly(records: Sequence[DenialRecord], *, keep_s: float) -> None:
        clock.advance(1.2)
        put(records, keep_s=keep_s)

    monkeypatch.setattr(denials, "BATCH", 1)
    monkeypatch.setattr(instance.writer, "put", put_slowly)
    for number in range(5):
        instance.deny(f"user-{number}")
    instance.recorder.close(Deadline(2.0, monotonic=clock))

    assert [1, 1] == instance.writer.batches
    assert [(3, "the process has ended")] == list(lost)


def test_records_are_written_after_an_outage(instance: Instance) -> None:
    """Nothing is lost while there is room."""
    instance.writer.error = StoreUnavailable("out of reach")
    first, second = instance.deny("alice"), instance.deny("bob")
    instance.run()
    instance.writer.error = None
    instance.run()

    assert {*first, *second} == set(instance.writer.records)


def test_denial_beyond_the_queue_has_no_id(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, lost: list[tuple[int, str]]
) -> None:
    """Every id in an answer can be found; the number of the others is logged."""
    monkeypatch.setattr(denials, "MAX_QUEUED", 10)
    numbers = [number for index in range(15) for number in instance.deny(f"user-{index}")]
    instance.run()

    assert [0] * 5 == numbers[10:]
    assert set(numbers[:10]) == set(instance.writer.records)
    assert [5] == [count for count, _ in lost]


def test_outage_of_writes_only_fills_recorder_and_queue(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, lost: list[tuple[int, str]]
) -> None:
    """Memory is bounded, and every id in an answer is found later."""
    monkeypatch.setattr(denials, "MAX_ENTRIES", 10)
    monkeypatch.setattr(denials, "MAX_QUEUED", 3)
    instance.writer.error = StoreUnavailable("out of reach")
    numbers = []
    for index in range(15):
        numbers += instance.deny(f"user-{index}")
        instance.run()
    instance.writer.error = None
    instance.run()
    instance.run()

    assert [0] * 2 == numbers[13:]
    assert set(numbers[:13]) == set(instance.writer.records)
    assert [1] == [count for count, _ in lost]


def test_missing_rights_are_logged_every_ten_minutes(instance: Instance, lost: list[tuple[int, str]]) -> None:
    instance.writer.error = StoreRejected("not authorized")
    for index in range(5):
        instance.deny(f"user-{index}")
        instance.run()

    assert [(1, "not authorized")] == list(lost)


def test_record_that_cannot_be_written_does_not_block_others(instance: Instance, lost: list[tuple[int, str]]) -> None:
    """It is dropped, and that is logged."""
    instance.writer.error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    instance.deny("alice")
    instance.run()
    instance.writer.error = None
    [number] = instance.deny("bob")
    instance.run()

    assert [number] == list(instance.writer.records)
    [(count, reason)] = lost
    assert 1 == count
    assert "surrogates not allowed" in reason


def test_denials_beyond_the_event_budget_are_recorded(clock: Clock) -> None:
    """Each id that was given is found, though most were not logged."""
    instance = Instance(clock, per_minute=8)
    numbers = [instance.deny(f"user-{index}", times=2) for index in range(300)]
    instance.run()

    assert {first for first, _ in numbers} == set(instance.writer.records)
    assert {(1, 1)} == {(second - first, instance.writer.records[first].suppressed_count) for first, second in numbers}

    clock.advance(60.0)
    at_s = clock()
    *_, again = [instance.deny(f"user-{index}")[0] for index in (297, 298, 299)]  # of which two are logged
    instance.run()
    instance.limiter.close()
    record = instance.writer.records[again - 1]
    assert (1, at_s) == (record.suppressed_count, record.last_at_s)


def test_nothing_is_recorded_when_keep_denials_is_zero(instance: Instance) -> None:
    """From the moment that the configuration says so."""
    instance.deny("alice")
    instance.keep_s = 0.0
    instance.run()

    assert {} == instance.writer.records


def test_dry_run_records_nothing(clock: Clock) -> None:
    """Nothing is denied, so nobody has an id to ask for."""
    instance = Instance(clock, mode="dry-run")
    instance.deny("alice", times=2)
    instance.run()
    instance.limiter.close()

    assert {} == instance.writer.records
