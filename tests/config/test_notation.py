"""Durations and the shorthand for limits."""

import pytest

from oauth_ratelimit.config.notation import parse_duration, parse_rates, rate_text


@pytest.mark.parametrize(
    ("written", "expected_s"),
    [
        (1, 1.0),
        (0.25, 0.25),
        ("500ms", 0.5),
        ("10s", 10.0),
        ("1m", 60.0),
        ("1h", 3600.0),
        ("1d", 86_400.0),
        ("1.5h", 5400.0),
        ("1.1m", 66.0),
        ("0s", 0.0),
        ("1min", 60.0),
        ("10 s", 10.0),
        ("10sec", 10.0),
        ("2 hours", 7200.0),
        ("1day", 86_400.0),
    ],
)
def test_duration_is_a_number_or_text_with_a_unit(written: object, expected_s: float) -> None:
    assert expected_s == parse_duration(written)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "10",
        "10  s",
        "s",
        "-1s",
        "1e3s",
        "1M",
        "10secnd",
        "1h30m",
        "١s",
        "1s\n",
        True,
        False,
        None,
        [],
        {},
        float("nan"),
        float("inf"),
        10**400,
        "9" * 5000 + "s",
    ],
    ids=repr,
)
def test_other_values_are_no_duration(written: object) -> None:
    """Numbers in text, bools and infinity are none either."""
    with pytest.raises(ValueError, match="seconds as a number, or text such as 500ms"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("100/minute", ((100, 60),)),
        ("100 / minute", ((100, 60),)),
        ("5 per 10 second", ((5, 10),)),
        ("5per10seconds", ((5, 10),)),
        ("1/SECOND", ((1, 1),)),
        ("2 Per hour", ((2, 3600),)),
        ("10/second; 100/hour", ((10, 1), (100, 3600))),
        ("10/second,100/hour|1000/day", ((10, 1), (100, 3600), (1000, 86_400))),
        ("7/month", ((7, 2_592_000),)),
        ("7/2 years", ((7, 62_208_000),)),
        ("0/day", ((0, 86_400),)),
        ("10/min", ((10, 60),)),
        ("40/5s", ((40, 5),)),
        ("40 per 5 s", ((40, 5),)),
        ("5/second", ((5, 1),)),
        ("100/m", ((100, 60),)),
        ("100/1h, 7/2days", ((100, 3600), (7, 172_800))),
    ],
)
def test_shorthand_means_what_the_limits_library_means(written: str, expected: tuple[tuple[int, int], ...]) -> None:
    """Checked against version 5.8. A year has 360 days there."""
    assert expected == parse_rates(written)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "100",
        "/minute",
        "100/",
        "100/fortnight",
        "100/M",
        "100/5ms",
        "-1/minute",
        "1.5/minute",
        "100 minute",
        "1/second;",
        ";",
        "1/second\x00",
        "١/second",
        "9" * 5000 + "/second",
        "1/" + "9" * 5000 + "second",
        "1/seconds per hour",
        "1/second;" * 100 + "1/second",
    ],
    ids=repr,
)
def test_other_text_is_no_shorthand(written: str) -> None:
    """The message has examples of what is allowed."""
    with pytest.raises(ValueError, match="text such as 100/minute, 40/5s, 5 per 10 second, 10/second; 100/hour"):
        parse_rates(written)


@pytest.mark.parametrize(
    ("window_s", "expected"),
    [
        (1, "7/second"),
        (5, "7/5s"),
        (60, "7/minute"),
        (90, "7/90s"),
        (600, "7/10m"),
        (3600, "7/hour"),
        (7200, "7/2h"),
        (86_400, "7/day"),
        (604_800, "7/7d"),
    ],
)
def test_limit_is_written_as_it_is_read(window_s: int, expected: str) -> None:
    assert expected == rate_text(7, window_s)
    assert ((7, window_s),) == parse_rates(expected)
