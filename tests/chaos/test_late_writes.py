"""A write that reaches the server late: after its sender gave up, read the document again, and sent the hits anew."""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import pytest

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.chaos.fleet import Books, Instance, balance, settings_for
from tests.support.faults import FaultyProxy
from tests.support.helpers import with_database

pytestmark = pytest.mark.chaos

USER = "user-0"


class WatchedStore(MongoStore):
    """A MongoDB store that lets a test act after a read, when the flush has made up its mind."""

    after_read: Callable[[], object] = dict

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        snapshots = super().read(keys)
        self.after_read()
        return snapshots


@pytest.mark.parametrize("is_known", [False, True], ids=["first write", "later write"])
@pytest.mark.parametrize("others", [0, 3], ids=["nobody else", "others write in between"])
@pytest.mark.parametrize("moment", ["before the re-read", "after the re-read", "after the next write"])
def test_late_write_counts_once(mongo_uri: str, moment: str, others: int, is_known: bool, record: list[Books]) -> None:
    """Whenever the late write arrives, each hit is counted once."""
    server = urlsplit(mongo_uri)
    with FaultyProxy(server.hostname or "", server.port or 27017) as proxy:
        sender = Instance(mongo_uri)
        sender.limiter.close()
        uri = with_database(proxy.uri, server.path[1:]) + "&retryWrites=false"
        store = WatchedStore(Connection(uri, timeout_s=2.0), closes_connection=True)
        sender.limiter = Limiter(settings_for(mongo_uri), store)
        rivals = [Instance(mongo_uri) for _ in range(others)]
        if is_known:
            sender.hit(USER)
            sender.limiter.sync()
        for _ in range(3):
            sender.hit(USER)
        proxy.hold_next()
        report = sender.limiter.sync()
        assert report.error is not None
        for rival in rivals:
            rival.hit(USER)
            rival.limiter.sync()
        sender.hit(USER)
        if moment == "before the re-read":
            proxy.release()
        elif moment == "after the re-read":
            store.after_read = proxy.release
        sender.limiter.sync()
        if moment == "after the next write":
            proxy.release()
        sender.hit(USER)
        books = balance([sender, *rivals], mongo_uri)
        assert 1 == proxy.faults["released"]
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)


@pytest.mark.parametrize("is_applied", [True, False], ids=["replies vanish", "requests vanish"])
def test_swallowed_packets_end_the_cycle_and_cost_no_hit(mongo_uri: str, is_applied: bool, record: list[Books]) -> None:
    """A network that swallows packets ends the cycle at its timeout, and costs no hit."""
    server = urlsplit(mongo_uri)
    with FaultyProxy(server.hostname or "", server.port or 27017) as proxy:
        uri = with_database(proxy.uri, server.path[1:])
        instance = Instance(uri, timeout_s=0.3)
        rival = Instance(mongo_uri)
        instance.hit(USER)
        instance.limiter.sync()
        instance.hit(USER)
        proxy.swallow(True, requests=not is_applied)
        assert instance.limiter.sync().error is not None
        proxy.swallow(False)
        rival.hit(USER)
        rival.limiter.sync()
        books = balance([instance, rival], mongo_uri)
        assert proxy.faults["swallowed"] > 0
    record.append(books)
    assert (0, 0) == (books.lost, books.doubled)
