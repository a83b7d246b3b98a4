"""Sums and differences of hits."""

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.hits import added, taken_off, total
from oauth_ratelimit.store.base import Hits

HITS = st.dictionaries(
    st.sampled_from((Series(6), Series(60))),
    st.dictionaries(st.sampled_from((0, 6, 12)), st.integers(1, 9), min_size=1),
)


@given(one=HITS, other=HITS)
def test_sum_holds_all_hits_of_both(one: Hits, other: Hits) -> None:
    """A sum holds all hits of both, in either order."""
    assert total(one) + total(other) == total(added(one, other))
    assert added(one, other) == added(other, one)


@given(one=HITS, other=HITS)
def test_difference_leaves_what_was_there_before_the_sum(one: Hits, other: Hits) -> None:
    """Taking off what was added leaves what there was."""
    assert one == taken_off(added(one, other), other)
    assert {} == taken_off(one, one)


@given(one=HITS, other=HITS)
def test_nothing_is_changed_in_place(one: Hits, other: Hits) -> None:
    """A write may still be under way with the same hits."""
    before = repr((one, other))
    sums = added(one, other), taken_off(one, other)
    for result in sums:
        for frames in result.values():
            assert isinstance(frames, dict)
            frames[99] = 99
    assert before == repr((one, other))


def test_difference_never_falls_below_zero() -> None:
    """A frame that was dropped meanwhile stays away, and no count falls below zero."""
    assert {Series(6): {6: 1}} == taken_off({Series(6): {6: 3}}, {Series(6): {0: 5, 6: 2}, Series(60): {0: 1}})
    assert {} == taken_off({Series(6): {6: 3}}, {Series(6): {6: 4}})
