"""What the commands print: JSON for programs, tables for people, with colours if rich is there and a terminal listens.

Names come from clients, which may call themselves anything: no control character of theirs reaches the terminal.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, format_of, json_option, pass_context
from oauth_ratelimit.core.overrides import Counters, HistoryEntry, Override, Target
from oauth_ratelimit.counters.usage import UsageReader
from oauth_ratelimit.operations.serialize import entry_data, finite, moment, override_data, policy_text, usage_data
from oauth_ratelimit.operations.suggestions import unknown_client_hint
from oauth_ratelimit.report.table import csv_cell

BAR_WIDTH = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: Its heading.
        is_number: Whether it is aligned to the right.
    """

    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a colour, where there are colours.

    Args:
        text: The text.
        style: In the words of rich.
    """

    text: str
    style: str = ""


Row = Sequence[str | Cell]


def visible(text: str) -> str:
    """Return a text with everything that would not simply be seen written as an escape: controls, direction marks."""
    shown = "".join(letter if letter.isprintable() else _escaped(letter) for letter in text.replace("\\", "\\\\"))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def print_json(value: object) -> None:
    """Print a value as JSON in ASCII; a number that JSON does not have becomes null."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """Return a value as ``print_json`` prints it."""
    return json.dumps(finite(value), indent=2, allow_nan=False)


def json_line(value: Mapping[str, object]) -> str:
    """Return a mapping as one line of JSON in ASCII."""
    return json.dumps(finite(value), allow_nan=False)


def print_table(columns: Sequence[Column], rows: Sequence[Row], *, title: str = "", empty: str = "nothing") -> None:
    """Print a table, or a word if there are no rows."""
    if title:
        click.secho(title, bold=True)
    if not rows:
        click.echo(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    table = rich_table(columns, cells) if is_terminal() else None
    if table is None:
        _print_plain(columns, cells)
    else:
        _print_rich(table)


def print_facts(facts: Sequence[tuple[str, str | Cell]]) -> None:
    """Print names and values below each other."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        cell = _cell(value)
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {_styled(cell)}")


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Any:
    """Return the table as rich draws it, None if rich is not installed."""
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    return table


def is_terminal() -> bool:
    """Whether somebody is looking."""
    return sys.stdout.isatty()


def _print_rich(table: Any) -> None:
    from rich.console import Console

    Console(file=sys.stdout, highlight=False).print(table)


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


def share(ratio: float) -> Cell:
    """Return how much of something is used up, as a bar with its figure."""
    filled = min(BAR_WIDTH, int(ratio * BAR_WIDTH))
    style = "bold red" if ratio >= 1 else "yellow" if ratio >= 0.8 else "green"  # 0.8: where "near the limit" begins
    return Cell(f"{'█' * filled}{'·' * (BAR_WIDTH - filled)} {ratio:4.0%}", style)


def mode_cell(mode: str) -> Cell:
    """Return a mode in its colour."""
    return Cell(mode, {"enforce": "bold", "dry-run": "cyan"}.get(mode, "dim"))


@click.command(name="overrides")
@click.argument("client", required=False)
@click.option("--history", "is_history", is_flag=True, help="What was done, oldest first.")
@json_option
@pass_context
def list_overrides(context: CliContext, client: str | None, is_history: bool, as_json: bool) -> None:
    """List overrides, or their history.

    Those in force, of one CLIENT or all; with --history what was done, resets of counters included: of each target the
    last thousand changes.
    """
    if is_history:
        entries = context.override_store.history(client)
        if as_json:
            print_json(list(map(entry_data, entries)))
        else:
            columns = [Column(name) for name in ("when", "who", "did", "what", "whose", "value", "until", "why")]
            print_table(columns, list(map(_entry_row, entries)), empty="Nothing was ever overridden or reset.")
        return
    chosen = [override for override in context.overrides if client in (None, override.target.client_id)]
    if as_json:
        print_json(list(map(override_data, chosen)))
    else:
        print_overrides(chosen)


@click.command()
@click.argument("what", type=click.Choice(["counters", "overrides", "history"]), default="counters")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "json", "csv"]),
    help="jsonl is one record a line, json one list of them, which is also what --json prints.  [default: jsonl]",
)
@json_option
@pass_context
def export(context: CliContext, what: str, form: str | None, as_json: bool) -> None:
    """Export counters, overrides or history.

    Writes WHAT to the standard output; counters are the default. Of the counters, where every client and user stands
    in each limit. CSV is safe to open in a spreadsheet: a text that it would take for a formula gets an apostrophe.
    """
    form = format_of(form, as_json=as_json, default="jsonl")
    records: Iterable[Mapping[str, object]]
    if what == "counters":
        documents = context.documents.every(context.now_s)
        records = map(usage_data, UsageReader(context.policies).of_all(documents, context.now_s))
    elif what == "overrides":
        records = map(override_data, context.overrides)
    else:
        records = map(entry_data, context.override_store.history())
    if form == "csv":
        _write_csv(records)
    elif form == "json":
        _write_list(records)
    else:
        for record in records:
            click.echo(json_line(record))


def _write_list(records: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON list, as it comes: counters may be many."""
    separator = "["
    for record in records:
        click.echo(f"{separator}\n{json_line(record)}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def _write_csv(records: Iterable[Mapping[str, object]]) -> None:
    writer = None
    for record in records:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(record))
            writer.writeheader()
        writer.writerow({name: csv_cell(value, separator="; ") for name, value in record.items()})


def print_overrides(chosen: Sequence[Override]) -> None:
    """Print overrides for people."""
    columns = [Column(name) for name in ("what", "whose", "value", "until", "who", "when", "why")]
    print_table(columns, list(map(_override_row, chosen)), empty="No overrides: the configuration holds.")


def _override_row(override: Override) -> Row:
    until = Cell("you take it back", "dim") if override.until_s is None else moment(override.until_s)
    return (*_target_cells(override.target), _value(override), until, *_who(override))


def _entry_row(entry: HistoryEntry) -> Row:
    override = entry.override
    value = _value(override) if override else ""
    until = moment(override.until_s) if override and override.until_s is not None else ""
    action = Cell(entry.action, "" if override else "dim")
    return (moment(entry.at_s), entry.author, action, *_target_cells(entry.target), value, until, entry.reason)


def _target_cells(target: Target | Counters) -> tuple[str, str | Cell]:
    if isinstance(target, Counters):
        return "counters", target.client_id if target.username is None else f"{target.client_id} {target.username}"
    what = target.kind.value if target.limit_kind is None else f"{target.limit_kind.value} limit"
    return what, Cell("everybody", "bold") if target.client_id is None else target.client_id


def _who(override: Override) -> Iterator[str]:
    yield override.author
    yield moment(override.made_at_s)
    yield override.reason


def _value(override: Override) -> str | Cell:
    if override.mode:
        return mode_cell(override.mode.value)
    if override.target.limit_kind is None:
        return "trusted"
    return ", ".join(map(policy_text, override.policies)) or "no limit"


def print_unknown_client_hint(context: CliContext, client_id: str) -> None:
    """Say on the standard error if nothing is known of a client: most likely it is mistyped."""
    print_hint(unknown_client_hint(context, client_id))


def print_hint(hint: str | None) -> None:
    """Say what ``unknown_client_hint`` has found, for where it has to be looked up earlier than said."""
    if hint:
        click.secho(hint, fg="yellow", err=True)
