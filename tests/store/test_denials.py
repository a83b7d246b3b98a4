"""Logged denials in MongoDB."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace, Where
from oauth_ratelimit.core.failed_auth import FailureKind
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore, of_client, of_user

NOW_S = 2_000_000_000.0
NOW = datetime.fromtimestamp(NOW_S, UTC)
KEEP_S = 3600.0

DENIAL = Denial(
    decision_id="0123456789abcdef",
    at_s=NOW_S,
    client_id="app",
    username="alice",
    scope="grant:refresh_token",
    grant_type="refresh_token",
    policy="user",
    limit=5,
    window_s=60,
    mode="enforce",
    is_canary=True,
    retry_after_s=3.5,
    trace=Trace("4bf92f", "r-1"),
)
RECORD = DenialRecord(DENIAL, instance="node-1:7", last_at_s=NOW_S + 20.0, suppressed_count=40)


@pytest.fixture
def store(connection: Connection) -> DenialStore:
    return DenialStore(connection)


def bare(decision_id: str) -> DenialRecord:
    """Return a record with all that may be missing left out."""
    denial = Denial(decision_id, NOW_S, "app", None, None, None, None, None, None, "enforce", False, math.inf, Trace())
    return DenialRecord(denial, instance="node-1", last_at_s=NOW_S, suppressed_count=0)


@pytest.mark.parametrize("record", [RECORD, bare("0" * 16)], ids=["all", "least"])
def test_record_is_found_as_it_was_put(store: DenialStore, record: DenialRecord) -> None:
    store.put([record], keep_s=KEEP_S)

    assert record == store.find(str(record.denial.decision_id))
    assert store.find("f" * 16) is None


def test_repeated_or_late_write_changes_nothing(store: DenialStore) -> None:
    later = RECORD._replace(last_at_s=NOW_S + 30.0, suppressed_count=50)
    for records in ([RECORD], [later], [later], [RECORD]):
        store.put(records, keep_s=KEEP_S)

    assert later == store.find(str(DENIAL.decision_id))


@pytest.mark.parametrize(
    ("scope", "window_s", "kept_s"),
    [(None, 60, KEEP_S), (FailureKind.USER.scope, 60, 66.0), (FailureKind.USER.scope, 86_400, KEEP_S)],
)
def test_record_expires(
    store: DenialStore, mongo_database: Any, scope: str | None, window_s: int, kept_s: float
) -> None:
    """One by the guard with the failures that it counted. The index is created with the first write."""
    store.put([RECORD._replace(denial=DENIAL._replace(scope=scope, window_s=window_s))], keep_s=KEEP_S)
    collection = mongo_database["ratelimit_stats"]
    [document] = collection.find()
    assert NOW_S + kept_s == document["expire"].timestamp()
    assert 0 == collection.index_information()["expire"]["expireAfterSeconds"]


DAMAGE = {"at_s": "x", "last_at_s": {}, "suppressed_count": "many", "client_id": {}, "policy": b"x", "limit": 0.5}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_record_is_not_found(store: DenialStore, mongo_database: Any, name: str) -> None:
    store.put([RECORD], keep_s=KEEP_S)
    mongo_database["ratelimit_stats"].update_one({}, {"$set": {name: DAMAGE[name]}})

    assert store.find(str(DENIAL.decision_id)) is None


SEEN: list[tuple[str, str, str | None, str | None, float]] = [  # id, client, user, scope, seconds after the start
    ("a", "app", "alice", None, 0.0),
    ("b", "app", "bob", "grant:refresh_token", 100.0),
    ("c", "App", None, "revocation", 200.0),
    ("d", "app", "192.0.2.7 alice", "failures:user", 300.0),
    ("e", "*", "192.0.2.7", "failures:address", 400.0),
]


@pytest.fixture
def filled(store: DenialStore) -> DenialStore:
    """The store with one record of each kind; the last denial of each is 20 s after its first."""
    store.put(
        [
            RECORD._replace(
                denial=DENIAL._replace(
                    decision_id=name, client_id=client, username=user, scope=scope, at_s=NOW_S + after_s
                ),
                last_at_s=NOW_S + after_s + 20.0,
            )
            for name, client, user, scope, after_s in SEEN
        ],
        keep_s=KEEP_S,
    )
    return store


@pytest.mark.parametrize(
    ("since_s", "until_s", "conditions", "where", "expected"),
    [
        (0, 500, (), None, "edcba"),
        (20, 100, (), None, "a"),  # its last denial; the end of the period is not part of it
        (21, 101, (), None, "b"),
        (0, 500, (), Where.TOKEN, "ba"),
        (0, 500, (), Where.ENDPOINT, "c"),
        (0, 500, (), Where.GUARD, "ed"),
        (0, 500, (of_client("app"),), None, "dba"),
        (0, 500, (of_client("App"),), None, "dc"),  # the guard takes the two for one
        (0, 500, (of_client("app"), of_user(["alice"], ["alice"])), None, "da"),
        (0, 500, (of_client("app"), of_user(["lice", "ob"], ["lice"])), None, ""),
        (0, 500, (of_client("app"),), Where.TOKEN, "ba"),
    ],
)
def test_denials_of_a_period_are_found_by_client_user_and_part(
    filled: DenialStore, since_s: float, until_s: float, conditions: tuple[Any, ...], where: Where | None, expected: str
) -> None:
    found = filled.between(NOW_S + since_s, NOW_S + until_s, *conditions, where=where, at_most=10)

    assert expected == "".join(str(record.denial.decision_id) for record in found)


def test_search_for_denials_reads_an_index_and_no_more_than_asked_for(filled: DenialStore, mongo_database: Any) -> None:
    mongo_database.command("profile", 2)
    assert ["e", "d"] == [each.denial.decision_id for each in filled.between(NOW_S, NOW_S + 1e6, at_most=2)]
    mongo_database.command("profile", 0)
    [read] = mongo_database["system.profile"].find({"op": "query"})

    assert ("IXSCAN { at_s: 1 }", 2) == (read["planSummary"], read["docsExamined"])
    assert read["command"]["maxTimeMS"]
