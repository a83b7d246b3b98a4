"""Overrides in MongoDB."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import mongomock
import pytest
from pymongo import MongoClient
from structlog.testing import capture_logs

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind, Policy
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.mongo import client as module
from oauth_ratelimit.store.mongo import overrides
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore

LIMIT = Target(OverrideKind.LIMIT, "partner", LimitKind.USER)
MODE = Target(OverrideKind.MODE)
TRUSTED = Target(OverrideKind.TRUSTED, "mobile-*")

NIGHTLY = Policy("nightly", 100, Window.of(60, 6), Estimator.PROPORTIONAL, True, Mode.ENFORCE)
HUGE = Policy("huge", MAX_LIMIT, Window.of(1))

SAMPLES = [
    Override(LIMIT, "ann", "black friday", 1000.0, 2000.5, policies=(NIGHTLY, HUGE)),
    Override(MODE, "bob", "incident 17", 1001.0, mode=Mode.DRY_RUN),
    Override(TRUSTED, "ann", "", 1002.0, until_s=3000.0),
]


@pytest.fixture(params=["mongomock", "mongod"])
def open_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], OverrideStore]]:
    """Opens stores on one empty database."""
    uri = "mongodb://mocked/test"
    if request.param == "mongomock":
        client: Any = mongomock.MongoClient(uri, tz_aware=True)
        monkeypatch.setattr(module, "connect", lambda _uri, timeout_s: client)
    else:
        uri = request.getfixturevalue("mongo_uri")
    with ExitStack() as undo:
        yield lambda: OverrideStore(undo.enter_context(closing(Connection(uri))))


@pytest.fixture
def store(open_store: Callable[[], OverrideStore]) -> OverrideStore:
    """A store on an empty database."""
    return open_store()


@pytest.fixture
def real_store(mongo_uri: str) -> Iterator[OverrideStore]:
    """A store on an empty database of the real server."""
    with closing(Connection(mongo_uri)) as connection:
        yield OverrideStore(connection)


@pytest.fixture
def documents(mongo_uri: str) -> Iterator[Any]:
    """The collection, on the real server."""
    client: MongoClient[Any]
    with MongoClient(mongo_uri) as client:
        yield client.get_default_database()["ratelimit_overrides"]


def test_nothing_was_ever_overridden(store: OverrideStore) -> None:
    """A database without the collection holds no overrides."""
    assert None is store.revision()
    assert () == store.read()
    assert [] == store.history()


def test_every_kind_of_override(open_store: Callable[[], OverrideStore]) -> None:
    """What one instance puts in force, another reads as it was, every detail of it."""
    writer = open_store()
    for override in SAMPLES:
        writer.put(override)

    assert tuple(SAMPLES) == open_store().read()


def test_override_that_is_replaced(store: OverrideStore) -> None:
    """A target has one override: the last one."""
    store.put(Override(MODE, "ann", "first", 1.0, mode=Mode.OFF))
    store.put(Override(MODE, "bob", "second", 2.0, mode=Mode.ENFORCE))

    assert ["second"] == [override.reason for override in store.read()]


def test_override_that_is_taken_back(store: OverrideStore) -> None:
    """An override that was taken back is not read; taking back what is not there says so."""
    store.put(SAMPLES[0])

    assert store.remove(LIMIT, author="bob", reason="over", at_s=1500.0)
    assert () == store.read()
    assert not store.remove(LIMIT, author="bob", reason="over", at_s=1501.0)
    assert not store.remove(MODE, author="bob", reason="never was", at_s=1501.0)


def test_revision(open_store: Callable[[], OverrideStore]) -> None:
    """The revision changes with every change, and with nothing else."""
    writer, reader = open_store(), open_store()
    seen = [reader.revision()]
    for change in (
        lambda: writer.put(SAMPLES[1]),
        lambda: writer.put(SAMPLES[1]),
        lambda: writer.remove(MODE, author="bob", reason="", at_s=1.0),
    ):
        change()
        assert reader.revision() == reader.revision()
        seen.append(reader.revision())
    writer.remove(MODE, author="bob", reason="", at_s=1.0)

    assert 4 == len(set(seen))
    assert seen[-1] == reader.revision()


def test_history(store: OverrideStore) -> None:
    """Everything that was done stays on record, oldest first: who, when, why, and what was put in force."""
    for override in reversed(SAMPLES):
        store.put(override)
    store.remove(LIMIT, author="bob", reason="over", at_s=1500.0)

    assert [*zip([LIMIT, MODE, TRUSTED], SAMPLES, strict=True), (LIMIT, None)] == [
        (entry.target, entry.override) for entry in store.history()
    ]
    assert ("bob", "over", 1500.0) == (
        store.history()[-1].author,
        store.history()[-1].reason,
        store.history()[-1].at_s,
    )
    assert [SAMPLES[0], None] == [entry.override for entry in store.history("partner")]


def test_long_history(store: OverrideStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a target that a script changes again and again the latest changes are kept: a document has an end."""
    monkeypatch.setattr(overrides, "MAX_HISTORY", 2)
    for at_s in (1.0, 2.0, 3.0):
        store.put(replace(SAMPLES[0], made_at_s=at_s))
    store.remove(SAMPLES[0].target, author="bob", reason="over", at_s=4.0)

    assert [("set", 3.0), ("unset", 4.0)] == [(entry.action, entry.at_s) for entry in store.history()]


