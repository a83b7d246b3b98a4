"""Overrides in MongoDB."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64, ObjectId, encode
from bson.raw_bson import RawBSONDocument
from structlog.testing import capture_logs

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, MAX_POLICIES, LimitKind, Policy
from oauth_ratelimit.core.window import Estimator, Window
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo import overrides
from oauth_ratelimit.store.mongo.client import Connection, server_time
from oauth_ratelimit.store.mongo.fields import MAX_NAMED
from oauth_ratelimit.store.mongo.overrides import OverrideStore, pack_overrides, unpack_overrides

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


def without_times(*overrides: Override) -> list[Override]:
    return [replace(each, made_at_s=0.0, until_s=each.until_s and 0.0) for each in overrides]


def test_override_is_read_as_it_was_put(open_store: Callable[[], OverrideStore]) -> None:
    """It replaces the former one of its target. The id of a client is a value, never a field name."""
    writer = open_store()
    odd = ["a.b", "$where", "a\x00b", "\N{SNOWMAN}", "x" * 1000, ""]
    others = [replace(OFF, target=Target(OverrideKind.MODE, name)) for name in odd]
    put = [writer.put(override) for override in (OFF, *SAMPLES, *others)]

    assert without_times(OFF, *SAMPLES, *others) == without_times(*put)
    assert tuple(put[1:]) == open_store().read()
    assert without_times(SAMPLES[1]) == without_times(*open_store().read_for_everybody())


def test_overrides_are_the_same_after_they_were_packed(store: OverrideStore) -> None:
    limits = (Policy("client", 7, Window.of(60), estimator=Estimator.STRICT, count_denied=True),)
    store.put(Override(Target(OverrideKind.LIMIT, "app", LimitKind.CLIENT), "ann", "why", 0.0, policies=limits))
    store.put(Override(Target(OverrideKind.MODE), "ann", "why", 0.0, 2e9, mode=Mode.ENFORCE, canary_percent=12.5))
    found = (*store.read(), overrides.LEFT_OUT)
    assert found == unpack_overrides(pack_overrides(found))


def test_times_are_those_of_mongodb(store: OverrideStore, connection: Connection) -> None:
    """An operator's clock may be wrong: what is to last for 1000.5 s does."""
    begun_s = server_time(connection.database).timestamp()
    override = store.put(SAMPLES[0])
    ended_s = server_time(connection.database).timestamp()

    assert begun_s <= override.made_at_s <= ended_s
    assert 1000.5 == pytest.approx((override.until_s or 0) - override.made_at_s)
    store.remove(LIMIT, author="bob", reason="")
    store.note_reset(Counters("partner"), author="bob", reason="")
    assert all(begun_s <= entry.at_s <= ended_s + 60 for entry in store.history())


def test_revision_changes_with_every_change_and_nothing_else(open_store: Callable[[], OverrideStore]) -> None:
    writer, reader = open_store(), open_store()
    seen = [reader.revision()]
    for change in (
        lambda: writer.put(SAMPLES[1]),
        lambda: writer.put(SAMPLES[1]),
        lambda: writer.remove(MODE, author="bob", reason=""),
    ):
        change()
        assert reader.revision() == reader.revision()
        seen.append(reader.revision())
    writer.remove(MODE, author="bob", reason="")

    assert 4 == len(set(seen))
    assert seen[-1] == reader.revision()


def test_history_has_every_change_in_order(store: OverrideStore) -> None:
    put = [store.put(override) for override in reversed(SAMPLES)]
    store.remove(LIMIT, author="bob", reason="over")

    assert [*((each.target, each) for each in put), (LIMIT, None)] == [
        (entry.target, entry.override) for entry in store.history()
    ]
    last = store.history()[-1]
    assert ("bob", "over") == (last.author, last.reason)
    assert [put[-1], None] == [entry.override for entry in store.history("partner")]


