"""Records of denials on their way to the store."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable
from oauth_ratelimit.observe import events
from oauth_ratelimit.observe.events import WRITE_EVERY_S, DenialEvents, DenialRecorder
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.store.mongo.denials import DenialStore
from testbed.clock import Clock

CONFIG: dict[str, Any] = {"limits": {"user": ["1/hour"]}, "events": {"per_minute": 10_000}}
Lost = Callable[[], list[tuple[int, str]]]


class FakeWriter:
    """Keeps records in memory, or fails."""

    def __init__(self) -> None:
        self.records: dict[str | None, DenialRecord] = {}
        self.batches: list[int] = []
        self.error: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(len(records))
        self.records |= {record.denial.decision_id: record for record in records}
        self.meanwhile()


class Instance:
    """A limiter that admits one request per user, and the recorder of its denials."""

    def __init__(self, clock: Clock, *, mode: str = "enforce", per_minute: int = 10_000) -> None:
        self.clock = clock
        self.writer = FakeWriter()
        self.keep_s = 60.0
        self.recorder = DenialRecorder(self.writer, instance=lambda: "node-1", keep_s=lambda: self.keep_s, clock=clock)
        events = DenialEvents(per_minute, trace_of=lambda: Trace("4bf92f", "r-1"), recorder=self.recorder)
        self.limiter = Limiter(load_config({**CONFIG, "mode": mode}), clock=clock, denial_events=events)

    def deny(self, username: str, times: int = 1) -> str | None:
        """Have requests denied, and return their common id."""
        self.limiter.check("app", username, grant_type="password")
        decisions = [self.limiter.check("app", username, grant_type="password") for _ in range(times)]
        [decision_id] = {decision.decision_id for decision in decisions}
        return decision_id

    def run(self, after_s: float = WRITE_EVERY_S) -> None:
        self.clock.advance(after_s)
        self.recorder.run()

    def repeats(self) -> list[int]:
        return [record.suppressed_count for record in self.writer.records.values()]


@pytest.fixture
def instance(clock: Clock) -> Iterator[Instance]:
    instance = Instance(clock)
    yield instance
    instance.limiter.close()


@pytest.fixture
def lost() -> Iterator[Lost]:
    with capture_logs() as log:
        yield lambda: [(entry["count"], entry["reason"]) for entry in log if entry["event"] == "denials_unrecorded"]


def test_record_of_a_denial(instance: Instance) -> None:
    """A record has the key, the policy, the instance and the trace of the request."""
    at_s = instance.clock()
    decision_id = instance.deny("alice")
    instance.run()
    record = instance.writer.records[decision_id]

    assert ("node-1", at_s, 0) == (record.instance, record.last_at_s, record.suppressed_count)
    assert record.denial == Denial(
        decision_id=decision_id,
        at_s=at_s,
        client_id="app",
        username="alice",
        scope=None,
        grant_type="password",
        policy="user",
        limit=1,
        window_s=3600,
        mode="enforce",
        is_canary=False,
        retry_after_s=record.denial.retry_after_s,
        trace=Trace("4bf92f", "r-1"),
    )
    assert 0.0 < record.denial.retry_after_s <= 7200.0


def test_repeats_are_counted_in_the_same_record(instance: Instance) -> None:
    """It is written again only while there are more, also in the last seconds of its minute and at the end."""
    instance.deny("alice", times=3)
    instance.run()
    assert [2] == instance.repeats()
    instance.deny("alice", times=2)
    for _ in range(4):
        instance.run()
    instance.clock.advance(5.0)
    at_s = instance.clock()
    instance.deny("alice")
    instance.limiter.check("app", "alice", grant_type="password", cost=2)  # computed again
    instance.run(70.0)
    instance.run()
    assert ([8], [1, 1, 1]) == (instance.repeats(), instance.writer.batches)
    assert [at_s] == [record.last_at_s for record in instance.writer.records.values()], "not the time of its writing"

    instance.deny("bob", times=3)
    instance.recorder.close(Deadline())
    assert [8, 2] == instance.repeats()


def test_every_id_that_was_given_is_recorded_in_batches(clock: Clock) -> None:
    """One batch in each sync cycle, until all are written, although most denials were not logged."""
    instance = Instance(clock, per_minute=8)
    ids = {instance.deny(f"user-{number}") for number in range(1200)}
    for pause_s in (WRITE_EVERY_S, 1.0, 1.0, 1.0):
        instance.run(pause_s)
    instance.limiter.close()

    assert [500, 500, 200] == instance.writer.batches
    assert ids == set(instance.writer.records)


@pytest.mark.parametrize("offset_s", (-90.0, 90.0))
def test_records_of_a_process_have_the_corrected_time(
    mongo_uri: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, offset_s: float
) -> None:
    """The number of repeats is written, too, where the clock of the machine is wrong."""
    monkeypatch.setattr(MongoStore, "time_s", lambda _: time.time() + offset_s)
    settings = load_config({**CONFIG, "mode": "enforce", "store": {"uri": mongo_uri}})
    worker = Worker(LiveSettings(settings, lambda: None), callbacks=Callbacks(has_grant=bool), clock=time.time)
    worker.limiter.check("another", "bob")  # a cycle without keys measures nothing
    worker.after_cycle(worker.health_monitor.sync())
    ids = [worker.limiter.check("app", "alice").decision_id for _ in range(4)]
    worker.stop()

    record = DenialStore(connection).find(str(ids[3]))
    assert record is not None
    assert 2 == record.suppressed_count
    assert time.time() + offset_s == pytest.approx(record.denial.at_s, abs=30.0)
    assert time.time() + offset_s == pytest.approx(record.last_at_s, abs=30.0)


def test_closing_ends_at_the_deadline(instance: Instance, monkeypatch: pytest.MonkeyPatch, lost: Lost) -> None:
    """The number of records that are not written is logged."""
    clock = Clock()
    instance.writer.meanwhile = lambda: clock.advance(1.2)
    monkeypatch.setattr(events, "BATCH", 1)
    for number in range(5):
        instance.deny(f"user-{number}")
    instance.recorder.close(Deadline(2.0, monotonic=clock))

    assert [1, 1] == instance.writer.batches
    assert [(3, "the process has ended")] == lost()


def test_outage_fills_the_recorder_and_then_answers_have_no_id(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, lost: Lost
) -> None:
    """Memory is bounded, and every id in an answer is found later. The number of the others is logged."""
    monkeypatch.setattr(events, "MAX_WAITING", 13)
    instance.writer.error = StoreUnavailable("out of reach")
    ids = []
    for index in range(15):
        ids.append(instance.deny(f"user-{index}"))
        instance.run()
    instance.writer.error = None
    instance.run()
    instance.run()

    assert [None] * 2 == ids[13:]
    assert set(ids[:13]) == set(instance.writer.records)
    assert [1] == [count for count, _ in lost()]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), "surrogates not allowed"),
        (StoreRejected("not authorized"), "not authorized"),
    ],
    ids=["one record", "missing rights"],
)
def test_record_that_cannot_be_written_does_not_block_others(
    instance: Instance, lost: Lost, error: Exception, reason: str
) -> None:
    """It is dropped, and that is logged every ten minutes."""
    instance.writer.error = error
    for index in range(3):
        instance.deny(f"user-{index}")
        instance.run()
    instance.writer.error = None
    decision_id = instance.deny("bob")
    instance.run()

    assert [decision_id] == list(instance.writer.records)
    assert [(1, True)] == [(count, reason in text) for count, text in lost()]


@pytest.mark.parametrize(("mode", "keep_s"), [("enforce", 0.0), ("dry-run", 60.0)])
def test_nothing_is_recorded_without_keep_denials_and_in_a_dry_run(clock: Clock, mode: str, keep_s: float) -> None:
    """From the moment that the configuration says so. In a dry run nobody has an id to ask for."""
    instance = Instance(clock, mode=mode)
    instance.deny("alice", times=2)
    instance.keep_s = keep_s
    instance.run()
    instance.limiter.close()

    assert {} == instance.writer.records
