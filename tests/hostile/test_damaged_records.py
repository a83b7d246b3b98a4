"""Overrides, statistics and signs of life that somebody else has written: reported and left out, never fatal."""

from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64, ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

from oauth_ratelimit import load_config
from oauth_ratelimit.background import live_settings as override_cache
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.overrides import MAX_LIMITS, OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.hostile.test_damaged_documents import names, values
from tests.support.helpers import Clock

NOW_S = 2_000_000_000
NOW = datetime.fromtimestamp(NOW_S, UTC)
GOOD = Override(Target(OverrideKind.MODE, "partner"), "ann", "a good one", NOW_S, mode=Mode.ENFORCE)

Documents = Collection[dict[str, Any]]


def an_override(**fields: Any) -> dict[str, Any]:
    """Return the document of an override but for these fields."""
    limit = {"name": "user", "limit": Int64(5), "window": 60, "frames": 10, "estimator": "sliding"}
    content = {"by": "bob", "reason": "r", "at": NOW, "until": None, "mode": None, "limits": [limit]}
    identity = {"kind": "limit", "clientId": "app", "limitKind": "user"}
    return {"_id": identity, "active": True, **content, "history": [{"action": "set", **content}], **fields}


def a_limit(**fields: Any) -> dict[str, Any]:
    """Return an override whose one limit has these fields."""
    return an_override(limits=[{**an_override()["limits"][0], **fields}])


DAMAGED_OVERRIDES: dict[str, dict[str, Any]] = {
    "no content": {"_id": ObjectId(), "active": True},
    "text for an id": an_override(_id="limit"),
    "unknown kind": an_override(_id={"kind": "surprise", "clientId": "app"}),
    "number for a client": an_override(_id={"kind": "mode", "clientId": 7}),
    "author that is no text": an_override(by={"$gt": ""}),
    "date that is none": an_override(at="yesterday"),
    "end that is none": an_override(until=5),
    "unknown mode": an_override(_id={"kind": "mode", "clientId": "app"}, mode={}),
    "limits that are no list": an_override(limits={"0": {}}),
    "limits that are no mappings": an_override(limits=[1, "x"]),
    "thousands of limits": an_override(limits=[an_override()["limits"][0]] * (MAX_LIMITS + 1)),
    "negative limit": a_limit(limit=-5),
    "limit of zero": a_limit(limit=0),
    "limit beyond all reason": a_limit(limit=Int64(2**62)),
    "broken limit": a_limit(limit=1.5),
    "endless window": a_limit(window=Int64(2**40)),
    "window of no time": a_limit(window=0),
    "frames that do not divide": a_limit(frames=7),
    "millions of frames": a_limit(window=86_400 * 30, frames=86_400 * 30),
    "unknown estimator": a_limit(estimator=["sliding"]),
    "name of megabytes": a_limit(name="x" * 1_000_000),
    "name that forges a header": a_limit(name='x"\r\nRetry-After: 0'),
    "empty name": a_limit(name=""),
}


@pytest.fixture
def database(mongo_uri: str) -> Iterator[dict[str, Documents]]:
    """The two collections, empty."""
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri, datetime_conversion="DATETIME_AUTO")
    with client:
        base = client.get_default_database()
        yield {name: base[f"ratelimit_{name}"] for name in ("overrides", "stats")}


@pytest.fixture
def connection(mongo_uri: str) -> Iterator[Connection]:
    """A connection to them."""
    with closing(Connection(mongo_uri)) as opened:
        yield opened


@pytest.mark.parametrize("document", DAMAGED_OVERRIDES.values(), ids=DAMAGED_OVERRIDES)
def test_damaged_override(database: dict[str, Documents], connection: Connection, document: dict[str, Any]) -> None:
    """An override that is not of our form is reported in one line and left out; the others hold."""
    store = OverrideStore(connection)
    store.put(GOOD)
    database["overrides"].insert_one(document)
    with capture_logs() as logs:
        assert (GOOD,) == store.read()
        history = store.history()

    assert GOOD in [entry.override for entry in history]
    assert {"override_ignored"} == {line["event"] for line in logs}
    assert all(len(str(line)) < 1000 and len(str(line).splitlines()) == 1 for line in logs)


def test_good_override(database: dict[str, Documents], connection: Connection) -> None:
    """What these tests damage is in order before."""
    database["overrides"].insert_one(an_override())
    (found,) = OverrideStore(connection).read()
    assert 5 == found.policies[0].limit


@pytest.mark.parametrize("history", [None, 5, "x", [1], [{}], [{"action": "set"}], {"0": {}}], ids=repr)
def test_damaged_history(database: dict[str, Documents], connection: Connection, history: Any) -> None:
    """A history that cannot be read hides nobody else's."""
    store = OverrideStore(connection)
    store.put(GOOD)
    database["overrides"].insert_one(an_override(history=history))
    with capture_logs():
        assert [GOOD] == [entry.override for entry in store.history()]


DAMAGED_BEATS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "numbers in words": {"started": NOW, "version": "1", "mode": "off", "interval": "soon"},
    "maps for numbers": {"started": NOW, "version": {"a": 1}, "mode": [], "interval": {"a": 1}},
}


@pytest.mark.parametrize("fields", DAMAGED_BEATS.values(), ids=DAMAGED_BEATS)
def test_damaged_sign_of_life(database: dict[str, Documents], connection: Connection, fields: dict[str, Any]) -> None:
    """A sign of life that cannot be read is left out."""
    database["stats"].insert_one({"_id": {"instance": "strange"}, "beat": NOW, **fields})
    with capture_logs():
        assert [] == HeartbeatStore(connection).read(NOW_S)


