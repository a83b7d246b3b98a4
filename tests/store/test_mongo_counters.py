"""The store in MongoDB: what its documents look like, what it asks the server, what it makes of the answers."""

import functools
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64, encode
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.monitoring import CommandListener, CommandStartedEvent, CommandSucceededEvent

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import MAX_WHOLE, UNUSABLE_VERSION, Change
from oauth_ratelimit.store.mongo import indexes
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import CounterDocuments, MongoStore
from oauth_ratelimit.store.mongo.document import document_id
from oauth_ratelimit.sync.cycle import MAX_BATCH
from testbed.clock import Clock
from testbed.mongod import Mongod
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy
from tests.support.stores import FAR_S, a_change, mongo_store

Documents = Collection[dict[str, Any]]
SERIES = Series(6)
FUTURE_S = 4_000_000_000.0
FAR_DATE = datetime(2099, 1, 1, tzinfo=UTC)


class Commands(CommandListener):
    """Writes down what is sent to the server."""

    def __init__(self) -> None:
        self.sent: list[CommandStartedEvent] = []
        self.received_bytes = 0

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.received_bytes += len(encode(event.reply))

    def failed(self, event: object) -> None:
        """Nothing to note."""

    def names(self) -> list[str]:
        """Return the names of the commands since the last call, but for looks at the server's clock."""
        names = [event.command_name for event in self.sent if event.command_name != "hello"]
        self.sent.clear()
        return names


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands that stores of this test send."""
    listener = Commands()
    observed = functools.partial(MongoClient, event_listeners=[listener])
    monkeypatch.setattr("oauth_ratelimit.store.mongo.client.MongoClient", observed)
    return listener


@pytest.fixture
def store(mongo_uri: str, commands: Commands, documents: Documents) -> Iterator[MongoStore]:
    """An open store, whose first write has made the index."""
    with closing(mongo_store(mongo_uri)) as opened:
        opened.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        documents.delete_many({})
        commands.names()
        yield opened


@pytest.fixture
def future() -> Clock:
    """A clock that no TTL catches up with."""
    return Clock(FUTURE_S)


@pytest.fixture
def limiter(store: MongoStore, future: Clock) -> Limiter:
    return a_limiter(store, future, a_policy(window_s=60))


def test_document_has_the_documented_form(limiter: Limiter, documents: Documents) -> None:
    """Numbers that can grow have 64 bits."""
    limiter.check("some-client", "some-user", cost=3)
    limiter.sync()
    document = documents.find_one()
    assert document is not None
    assert ["_id", "expire", "horizons", "requestCounters", "seen", "version", "writers"] == sorted(document)
    assert {"clientId": "some-client", "username": "some-user"} == document["_id"]
    assert ["clientId", "username"] == list(document["_id"])
    assert isinstance(document["version"], Int64)
    frame_s = int(FUTURE_S) // 6 * 6
    assert {"6": {str(frame_s): 3}} == document["requestCounters"]
    assert datetime.fromtimestamp(frame_s + 66 + 60, UTC) == document["expire"]
    ((writer, write_number),) = document["writers"].items()
    assert (12, Int64) == (len(writer), type(write_number))
    assert {"6": 66} == document["horizons"]
    assert [writer] == list(document["seen"])
    assert abs(document["seen"][writer].replace(tzinfo=UTC).timestamp() - time.time()) < 60


def test_write_never_lowers_the_end_of_a_document(store: MongoStore, documents: Documents) -> None:
    """Of two instances one may have a narrower window, or a clock that is behind."""
    for version, later_s in enumerate((0, 60, -60)):
        change = Change(KEY, version or None, version + 1, 1, {SERIES: {600: 1}}, FAR_S + later_s)
        assert not store.compare_and_set("here", [change]).lost

    assert [FAR_S + 60] == [document["expire"].timestamp() for document in documents.find()]


def test_expiry_index_is_created_again_after_a_drop(
    mongo_uri: str, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "CHECK_INTERVAL_S", 0.0)
    with closing(mongo_store(mongo_uri)) as opened:
        for _ in range(2):
            opened.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
            assert "expire" in documents.index_information()
            documents.drop()


@pytest.mark.parametrize("count", (1, MAX_BATCH, MAX_BATCH + 1, 3 * MAX_BATCH + 1))
def test_flush_is_one_command_per_batch(limiter: Limiter, commands: Commands, count: int) -> None:
    limiter.sync()
    commands.names()
    for _ in range(2):
        for number in range(count):
            limiter.check(CLIENT, f"user-{number}")
        limiter.sync()
        assert ["update"] * -(-count // MAX_BATCH) == commands.names()


def test_read_is_one_round_trip_however_many_documents_there_are(
    limiter: Limiter, store: MongoStore, commands: Commands
) -> None:
    """So are the pull of 500 keys that others have written, and the keys that a starting instance reads."""
    users = [f"user-{number}" for number in range(500)]
    for user in users:
        limiter.check(CLIENT, user)
    limiter.sync()
    commands.names()
    assert 500 == len(store.read([Key(CLIENT, user) for user in users]))
    assert ["find"] == commands.names()
    assert 400 == len(store.latest(400))
    assert ["find"] == commands.names()


def test_writes_are_journaled_by_a_majority_and_reads_are_majority_reads(store: MongoStore, commands: Commands) -> None:
    """Every update names a whole id and the version, so a sharded collection sends it to one shard."""
    store.compare_and_set("here", [a_change(KEY, version=None, next_version=5)])
    store.compare_and_set("here", [a_change(KEY, version=5, next_version=6)])
    store.read([KEY])
    *writes, read = (event.command for event in commands.sent)
    assert [{"w": "majority", "j": True}] * 2 == [write["writeConcern"] for write in writes]
    assert ([False] * 2, "majority") == ([write["ordered"] for write in writes], read["readConcern"]["level"])
    filters = [write["updates"][0]["q"] for write in writes]
    assert "$inc" not in commands.sent[0].command["updates"][0]["u"]  # frames are one value, however many
    identity = {"clientId": KEY.client_id, "username": None}
    selected = [{name: each[name] for name in ("_id", "version")} for each in filters]
    assert [{"_id": identity, "version": -1}, {"_id": identity, "version": 5}] == selected


def test_connection_string_without_a_database_means_oauth_ratelimit(mongod: Mongod) -> None:
    with closing(mongo_store(mongod.uri)) as opened, mongod.client() as client:
        opened.compare_and_set("here", [a_change(KEY, version=None, next_version=1)])
        assert 1 == client["oauth_ratelimit"]["ratelimits"].count_documents({})
        client.drop_database("oauth_ratelimit")


def test_namespaces_share_no_counter(mongo_uri: str) -> None:
    for namespace in ({}, {"namespace": "one"}, {"namespace": "two"}):
        store = {"uri": mongo_uri, **namespace}
        config = load_config({"mode": "enforce", "limits": {"client": ["1/minute"]}, "store": store})
        limiter = Limiter(config, clock=Clock(FUTURE_S))
        limiter.peek(CLIENT)
        limiter.sync()
        assert limiter.check(CLIENT).allowed
        limiter.close()


LARGE = {f"old-{index}": "x" * 1000 for index in range(7700)}


def test_content_of_large_documents_is_not_received_by_a_starting_instance(
    store: MongoStore, documents: Documents, commands: Commands
) -> None:
    """Twelve documents of 7.7 MB come first, and a hundred others are read all the same."""
    keys = [Key("app", f"user-{index}") for index in range(100)]
    store.compare_and_set("here", [a_change(key, version=None, next_version=5) for key in keys])
    for index in range(12):
        documents.insert_one(
            {"_id": {"clientId": "app", "username": f"large-{index}"}, "version": 5, "expire": FAR_DATE, "x": LARGE}
        )
    commands.received_bytes = 0

    assert set(keys) == set(store.latest(1000))
    assert commands.received_bytes < 50_000


def test_content_of_a_document_that_is_too_large_is_not_received(
    store: MongoStore, documents: Documents, commands: Commands
) -> None:
    documents.insert_one({"_id": {"clientId": "app", "username": "large"}, "version": 5, "writers": LARGE})
    store.compare_and_set("here", [a_change(KEY, version=None, next_version=5)])
    commands.received_bytes = 0
    large = Key("app", "large")
    found = store.read([large, KEY])

    assert {large, KEY} == found.keys()
    assert (UNUSABLE_VERSION, "size", 5) == (found[large].version, found[large].damage, found[KEY].version)
    assert commands.received_bytes < 1000


def test_large_documents_are_read_a_few_at_a_time(limiter: Limiter, documents: Documents, commands: Commands) -> None:
    """Each is valid, and all of them at once would take a gigabyte of memory."""
    frames = {str(start_s): 1 for start_s in range(30_000)}
    users = [f"user-{number}" for number in range(2 * MAX_WHOLE + 1)]
    for user in users:
        documents.insert_one({"_id": document_id(Key(CLIENT, user)), "version": 5, "requestCounters": {"6": frames}})
        limiter.check(CLIENT, user)
    commands.names()
    report = limiter.sync()
    assert (len(users), 0, None) == (report.pulled_count, report.quarantined_count, report.error)
    assert ["update", *["find"] * 4, "update"] == commands.names()


def test_time_is_that_of_the_server_whatever_the_time_zone_is(
    store: MongoStore, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one machine both clocks are the same."""
    monkeypatch.setenv("TZ", "America/New_York")
    with closing(Connection(mongo_uri)) as connection:
        shown_s = CounterDocuments(connection, collection="ratelimits").facts().clock_s

    assert abs(store.time_s() - time.time()) < 1.0
    assert abs(shown_s - time.time()) < 1.0
