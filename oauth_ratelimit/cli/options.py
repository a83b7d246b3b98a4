"""Options that several commands share, and the values that they accept."""

import getpass
import re
import sys

import click

from oauth_ratelimit.cli.context import Function
from oauth_ratelimit.cli.output import visible
from oauth_ratelimit.config.notation import DURATION_NOTATION, RATES_NOTATION, parse_duration, parse_rates
from oauth_ratelimit.core.policy import MAX_LIMIT
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.window import MAX_WINDOW_S
from oauth_ratelimit.operations.changes import checked_client_id, storable_text

SPANS_S = {"hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0, "year": 366 * 86_400.0}
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.01, 3600.0  # as in the configuration
MAX_ROWS = 1000


def json_option(command: Function) -> Function:
    """Add ``--json`` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON in ASCII, for programs.")(command)


def yes_option(command: Function) -> Function:
    """Add ``--yes`` to a command that asks on a terminal."""
    return click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask on a terminal, and end the command unless the answer is yes.

    Scripts are not asked: those that exist go on working, and nobody is there to answer. What a prompt catches is the
    slip of a person at a terminal.
    """
    if not is_confirmed and sys.stdin.isatty():
        click.confirm(visible(question), abort=True, err=True)


def count_option(command: Function) -> Function:
    """Add ``--count`` to a command."""
    rows = click.IntRange(1, MAX_ROWS)
    return click.option("-n", "--count", type=rows, default=20, show_default=True, help="Number of rows to show.")(
        command
    )


def last_option(command: Function) -> Function:
    """Add ``--last`` to a command: how far back to read statistics."""
    option = click.option(
        "--last",
        "span_s",
        metavar="TIME",
        default="day",
        show_default=True,
        callback=span_s,
        help="How far back to look: hour, day, week, month, or such as 36h.",
    )
    return option(command)


def author_option(command: Function) -> Function:
    """Add ``--by`` to a command."""
    option = click.option(
        "--by",
        "author",
        default=_login_name,
        metavar="NAME",
        callback=text,
        help="Who makes the change; by default the login name.",
    )
    return option(command)


def author_and_reason(command: Function) -> Function:
    """Add ``--by`` and the required ``--reason`` to a command."""
    option = click.option(
        "--reason", required=True, metavar="TEXT", callback=required_text, help="Why; kept in the history."
    )
    return author_option(option(command))


def end_options(command: Function) -> Function:
    """Add ``--for`` and ``--until`` to a command."""
    until = click.option("--until", "end", metavar="TIME", help="When the override ends: 2026-12-01T00:00:00Z.")
    length = click.option("--for", "length", metavar="DURATION", help="When it ends, from now: 30m, 12h, 7d.")
    return length(until(command))


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


def output_format(chosen: str | None, *, as_json: bool, default: str) -> str:
    """Return the output format from ``--format`` and ``--json``."""
    if as_json and chosen not in (None, "json"):
        raise click.UsageError("name either --json or --format")
    return "json" if as_json else chosen or default


def client_argument(client_id: str) -> str:
    """Return a client id that can be stored, or raise a usage error."""
    try:
        return checked_client_id(client_id)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None


def text(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a text for the history; it may be empty."""
    try:
        return storable_text(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def required_text(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a text for the history that is not empty."""
    if not value.strip():
        raise _invalid(value, "is empty")
    return text(ctx, param, value)


def rate(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Return the limit and the window in seconds of a text such as ``100/minute``; None for an option not given."""
    return None if value is None else _parsed_rate(value)


def _parsed_rate(value: str) -> tuple[int, int]:
    try:
        ((limit, window_s),) = parse_rates(value)
    except ValueError:
        raise _invalid(value, f"is not a single limit: {RATES_NOTATION}") from None
    if not 1 <= limit <= MAX_LIMIT or not 1 <= window_s <= MAX_WINDOW_S:
        raise _invalid(value, "is out of range: from 1 to 2^53, in up to 366 days")
    return limit, window_s


def rate_in_minutes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """Return the limit and the window in seconds of a text such as ``100/minute``; the window is whole minutes."""
    limit, window_s = _parsed_rate(value)
    if window_s % MINUTE_S:
        raise _invalid(value, "needs a window of whole minutes, because statistics are kept by the minute")
    return limit, window_s


def span_s(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Return the seconds of a text such as ``day`` or ``36h``."""
    try:
        seconds = SPANS_S[value] if value in SPANS_S else parse_duration(value)
    except ValueError:
        raise _invalid(value, f"is neither {', '.join(SPANS_S)} nor a duration such as 90m, 36h, 14d") from None
    if not MINUTE_S <= seconds <= SPANS_S["year"]:
        raise _invalid(value, "is out of range: a minute to a year")
    return seconds


def lifetime_s(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a token lifetime such as ``1h``."""
    if value is None:
        return None
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise _invalid(value, "is not a duration such as 10m, 1h, 12h") from None
    if not 1.0 <= seconds <= SPANS_S["year"]:
        raise _invalid(value, "is out of range: a second to a year")
    return seconds


def interval_s(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a sync interval such as ``200ms``; None for an option not given."""
    if value is None:
        return None
    try:
        seconds = parse_duration(float(value) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else value)
    except ValueError:
        raise _invalid(value, f"is not a duration: {DURATION_NOTATION}") from None
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        raise _invalid(value, "is out of range: 10 ms to 1 h")
    return seconds


def pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    """Return a regular expression with a group for the client."""
    if value is None:
        return None
    try:
        compiled = re.compile(value)
    except re.error as exc:
        raise _invalid(value, f"is not a regular expression: {exc}") from None
    if not compiled.groups:
        raise _invalid(value, "has no group; mark the client with (?P<client>...)")
    return compiled


def frame_counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Return the distinct numbers of a list such as ``1,2,10``."""
    if value is None:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value):
        raise _invalid(value, "is not a list such as 1,2,10")
    return tuple(dict.fromkeys(map(int, value.split(","))))


def columns(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the column names of ``time``, ``client``, ``user`` and ``grant`` in a file, from such as ``time=ts``."""
    names: dict[str, tuple[str, ...]] = {}
    for item in value:
        name, equals, column = item.partition("=")
        if name not in ("time", "client", "user", "grant") or not equals or not column:
            raise _invalid(item, "is not time=FIELD, client=FIELD, user=FIELD or grant=FIELD")
        names[name] = (*names.get(name, ()), column)
    return names


def _invalid(value: str, reason: str) -> click.BadParameter:
    return click.BadParameter(f"'{visible(value)}' {reason}")
