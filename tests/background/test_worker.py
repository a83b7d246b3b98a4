"""Background work of one process on a real MongoDB."""

import sqlite3
import threading
import time
from contextlib import closing
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from bson import Decimal128
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.database import Database
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.background import live_settings
from oauth_ratelimit.background import worker as worker_module
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.background.live_settings import FRESH_S, LiveSettings, OverrideCache
from oauth_ratelimit.background.worker import RollupTask, Worker
from oauth_ratelimit.config.loader import ConfigFile
from oauth_ratelimit.core.failed_auth import ANYONE, FailureKind, failure_key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.errors import StoreError, StoreRejected, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialRecorder
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import FAILURES
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.token_cache import TokenCache
from testbed.clock import Clock, wait_until
from tests.support.bson_values import NOW_S, Content, identities, put_alone, records
from tests.support.faults import FaultyProxy
from tests.support.guards import guess


def a_worker(mongo_uri: str | None, clock: Clock, changes: list[dict[str, Any]] | None = None, **config: Any) -> Worker:
    """Return a worker in dry run; each tick takes one of some changed configurations."""
    store = {"store": {"uri": mongo_uri}} if mongo_uri else {}
    queue = [load_config({**change, **store}) for change in changes or ()]
    live = LiveSettings(load_config({"mode": "dry-run", **store, **config}), lambda: queue.pop(0) if queue else None)
    return Worker(live, callbacks=Callbacks(has_grant=bool), clock=clock)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs of the last task of each tick."""
    runs: list[str] = []
    monkeypatch.setattr(DenialRecorder, "run", lambda _self, *_: runs.append("denials"))
    return runs


def failures_in(logs: Any) -> list[str]:
    others = ("connection_change_failed",)  # of a thread that an earlier test may have left: nothing connects anew here
    return [line["event"] for line in logs if "failed" in line["event"] and line["event"] not in others]


def test_look_at_the_file_that_lasts_does_not_undo_a_later_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found the file as it was before ``mode: off``."""
    path, begun, ends = tmp_path / "ratelimit.yaml", threading.Event(), threading.Event()
    path.write_text("mode: enforce\n")
    file = ConfigFile(path)
    worker = Worker(LiveSettings(file.load(), file.poll, file=file), callbacks=Callbacks(has_grant=bool), clock=clock)
    look = file.look_for_off

    def look_slowly() -> bool:
        found = look()
        if threading.current_thread() is slow:
            begun.set()
            assert ends.wait(60)
        return found

    class Lock:
        """The lock of looks, which tells when another thread asks for it."""

        def __enter__(self) -> None:
            if threading.current_thread() is later:
                waits.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    lock, waits = worker._look_lock, threading.Event()
    monkeypatch.setattr(worker, "_look_lock", Lock())
    monkeypatch.setattr(file, "look_for_off", look_slowly)
    slow, later = (threading.Thread(target=worker.look_for_off) for _ in range(2))
    slow.start()
    assert begun.wait(60)
    path.write_text("mode: off\n")
    later.start()
    assert waits.wait(60)
    ends.set()
    for thread in (slow, later):
        thread.join(60)
    assert Mode.OFF is worker.limiter.settings.policies.mode
    worker.stop()


