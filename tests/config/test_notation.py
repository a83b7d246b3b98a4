"""Durations and the shorthand for limits; what is refused is in ``test_bad_values``."""

import pytest

from oauth_ratelimit.config.notation import parse_duration, parse_rates, rate_text


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [
        (0.25, 0.25),
        ("500ms", 0.5),
        ("1m", 60.0),
        ("1h", 3600.0),
        ("1d", 86_400.0),
        ("1.5h", 5400.0),
        ("1.1m", 66.0),
        ("1min", 60.0),
        ("10 s", 10.0),
        ("2 hours", 7200.0),
    ],
)
def test_duration_is_a_number_or_text_with_a_unit(written: object, expected_s: float) -> None:
    assert expected_s == parse_duration(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("100/minute", ((100, 60),)),
        ("5 per 10 second", ((5, 10),)),
        ("5per10seconds", ((5, 10),)),
        ("1/SECOND", ((1, 1),)),
        ("2 Per hour", ((2, 3600),)),
        ("10/second,100/hour|1000/day", ((10, 1), (100, 3600), (1000, 86_400))),
        ("7/month", ((7, 2_592_000),)),
        ("7/2 years", ((7, 62_208_000),)),
        ("40 per 5 s", ((40, 5),)),
        ("100/m", ((100, 60),)),
        ("100/1h, 7/2days", ((100, 3600), (7, 172_800))),
    ],
)
def test_shorthand_means_what_the_limits_library_means(written: str, expected: tuple[tuple[int, int], ...]) -> None:
    """Checked against version 5.8. A year has 360 days there."""
    assert expected == parse_rates(written)


@pytest.mark.parametrize(
    ("window_s", "expected"),
    [
        (1, "7/second"),
        (5, "7/5s"),
        (90, "7/90s"),
        (600, "7/10m"),
        (7200, "7/2h"),
    ],
)
def test_limit_is_written_as_it_is_read(window_s: int, expected: str) -> None:
    assert expected == rate_text(7, window_s)
    assert ((7, window_s),) == parse_rates(expected)