def test_resets_are_in_the_history_alone(store: OverrideStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "MAX_HISTORY", 2)
    put = store.put(SAMPLES[0])
    revision = store.revision()
    for client_id, username in ("app", None), ("app", "ann"), ("partner", "kim"), ("app", ""):
        store.note_reset(Counters(client_id, username), author="bob", reason="")

    assert [("reset", Counters("app", "ann")), ("reset", Counters("app", ""))] == [
        (entry.action, entry.target) for entry in store.history("app")
    ]
    assert ["set", "reset"] == [entry.action for entry in store.history("partner")]
    assert ((put,), revision) == (store.read(), store.revision())


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
    "more fields in its id": an_override(_id={"kind": "mode", "clientId": "app", "more": 1}, mode="off", limits=[]),
    "kind of no limit in its id": an_override(
        _id={"kind": "mode", "clientId": "app", "limitKind": None}, mode="enforce", limits=[]
    ),
    "another order in its id": an_override(_id={"clientId": None, "kind": "mode"}, mode="enforce", limits=[]),
    "author of forty thousand letters": an_override(by="x" * 40_000),
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
    put = store.put(SAMPLES[1])
    documents.insert_one(document)
    with capture_logs() as logs:
        assert (put,) == store.read()
        history = store.history()

    assert put in [entry.override for entry in history]
    assert {line["event"] for line in logs} <= {"override_ignored"}
    assert all(len(str(line)) < 1000 and len(str(line).splitlines()) == 1 for line in logs)


@pytest.mark.parametrize("history", [None, 5, "x", [1], [{}], [{"action": "set"}], {"0": {}}], ids=repr)
def test_damaged_history_hides_no_other(store: OverrideStore, documents: Any, history: Any) -> None:
    put = store.put(SAMPLES[1])
    documents.insert_one(an_override(history=history))
    with capture_logs():
        assert [put] == [entry.override for entry in store.history()]