STEPS: dict[str, tuple[Any, str]] = {
    "preload": (Limiter, "preload"),
    "refresh of overrides": (OverrideCache, "refresh"),
    "heartbeat": (HeartbeatStore, "put"),
    "guard": (Guard, "run"),
    "statistics": (StatisticsRecorder, "run"),
    "change of the limiter": (Limiter, "reconfigure"),
    "change of the guard": (Guard, "reconfigure"),
    "change by overrides": (live_settings, "apply_overrides"),
    "log of a change": (live_settings, "describe_changes"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_part_that_fails_stops_no_other_and_is_tried_again(
    mongo_uri: str, clock: Clock, done: list[str], step: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is logged once. A change that could not be applied takes effect afterwards."""
    with capture_logs() as logs:
        worker = a_worker(mongo_uri, clock, [{"mode": "enforce", "guard": {"mode": "enforce"}}])
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(*step, Mock(side_effect=ZeroDivisionError("a bug")))
            for _ in range(2):
                worker.after_cycle(worker.health_monitor.sync())
        worker.after_cycle(worker.health_monitor.sync())
        found = (worker.limiter.settings.policies.mode, worker.guard.is_on)
        worker.stop()

    assert (Mode.ENFORCE, True) == found
    assert 3 == len(done)
    assert ["task_failed"] == failures_in(logs)


@pytest.mark.parametrize(
    ("error", "mode"),
    [
        (StoreUnavailable("MongoDB failed: CommandNotSupportedOnView (166)"), Mode.OFF),
        (StoreRejected("MongoDB refused: Unauthorized (13)"), Mode.OFF),
        (StoreUnavailable("MongoDB is unreachable: NetworkTimeout"), Mode.OFF),
        (StoreUnavailable("the cycle failed: KeyError"), Mode.OFF),
        (StoreUnreachable("MongoDB is unreachable: ServerSelectionTimeoutError"), Mode.DRY_RUN),
    ],
    ids=repr,
)
def test_override_applies_although_counters_cannot_be_shared(
    mongo_uri: str, clock: Clock, error: StoreError, mode: Mode
) -> None:
    """Unless no server was found a moment ago: it would only be waited for once more. The instance shows in status."""
    worker = a_worker(mongo_uri, clock)
    worker.after_cycle(None)
    assert worker.stores is not None
    worker.stores.overrides.put(Override(Target(OverrideKind.MODE), "ann", "", NOW_S, mode=Mode.OFF))
    worker.after_cycle(CycleReport(error=error))
    assert mode is worker.limiter.settings.policies.mode
    worker.stop()


def test_cycle_that_outlasts_the_end_leaves_no_connection_open(
    mongo_uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, is_running, has_ended = OverrideCache.refresh, threading.Event(), threading.Event()

    def refresh_late(cache: OverrideCache) -> bool:
        is_running.set()
        return has_ended.wait(60) and refresh(cache)

    monkeypatch.setattr(OverrideCache, "refresh", refresh_late)
    worker = a_worker(mongo_uri, clock)
    cycle = threading.Thread(target=worker.after_cycle, args=(None,))
    cycle.start()
    assert is_running.wait(60)
    worker.stop(Deadline(0.0))
    has_ended.set()
    cycle.join()
    assert worker.stores is not None
    assert worker.stores.overrides._connection._client is None


def test_thread_of_a_new_guard_starts_when_the_process_has_one(
    mongo_uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = a_worker(mongo_uri, clock, [{"guard": {"mode": "enforce"}}])
    with monkeypatch.context() as full, capture_logs() as logs:
        full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        worker.after_cycle(None)
        worker.after_cycle(None)
    before = {*threading.enumerate()}
    monkeypatch.setattr(worker._starter, "_again_s", -inf)
    worker.after_cycle(None)
    begun = [each.name for each in {*threading.enumerate()} - before if each.name.startswith("oauth")]
    worker.stop()
    assert ["oauth_ratelimit-urgent"] == begun
    assert ["start_incomplete"] == [entry["event"] for entry in logs if entry["event"].startswith("start_")]


def test_preload_waits_once_for_tokens_and_failures() -> None:
    found = load_config({"guard": {"mode": "dry-run"}, "store": {"uri": "mongodb://127.0.0.1:1", "timeout": "1s"}})
    worker = Worker(LiveSettings(found, lambda: None), callbacks=Callbacks(has_grant=bool), clock=Clock())
    began_s = time.monotonic()
    worker.preload()
    assert time.monotonic() - began_s < 2 * found.store.timeout_s
    worker.stop()


def test_tasks_together_wait_for_mongodb_no_longer_than_one_call(mongo_uri: str, clock: Clock) -> None:
    """It was reachable in the sync cycle before. That is one line in the log, and no traceback."""
    timeout_s = 0.5
    with FaultyProxy(mongo_uri) as proxy, capture_logs() as logs:
        store = {"uri": proxy.uri, "timeout": timeout_s}
        worker = Worker(
            LiveSettings(load_config({"mode": "enforce", "guard": {"mode": "enforce"}, "store": store}), lambda: None),
            callbacks=Callbacks(has_grant=bool),
            clock=clock,
        )
        worker.after_cycle(worker.health_monitor.sync())
        clock.advance(61)
        worker.limiter.check("app", "kim")
        worker.tokens.revoke("app")
        report = worker.health_monitor.sync()
        proxy.swallow(True)
        begun_s = time.monotonic()
        worker.after_cycle(report)
        took_s = time.monotonic() - begun_s
        failures = failures_in(logs)
        worker.stop()

    assert report.error is None
    assert took_s < 2 * timeout_s
    assert 1 == len(failures)
    assert not any("traceback" in line for line in logs)


def test_task_that_slow_ones_left_out_comes_first_after_the_next_cycle(
    mongo_uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed, runs = Clock(), []
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=elapsed, time=time.time))
    tasks = (Worker.preload, Guard.run, HealthMonitor.beat, TokenCache.run, StatisticsRecorder.run, DenialRecorder.run)
    for task in (*tasks, RollupTask.run):

        def run(*_: Any, name: str = task.__qualname__, **__: Any) -> None:
            runs.append(name)
            elapsed.advance(0.6 * worker_module.TASKS_S)

        owner, name = task.__qualname__.split(".")
        monkeypatch.setattr(f"{task.__module__}.{owner}.{name}", run)
    worker = a_worker(mongo_uri, clock)
    counts = []
    for _ in range(6):
        worker.after_cycle(CycleReport())
        counts.append(len(runs))
    worker.stop()

    assert [2, 4, 6, 8, 10, 12] == counts
    assert ["TokenCache.run"] * 6 == runs[::2]  # revoked tokens are given out until they are read
    assert 6 == len(set(runs[1::2]))


def test_override_ends_while_a_cycle_waits_for_mongodb(mongo_uri: str, clock: Clock) -> None:
    """The thread that watches the file ends it, by the limiter's clock."""
    worker = a_worker(mongo_uri, clock)
    assert worker.stores is not None
    target = Target(OverrideKind.MODE)
    until_s = worker.stores.overrides.put(
        Override(target, "ann", "", time.time(), clock() + 60, mode=Mode.ENFORCE)
    ).until_s
    worker.after_cycle(None)
    modes = [worker.limiter.settings.policies.mode]
    assert until_s is not None
    clock.now_s = until_s
    worker.look_at_file()
    worker.stop()

    assert [Mode.ENFORCE, Mode.DRY_RUN] == [*modes, worker.limiter.settings.policies.mode]


@pytest.mark.parametrize(
    ("age_s", "is_trusted", "admitted"), [(0.0, False, 1), (0.0, True, 3), (FRESH_S + 1, False, 3)]
)
def test_worker_goes_by_the_overrides_that_its_host_has_read_lately(
    mongo_uri: str,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    age_s: float,
    is_trusted: bool,
    admitted: int,
) -> None:
    """Until it has read them itself. It neither admits above the limit nor denies against an override."""
    path, limits = tmp_path / "ratelimit.db", {"client": [{"limit": 1, "window": "1h"}]}
    workers = [a_worker(mongo_uri, clock, mode="enforce", host=str(path), limits=limits) for _ in range(2)]
    assert workers[0].stores is not None
    if is_trusted:
        target = Target(OverrideKind.TRUSTED, "app")
        workers[0].stores.overrides.put(Override(target, "ann", "", time.time()))
    workers[0].after_cycle(None)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE host SET overrides_read = overrides_read - ?", (age_s,))
    monkeypatch.setattr(OverrideCache, "refresh", lambda _: False)  # as if MongoDB was slow
    monkeypatch.setattr(workers[1]._override_cache, "_late_from_s", 0.0)
    workers[1].start()
    found = sum(workers[1].limiter.check("app").allowed for _ in range(3))
    for worker in workers:
        worker.stop()
    assert admitted == found


def test_guard_denies_guesses_while_a_slow_mongodb_does_not_tell_the_overrides(
    mongo_uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = {"mode": "enforce", "limits": {"address": [{"limit": 2, "window": 60}]}}
    worker = a_worker(mongo_uri, clock, mode="enforce", guard=guard)
    monkeypatch.setattr(OverrideCache, "refresh", lambda _: False)  # as if MongoDB was slow
    monkeypatch.setattr(worker._override_cache, "_late_from_s", 0.0)
    worker.start()
    keys = [failure_key(FailureKind.ADDRESS, ANYONE, "192.0.2.7")]
    found = [guess(worker.guard, keys) for _ in range(3)]
    worker.stop()
    assert [True, True, False] == found


def test_failed_authentications_wait_in_bounded_memory_while_mongodb_is_unreachable(
    mongo_uri: str, mongo_database: Database[dict[str, Any]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard sends nothing in a cycle that has found MongoDB unreachable, and keeps the newest of its counts."""
    gate = threading.Event()  # urgent cycles would find that it is reachable
    monkeypatch.setattr(Limiter, "wait_for_urgent", lambda _self: gate.wait())
    monkeypatch.setattr(Limiter, "wake", lambda _self: gate.set())
    guard = {"mode": "enforce", "limits": {"address": [{"limit": 1000, "window": 60}]}}
    worker = a_worker(mongo_uri, clock, [{"mode": "enforce", "guard": guard}])
    worker.after_cycle(None)
    keys = [failure_key(FailureKind.ADDRESS, ANYONE, "192.0.2.7")]
    with capture_logs() as logs:
        for _ in range(100):
            guess(worker.guard, keys)
            worker.after_cycle(CycleReport(error=StoreUnreachable("no server")))
            clock.advance(6)
    kept_count = 100 - sum(line["hits"] for line in logs if line["event"] == "hits_dropped")
    assert 11 <= kept_count <= 11 + 10  # the frames of the window, and spare ones
    assert mongo_database[FAILURES].find_one() is None

    worker.after_cycle(CycleReport())
    (document,) = mongo_database[FAILURES].find()
    assert kept_count == sum(document["requestCounters"]["6"].values())
    worker.stop()


@pytest.mark.parametrize("is_on_at_start", [True, False])
def test_failed_authentication_is_shared_before_the_next_full_cycle(
    mongo_uri: str, mongo_database: Database[dict[str, Any]], clock: Clock, is_on_at_start: bool
) -> None:
    """Also if the guard was off at first."""
    hourly = {"store": {"uri": mongo_uri}, "sync": {"interval": "1h"}}
    guarded = load_config({**hourly, "guard": {"mode": "enforce"}})
    live = LiveSettings(guarded if is_on_at_start else load_config(hourly), lambda: guarded)
    worker = Worker(live, callbacks=Callbacks(has_grant=bool), clock=clock)
    worker.start()
    wait_until(lambda: worker.guard.is_on, "the guard is on")
    keys = [failure_key(FailureKind.CLIENT, "web-shop", "192.0.2.7")]
    guess(worker.guard, keys)

    wait_until(lambda: 1 == mongo_database[FAILURES].count_documents({}), "the failure is shared")
    worker.stop()


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "alone"])
def test_all_parts_share_one_client_and_need_none_without_shared_counters(
    mongo_uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """Counters, failures, overrides, heartbeats, statistics and denials."""
    opened = Mock(wraps=MongoClient)
    monkeypatch.setattr("oauth_ratelimit.store.mongo.client.MongoClient", opened)
    worker = a_worker(mongo_uri if is_shared else None, clock, [{"mode": "enforce", "guard": {"mode": "enforce"}}])
    for _ in range(2):
        worker.after_cycle(worker.health_monitor.sync())
        worker.limiter.check("app", "kim")
        clock.advance(61)
    worker.stop()

    assert is_shared == opened.call_count


PAST_S = (NOW_S - 1800) // 60 * 60
DAMAGED_ROLLUPS = list(
    enumerate(
        [{}]
        + [{"clients": value, "total": value} for value in (7, "text", {}, [7], [{"id": 7}], [{"id": "partner"}], None)]
        + [{"clients": [{"id": "partner", "allowed": value, "peak": value, "first": value}]} for value in ("1", -1, [])]
    )
)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    content=st.lists(
        st.tuples(st.sampled_from(("ratelimit_overrides", "ratelimit_stats")), identities, records), max_size=6
    )
)
@example(content=[("ratelimit_stats", {"clientId": "app", "minute": at}, {}) for at in ([0], inf, Decimal128("7"))])
@example(content=[("ratelimit_stats", {"step": 60, "start": PAST_S + 60 * n}, record) for n, record in DAMAGED_ROLLUPS])
def test_any_record_leaves_the_valid_ones_readable(mongo_uri: str, content: Content) -> None:
    """Whatever is stored beside the counters, the background work goes on."""
    clock = Clock(NOW_S)
    put_alone(mongo_uri, content)
    with capture_logs() as logs:
        worker = a_worker(mongo_uri, clock)
        stores = worker.stores
        assert stores is not None
        stores.overrides.put(Override(Target(OverrideKind.MODE, "partner"), "ann", "", NOW_S, mode=Mode.ENFORCE))
        for _ in range(2):
            worker.limiter.check("partner", "alice")
            worker.after_cycle(worker.health_monitor.sync())
            clock.advance(61)
        mode = worker.limiter.settings.policies.clients["partner"].mode
        worker.stop()
        with closing(stores):
            stores.heartbeats.read(clock.now_s)
            list(stores.statistics.minutes(0, 2**40))
            stores.rollups.rows(NOW_S - 3600, NOW_S)
            stores.rollups.rows(NOW_S - 3600, NOW_S, step_s=60, client_ids=["partner"])
            stores.denials.find("f" * 16)
            stores.overrides.history()

    assert Mode.ENFORCE is mode
    assert [] == failures_in(logs)
