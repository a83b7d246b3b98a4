"""Errors by an exact log."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from testbed.comparison.accuracy import ContenderCounts, ErrorLog


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=50).map(sorted),
    st.integers(1, 5),
    st.integers(1, 12),
)
def test_counts_follow_the_definition(rows: Sequence[tuple[int, bool]], limit: int, window_us: int) -> None:
    expected, tally, admitted = ContenderCounts(), ContenderCounts(), list[int]()
    error_log = ErrorLog(tally, limit=limit, window_us=window_us)
    for at_us, is_admitted in rows:
        error_log.add(at_us, is_admitted)
        inside = sum(at_us - window_us < other for other in admitted)
        expected.requests += 1
        expected.admitted += is_admitted
        expected.wrongly_allowed += is_admitted and inside >= limit
        expected.wrongly_denied += not is_admitted and inside < limit
        if is_admitted:
            admitted.append(at_us)
            expected.peak = max(expected.peak, inside + 1)
    assert expected == tally