HUGE_TEXT = "x" * 16_000_000
PLANTED: dict[str, dict[str, Any]] = {
    "40 kB": {"active": True, "more": "x" * 40_000, "at": datetime(2099, 1, 1, tzinfo=UTC)},
    "16 MB": {"active": True, "more": HUGE_TEXT},
    "history of 16 MB": {"active": True, "history": [HUGE_TEXT]},
    "history of many entries": {"active": True, "history": [{"action": "set", "more": "x" * 30_000}] * 500},
    "history that is no list": {"active": [True], "history": {"0": {}}, "until": "now"},
    "fields of another form": {"active": 1, "until": 5, "canary": [], "limits": {}, "mode": {"$gt": ""}},
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("override", SAMPLES, ids=["limit", "mode", "trust"])
def test_change_takes_effect_whatever_lay_there(
    open_store: Callable[[], OverrideStore], documents: Any, override: Override, planted: dict[str, Any]
) -> None:
    """A document is written whole. Its history stays small enough to be written again."""
    writer, reader = open_store(), open_store()
    identity = overrides._compose_target(override.target)
    documents.insert_one({"_id": identity, **planted})
    with capture_logs():
        put = [writer.put(override) for _ in range(3)][-1]
        assert (put,) == reader.read()
        assert put in [entry.override for entry in reader.history()]
    found = documents.find_one({"_id": identity})
    assert {"_id", "active", "history", *overrides.CONTENT} == found.keys()
    assert writer.remove(override.target, author="ann", reason="")
    assert () == reader.read()


@pytest.mark.parametrize(("kind", "is_large"), [("limit", False), ("trusted", True)], ids=["tiny", "large"])
def test_flood_of_documents_hides_no_mode_of_everybody_and_denies_nobody(
    open_store: Callable[[], OverrideStore], documents: Any, monkeypatch: pytest.MonkeyPatch, kind: str, is_large: bool
) -> None:
    """By number or size, whatever their dates. Whoever changes something else learns that instances do not see it."""
    monkeypatch.setattr(overrides, "MAX_OVERRIDES", 1000 if is_large else 40)
    writer, reader = open_store(), open_store()
    trusted = writer.put(SAMPLES[2])
    last = replace(OFF, target=Target(OverrideKind.TRUSTED, "zebra"), mode=None)
    at, reason = datetime(2099, 1, 1, tzinfo=UTC), "x" * 30_000 * is_large
    documents.insert_many(
        {"_id": {"kind": kind, "clientId": f"y{number:05}"}, "active": True, "at": at, "reason": reason}
        for number in range(300 if is_large else 41)
    )
    with capture_logs() as logs:
        expected = {overrides.LEFT_OUT, *([trusted] if kind == "trusted" else [])}
        assert expected == {*reader.read()} == {*reader.read()}
        for refused in (last, replace(OFF, mode=Mode.ENFORCE)):
            with pytest.raises(
                StoreRejected, match=r"ratelimit_overrides \{'kind': .*more overrides than instances read"
            ):
                writer.put(refused)
        assert Mode.DRY_RUN is next(each.mode for each in reader.read() if each.target == MODE)
        assert Mode.OFF is writer.put(OFF).mode
        assert Mode.OFF is next(each.mode for each in reader.read() if each.target == MODE)
    assert 2 == [entry["event"] for entry in logs].count("overrides_left_out")  # of each store
    documents.delete_many({"_id.clientId": {"$regex": "^y"}})
    assert {Mode.OFF, None} == {each.mode for each in reader.read()}
    assert last in [replace(each, made_at_s=1.0) for each in reader.read()]


def test_flood_of_damaged_documents_hides_nothing(store: OverrideStore, documents: Any) -> None:
    """Two thousand of them with a date in the future, as in a report."""
    at = datetime(2099, 1, 1, tzinfo=UTC)
    documents.insert_many({"_id": {"kind": "mode", "clientId": f"{n}"}, "active": True, "at": at} for n in range(2000))
    with capture_logs() as logs:
        put = store.put(SAMPLES[2])
        assert (put,) == store.read()
    assert MAX_NAMED + 1 == len([entry for entry in logs if entry["event"] == "override_ignored"]) / 2


def test_writer_learns_whose_change_came_in_between(store: OverrideStore, monkeypatch: pytest.MonkeyPatch) -> None:
    renew = OverrideStore.renew_revision

    def be_overtaken(self: OverrideStore) -> None:
        monkeypatch.setattr(OverrideStore, "renew_revision", renew)
        self.put(replace(OFF, author="bob", reason="incident"))

    monkeypatch.setattr(OverrideStore, "renew_revision", be_overtaken)
    with pytest.raises(StoreRejected, match=r"ratelimit_overrides .* it is that of bob: incident"):
        store.put(replace(OFF, mode=Mode.DRY_RUN))


def an_id(client_id: str) -> dict[str, str]:
    return {"kind": "limit", "clientId": client_id, "limitKind": "user"}


def test_many_damaged_overrides_are_counted_in_one_line(store: OverrideStore, documents: Any) -> None:
    documents.insert_many([an_override(_id=an_id(f"damaged-{number}"), limits=5) for number in range(50)])
    with capture_logs() as logs:
        assert () == store.read()

    assert [None] * MAX_NAMED + [50 - MAX_NAMED] == [entry.get("count") for entry in logs]


def raw(*fields: tuple[str, Any]) -> RawBSONDocument:
    """Return a document in which names may be repeated."""
    content = b"".join(encode({name: value})[4:-1] for name, value in fields)
    return RawBSONDocument((len(content) + 5).to_bytes(4, "little") + content + b"\0")


@pytest.mark.parametrize(
    ("kind", "client_id"),
    [(OverrideKind.MODE, "zebra"), (OverrideKind.MODE, None), (OverrideKind.TRUSTED, "zebra")],
)
def test_planted_id_with_a_repeated_field_is_about_nobody(
    store: OverrideStore, documents: Any, kind: OverrideKind, client_id: str | None
) -> None:
    """The driver decodes the last of several fields with one name, so it would be that of a client or of everybody."""
    mode = Mode.DRY_RUN if kind is OverrideKind.MODE else None
    override = Override(Target(kind, client_id), "ann", "", 1.0, mode=mode)
    identity = raw(("kind", kind.value), ("clientId", "zz"), ("clientId", client_id))
    planted = an_override(_id=identity, mode="enforce" if mode else None, by="mallory")
    documents.insert_one(raw(*planted.items()))
    assert "ann" == store.put(override).author
    assert store.remove(override.target, author="ann", reason="")
    assert () == store.read()


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
    put = store.put(SAMPLES[1])
    documents.insert_one(an_override(_id=an_id("large"), history=["x" * overrides.MAX_HISTORY_BYTES]))
    with capture_logs() as logs:
        assert [put] == [entry.override for entry in store.history()]
    assert ["override_ignored"] == [entry["event"] for entry in logs]
