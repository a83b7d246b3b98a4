"""Overrides in MongoDB."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64, ObjectId
from structlog.testing import capture_logs

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICIES, LimitKind, Policy
from oauth_ratelimit.core.pseudonyms import erasure_mark
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.store.mongo import overrides
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.fields import MAX_NAMED
from oauth_ratelimit.store.mongo.overrides import OverrideStore

LIMIT = Target(OverrideKind.LIMIT, "partner", LimitKind.USER)
MODE = Target(OverrideKind.MODE)
TRUSTED = Target(OverrideKind.TRUSTED, "mobile-*")

NIGHTLY = Policy("nightly", 100, Window.of(60, 6), Estimator.PROPORTIONAL, True, Mode.ENFORCE)
HUGE = Policy("huge", MAX_LIMIT, Window.of(1))

OFF = Override(MODE, "ann", "former", 1.0, mode=Mode.OFF)
SAMPLES = [
    Override(LIMIT, "ann", "black friday", 1000.0, 2000.5, policies=(NIGHTLY, HUGE)),
    Override(MODE, "bob", "canary", 1001.0, mode=Mode.ENFORCE, canary_percent=2.5),
    Override(TRUSTED, "ann", "", 1002.0, until_s=3000.0),
]


@pytest.fixture
def open_store(mongo_uri: str) -> Iterator[Callable[[], OverrideStore]]:
    """Opens stores on one empty database."""
    with ExitStack() as undo:
        yield lambda: OverrideStore(undo.enter_context(closing(Connection(mongo_uri))))


@pytest.fixture
def store(open_store: Callable[[], OverrideStore]) -> OverrideStore:
    return open_store()


@pytest.fixture
def documents(mongo_database: Any) -> Any:
    return mongo_database["ratelimit_overrides"]


def test_override_is_read_as_it_was_put(open_store: Callable[[], OverrideStore]) -> None:
    """It replaces the former one of its target. The id of a client is a value, never a field name."""
    writer = open_store()
    odd = ["a.b", "$where", "a\x00b", "\N{SNOWMAN}", "x" * 1000, ""]
    others = [replace(OFF, target=Target(OverrideKind.MODE, name), made_at_s=2000.0 + n) for n, name in enumerate(odd)]
    for override in (OFF, *SAMPLES, *others):
        writer.put(override)

    assert (*SAMPLES, *others) == open_store().read()


def test_revision_changes_with_every_change_and_nothing_else(open_store: Callable[[], OverrideStore]) -> None:
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


def test_history_has_every_change_in_order(store: OverrideStore) -> None:
    for override in reversed(SAMPLES):
        store.put(override)
    store.remove(LIMIT, author="bob", reason="over", at_s=1500.0)

    assert [*zip([LIMIT, MODE, TRUSTED], SAMPLES, strict=True), (LIMIT, None)] == [
        (entry.target, entry.override) for entry in store.history()
    ]
    last = store.history()[-1]
    assert ("bob", "over", 1500.0) == (last.author, last.reason, last.at_s)
    assert [SAMPLES[0], None] == [entry.override for entry in store.history("partner")]


def test_resets_are_in_the_history_alone(store: OverrideStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "MAX_HISTORY", 2)
    store.put(SAMPLES[0])
    revision = store.revision()
    resets = (5.0, "app", None), (6.0, "app", "ann"), (7.0, "partner", "kim"), (8.0, "app", "")
    for at_s, client_id, username in resets:
        store.note_reset(Counters(client_id, username), author="bob", reason="", at_s=at_s)

    assert [("reset", Counters("app", "ann"), 6.0), ("reset", Counters("app", ""), 8.0)] == [
        (entry.action, entry.target, entry.at_s) for entry in store.history("app")
    ]
    assert ["reset", "set"] == [entry.action for entry in store.history("partner")]
    assert ((SAMPLES[0],), revision) == (store.read(), store.revision())


def an_override(**fields: Any) -> dict[str, Any]:
    """Return the document of an override but for these fields."""
    limit = {"name": "user", "limit": Int64(5), "window": 60, "frames": 10, "estimator": "sliding"}
    limit |= {"count_denied": False, "mode": None}
    at = datetime(2033, 5, 18, tzinfo=UTC)
    content = {"by": "bob", "reason": "r", "at": at, "until": None, "mode": None, "limits": [limit]}
    identity = {"kind": "limit", "clientId": "app", "limitKind": "user"}
    return {"_id": identity, "active": True, **content, "history": [{"action": "set", **content}], **fields}


def a_limit(**fields: Any) -> dict[str, Any]:
    """Return an override whose one limit has these fields."""
    return an_override(limits=[{**an_override()["limits"][0], **fields}])


DAMAGED: dict[str, dict[str, Any]] = {
    "no content": {"_id": ObjectId(), "active": True},
    "text for an id": an_override(_id="limit"),
    "unknown kind": an_override(_id={"kind": "surprise", "clientId": "app"}),
    "number for a client": an_override(_id={"kind": "mode", "clientId": 7}),
    "author that is no text": an_override(by={"$gt": ""}),
    "date that is none": an_override(at="yesterday"),
    "end that is none": an_override(until=5),
    "mode that is missing": an_override(_id={"kind": "mode", "clientId": "app"}),
    "canary that is no number": an_override(_id={"kind": "mode", "clientId": "app"}, mode="enforce", canary="5"),
    "unknown mode": an_override(_id={"kind": "mode", "clientId": "app"}, mode={}),
    "limits that are no list": an_override(limits={"0": {}}),
    "limits that are no mappings": an_override(limits=[1, "x"]),
    "thousands of limits": an_override(limits=[an_override()["limits"][0]] * (MAX_POLICIES + 1)),
    "limit of zero": a_limit(limit=0),
    "limit beyond all reason": a_limit(limit=Int64(2**62)),
    "endless window": a_limit(window=Int64(2**40)),
    "frames that do not divide": a_limit(frames=7),
    "unknown estimator": a_limit(estimator=["sliding"]),
    "name of megabytes": a_limit(name="x" * 1_000_000),
    "name that forges a header": a_limit(name='x"\r\nRetry-After: 0'),
    "empty name": a_limit(name=""),
}


@pytest.mark.parametrize("document", DAMAGED.values(), ids=DAMAGED)
def test_damaged_override_is_logged_and_ignored(store: OverrideStore, documents: Any, document: dict[str, Any]) -> None:
    """In one line, and the others apply."""
    store.put(SAMPLES[1])
    documents.insert_one(document)
    with capture_logs() as logs:
        assert (SAMPLES[1],) == store.read()
        history = store.history()

    assert SAMPLES[1] in [entry.override for entry in history]
    assert {line["event"] for line in logs} in ({"override_ignored"}, {"overrides_left_out"})
    assert all(len(str(line)) < 1000 and len(str(line).splitlines()) == 1 for line in logs)


@pytest.mark.parametrize("history", [None, 5, "x", [1], [{}], [{"action": "set"}], {"0": {}}], ids=repr)
def test_damaged_history_hides_no_other(store: OverrideStore, documents: Any, history: Any) -> None:
    store.put(SAMPLES[1])
    documents.insert_one(an_override(history=history))
    with capture_logs():
        assert [SAMPLES[1]] == [entry.override for entry in store.history()]


def test_erasures_are_announced_by_a_new_revision(open_store: Callable[[], OverrideStore], mongo_database: Any) -> None:
    """Without a name, and for a day."""
    writer, reader = open_store(), open_store()
    revisions = [writer.note_erasure([erasure_mark("ann")]), writer.note_erasure(["b", "c"])]
    found = reader.erasures()

    assert revisions[-1] == reader.revision() != revisions[0]
    assert [{"b", "c"}, {erasure_mark("ann")}] == [erased.marks for erased in found]
    assert all(0 <= erased.age_s < 60 for erased in found)
    documents = list(mongo_database["ratelimit_stats"].find())
    assert "ann" not in repr(documents)
    assert {86_400.0} == {(each["expire"] - each["at"]).total_seconds() for each in documents}


def test_flood_of_overrides_is_bounded_and_logged_once(
    store: OverrideStore, documents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number, by the size of one and of all. The newest apply, whatever else their dates may be."""
    monkeypatch.setattr(overrides, "MAX_OVERRIDES", 4)
    old = datetime(1970, 1, 1, tzinfo=UTC)
    planted = [an_override(_id=an_id(f"old-{number}"), at=old) for number in range(9)]
    large = an_override(_id=an_id("large"), reason="x" * overrides.MAX_BYTES)
    documents.insert_many([*planted, large, an_override(_id=an_id("dates"), at=[datetime(2040, 1, 1, tzinfo=UTC)])])
    store.put(SAMPLES[1])
    with capture_logs() as logs:
        found = [store.read(), store.read()]
        monkeypatch.setattr(overrides, "MAX_TOTAL_BYTES", 600)
        fewer = store.read()

    assert found[0] == found[1]
    assert (3, SAMPLES[1]) == (len(found[0]), found[0][-1])
    assert (SAMPLES[1],) == fewer
    left_out = [entry["count"] for entry in logs if entry["event"] == "overrides_left_out"]
    assert [8, 10] == left_out


