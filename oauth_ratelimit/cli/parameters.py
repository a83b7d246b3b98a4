"""
What is written on the command line in a notation of its own: callbacks of options.
"""

import re

import click

from oauth_ratelimit.cli.output import visible
from oauth_ratelimit.config.notation import DURATION_NOTATION, RATES_NOTATION, parse_duration, parse_rates
from oauth_ratelimit.core.policy import MAX_LIMIT
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.window import MAX_WINDOW_S
from oauth_ratelimit.operations.changes import kept_text

SPANS_S = {"hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0, "year": 366 * 86_400.0}
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


def rate_by_minutes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """
    Return the limit and the window in seconds of a text such as ``100/minute``, the window in whole minutes.
    """
    limit, window_s = rate(ctx, param, value)
    if window_s % MINUTE_S:
        raise _bad(value, "has no window of whole minutes, which is what statistics can tell of")
    return limit, window_s


def span_s(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """
    Return the seconds of a time that is over, such as ``day`` or ``36h``.
    """
    try:
        seconds = SPANS_S[value] if value in SPANS_S else parse_duration(value)
    except ValueError:
        raise _bad(value, f"is none of {', '.join(SPANS_S)}, and no text such as 90m, 36h, 14d") from None
    if not MINUTE_S <= seconds <= SPANS_S["year"]:
        raise _bad(value, "is out of range: a minute to a year")
    return seconds


def lifetime_s(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """
    Return the seconds for which a token can be used.
    """
    try:
        seconds = None if value is None else parse_duration(value)
    except ValueError:
        raise _bad(value or "", "is no text such as 10m, 1h, 12h") from None
    if seconds is not None and not 1.0 <= seconds <= SPANS_S["year"]:
        raise _bad(value or "", "is out of range: a second to a year")
    return seconds


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


def filled(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """
    Return a text that says something, as it can be put on record.
    """
    if not value.strip():
        raise _bad(value, "is empty")
    return kept(ctx, param, value)


def kept(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """
    Return a text as it can be put on record; it may be empty.
    """
    try:
        return kept_text(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def _bad(value: str, reason: str) -> click.BadParameter:
    return click.BadParameter(f"'{visible(value)}' {reason}")
