"""Hits of one row of the host table."""

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Series, Tier, number_of
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.counters.hits import (
    MAX_HITS,
    Totals,
    add_hits,
    bring_back,
    drop_expired,
    merged,
    pack,
    pack_hits,
    unpack,
    unpack_hits,
)
from oauth_ratelimit.store.base import MAX_HORIZON_S, Hits

NOW_S = 1_200_000_000
FINE, COARSE = Series(6), Series(60, count_denied=True)

series = st.builds(Series, st.integers(1, 400 * 86_400), st.booleans(), st.booleans())
frames = st.dictionaries(st.integers(-(2**40), 2**40), st.integers(1, MAX_HITS), max_size=60)
hits = st.dictionaries(series, frames, max_size=4)


@given(hits=hits)
def test_hits_to_send_are_unpacked_as_they_were_packed(hits: Hits) -> None:
    """However far their frames are apart."""
    assert {name: frames for name, frames in hits.items() if frames} == unpack_hits(pack_hits(hits))


@given(places=st.dictionaries(series, st.dictionaries(st.integers(0, 65), st.integers(1, MAX_HITS), max_size=66)))
def test_totals_are_unpacked_as_they_were_packed(places: dict[Series, dict[int, int]]) -> None:
    """All frames that a window of 60 can reach, some of which are a few seconds ahead."""
    found = {
        name: {NOW_S // name.frame_s * name.frame_s - place * name.frame_s: count for place, count in counts.items()}
        for name, counts in places.items()
    }
    horizons = {name: 61 * name.frame_s for name in found}
    assert (found, horizons) == unpack(pack(found, horizons))


def test_totals_have_no_frames_that_a_limit_cannot_have() -> None:
    """A planted document may name frames that are far apart, or begin at odd times."""
    packed = pack({FINE: {0: 1, NOW_S - 60: 2, NOW_S - 1: 4, NOW_S: 8}}, {FINE: MAX_HORIZON_S})
    assert {FINE: {NOW_S - 60: 2, NOW_S - 6: 4, NOW_S: 8}} == unpack(packed).hits
    assert len(packed) < 1000


def test_nothing_is_unpacked_as_no_hits() -> None:
    assert ({}, {}) == unpack(b"")
    assert {} == unpack_hits(None)
    assert pack_hits({FINE: {}}) is None


def test_series_without_a_horizon_has_the_longest() -> None:
    assert {FINE: 66, COARSE: MAX_HORIZON_S} == unpack(pack({FINE: {0: 1}, COARSE: {0: 1}}, {FINE: 66})).horizons


@given(one=hits, other=hits)
def test_sum_of_hits_changes_none_of_them(
    one: dict[Series, dict[int, int]], other: dict[Series, dict[int, int]]
) -> None:
    before = pack_hits(one), pack_hits(other)
    total = merged(one, other)
    assert before == (pack_hits(one), pack_hits(other))
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
    drop_expired(found, {FINE: 66}, NOW_S)
    assert {FINE: {NOW_S - 65: 1, NOW_S: 1}, COARSE: {NOW_S - 6000: 1}} == found  # the longest horizon without any


def test_frames_stay_for_the_widest_window_that_was_ever_named() -> None:
    found, horizons = {FINE: {NOW_S - 300: 2, NOW_S: 3}}, {FINE: 366}
    totals = Totals(pack(found, horizons), NOW_S)
    totals.drop_expired({number_of(FINE): 66}, NOW_S)
    assert (found, horizons) == unpack(totals.packed())


def test_hits_are_added_up_to_the_most_that_a_row_holds() -> None:
    found: dict[Series, dict[int, int]] = {}
    add_hits(found, FINE, NOW_S, MAX_HITS - 1)
    add_hits(found, FINE, NOW_S, 1)
    add_hits(found, FINE, NOW_S, 2**53)
    assert {FINE: {NOW_S: MAX_HITS}} == found


@given(
    frame_s=st.sampled_from([1, 2, 5, 6, 60]),
    frame_count=st.sampled_from([1, 2, 10, 60]),
    steps=st.lists(st.tuples(st.integers(-40, 200), st.integers(1, 5), st.booleans()), max_size=30),
)
def test_totals_are_those_of_single_frames(frame_s: int, frame_count: int, steps: list[tuple[int, int, bool]]) -> None:
    """Whatever the clock does, and when another series of the row changes in between."""
    tier, other = (Tier(Policy("p", 10, Window(frame_s * count, count)), Mode.ENFORCE) for count in (frame_count, 1))
    angry = Tier(Policy("q", 10, Window(frame_s, 1), count_denied=True), Mode.ENFORCE)
    expected: dict[Series, dict[int, int]] = {}
    packed, now_s = b"", float(NOW_S)
    horizons = {tier.series: max(tier.horizon_s, other.horizon_s), angry.series: angry.horizon_s}
    for step_s, count, is_removed in steps:
        now_s += step_s / 4
        start_s = int(now_s // frame_s) * frame_s
        totals = Totals(packed, now_s)
        bring_back(expected, now_s)
        for each in (angry, tier, other)[: 1 + count % 3]:
            totals.add(each.series_number, start_s, count, horizons[each.series])
            add_hits(expected, each.series, start_s, count)
            if is_removed:
                totals.remove(each.series_number, start_s, 1)
                expected[each.series][start_s] -= 1
        drop_expired(expected, horizons, now_s)
        totals.drop_expired({number_of(each): horizon_s for each, horizon_s in horizons.items()}, now_s)
        packed = totals.packed()
        tiers = (tier, other, angry)
        assert [each.content(expected.get(each.series, {}), now_s) for each in tiers] == [
            content._replace(past=list(content.past)) for content in Totals(packed, now_s).contents(tiers, now_s)
        ]


def test_hit_of_a_frame_far_ahead_counts_now() -> None:
    """It came before the clock was set back. All others stay."""
    tier = Tier(Policy("p", 10, Window(60, 10)), Mode.ENFORCE)
    totals = Totals(pack({FINE: {NOW_S - 6: 2, NOW_S: 3}}, {FINE: 66}), NOW_S)
    totals.add(tier.series_number, NOW_S + 6000, 4, tier.horizon_s)
    assert {FINE: {NOW_S - 6: 2, NOW_S: 7}} == unpack(totals.packed()).hits
