"""The contract of every store, in memory and on a real MongoDB."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import Change, CounterStore, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.stores import Shared, a_change

KEY, OTHER, THIRD = Key("app", "kim"), Key("app", None), Key("app", None, "client_total")
ONE_SECOND, SIX_SECONDS, MINUTE = Series(1), Series(6), Series(60)
ODD_NAMES = {
    "empty": "",
    "nul": "a\0b",
    "dollar": "$set",
    "dots": "a.b.c",
    "none": "None",
    "right to left": "\u202egnp",
    "line feeds": "a\r\nb",
    "long": "x" * 512,
    "wide": "\U0001f511" * 100,
}


def write(store: CounterStore, *changes: Change, writer: str = "here") -> list[int]:
    """Write, and return the positions that lost the race."""
    result = store.compare_and_set(writer, changes)
    assert {} == result.rejected
    return list(result.lost)


def test_unknown_key_is_not_in_the_answer(store: CounterStore) -> None:
    assert {} == store.read([KEY, OTHER])


def test_first_write_creates_the_document(store: CounterStore) -> None:
    """With its version, its hits and the mark of its writer."""
    lost = write(
        store,
        a_change(KEY, version=None, next_version=405, hits={SIX_SECONDS: {600: 2}, MINUTE: {540: 3}}, flush_id=7),
    )
    assert [] == lost
    assert {KEY: Snapshot(405, {SIX_SECONDS: {600: 2}, MINUTE: {540: 3}}, {"here": 7})} == store.read([KEY, OTHER])


def test_first_write_loses_to_an_existing_document(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10))
    assert [0] == write(store, a_change(KEY, version=None, next_version=20), writer="there")
    assert {KEY: Snapshot(10, {SIX_SECONDS: {600: 1}}, {"here": 1})} == store.read([KEY])


def test_write_at_the_expected_version_adds_hits_and_leaves_a_mark(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10, hits={SIX_SECONDS: {600: 1}}))
    change = a_change(
        KEY, version=10, next_version=11, hits={SIX_SECONDS: {600: 2, 606: 3}, ONE_SECOND: {606: 4}}, flush_id=8
    )
    assert [] == write(store, change, writer="there")
    expected = Snapshot(11, {SIX_SECONDS: {600: 3, 606: 3}, ONE_SECOND: {606: 4}}, {"here": 1, "there": 8})
    assert {KEY: expected} == store.read([KEY])


def test_mark_is_that_of_the_last_write(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10, flush_id=1))
    write(store, a_change(KEY, version=10, next_version=11, flush_id=5))
    assert {"here": 5} == store.read([KEY])[KEY].writers


@pytest.mark.parametrize("version", (9, 11), ids=("behind", "ahead"))
def test_write_at_another_version_changes_nothing(store: CounterStore, version: int) -> None:
    write(store, a_change(KEY, version=None, next_version=10))
    assert [0] == write(store, a_change(KEY, version=version, next_version=12), writer="there")
    assert {KEY: Snapshot(10, {SIX_SECONDS: {600: 1}}, {"here": 1})} == store.read([KEY])


def test_write_does_not_restore_a_removed_document(shared: Shared) -> None:
    write(shared.store, a_change(KEY, version=None, next_version=10))
    shared.remove(KEY)
    assert [0] == write(shared.store, a_change(KEY, version=10, next_version=11))
    assert {} == shared.store.read([KEY])


def test_write_to_the_former_life_of_a_document_loses(shared: Shared) -> None:
    write(shared.store, a_change(KEY, version=None, next_version=10))
    shared.remove(KEY)
    write(shared.store, a_change(KEY, version=None, next_version=500))
    assert [0] == write(shared.store, a_change(KEY, version=10, next_version=11))
    assert 500 == shared.store.read([KEY])[KEY].version


def test_repeated_write_is_applied_once(store: CounterStore) -> None:
    """Both when it creates the document and when it changes it."""
    first = a_change(KEY, version=None, next_version=10)
    second = a_change(KEY, version=10, next_version=11)
    assert [[], [0], [], [0]] == [write(store, change) for change in (first, first, second, second)]
    assert {SIX_SECONDS: {600: 2}} == store.read([KEY])[KEY].hits


def test_first_of_rival_writes_wins(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10))
    rivals = [a_change(KEY, version=10, next_version=11, hits={SIX_SECONDS: {600: 10**n}}) for n in (1, 2, 3)]
    assert [[], [0], [0]] == [write(store, rival, writer=f"w{n}") for n, rival in enumerate(rivals)]
    assert {SIX_SECONDS: {600: 11}} == store.read([KEY])[KEY].hits


@pytest.mark.parametrize("at", range(3), ids=("first", "middle", "last"))
def test_positions_of_lost_changes_are_returned(store: CounterStore, at: int) -> None:
    keys = [KEY, OTHER, THIRD]
    write(store, *(a_change(key, version=None, next_version=10) for key in keys))
    versions = [9 if position == at else 10 for position in range(3)]
    changes = [a_change(key, version=known, next_version=11) for key, known in zip(keys, versions, strict=True)]
    assert [at] == write(store, *changes)
    found = store.read(keys)
    assert [10 if position == at else 11 for position in range(3)] == [found[key].version for key in keys]


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
    write(store, a_change(KEY, version=None, next_version=10, flush_id=1))
    expired: dict[str, Any] = {"expired_writers": ["here"], "expired_frames": [(SIX_SECONDS, 600)]}
    assert [] == write(store, a_change(KEY, version=10, next_version=11, flush_id=2, **expired))
    snapshot = store.read([KEY])[KEY]
    assert ({"here": 2}, {"here"}, {600: 2}) == (snapshot.writers, set(snapshot.seen), snapshot.hits[SIX_SECONDS])


def test_horizon_is_raised_and_never_lowered(store: CounterStore) -> None:
    """Of each series for itself, and a write can leave them out."""
    write(store, a_change(KEY, version=None, next_version=10, horizons={SIX_SECONDS: 66, MINUTE: 660}))
    write(store, a_change(KEY, version=10, next_version=11, horizons={SIX_SECONDS: 606, MINUTE: 120}))
    write(store, a_change(KEY, version=11, next_version=12))
    assert {SIX_SECONDS: 606, MINUTE: 660} == store.read([KEY])[KEY].horizons


def test_mark_is_dated_by_the_store(store: CounterStore) -> None:
    """Those of the others keep their date."""
    write(store, a_change(KEY, version=None, next_version=10), writer="there")
    before = store.read([KEY])[KEY].seen
    write(store, a_change(KEY, version=10, next_version=11))
    after = store.read([KEY])[KEY].seen
    assert before == {"there": after["there"]}
    assert abs(store.time_s() - after["here"]) < 60
    assert after["there"] <= after["here"]


def test_writer_that_leaves_takes_its_marks_along(store: CounterStore) -> None:
    """The version and the marks of the others stay, and no document is made."""
    write(store, a_change(KEY, version=None, next_version=10), writer="there")
    write(store, a_change(KEY, version=10, next_version=11))
    store.leave("here", [KEY, OTHER])
    (snapshot,) = store.read([KEY, OTHER]).values()
    assert (11, {"there": 1}, {"there"}) == (snapshot.version, snapshot.writers, set(snapshot.seen))


def test_numbers_up_to_2_to_the_53_stay_exact(store: CounterStore) -> None:
    large = 2**53 - 1
    write(
        store, a_change(KEY, version=None, next_version=large - 1, hits={SIX_SECONDS: {600: large - 1}}, flush_id=large)
    )
    write(store, a_change(KEY, version=large - 1, next_version=large, flush_id=large))
    assert {KEY: Snapshot(large, {SIX_SECONDS: {600: large}}, {"here": large})} == store.read([KEY])


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_any_text_can_name_a_client_or_user(store: CounterStore, name: str) -> None:
    """It is found again as it was."""
    keys = [Key(name, name), Key(name, None), Key("app", name)]
    for key in keys:
        write(store, a_change(key, version=None, next_version=10))
        assert [] == write(store, a_change(key, version=10, next_version=11))
    assert dict.fromkeys(keys, 11) == {key: snapshot.version for key, snapshot in store.read(keys).items()}


def test_similar_keys_have_documents_of_their_own(store: CounterStore) -> None:
    """The border between the names matters, and so does having no user."""
    keys = [Key("a:b", "c"), Key("a", "b:c"), Key("a", None), Key("a", "None"), Key("a", ""), Key("a", None, "c")]
    for number, key in enumerate(keys, start=1):
        assert [] == write(store, a_change(key, version=None, next_version=number))
    assert {key: number for number, key in enumerate(keys, start=1)} == {
        key: snapshot.version for key, snapshot in store.read(keys).items()
    }


def test_key_that_is_read_twice_is_answered_once(store: CounterStore) -> None:
    write(store, a_change(KEY, version=None, next_version=10))
    assert [KEY] == list(store.read([KEY, KEY]))


def test_store_can_be_closed_twice(store: CounterStore) -> None:
    store.close()
    store.close()


CHANGES = st.tuples(
    st.sampled_from((KEY, OTHER, THIRD)),
    st.sampled_from((None, 0, 0, 0, -1, 1)),  # how far off the version is that the change names; None: no document
    st.dictionaries(
        st.sampled_from((SIX_SECONDS, MINUTE, Series(6, count_denied=True))),
        st.dictionaries(st.sampled_from((0, 6, 600)), st.integers(1, 9), min_size=1),
        min_size=1,
    ),
    st.lists(st.tuples(st.sampled_from((SIX_SECONDS, MINUTE)), st.sampled_from((0, 6, 12))), max_size=2, unique=True),
    st.sampled_from(("here", "there")),
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(CHANGES, st.sampled_from((KEY, OTHER))), max_size=20))
def test_store_behaves_like_the_store_in_memory(shared: Shared, steps: list[Any]) -> None:
    keys = [KEY, OTHER, THIRD]
    plain = MemoryStore()
    for key in keys:
        shared.remove(key)
    for number, step in enumerate(steps):
        if isinstance(step, Key):
            plain.remove(step)
            shared.remove(step)
            continue
        key, offset, hits, stale, writer = step
        known = plain.read([key]).get(key, Snapshot(0, {}, {})).version
        version = None if offset is None else known + offset
        next_version = 100 * (number + 1) if version is None else version + 1
        gone = [(series, start_s) for series, start_s in stale if start_s not in hits.get(series, {})]
        change = a_change(
            key, version=version, next_version=next_version, hits=hits, flush_id=number, expired_frames=gone
        )
        assert _plainly(plain.compare_and_set(writer, [change])) == _plainly(
            shared.store.compare_and_set(writer, [change])
        )
    assert plain.read(keys) == shared.store.read(keys)


def _plainly(result: WriteResult) -> tuple[list[int], dict[int, str]]:
    return sorted(result.lost), dict(result.rejected)
