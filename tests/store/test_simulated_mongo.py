"""The simulated MongoDB answers as the real one does, as far as the sync protocol relies on it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson.int64 import Int64
from pymongo import MongoClient, UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.store.mongo.document import NO_LIST, filter_after_client, filter_of_user, projection
from tests.support.simulated_mongo import Server, SimulatedCollection

ID = {"clientId": "shop", "username": "ann"}
OTHER = {"clientId": "shop", "username": None}
EXPIRE = datetime(2100, 1, 1, tzinfo=UTC)
LATER = datetime(2100, 1, 2, tzinfo=UTC)

Document = dict[str, Any]


@pytest.fixture(params=["simulated", "mongodb"])
def collection(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A collection, simulated and real."""
    if request.param == "simulated":
        yield SimulatedCollection(Server(time.time))
        return
    client: MongoClient[Document] = MongoClient(request.getfixturevalue("mongo_uri"), tz_aware=True)
    with client:
        yield client.get_default_database()["simulated"]


def insert(identity: Document, *, version: int, count: int = 1) -> UpdateOne:
    """Return the first write of a document, which never changes one that exists."""
    update = {
        "$set": {"version": Int64(version), "expire": EXPIRE, "writers.a": Int64(1)},
        "$inc": {"requestCounters.6.600": count},
    }
    return UpdateOne({"_id": identity, "version": -1}, update, upsert=True)


def change(identity: Document, *, version: int, **update: Any) -> UpdateOne:
    """Return a write to a known version, which never inserts."""
    update = {f"${operator}": fields for operator, fields in update.items()}
    update["$setOnInsert"] = {"_id": None}
    update["$inc"] = {"version": 1, **update.get("$inc", {})}
    return UpdateOne({"_id": identity, "version": Int64(version)}, update, upsert=True)


def errors_of(collection: Any, *operations: UpdateOne) -> dict[int, int]:
    """Write a bulk, and return the error codes by position."""
    try:
        collection.bulk_write(list(operations), ordered=False)
    except BulkWriteError as exc:
        return {error["index"]: error["code"] for error in exc.details["writeErrors"]}
    return {}


def found(collection: Any, *identities: Document) -> list[Document]:
    """Return documents."""
    return list(collection.find({"_id": {"$in": list(identities)}}))


def test_first_write_inserts_and_a_second_one_is_a_duplicate(collection: Any) -> None:
    """Of two first writes one wins, and the bulk says which lost."""
    assert {1: 11000} == errors_of(collection, insert(ID, version=7), insert(ID, version=9), insert(OTHER, version=5))
    document = found(collection, ID)[0]
    assert (7, {"6": {"600": 1}}, {"a": 1}) == (
        document["version"],
        document["requestCounters"],
        document["writers"],
    )
    assert 5 == found(collection, OTHER)[0]["version"]


def test_write_to_another_version_is_refused_and_changes_nothing(collection: Any) -> None:
    """A document that has moved on, and one that is gone, answer with the error of an immutable field."""
    errors_of(collection, insert(ID, version=7))
    late = change(ID, version=6, inc={"requestCounters.6.600": 1})
    gone = change(OTHER, version=6, inc={"requestCounters.6.600": 1})

    assert {0: 66, 1: 66} == errors_of(collection, late, gone)
    assert 7 == found(collection, ID)[0]["version"]
    assert [] == found(collection, OTHER)


def test_operators_change_a_document(collection: Any) -> None:
    """Counters are added, marks are set, dates only grow, old fields go, and dates come from the server's clock."""
    errors_of(collection, insert(ID, version=7, count=3))
    written = change(
        ID,
        version=7,
        inc={"requestCounters.6.606": 2},
        set={"writers.b": Int64(4)},
        max={"expire": LATER, "horizons.6": 66},
        unset={"requestCounters.6.600": "", "writers.gone": "", "nothing.here": ""},
        currentDate={"seen.b": True},
    )
    assert {} == errors_of(collection, written)
    assert {} == errors_of(collection, change(ID, version=8, max={"expire": EXPIRE, "horizons.6": 36}))

    document = found(collection, ID)[0]
    seen = document.pop("seen")["b"]
    assert abs(seen.replace(tzinfo=UTC).timestamp() - time.time()) < 60
    assert {
        "_id": ID,
        "version": 9,
        "expire": LATER,
        "requestCounters": {"6": {"606": 2}},
        "writers": {"a": 1, "b": 4},
        "horizons": {"6": 66},
    } == document


def test_number_in_a_path_names_an_element_of_a_list(collection: Any) -> None:
    """A list in place of a mapping: the server fills it up to the number and accepts the write."""
    errors_of(collection, insert(ID, version=7))
    errors_of(collection, UpdateOne({"_id": ID}, {"$set": {"requestCounters": []}}))

    assert {} == errors_of(collection, change(ID, version=7, inc={"requestCounters.6.600": 1}))
    assert [*[None] * 6, {"600": 1}] == found(collection, ID)[0]["requestCounters"]


