"""
What is written on the command line in a notation of its own: callbacks of options.
"""

import re

import click

from oauth_ratelimit.cli.output import visible
from oauth_ratelimit.config.notation import DURATION_NOTATION, RATES_NOTATION, parse_duration, parse_rates
from oauth_ratelimit.config.values import MAX_WINDOW_S
from oauth_ratelimit.core.policy import MAX_LIMIT

SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.01, 3600.0  # as in the configuration


def rate(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """
    Return the limit and the window in seconds of a text such as ``100/minute``.
    """
    try:
        ((limit, window_s),) = parse_rates(value)
    except ValueError:
        raise _bad(value, f"is no single limit: {RATES_NOTATION}") from None
    if not 1 <= limit <= MAX_LIMIT or not 1 <= window_s <= MAX_WINDOW_S:
        raise _bad(value, "is out of range: from 1 to 2^53, in up to 366 days")
    return limit, window_s


def interval_s(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """
    Return the seconds of a sync interval such as ``200ms``.
    """
    try:
        seconds = parse_duration(float(value) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else value)
    except ValueError:
        raise _bad(value, f"is no duration: {DURATION_NOTATION}") from None
    if not SHORTEST_INTERVAL_S <= seconds <= LONGEST_INTERVAL_S:
        raise _bad(value, "is out of range: 10 ms to 1 h")
    return seconds


def pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    """
    Return a regular expression that finds a client.
    """
    if value is None:
        return None
    try:
        found = re.compile(value)
    except re.error as exc:
        raise _bad(value, f"is no regular expression: {exc}") from None
    if not found.groups:
        raise _bad(value, "has no group: (?P<client>...) says where the client is")
    return found


def frame_counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """
    Return the numbers of a list such as ``1,2,10``, each once.
    """
    if value is None:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value):
        raise _bad(value, "is no list such as 1,2,10")
    return tuple(dict.fromkeys(map(int, value.split(","))))


def columns(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """
    Return what ``time``, ``client`` and ``user`` are called in a file, from texts such as ``time=ts``.
    """
    named = {}
    for text in value:
        name, equals, field = text.partition("=")
        if name not in ("time", "client", "user") or not equals or not field:
            raise _bad(text, "is none of time=FIELD, client=FIELD, user=FIELD")
        named[name] = field
    return named


def _bad(value: str, reason: str) -> click.BadParameter:
    return click.BadParameter(f"'{visible(value)}' {reason}")