def test_damaged_denial(database: dict[str, Documents], connection: Connection) -> None:
    """A denial that cannot be read is as good as none."""
    for content in ({}, {"first": NOW, "last": 5, "clientId": {}}, {"first": "x", "suppressed": "many"}):
        database["stats"].replace_one({"_id": {"denial": "0" * 16}}, content, upsert=True)
        with capture_logs():
            assert DenialStore(connection).find(1) is None


identities = st.one_of(
    st.fixed_dictionaries({"instance": values}),
    st.fixed_dictionaries({"denial": values}),
    st.fixed_dictionaries({"clientId": values, "minute": values | st.integers(NOW_S - 600, NOW_S).map(Int64)}),
    st.fixed_dictionaries({"kind": values, "clientId": values}),
    st.sampled_from([{"kind": "mode", "clientId": "app"}, {"kind": "limit", "clientId": "app", "limitKind": "user"}]),
    values,
)
FIELDS = (
    *("active", "by", "reason", "at", "until", "mode", "limits", "history", "beat", "started", "interval", "version"),
    *("peaks", "users", "registers", "burst", "first", "last", "suppressed", "canary", "value", "expire", "done"),
)
records = st.dictionaries(st.sampled_from(FIELDS) | names, values, max_size=8)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.lists(st.tuples(st.sampled_from(("overrides", "stats")), identities, records), max_size=6))
def test_any_record(
    mongo_uri: str,
    database: dict[str, Documents],
    connection: Connection,
    content: list[tuple[str, Any, dict[str, Any]]],
) -> None:
    """Whatever stands beside the counters, the background work of a process goes on, and what is in order is found."""
    for collection in database.values():
        collection.delete_many({})
    clock = Clock(NOW_S)
    OverrideStore(connection).put(GOOD)
    for name, identity, record in content:
        with suppress(OperationFailure):  # MongoDB does not take everything for an _id, and nothing twice
            database[name].insert_one({"_id": identity, "active": True, **record})
    live = LiveSettings(load_config({"mode": "dry-run", "store": {"uri": mongo_uri}}), lambda: None)
    with capture_logs() as logs:
        worker = Worker(live, callbacks=Callbacks(has_grant=bool), clock=clock)
        for _ in range(2):
            worker.limiter.check("partner", "alice")
            worker._tick(worker.health_monitor.sync())
            clock.advance(61)
        worker.stop()
        HeartbeatStore(connection).read(clock.now_s)
        list(StatisticsStore(connection).minutes(0, 2**40))
        DenialStore(connection).find(2**63)
        OverrideStore(connection).history()

    assert Mode.ENFORCE is live.current.policies.clients["partner"].mode
    assert [] == [line for line in logs if line["event"] in ("cycle_failed", "duty_failed", "flush_failed")]


@pytest.mark.parametrize(
    "step", ["preload", "_override_cache.refresh", "health_monitor.beat", "guard.run", "first duty"]
)
def test_work_that_breaks(mongo_uri: str, clock: Clock, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks beside the sync cycle, the rest of the background work is done, and it is said once a minute."""
    done: list[str] = []
    live = LiveSettings(load_config({"mode": "dry-run", "store": {"uri": mongo_uri}}), lambda: None)
    with capture_logs() as logs:
        worker = Worker(live, callbacks=Callbacks(has_grant=bool), clock=clock)

        def broken(*_args: Any, **_options: Any) -> None:
            raise ZeroDivisionError("a bug")

        if step == "first duty":
            monkeypatch.setattr(worker._tasks[0], "run", broken)
        else:
            owner, _, name = step.rpartition(".")
            monkeypatch.setattr(getattr(worker, owner) if owner else worker, name, broken)
        monkeypatch.setattr(worker._tasks[-1], "run", lambda: done.append("last duty"))
        for _ in range(3):
            worker._tick(worker.health_monitor.sync())
        worker.stop()

    assert 3 == len(done)
    assert ["duty_failed"] == [line["event"] for line in logs if "failed" in line["event"]]


@pytest.mark.parametrize("step", ["limiter.reconfigure", "guard.reconfigure", "apply_overrides", "describe_changes"])
def test_change_that_breaks(mongo_uri: str, clock: Clock, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a changed configuration cannot be taken over, that is said, the other work is done, and the next tick tries
    again.
    """
    store = {"uri": mongo_uri}
    changes = [load_config({"mode": "enforce", "guard": {"mode": "enforce"}, "store": store})]
    live = LiveSettings(load_config({"mode": "dry-run", "store": store}), lambda: changes.pop() if changes else None)
    with capture_logs() as logs:
        worker = Worker(live, callbacks=Callbacks(has_grant=bool), clock=clock)

        def broken(*_args: Any, **_options: Any) -> None:
            raise ZeroDivisionError("a bug")

        done: list[str] = []
        monkeypatch.setattr(worker._tasks[-1], "run", lambda: done.append("last duty"))
        with monkeypatch.context() as meanwhile:
            owner, _, name = step.rpartition(".")
            meanwhile.setattr(getattr(worker, owner) if owner else override_cache, name, broken)
            worker._tick(worker.health_monitor.sync())
        worker._tick(worker.health_monitor.sync())
        found = (worker.limiter.settings.policies.mode, worker.guard.is_on)
        worker.stop()

    assert 2 == len(done)
    assert ["duty_failed"] == [line["event"] for line in logs if "failed" in line["event"]]
    assert (Mode.ENFORCE, True) == found