def test_filter_that_allows_no_list_finds_mappings_and_missing_fields_alone(collection: Any) -> None:
    """It keeps a write out of a list."""
    errors_of(collection, insert(ID, version=7), insert(OTHER, version=7))
    errors_of(collection, UpdateOne({"_id": ID}, {"$set": {"requestCounters": []}}))
    guarded = [change(identity, version=7, inc={"requestCounters.6.600": 1}) for identity in (ID, OTHER)]
    for operation in guarded:
        operation._filter["requestCounters"] = NO_LIST

    assert {0: 66} == errors_of(collection, *guarded)
    assert [] == found(collection, ID)[0]["requestCounters"]
    errors_of(collection, UpdateOne({"_id": OTHER}, {"$unset": {"requestCounters": ""}}))
    again = change(OTHER, version=8, inc={"requestCounters.6.600": 1})
    again._filter["requestCounters"] = NO_LIST
    assert {} == errors_of(collection, again)


def test_content_of_large_documents_is_not_sent(collection: Any) -> None:
    errors_of(collection, insert(ID, version=7), insert(OTHER, version=7))
    errors_of(collection, UpdateOne({"_id": ID}, {"$set": {"writers.x": "x" * 1000}}))
    large, small = sorted(
        collection.find({"_id": {"$in": [ID, OTHER]}}, projection(1000)), key=lambda each: each["size"]
    )[::-1]

    assert {"_id": ID, "size": large["size"]} == large
    assert large["size"] > 1000 >= small["size"]
    assert {"_id", "size", "version", "requestCounters", "writers"} == small.keys()


@pytest.mark.parametrize(("version", "is_sent"), [(7, False), (8, True)])
def test_expression_finds_one_version_of_one_document(collection: Any, version: int, is_sent: bool) -> None:
    """A field is left out of that one, and sent of all others."""
    errors_of(collection, insert(ID, version=7), insert(OTHER, version=7))
    is_known = {"$and": [{"$eq": ["$_id", ID]}, {"$eq": ["$version", Int64(version)]}]}
    found = collection.find({"_id": {"$in": [ID, OTHER]}}, {"writers": {"$cond": [is_known, "$$REMOVE", "$writers"]}})

    sent = {document["_id"]["username"]: "writers" in document for document in found}
    assert {"ann": is_sent, None: True} == sent


@pytest.mark.parametrize("damage", ["text", {"6": "text"}], ids=["text", "text in a series"])
def test_damaged_counters_reject_a_write(collection: Any, damage: object) -> None:
    """A write to a path through something that is no mapping is refused and changes nothing."""
    errors_of(collection, insert(ID, version=7))
    errors_of(collection, UpdateOne({"_id": ID}, {"$set": {"requestCounters": damage}}))
    code = errors_of(collection, change(ID, version=7, inc={"requestCounters.6.600": 1}))

    assert damage == found(collection, ID)[0]["requestCounters"]
    assert {0: 28} == code


def test_adding_to_text_is_refused(collection: Any) -> None:
    """A counter that is no number rejects the write with the server's error for types."""
    errors_of(collection, insert(ID, version=7))
    errors_of(collection, UpdateOne({"_id": ID}, {"$set": {"requestCounters.6.600": "many"}}))

    assert {0: 14} == errors_of(collection, change(ID, version=7, inc={"requestCounters.6.600": 1}))


def test_order_of_the_fields_of_an_id_matters(collection: Any) -> None:
    """Two ids with the same fields in another order are two documents."""
    turned = {"username": "ann", "clientId": "shop"}
    assert {} == errors_of(collection, insert(ID, version=7), insert(turned, version=7))
    assert 1 == len(found(collection, turned))


def test_huge_number_in_a_path_through_a_list_is_refused(collection: Any) -> None:
    """A list is not filled up to the start of a frame."""
    errors_of(collection, insert(ID, version=7))
    errors_of(collection, UpdateOne({"_id": ID}, {"$set": {"requestCounters": {"6": []}}}))

    assert {0: 34} == errors_of(collection, change(ID, version=7, inc={"requestCounters.6.1800000000": 1}))


def test_documents_of_a_user_are_found_by_range_and_removed(collection: Any) -> None:
    """At one client, in every scope, and not those of other names or of the record of erasures."""
    token = {"clientId": "shop", "username": "ann", "scope": "token"}
    others = [
        {"erasures": True},
        OTHER,
        {"clientId": "shop", "username": "anna"},
        {"clientId": "app", "username": "ann"},
    ]
    errors_of(collection, *(insert(identity, version=7) for identity in (*others, token, ID)))
    selected = {"$or": [filter_of_user("shop", "ann"), filter_of_user("shop", "nobody")]}
    assert [{"_id": ID}, {"_id": token}] == list(collection.find(selected, {"_id": True}).sort("_id", 1))
    after = [each["_id"] for each in collection.find(filter_after_client("app"), {"_id": True}).sort("_id", 1)]
    assert [OTHER, ID, token, others[2], others[0]] == after
    collection.delete_many({"_id": {"$in": [ID, token]}})

    assert [] == list(collection.find(selected, {"_id": True}))
    assert 3 == len(list(collection.find({"_id": {"$ne": others[0]}})))


def test_one_document_is_made_or_changed_whatever_its_version(collection: Any) -> None:
    assert collection.find_one({"_id": ID}) is None
    for mark in ("a", "b"):
        collection.update_one({"_id": ID}, {"$set": {f"seen.{mark}": EXPIRE}}, upsert=True)
    collection.update_one({"_id": ID}, {"$unset": {"seen.a": ""}}, upsert=True)

    assert {"_id": ID, "seen": {"b": EXPIRE}} == collection.find_one({"_id": ID})
