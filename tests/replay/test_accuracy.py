"""Errors by an exact log."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.replay.accuracy import ErrorLog, Tally


def tally_of(times: Sequence[int], decisions: Sequence[bool], *, limit: int, window_us: int, cut: int = 0) -> Tally:
    """Return the tally of decisions, added in two parts."""
    tally = Tally()
    error_log = ErrorLog(tally, limit=limit, window_us=window_us)
    error_log.add(times[:cut], decisions[:cut])
    error_log.add(times[cut:], decisions[cut:])
    return tally


def test_request_beyond_the_limit_is_wrongly_allowed() -> None:
    assert Tally(3, 3, wrongly_allowed=1, peak=3) == tally_of([10, 11, 12], [True] * 3, limit=2, window_us=10)


def test_denial_while_the_window_has_room_is_wrong() -> None:
    assert Tally(4, 2, wrongly_denied=1, peak=2) == tally_of(
        [10, 11, 12, 13], [True, False, True, False], limit=2, window_us=10
    )


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=50).map(sorted),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 50),
)
def test_counts_follow_the_definition_in_any_number_of_parts(
    rows: Sequence[tuple[int, bool]], limit: int, window_us: int, cut: int
) -> None:
    times, decisions = [at_us for at_us, _ in rows], [decision for _, decision in rows]
    expected, admitted = Tally(), list[int]()
    for at_us, is_admitted in rows:
        inside = sum(at_us - window_us < other for other in admitted)
        expected.requests += 1
        expected.admitted += is_admitted
        expected.wrongly_allowed += is_admitted and inside >= limit
        expected.wrongly_denied += not is_admitted and inside < limit
        if is_admitted:
            admitted.append(at_us)
            expected.peak = max(expected.peak, inside + 1)
    assert expected == tally_of(times, decisions, limit=limit, window_us=window_us, cut=cut)


def test_percentages_without_requests_are_zero() -> None:
    assert 0.0 == Tally().percent(0)
