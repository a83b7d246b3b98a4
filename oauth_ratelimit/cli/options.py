"""Options that several commands share, and the values that they accept."""

import getpass
import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import click

from oauth_ratelimit.cli.context import Function
from oauth_ratelimit.cli.output import visible
from oauth_ratelimit.config.notation import RATES_NOTATION, parse_rates, parse_typed_duration
from oauth_ratelimit.core.policy import MAX_LIMIT, LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.core.window import MAX_WINDOW_S
from oauth_ratelimit.operations.changes import checked_client_id, storable_text

YEAR_S = 366 * 86_400.0
SPANS_S = {"hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0, "year": YEAR_S}


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask on a terminal, and end the command unless the answer is yes. A script has to confirm by ``--yes``."""
    if is_confirmed:
        return
    if sys.stdin.isatty():
        click.confirm(visible(question), abort=True, err=True)
    else:
        raise click.UsageError(f"{visible(question)} There is no terminal to ask on; add --yes to do it.")


def explained(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser of a value whose ``ValueError`` becomes a usage error with its message."""

    def parsed(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from None

    return parsed


def invalid(value: str, reason: str) -> click.BadParameter:
    return click.BadParameter(f"'{visible(value)}' {reason}")


client_id = explained(checked_client_id)
text = explained(storable_text)


def _required_text(value: str) -> Any:
    if not value.strip():
        raise invalid(value, "is empty")
    return text(value)


def rate(value: str) -> tuple[int, int]:
    """Return the limit and the window in seconds of a text such as ``100/minute``."""
    try:
        ((limit, window_s),) = parse_rates(value)
    except ValueError:
        raise invalid(value, f"is not a single limit: {RATES_NOTATION}") from None
    if not 1 <= limit <= MAX_LIMIT or not 1 <= window_s <= MAX_WINDOW_S:
        raise invalid(value, "is out of range: from 1 to 2^53, in up to 366 days")
    return limit, window_s


def span_s(value: str) -> float:
    """Return the seconds of ``day``, ``36h``, or a number of seconds."""
    try:
        seconds = SPANS_S.get(value) or parse_typed_duration(value)
    except ValueError:
        raise invalid(value, f"is neither {', '.join(SPANS_S)} nor a duration such as 90s, 90m, 36h") from None
    if not 1 <= seconds <= YEAR_S:
        raise invalid(value, "is out of range: a second to a year")
    return seconds


def whole_minutes(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Return a window, as a callback of an option; statistics of users are kept by the minute."""
    if value % MINUTE_S:
        raise click.BadParameter("needs a window of whole minutes, because statistics are kept by the minute")
    return int(value)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON in ASCII, for programs.")
yes_option = click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
count_option = click.option(
    "-n", "--count", type=click.IntRange(1), default=20, show_default=True, help="Number of rows to show."
)
lifetime_option = click.option(
    "--token-lifetime",
    "lifetime_s",
    metavar="TIME",
    type=span_s,
    help="Lifetime of a token, such as 1h.  [default: that of the tokens issued, else statistics.token_lifetime]",
)
operator_option = click.option(
    "--operator",
    "author",
    default=_login_name,
    metavar="NAME",
    type=text,
    help="Who makes the change; by default the login name.",
)


def examples(*lines: str) -> Callable[[Function], Function]:
    """Add examples to the help of a command: below its first decorator, which reads the help."""

    def add(command: Function) -> Function:
        command.__doc__ = "\n".join(
            [cleandoc(command.__doc__ or ""), "", "\b", "Examples:", *(f"  {each}" for each in lines)]
        )
        return command

    return add


def name_argument(
    name: str, parse: Callable[[str], str] = str, *, is_required: bool = False, everybody: str = ""
) -> Callable[[Function], Function]:
    """Add CLIENT or USER as an argument, and for the same value the option ``--client`` or ``--user``.

    ``everybody`` is the help of the option that takes its place.
    """
    word, as_option = name.upper(), f"{name}_option"

    def either(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        given = [each for each in (value, ctx.params.pop(as_option)) if each is not None]
        if len(given) > 1:
            raise click.UsageError(f"name {word} once, as an argument or with --{name}")
        is_of_all = ctx.params.get("kind") == LimitKind.USER_TOTAL  # one limit, through all clients
        if given and is_of_all:
            raise click.UsageError(f"a limit of the kind user_total takes no {word}")
        if everybody and bool(given) == (ctx.params.pop("everybody") or is_of_all):
            raise click.UsageError(f"name either a {word} or --everybody")
        if is_required and not any(given):
            raise click.UsageError(f"name a {word}")
        return parse(given[0]) if given else None

    def add(command: Function) -> Function:
        words = f"{word}, instead of the argument."
        command = click.option(f"--{name}", as_option, metavar=word, is_eager=True, help=words)(command)
        if everybody:
            command = click.option("--everybody", is_flag=True, is_eager=True, help=everybody)(command)
        return click.argument(name, required=False, callback=either)(command)

    return add


def kind_option(words: str, **more: Any) -> Callable[[Function], Function]:
    kinds = click.Choice([kind.value for kind in LimitKind])
    return click.option("--kind", type=kinds, is_eager=True, help=words, **more)


def last_option(default: str = "day") -> Callable[[Function], Function]:
    """Return ``--last``: how far back to read statistics."""
    words = "How far back to read statistics: hour, day, week, month, or such as 36h."
    return click.option("--last", "span_s", metavar="TIME", default=default, show_default=True, type=span_s, help=words)


def operator_and_reason(command: Function) -> Function:
    reason = click.option(
        "--reason", required=True, metavar="TEXT", type=_required_text, help="Why; kept in the history."
    )
    return operator_option(reason(json_option(command)))


def override_options(command: Function) -> Function:
    """Add ``--for``, and the options of ``operator_and_reason``."""
    words = "Time after which the override ends: 30m, 12h, 7d.  [default: none]"
    return click.option("--for", "length", metavar="DURATION", help=words)(operator_and_reason(command))


CSV = (
    r"CSV has invisible characters as in Python, such as \x1b (then also \\ for \), and ' before what may be a formula."
)


def format_option(*more: str) -> Callable[[Function], Function]:
    """Add ``--format`` to a command that lists, as the argument ``form``, and ``--json`` for short."""
    forms = ("table", "json", "jsonl", "csv", *more)

    def form(ctx: click.Context, param: click.Parameter, value: str) -> str:
        if not ctx.params.pop("as_json"):
            return value
        if value not in ("table", "json"):
            raise click.UsageError("name either --json or --format")
        return "json"

    def add(command: Function) -> Function:
        words = f"One of {', '.join(forms)}. {CSV}"
        choice: dict[str, Any] = {"type": click.Choice(forms), "metavar": "FORMAT", "default": "table"}
        chosen = click.option("--format", "form", callback=form, show_default=True, help=words, **choice)
        return chosen(click.option("--json", "as_json", is_flag=True, is_eager=True, help="As --format json.")(command))

    return add
