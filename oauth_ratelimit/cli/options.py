"""What all changes have in common: who, why, until when; put in force, taken back."""

import getpass
import re
from collections.abc import Iterable, Sequence
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, Function
from oauth_ratelimit.cli.output import print_hint, print_json, print_overrides, print_unknown_client_hint, visible
from oauth_ratelimit.config.notation import DURATION_NOTATION, RATES_NOTATION, parse_duration, parse_rates
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import MAX_LIMIT, Mode
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.window import MAX_WINDOW_S
from oauth_ratelimit.operations.changes import checked_client_id, end_after, end_at, kept_text
from oauth_ratelimit.operations.serialize import override_data
from oauth_ratelimit.operations.suggestions import unknown_client_hint

SPANS_S = {"hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0, "year": 366 * 86_400.0}
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.01, 3600.0  # as in the configuration


def rate(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """Return the limit and the window in seconds of a text such as ``100/minute``."""
    try:
        ((limit, window_s),) = parse_rates(value)
    except ValueError:
        raise _bad(value, f"is no single limit: {RATES_NOTATION}") from None
    if not 1 <= limit <= MAX_LIMIT or not 1 <= window_s <= MAX_WINDOW_S:
        raise _bad(value, "is out of range: from 1 to 2^53, in up to 366 days")
    return limit, window_s


def rate_by_minutes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """Return the limit and the window in seconds of a text such as ``100/minute``, the window in whole minutes."""
    limit, window_s = rate(ctx, param, value)
    if window_s % MINUTE_S:
        raise _bad(value, "has no window of whole minutes, which is what statistics can tell of")
    return limit, window_s


def span_s(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Return the seconds of a time that is over, such as ``day`` or ``36h``."""
    try:
        seconds = SPANS_S[value] if value in SPANS_S else parse_duration(value)
    except ValueError:
        raise _bad(value, f"is none of {', '.join(SPANS_S)}, and no text such as 90m, 36h, 14d") from None
    if not MINUTE_S <= seconds <= SPANS_S["year"]:
        raise _bad(value, "is out of range: a minute to a year")
    return seconds


def lifetime_s(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds for which a token can be used."""
    try:
        seconds = None if value is None else parse_duration(value)
    except ValueError:
        raise _bad(value or "", "is no text such as 10m, 1h, 12h") from None
    if seconds is not None and not 1.0 <= seconds <= SPANS_S["year"]:
        raise _bad(value or "", "is out of range: a second to a year")
    return seconds


def interval_s(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Return the seconds of a sync interval such as ``200ms``."""
    try:
        seconds = parse_duration(float(value) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else value)
    except ValueError:
        raise _bad(value, f"is no duration: {DURATION_NOTATION}") from None
    if not SHORTEST_INTERVAL_S <= seconds <= LONGEST_INTERVAL_S:
        raise _bad(value, "is out of range: 10 ms to 1 h")
    return seconds


def pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    """Return a regular expression that finds a client."""
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
    """Return the numbers of a list such as ``1,2,10``, each once."""
    if value is None:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", value):
        raise _bad(value, "is no list such as 1,2,10")
    return tuple(dict.fromkeys(map(int, value.split(","))))


def columns(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Return what ``time``, ``client`` and ``user`` are called in a file, from texts such as ``time=ts``."""
    named = {}
    for text in value:
        name, equals, field = text.partition("=")
        if name not in ("time", "client", "user") or not equals or not field:
            raise _bad(text, "is none of time=FIELD, client=FIELD, user=FIELD")
        named[name] = field
    return named


def filled(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a text that says something, as it can be put on record."""
    if not value.strip():
        raise _bad(value, "is empty")
    return kept(ctx, param, value)


def kept(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a text as it can be put on record; it may be empty."""
    try:
        return kept_text(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def _bad(value: str, reason: str) -> click.BadParameter:
    return click.BadParameter(f"'{visible(value)}' {reason}")


def who_and_why(command: Function) -> Function:
    """Add ``--by`` and ``--reason`` to a command: whom to ask about it later."""
    option = click.option("--reason", required=True, metavar="TEXT", callback=filled, help="Why; kept on record.")
    return by_whom(option(command))


def by_whom(command: Function) -> Function:
    """Add ``--by`` to a command."""
    option = click.option(
        "--by",
        "author",
        default=_current_user,
        metavar="NAME",
        callback=kept,
        help="Who; by default the login name.",
    )
    return option(command)


def until_when(command: Function) -> Function:
    """Add ``--for`` and ``--until`` to a command."""
    for option in (
        click.option("--until", "end", metavar="TIME", help="When it ends by itself: 2026-12-01T00:00:00Z."),
        click.option("--for", "length", metavar="DURATION", help="How long it holds: 30m, 12h, 7d."),
    ):
        command = option(command)
    return command


def _current_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


def checked(client_id: str) -> str:
    """Return a client id that can be stored; anything else is refused."""
    try:
        return checked_client_id(client_id)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None


def override(context: CliContext, target: Target, options: dict[str, Any], *, mode: Mode | None = None) -> Override:
    """
    Return the override that the options of ``who_and_why`` and ``until_when`` describe; its limits are still to come.
    """
    return Override(
        target=target,
        author=options["author"],
        reason=options["reason"],
        made_at_s=context.now_s,
        until_s=_end(options["length"], options["end"], now_s=context.now_s),
        mode=mode,
    )


def _end(length: str | None, end: str | None, *, now_s: float) -> float | None:
    if length is not None and end is not None:
        raise click.UsageError("name either --for or --until")
    param_hint = "--for" if length is not None else "--until"
    try:
        if length is not None:
            return end_after(length, now_s=now_s)
        return None if end is None else end_at(end, now_s=now_s)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint=param_hint) from None


def put(context: CliContext, overrides: Iterable[Override], *, as_json: bool) -> None:
    """Put overrides in force, and say so."""
    made = tuple(overrides)
    client_id = made[0].target.client_id
    # Looked up before, because the overrides make the client known.
    hint = None if client_id is None or as_json else unknown_client_hint(context, client_id)
    for override in made:
        context.override_store.put(override)
    if as_json:
        print_json([override_data(override) for override in made])
    else:
        print_overrides(made)
        _say_when(context)
        print_hint(hint)


def remove(context: CliContext, targets: Sequence[Target], *, author: str, reason: str, as_json: bool) -> int:
    """Take overrides back, say so, and return the exit code: 1 if there was none."""
    store = context.override_store
    removed = [target for target in targets if store.remove(target, author=author, reason=reason, at_s=context.now_s)]
    if as_json:
        print_json({"removed_count": len(removed)})
    elif removed:
        click.echo(f"{len(removed)} taken back")
        _say_when(context)
    else:
        click.echo("There is nothing to take back.", err=True)
        for client_id in {target.client_id for target in targets if target.client_id is not None}:
            print_unknown_client_hint(context, client_id)
    return 0 if removed else 1


def _say_when(context: CliContext) -> None:
    click.echo(f"Every instance follows within {2 * context.settings.sync.interval_s:g} s.")


def _of_kind(context: CliContext, kind: OverrideKind) -> tuple[Override, ...]:
    return tuple(override for override in context.overrides if override.target.kind is kind)


def data_of(context: CliContext, kind: OverrideKind) -> list[Any]:
    """Return the overrides of one kind that are in force, for programs."""
    return [override_data(override) for override in _of_kind(context, kind)]


def print_kind(context: CliContext, kind: OverrideKind, *, as_json: bool) -> None:
    """Print the overrides of one kind that are in force."""
    if as_json:
        print_json(data_of(context, kind))
    else:
        print_overrides(_of_kind(context, kind))
