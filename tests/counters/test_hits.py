"""Hits of one row of the host table."""

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.hits import MAX_HITS, add_hits, bring_back, drop_over, merged, pack, unpack, unpack_hits
from oauth_ratelimit.store.base import MAX_HORIZON_S

NOW_S = 1_200_000_000
FINE, COARSE = Series(6), Series(60, count_denied=True)

series = st.builds(Series, st.integers(1, 400 * 86_400), st.booleans(), st.booleans())
frames = st.dictionaries(st.integers(-(2**40), 2**40), st.integers(0, MAX_HITS), max_size=60)
hits = st.dictionaries(series, frames, max_size=4)


@given(hits=hits, horizon_s=st.integers(1, MAX_HORIZON_S))
def test_hits_are_unpacked_as_they_were_packed(hits: dict[Series, dict[int, int]], horizon_s: int) -> None:
    horizons = dict.fromkeys(hits, horizon_s)
    assert (hits, horizons) == unpack(pack(hits, horizons))
    assert hits == unpack_hits(pack(hits))


def test_nothing_is_unpacked_as_no_hits() -> None:
    assert ({}, {}) == unpack(b"")
    assert {} == unpack_hits(None)


def test_series_without_a_horizon_has_the_longest() -> None:
    assert {FINE: 66, COARSE: MAX_HORIZON_S} == unpack(pack({FINE: {0: 1}, COARSE: {0: 1}}, {FINE: 66})).horizons


@given(one=hits, other=hits)
def test_sum_of_hits_can_be_packed_and_changes_none_of_them(
    one: dict[Series, dict[int, int]], other: dict[Series, dict[int, int]]
) -> None:
    before = unpack_hits(pack(one)), unpack_hits(pack(other))
    total = merged(one, other)
    assert total == unpack_hits(pack(total))
    assert before == (one, other)
    for name, start_s in {(key, at_s) for each in (one, other) for key, counts in each.items() for at_s in counts}:
        added = one.get(name, {}).get(start_s, 0) + other.get(name, {}).get(start_s, 0)
        assert min(added, MAX_HITS) == total[name][start_s]


def test_hits_of_frames_far_ahead_count_now() -> None:
    """Those that begin up to a frame or five seconds later stay: the clocks of instances differ a little."""
    second = Series(1)
    found = {
        FINE: {NOW_S: 1, NOW_S + 6: 2, NOW_S + 12: 4, NOW_S + 6000: 8},
        COARSE: {NOW_S - 60: 1, NOW_S + 60: 2},
        second: {NOW_S + 5: 1, NOW_S + 6: 2},
    }
    assert bring_back(found, NOW_S)
    expected = {
        FINE: {NOW_S: 13, NOW_S + 6: 2},
        COARSE: {NOW_S - 60: 1, NOW_S + 60: 2},
        second: {NOW_S + 5: 1, NOW_S: 2},
    }
    assert expected == found
    assert not bring_back(found, NOW_S)
    assert expected == found


def test_frames_that_no_window_reaches_are_dropped() -> None:
    found = {FINE: {NOW_S - 67: 1, NOW_S - 66: 1, NOW_S - 65: 1, NOW_S: 1}, COARSE: {NOW_S - 6000: 1}}
    drop_over(found, {FINE: 66}, NOW_S)
    assert {FINE: {NOW_S - 65: 1, NOW_S: 1}, COARSE: {NOW_S - 6000: 1}} == found  # the longest horizon without any


def test_hits_are_added_up_to_the_most_that_a_row_holds() -> None:
    found: dict[Series, dict[int, int]] = {}
    add_hits(found, FINE, NOW_S, MAX_HITS - 1)
    add_hits(found, FINE, NOW_S, 1)
    add_hits(found, FINE, NOW_S, 2**53)
    assert {FINE: {NOW_S: MAX_HITS}} == found