def test_resets(store: OverrideStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resets of counters are in the history and nowhere else, the latest of each client."""
    monkeypatch.setattr(overrides, "MAX_HISTORY", 2)
    store.put(SAMPLES[0])
    revision = store.revision()
    for at_s, client_id, username in (
        (5.0, "app", None),
        (6.0, "app", "ann"),
        (7.0, "partner", "kim"),
        (8.0, "app", ""),
    ):
        store.note_reset(Counters(client_id, username), author="bob", reason="", at_s=at_s)

    assert [("reset", Counters("app", "ann"), 6.0), ("reset", Counters("app", ""), 8.0)] == [
        (entry.action, entry.target, entry.at_s) for entry in store.history("app")
    ]
    assert ["reset", "set"] == [entry.action for entry in store.history("partner")]
    assert ((SAMPLES[0],), revision) == (store.read(), store.revision())


@pytest.mark.parametrize("client_id", ["a.b", "$where", "a\x00b", "\N{SNOWMAN}", "x" * 1000, ""], ids=ascii)
def test_unusual_client_ids(open_store: Callable[[], OverrideStore], client_id: str) -> None:
    """Any client id can be overridden."""
    override = Override(Target(OverrideKind.MODE, client_id), "ann", "a test", 1.0, mode=Mode.OFF)
    open_store().put(override)

    assert (override,) == open_store().read()


@pytest.mark.parametrize(
    "damage",
    [
        {"until": "tomorrow"},
        {"mode": "enforced"},
        {"mode": None},
        {"by": None},
        {"limits": [{"name": "user", "limit": 1, "window": 60}]},
        {"limits": "none"},
        {"limits": [7]},
    ],
    ids=ascii,
)
def test_damaged_override(real_store: OverrideStore, documents: Any, damage: dict[str, Any]) -> None:
    """An override that makes no sense is reported and left out; the others hold."""
    real_store.put(SAMPLES[0])
    real_store.put(SAMPLES[1])
    documents.update_one({"_id.kind": "mode"}, {"$set": damage})

    with capture_logs() as logs:
        assert (SAMPLES[0],) == real_store.read()

    assert ["override_ignored"] == [entry["event"] for entry in logs]


@pytest.mark.parametrize(
    "damage",
    [
        {"limit": 0},
        {"limit": 1.5},
        {"limit": True},
        {"limit": MAX_LIMIT + 1},
        {"window": 0},
        {"window": "1m"},
        {"window": 10**9},
        {"frames": 7},
        {"frames": 5000, "window": 50_000},
        {"estimator": "x"},
    ],
    ids=ascii,
)
def test_damaged_limit(real_store: OverrideStore, documents: Any, damage: dict[str, Any]) -> None:
    """A limit that makes no sense is not taken for another one."""
    real_store.put(SAMPLES[0])
    documents.update_one({"_id.kind": "limit"}, {"$set": {f"limits.0.{name}": value for name, value in damage.items()}})

    with capture_logs() as logs:
        assert () == real_store.read()

    assert ["override_ignored"] == [entry["event"] for entry in logs]


def test_database_that_does_not_answer() -> None:
    """A store without a server says so in this package's words."""
    with closing(Connection("mongodb://127.0.0.1:1/test", timeout_s=0.05)) as connection:
        store = OverrideStore(connection)
        for call in (store.revision, store.read, store.history, lambda: store.put(SAMPLES[0])):
            with pytest.raises(StoreUnavailable):
                call()
