"""The contract of every store, in memory and on a real MongoDB."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change, CounterStore, Snapshot
from tests.support.stores import FAR_S, Shared, a_change

KEY, OTHER = Key("app", "kim"), Key("app", None)
ONE_SECOND, SIX_SECONDS, MINUTE = Series(1), Series(6), Series(60)
ALIKE = [
    *(Key("app", name) for name in (None, "", "None", "null", "\0", " ")),
    *(Key("app", name, "") for name in (None, "")),
    *(Key(name, None) for name in ("App", "app ", "app\0", "\u00e9", "e\u0301", "?", "\U0001f600", "\U0001f601")),
    *(Key("x" * 511 + end, None) for end in ("", "x", "y")),
    *(Key("a:b", "c"), Key("a", "b:c")),
]
"""Keys that a column, a collation or a separator could take for one another."""


def write(store: CounterStore, *changes: Change, writer: str = "here") -> list[int]:
    result = store.compare_and_set(writer, changes)
    assert {} == result.rejected
    return list(result.lost)


def test_write_at_the_expected_version_adds_hits_and_leaves_a_mark(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10, hits={SIX_SECONDS: {600: 1}}))
    change = a_change(
        KEY, version=10, next_version=11, hits={SIX_SECONDS: {600: 2, 606: 3}, ONE_SECOND: {606: 4}}, write_number=8
    )
    assert [] == write(store, change, writer="there")
    expected = Snapshot(11, {SIX_SECONDS: {600: 3, 606: 3}, ONE_SECOND: {606: 4}}, {"here": 1, "there": 8})
    assert {KEY: expected} == store.read([KEY])


@pytest.mark.parametrize("version", (9, 11, None), ids=("behind", "ahead", "first"))
def test_write_at_another_version_changes_nothing(store: CounterStore, version: int | None) -> None:
    write(store, a_change(KEY, version=None, next_version=10))
    assert [0] == write(store, a_change(KEY, version=version, next_version=12), writer="there")
    assert {KEY: Snapshot(10, {SIX_SECONDS: {600: 1}}, {"here": 1})} == store.read([KEY])


@pytest.mark.parametrize(
    ("version", "mark", "last_version", "expected"),
    [(10, 1, 11, []), (11, 1, 99, []), (9, 1, 10, [0]), (12, 1, 99, [0]), (10, 2, 11, [0])],
    ids=("others have written", "nobody has", "more have written", "version ahead", "another mark"),
)
def test_write_with_a_mark_needs_that_mark_and_a_version_in_a_range(
    store: CounterStore, version: int, mark: int, last_version: int, expected: list[int]
) -> None:
    write(store, a_change(KEY, version=None, next_version=10))
    write(store, a_change(KEY, version=10, next_version=11, write_number=2), writer="there")
    change = a_change(
        KEY, version=version, next_version=version + 1, write_number=3, mark=mark, last_version=last_version
    )
    assert expected == write(store, change)
    hits, marks = (2, {"here": 1, "there": 2}) if expected else (3, {"here": 3, "there": 2})
    assert {KEY: Snapshot(11 + (not expected), {SIX_SECONDS: {600: hits}}, marks)} == store.read([KEY])
    assert [0] == write(store, a_change(OTHER, version=10, next_version=11, mark=1, last_version=99))


def test_write_to_the_former_life_of_a_document_loses(shared: Shared) -> None:
    write(shared.store, a_change(KEY, version=None, next_version=10))
    shared.remove(KEY)
    assert [0] == write(shared.store, a_change(KEY, version=10, next_version=11))
    assert {} == shared.store.read([KEY])
    write(shared.store, a_change(KEY, version=None, next_version=500))
    assert [0] == write(shared.store, a_change(KEY, version=10, next_version=11))
    assert 500 == shared.store.read([KEY])[KEY].version


def test_keys_that_look_alike_have_a_document_each(store: CounterStore) -> None:
    versions = {key: version for version, key in enumerate(ALIKE, start=1)}
    assert [] == write(store, *(a_change(key, version=None, next_version=versions[key]) for key in ALIKE))
    for found in (store.read(ALIKE), store.latest(len(ALIKE) + 1)):
        assert versions == {key: snapshot.version for key, snapshot in found.items()}


def test_existing_document_and_newer_version_both_lose_in_one_batch(store: CounterStore) -> None:
    keys = [Key("app", f"user-{number}") for number in range(6)]
    write(store, *(a_change(key, version=None, next_version=10) for key in keys[:4]))
    versions = [None, 9, 10, None, None, 3]
    changes = [a_change(key, version=known, next_version=20) for key, known in zip(keys, versions, strict=True)]
    assert [0, 1, 3, 5] == sorted(write(store, *changes))
    found = {key: snapshot.version for key, snapshot in store.read(keys).items()}
    assert dict(zip(keys, (10, 10, 20, 10, 20), strict=False)) == found


def test_write_removes_expired_frames_and_marks(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10, hits={SIX_SECONDS: {600: 1, 606: 2}}), writer="gone")
    stale: dict[str, Any] = {
        "expired_frames": [(SIX_SECONDS, 600), (SIX_SECONDS, 1), (MINUTE, 1)],
        "expired_writers": ["gone", "nobody"],
    }
    write(store, a_change(KEY, version=10, next_version=11, hits={SIX_SECONDS: {612: 4}}, **stale))
    snapshot = store.read([KEY])[KEY]
    assert ({606: 2, 612: 4}, {"here": 1}) == (snapshot.hits[SIX_SECONDS], snapshot.writers)
    assert {"here"} == set(snapshot.seen)


def test_write_keeps_its_own_mark_and_the_frames_that_it_adds_to(store: CounterStore) -> None:
    """Even if it is told to remove them."""
    write(store, a_change(KEY, version=None, next_version=10, write_number=1))
    expired: dict[str, Any] = {"expired_writers": ["here"], "expired_frames": [(SIX_SECONDS, 600)]}
    assert [] == write(store, a_change(KEY, version=10, next_version=11, write_number=2, **expired))
    snapshot = store.read([KEY])[KEY]
    assert ({"here": 2}, {"here"}, {600: 2}) == (snapshot.writers, set(snapshot.seen), snapshot.hits[SIX_SECONDS])


def test_horizon_is_raised_and_never_lowered(store: CounterStore) -> None:
    """Of each series for itself, and a write can leave them out."""
    write(store, a_change(KEY, version=None, next_version=10, horizons={SIX_SECONDS: 66, MINUTE: 660}))
    write(store, a_change(KEY, version=10, next_version=11, horizons={SIX_SECONDS: 606, MINUTE: 120}))
    write(store, a_change(KEY, version=11, next_version=12))
    assert {SIX_SECONDS: 606, MINUTE: 660} == store.read([KEY])[KEY].horizons


def test_mark_is_dated_by_the_store(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10), writer="there")
    before = store.read([KEY])[KEY].seen
    write(store, a_change(KEY, version=10, next_version=11))
    after = store.read([KEY])[KEY].seen
    assert before == {"there": after["there"]}
    assert abs(store.time_s() - after["here"]) < 60
    assert after["there"] <= after["here"]


def test_writer_that_leaves_takes_its_marks_along(store: CounterStore) -> None:
    """All else stays, and no document is made."""
    write(store, a_change(KEY, version=None, next_version=10), writer="there")
    write(store, a_change(KEY, version=10, next_version=11, horizons={SIX_SECONDS: 66}))
    store.remove_marks("here", {KEY: 2, OTHER: 1})  # the mark of KEY is that of another write
    assert {"here": 1, "there": 1} == store.read([KEY])[KEY].writers
    store.remove_marks("here", {KEY: 1, OTHER: 1})
    (snapshot,) = store.read([KEY, OTHER]).values()
    expected = Snapshot(11, {SIX_SECONDS: {600: 2}}, {"there": 1}, horizons={SIX_SECONDS: 66})
    assert (expected, {"there"}) == (snapshot, set(snapshot.seen))


def test_store_can_be_closed_twice(store: CounterStore) -> None:
    store.read([KEY])
    store.close()
    store.close()


def test_numbers_up_to_2_to_the_53_stay_exact(store: CounterStore) -> None:
    large = 2**53 - 1
    write(
        store,
        a_change(KEY, version=None, next_version=large - 1, hits={SIX_SECONDS: {600: large - 1}}, write_number=large),
    )
    write(store, a_change(KEY, version=large - 1, next_version=large, write_number=large))
    assert {KEY: Snapshot(large, {SIX_SECONDS: {600: large}}, {"here": large})} == store.read([KEY])


def test_documents_that_expire_last_are_the_latest(store: CounterStore) -> None:
    """A later write with an earlier end does not make a document expire before."""
    keys = [Key("app", f"user-{number}") for number in range(5)]
    for key, at_s in zip(keys, (300, 500, 100, 200, 400), strict=True):
        write(store, a_change(key, version=None, next_version=1, expire_at_s=FAR_S + at_s))
    write(store, a_change(keys[1], version=1, next_version=2, expire_at_s=FAR_S))
    found = store.latest(3)
    assert [keys[1], keys[4], keys[0]] == list(found)
    assert store.read(list(found)) == found


def test_two_threads_with_a_store_each_lose_no_hit(shared: Shared) -> None:
    def count(store: CounterStore, writer: str) -> None:
        for _ in range(20):
            lost = [0]
            while lost:
                found = store.read([KEY]).get(KEY)
                version = found.version if found else None
                lost = write(store, a_change(KEY, version=version, next_version=(version or 0) + 1), writer=writer)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(count, (shared.store, shared.other), ("here", "there")))

    snapshot = shared.store.read([KEY])[KEY]
    assert (40, {SIX_SECONDS: {600: 40}}, {"here", "there"}) == (snapshot.version, snapshot.hits, set(snapshot.writers))
