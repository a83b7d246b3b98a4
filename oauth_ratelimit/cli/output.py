"""Output of the commands: JSON and CSV for programs, tables for people.

Clients choose their own names, so control characters are escaped. On a terminal a table folds long cells until it fits;
elsewhere each row is one line.
"""

import csv
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar, Generic, TypeVar

import click

from oauth_ratelimit.cli.context import CliContext
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.format import duration
from oauth_ratelimit.operations.serialize import json_safe

Item = TypeVar("Item")

GAP = "  "
MIN_WIDTH = 8  # of a column with folded text
NEAR_LIMIT_RATIO = 0.8
# Spreadsheets take cells that start with these for formulas, also their full-width forms in East Asian languages.
FORMULA_STARTS = ("=", "+", "-", "@", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
STATISTICS_LAG = (
    "Instances send statistics every ten seconds, and users when their minute is over, so the last requests may be "
    "missing."
)


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    style: str = ""  # such as ``bold red``


Value = Cell | str | int | None
"""Value to print: a number gets separators of thousands, None becomes a dash."""

NO_VALUE = Cell("–", "dim")


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """Column of a table: its title, and what it shows of an item."""

    title: str
    value: Callable[[Item], Value]
    is_number: ClassVar[bool] = False


class Number(Column[Item]):
    """Column of numbers, aligned to the right and not folded."""

    is_number = True


def visible(text: str) -> str:
    """Return a text with escapes for invisible characters and for those that the output cannot encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return visible_name(text).encode(encoding, "backslashreplace").decode(encoding)


def print_json(value: object) -> None:
    click.echo(json_text(value))


def json_text(value: object, *, indent: int | None = 2) -> str:
    """Return a value as JSON in ASCII; infinity and NaN become null."""
    return json.dumps(json_safe(value), indent=indent, allow_nan=False)


def print_records(
    form: str,
    items: Sequence[Item],
    record_of: Callable[[Item], Mapping[str, object]],
    columns: Sequence[Column[Item]],
    *,
    empty: str,
) -> None:
    """Print the records of items as ``json``, ``jsonl`` or ``csv``, or a ``table`` of the items."""
    if form == "table":
        print_table(columns, items, empty=empty)
    else:
        click.echo(records_text(form, list(map(record_of, items))), nl=False)


def records_text(form: str, records: Sequence[Mapping[str, object]], *, whole: object = None) -> str:
    """Return records as ``json``, as ``jsonl`` with a line for each, or as ``csv``.

    The JSON is ``whole`` if that is named: an object that holds the records.
    """
    if form == "csv":
        return csv_text(records)
    if form == "jsonl":
        return "".join(f"{json_text(record, indent=None)}\n" for record in records)
    return f"{json_text(records if whole is None else whole)}\n"


def csv_text(records: Sequence[Mapping[str, object]]) -> str:
    """Return records as CSV that is safe to open in a spreadsheet and to print in a terminal."""
    text = io.StringIO()
    if records:
        writer = csv.DictWriter(text, list(records[0]))
        writer.writeheader()
        writer.writerows({name: _csv_cell(json_safe(value)) for name, value in record.items()} for record in records)
    return text.getvalue()


def _csv_cell(value: object) -> object:
    """Return a value with control characters escaped, and an apostrophe before what looks like a formula."""
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if not isinstance(value, str):
        return value
    value = "\n".join(map(visible_name, value.split("\n")))
    return f"'{value}" if value.lstrip(" \u3000").startswith(FORMULA_STARTS) else value


def print_table(
    columns: Sequence[Column[Item]], items: Sequence[Item], *, title: str = "", empty: str = "nothing"
) -> None:
    """Print a table with a row for each item, or a text if there are none."""
    if title:
        click.secho(title, bold=True)
    if not items:
        click.echo(empty)
        return
    cells = [[_cell(column.value(item)) for column in columns] for item in items]
    widths = _widths(columns, cells)
    for row in ([Cell(column.title) for column in columns], *cells):
        folded = [textwrap.wrap(cell.text, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*folded, fillvalue=""):
            texts = []
            for text, cell, width, column in zip(line, row, widths, columns, strict=True):
                padding, styled = " " * (width - len(text)), _styled(Cell(text, cell.style))
                texts.append(padding + styled if column.is_number else styled + padding)
            click.echo(GAP.join(texts).rstrip())


def _widths(columns: Sequence[Column[Item]], rows: Sequence[Sequence[Cell]]) -> list[int]:
    """Return the width of each column; on a terminal those of text shrink until the table fits."""
    longest = [max(len(row[number].text) for row in rows) for number in range(len(columns))]
    widths = [max(len(column.title), width) for column, width in zip(columns, longest, strict=True)]
    if not sys.stdout.isatty():
        return widths
    least = [
        max(longest[number] if column.is_number else MIN_WIDTH, *map(len, column.title.split()))
        for number, column in enumerate(columns)
    ]
    room = shutil.get_terminal_size().columns - len(GAP) * (len(columns) - 1)
    while sum(widths) > room and (wide := [number for number, width in enumerate(widths) if width > least[number]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def print_facts(facts: Sequence[tuple[str, Value]]) -> None:
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{click.style(name.ljust(width), dim=True)}{GAP}{_styled(_cell(value))}")


def _cell(value: Value) -> Cell:
    if value is None:
        return NO_VALUE
    if isinstance(value, int):
        return Cell(f"{value:,}")
    return Cell(visible(value)) if isinstance(value, str) else Cell(visible(value.text), value.style)


def _styled(cell: Cell) -> str:
    if not cell.style:
        return cell.text
    words = cell.style.split()
    colour = next((word for word in words if word in ("red", "green", "yellow", "cyan")), None)
    return click.style(cell.text, fg=colour, bold="bold" in words or None, dim="dim" in words or None)


def mode_cell(mode: str) -> Cell:
    return Cell(mode, {"enforce": "bold", "dry-run": "cyan"}.get(mode, "dim"))


def count_cell(count: int, style_of_none: str = "") -> Cell:
    """Return a number of denials, which stands out unless it is 0."""
    return Cell(f"{count:,}", "bold red" if count else style_of_none)


def next_cell(retry_after_s: float) -> Value:
    return duration(retry_after_s) if retry_after_s else Cell("now", "dim")


def used_cell(ratio: float) -> Cell:
    return Cell(f"{ratio:.0%}", "bold red" if ratio >= 1 else "yellow" if ratio >= NEAR_LIMIT_RATIO else "green")


def print_unknown_client_hint(context: CliContext, client_id: str) -> None:
    print_hint(unknown_client_hint(context, client_id))


def print_hint(hint: str | None) -> None:
    if hint:
        click.secho(hint, fg="yellow", err=True)
