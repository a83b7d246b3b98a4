"""Notices of revocations between instances."""

from datetime import timedelta

from bson import ObjectId

from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, server_time
from oauth_ratelimit.store.mongo.revocations import MAX_NOTICES, RevocationNotices


def test_each_instance_reads_a_notice_once(connection: Connection) -> None:
    here, there = RevocationNotices(connection), RevocationNotices(connection)
    here.announce(["a", "b"])
    assert there.read() == {"a", "b"}
    assert there.read() == set()
    here.announce(["b"])
    assert there.read() == {"b"}
    assert here.read() == {"a", "b"}


def test_more_notices_than_are_read_stand_for_all_clients(connection: Connection) -> None:
    notices = RevocationNotices(connection)
    notices.announce(f"client-{index}" for index in range(MAX_NOTICES + 1))
    assert RevocationNotices(connection).read() == {OTHER_CLIENTS}


def test_planted_notices_hide_no_others(connection: Connection) -> None:
    """One is of the future, one is huge, and the others have fields of another form, or ids among those of notices."""
    notices = RevocationNotices(connection)
    documents = connection.collection(STATISTICS)
    ahead = server_time(connection.database) + timedelta(days=1)
    documents.insert_many(
        [
            {"_id": {"revocation": "future"}, "stamp": ObjectId(), "at": ahead},
            {"_id": {"revocation": "huge"}, "at": ahead - timedelta(days=1), "more": "x" * 10_000},
            {"_id": {"revocation": 5}, "at": "now"},
            {"_id": {"revocation": "c"}, "at": "now"},
            {"_id": {"revocation": "list"}, "at": [ahead - timedelta(days=1), ahead]},
            *({"_id": {"a": {"n": number}}, "at": ahead - timedelta(days=1)} for number in range(MAX_NOTICES)),
        ]
    )
    assert notices.read() == set()
    notices.announce(["a"])
    assert notices.read() == {"a"}
