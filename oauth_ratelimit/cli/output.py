"""Output of the commands: JSON for programs, tables for people.

Tables have colours if rich is installed and the output is a terminal. Clients choose their own names, so control
characters are escaped.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from oauth_ratelimit.cli.context import CliContext
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, Target
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.format import duration, policy_text, utc_time
from oauth_ratelimit.operations.serialize import finite

BAR_WIDTH = 12
STATISTICS_LAG = (
    "Instances send statistics every ten seconds, and users when their minute is over, so the last requests may be "
    "missing."
)
NEAR_LIMIT_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: The heading.
        is_number: True to align the cells to the right.
    """

    title: str
    is_number: bool = False


def columns(*titles: str, numbers: Sequence[str] = ()) -> list[Column]:
    """Return columns with these titles, those of numbers after the others."""
    return [*map(Column, titles), *(Column(title, is_number=True) for title in numbers)]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table with a style.

    Args:
        text: The text.
        style: A style of rich, such as ``bold red``.
    """

    text: str
    style: str = ""


NO_VALUE = Cell("–", "dim")

Row = Sequence[str | Cell]


def visible(text: str) -> str:
    """Return a text with control characters and direction marks escaped."""
    shown = "".join(letter if letter.isprintable() else _escaped(letter) for letter in text.replace("\\", "\\\\"))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def print_json(value: object) -> None:
    """Print a value as JSON in ASCII."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """Return a value as indented JSON in ASCII; infinity and NaN become null."""
    return json.dumps(finite(value), indent=2, allow_nan=False)


def json_line(value: Mapping[str, object]) -> str:
    """Return a record as one line of JSON in ASCII."""
    return json.dumps(finite(value), allow_nan=False)


def print_table(columns: Sequence[Column], rows: Sequence[Row], *, title: str = "", empty: str = "nothing") -> None:
    """Print a table, or a text if there are no rows."""
    if title:
        click.secho(title, bold=True)
    if not rows:
        click.echo(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    if not is_terminal() or not _print_rich(columns, cells):
        _print_plain(columns, cells)


def print_facts(facts: Sequence[tuple[str, str | Cell]]) -> None:
    """Print names and values, one pair per line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        cell = _cell(value)
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {_styled(cell)}")


def is_terminal() -> bool:
    """Return True if the standard output is a terminal."""
    return sys.stdout.isatty()


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> bool:
    """Print a table with rich; return False if rich is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)
    return True


def _print_plain(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    widths = [max([len(column.title), *(len(row[index].text) for row in rows)]) for index, column in enumerate(columns)]
    for texts in ([column.title for column in columns], *([cell.text for cell in row] for row in rows)):
        line = "  ".join(
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(texts, widths, columns, strict=True)
        )
        click.echo(line.rstrip())


def _cell(value: str | Cell) -> Cell:
    return Cell(visible(value)) if isinstance(value, str) else Cell(visible(value.text), value.style)


def _styled(cell: Cell) -> str:
    words = cell.style.split()
    colour = next((word for word in words if word in ("red", "green", "yellow", "cyan")), None)
    return click.style(cell.text, fg=colour, bold="bold" in words or None, dim="dim" in words or None)


def mode_cell(mode: str) -> Cell:
    """Return a mode in its colour."""
    return Cell(mode, {"enforce": "bold", "dry-run": "cyan"}.get(mode, "dim"))


def user_cell(username: str | None) -> str | Cell:
    """Return a username, or a dash for grants without a user."""
    return Cell("–", "dim") if username is None else username


def used_cell(ratio: float) -> Cell:
    """Return the used share of a limit as a bar with its percentage."""
    filled = min(BAR_WIDTH, int(ratio * BAR_WIDTH))
    style = "bold red" if ratio >= 1 else "yellow" if ratio >= NEAR_LIMIT_RATIO else "green"
    return Cell(f"{'█' * filled}{'·' * (BAR_WIDTH - filled)} {ratio:4.0%}", style)


USAGE_COLUMNS = columns(
    "client",
    "user",
    "counted at",
    "policy",
    "mode",
    "used",
    numbers=("hits", "limit", "window", "next in"),
)


def print_usages(usages: Sequence[LimitUsage], *, empty: str) -> None:
    """Print the usage of limits."""
    print_table(USAGE_COLUMNS, list(map(_usage_row, usages)), empty=empty)


def _usage_row(usage: LimitUsage) -> Row:
    key, policy = usage.key, usage.policy
    return (
        key.client_id,
        user_cell(key.username),
        key.scope or "token",
        policy.name,
        mode_cell(usage.mode.value),
        used_cell(usage.used_ratio),
        f"{usage.estimate:.1f}",
        str(policy.limit),
        duration(policy.window.window_s),
        Cell("now", "dim") if not usage.retry_after_s else duration(usage.retry_after_s),
    )


def print_overrides(overrides: Sequence[Override], *, empty: str = "No overrides: the configuration applies.") -> None:
    """Print active overrides, or a text if there are none."""
    print_table(
        columns("what", "client", "value", "until", "by", "made", "reason"),
        list(map(_override_row, overrides)),
        empty=empty,
    )


def print_history(entries: Sequence[HistoryEntry]) -> None:
    """Print changes, including resets of counters."""
    print_table(
        columns("when", "by", "action", "what", "client", "value", "until", "reason"),
        list(map(_history_row, entries)),
        empty="No overrides and no resets so far.",
    )


def _override_row(override: Override) -> Row:
    until = Cell("no end", "dim") if override.until_s is None else utc_time(override.until_s)
    made = (override.author, utc_time(override.made_at_s), override.reason)
    return (*_target_cells(override.target), _value_cell(override), until, *made)


def _history_row(entry: HistoryEntry) -> Row:
    override = entry.override
    value = _value_cell(override) if override else ""
    until = utc_time(override.until_s) if override and override.until_s is not None else ""
    action = Cell(entry.action, "" if override else "dim")
    return (utc_time(entry.at_s), entry.author, action, *_target_cells(entry.target), value, until, entry.reason)


def _target_cells(target: Target | Counters) -> tuple[str, str | Cell]:
    if isinstance(target, Counters):
        return "counters", target.client_id if target.username is None else f"{target.client_id} {target.username}"
    what = target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"
    return what, Cell("everybody", "bold") if target.client_id is None else target.client_id


def _value_cell(override: Override) -> str | Cell:
    if override.mode:
        return mode_cell(override.mode.value)
    if override.target.limit_kind is None:
        return "trusted"
    return ", ".join(map(policy_text, override.policies)) or "no limit"


def print_unknown_client_hint(context: CliContext, client_id: str) -> None:
    """Print a hint on the standard error if the client is unknown."""
    print_hint(unknown_client_hint(context, client_id))


def print_hint(hint: str | None) -> None:
    """Print a hint on the standard error, if there is one."""
    if hint:
        click.secho(hint, fg="yellow", err=True)
