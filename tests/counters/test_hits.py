"""Sums and differences of hits."""

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.counters.hits import added, later_than, taken_off, total

HITS = st.dictionaries(
    st.sampled_from(("6", "60")),
    st.dictionaries(st.sampled_from((0, 6, 12)), st.integers(1, 9), min_size=1),
)


@given(one=HITS, other=HITS)
def test_sum(one: dict[str, dict[int, int]], other: dict[str, dict[int, int]]) -> None:
    """A sum holds all hits of both, in either order."""
    assert total(one) + total(other) == total(added(one, other))
    assert added(one, other) == added(other, one)


@given(one=HITS, other=HITS)
def test_difference(one: dict[str, dict[int, int]], other: dict[str, dict[int, int]]) -> None:
    """Taking off what was added leaves what there was."""
    assert one == taken_off(added(one, other), other)
    assert {} == taken_off(one, one)


@given(one=HITS, other=HITS)
def test_nothing_is_changed_in_place(one: dict[str, dict[int, int]], other: dict[str, dict[int, int]]) -> None:
    """A write may still be under way with the same hits."""
    before = repr((one, other))
    sums = added(one, other), taken_off(one, other), later_than(one, 6)
    for result in sums:
        for frames in result.values():
            assert isinstance(frames, dict)
            frames[99] = 99
    assert before == repr((one, other))


def test_taking_off_more_than_there_is() -> None:
    """A frame that was dropped meanwhile stays away, and no count falls below zero."""
    assert {"6": {6: 1}} == taken_off({"6": {6: 3}}, {"6": {0: 5, 6: 2}, "60": {0: 1}})
    assert {} == taken_off({"6": {6: 3}}, {"6": {6: 4}})


def test_frames_after_a_moment() -> None:
    """The moment itself does not belong to them, and empty series go."""
    assert {"6": {12: 3}} == later_than({"6": {0: 1, 6: 2, 12: 3}, "60": {0: 4}}, 6)
