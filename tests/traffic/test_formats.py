"""Times in the formats of recorded traffic."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.traffic.formats import parse_time_us


@pytest.mark.parametrize(
    ("written", "expected"),
    (
        (807249600, 807249600_000000),
        ("807249600.25", 807249600_250000),
        (" 807249600 ", 807249600_000000),
        ("807249600250", 807249600_250000),
        (807249600250001, 807249600_250001),
        ("807249600250001000", 807249600_250001),
        ("1995-08-01T04:00:00Z", 807249600_000000),
        ("1995-08-01T00:00:00.5-04:00", 807249600_500000),
        ("1995-08-01 04:00:00", 807249600_000000),
    ),
    ids=str,
)
def test_numbers_and_iso_8601_are_times(written: object, expected: int) -> None:
    assert expected == parse_time_us(written)


@pytest.mark.parametrize(
    "written", ("", "-1", "nan", "inf", "1e30", -0.1, True, None, [], "1960-01-01", "32/Aug/1995:00:00:00 +0000")
)
def test_other_values_are_refused_with_a_reason(written: object) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_time_us(written)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(lambda moment: moment.replace(microsecond=0)),
    st.integers(-14 * 60, 14 * 60),
)
def test_access_log_times_in_any_zone(moment: datetime, offset_min: int) -> None:
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    if local.timestamp() >= 0:
        assert round(local.timestamp() * 10**6) == parse_time_us(local.strftime("%d/%b/%Y:%H:%M:%S %z"))


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
def test_iso_8601_is_exact_to_the_microsecond(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    seconds, micros = divmod(parse_time_us(moment.isoformat()), 10**6)
    assert (int(moment.replace(microsecond=0).timestamp()), moment.microsecond) == (seconds, micros)