def an_id(client_id: str) -> dict[str, str]:
    return {"kind": "limit", "clientId": client_id, "limitKind": "user"}


def test_many_damaged_overrides_are_counted_in_one_line(store: OverrideStore, documents: Any) -> None:
    documents.insert_many([an_override(_id=an_id(f"damaged-{number}"), limits=5) for number in range(50)])
    with capture_logs() as logs:
        assert () == store.read()

    assert [None] * MAX_NAMED + [50 - MAX_NAMED] == [entry.get("count") for entry in logs]


@pytest.mark.parametrize(
    "planted", [{"value": "x" * 2**20}, {f"field-{index}": index for index in range(50_000)}], ids=["value", "fields"]
)
def test_planted_revision_is_not_read_and_gone_after_the_next_change(
    store: OverrideStore, documents: Any, planted: dict[str, Any]
) -> None:
    documents.insert_one({"_id": "revision", **planted})
    assert store.revision() is None
    store.put(SAMPLES[1])

    assert {"_id", "value"} == set(documents.find_one({"_id": "revision"}))
    assert str(documents.find_one({"_id": "revision"})["value"]) == store.revision()


def test_history_is_bounded_in_size(store: OverrideStore, documents: Any) -> None:
    store.put(SAMPLES[1])
    documents.insert_one(an_override(_id=an_id("large"), history=["x" * overrides.MAX_HISTORY_BYTES]))
    with capture_logs() as logs:
        assert [SAMPLES[1]] == [entry.override for entry in store.history()]
    assert [] == logs


def test_planted_erasures_are_bounded_and_ignored(
    store: OverrideStore, mongo_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overrides, "MAX_ERASURES", 3)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    planted: list[dict[str, Any]] = [
        {"_id": {"erasure": "f0"}, "marks": ["x" * overrides.MAX_ERASURE_BYTES], "at": at},
        {"_id": {"erasure": "f1"}, "marks": "x", "at": at},
        {"_id": {"erasure": "f2"}, "marks": ["x"], "at": "now"},
        {"_id": {"erasure": "0"}, "marks": ["oldest"], "at": at},
        {"_id": {"instance": "f"}, "marks": ["x"], "at": at},
    ]
    mongo_database["ratelimit_stats"].insert_many(planted)
    store.note_erasure(["a"])

    assert [{"a"}] == [erased.marks for erased in store.erasures()]
