"""Moments as files write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.replay.formats import access_log_us, moment_us


@pytest.mark.parametrize(
    ("written", "expected"),
    (
        (807249600, 807249600_000000),
        ("807249600", 807249600_000000),
        ("807249600.25", 807249600_250000),
        (" 807249600 ", 807249600_000000),
        ("807249600250", 807249600_250000),
        (807249600250001, 807249600_250001),
        ("807249600250001000", 807249600_250001),
        ("1995-08-01T04:00:00Z", 807249600_000000),
        ("1995-08-01T00:00:00.5-04:00", 807249600_500000),
        ("1995-08-01 04:00:00", 807249600_000000),
        (0, 0),
    ),
    ids=("int", "text", "fraction", "blanks", "ms", "us", "ns", "zulu", "offset", "no zone", "epoch"),
)
def test_notations(written: object, expected: int) -> None:
    """Numbers count from the epoch in a unit told by their size; text is ISO 8601, in UTC without a zone."""
    assert expected == moment_us(written)


@pytest.mark.parametrize("written", ("", "yesterday", "-1", "nan", "inf", "1e30", -0.1, True, None, [], "1960-01-01"))
def test_no_moment(written: object) -> None:
    """Anything else is refused with a reason."""
    with pytest.raises(ValueError, match="time"):
        moment_us(written)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(lambda moment: moment.replace(microsecond=0)),
    st.integers(-14 * 60, 14 * 60),
)
def test_access_log(moment: datetime, offset_min: int) -> None:
    """The form of access logs is read as Python would write it, whatever the zone."""
    local = moment.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    if local.timestamp() >= 0:
        assert round(local.timestamp() * 10**6) == access_log_us(local.strftime("%d/%b/%Y:%H:%M:%S %z"))


@pytest.mark.parametrize("written", ("", "01/Foo/1995:00:00:00 -0400", "32/Aug/1995:00:00:00 +0000", "1995-08-01"))
def test_no_access_log(written: str) -> None:
    """What an access log would not write is refused."""
    with pytest.raises(ValueError, match="not a time"):
        access_log_us(written)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
def test_to_the_microsecond(moment: datetime) -> None:
    """ISO 8601 is exact."""
    moment = moment.replace(tzinfo=UTC)
    seconds, micros = divmod(moment_us(moment.isoformat()), 10**6)
    assert (int(moment.replace(microsecond=0).timestamp()), moment.microsecond) == (seconds, micros)
