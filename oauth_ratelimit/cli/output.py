"""Output of the commands: JSON and CSV for programs, tables for people.

Clients choose their own names, so control characters are escaped. On a terminal a table folds long cells until it fits;
elsewhere each row is one line.
"""

import csv
import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

import click

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.operations.context import OperatorContext, unknown_client_hint
from oauth_ratelimit.operations.format import Record, json_safe, number, short

GAP = "  "
NO_VALUE = "–"
MIN_WIDTH = 8  # of a column with folded text
# Spreadsheets take cells that start with these for formulas, also their full-width forms in East Asian languages.
FORMULA_STARTS = ("=", "+", "-", "@", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
STATISTICS_LAG = (
    "Instances send statistics every ten seconds, and users when their minute is over, so the last requests may be "
    "missing."
)

Value = str | float | None
"""Value to print. None becomes a dash."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table: its title, and the field of a record that it shows, or what to show of the record."""

    title: str
    value: str | Callable[[Record], Value]
    is_number: ClassVar[bool] = False
    priority: ClassVar[int] = 0  # of columns to make narrower on a terminal

    def text(self, record: Record) -> str:
        return _text(record[self.value] if isinstance(self.value, str) else self.value(record))


class Number(Column):
    """Column of numbers, aligned to the right and not folded."""

    is_number, priority = True, 2


class Name(Column):
    """Column of names, cut on a terminal where they are too long for it."""

    priority = 1


def visible(text: str) -> str:
    """Return a text with escapes for invisible characters and for those that the output cannot encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return visible_name(text).encode(encoding, "backslashreplace").decode(encoding)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a value as JSON in ASCII; infinity and NaN become null."""
    click.echo(json.dumps(json_safe(value), indent=indent, allow_nan=False))


def print_json_list(head: Record, name: str, records: Iterable[Record]) -> None:
    """Print a JSON object as ``print_json`` does, whose last member is a list that may be too long for the memory."""
    click.echo(f'{json.dumps(json_safe(head), indent=2, allow_nan=False)[:-2]},\n  "{name}": [', nl=False)
    is_first = True
    for record in records:
        text = textwrap.indent(json.dumps(json_safe(record), indent=2, allow_nan=False), "    ")
        click.echo(f"{'' if is_first else ','}\n{text}", nl=False)
        is_first = False
    click.echo("]\n}" if is_first else "\n  ]\n}")


def print_records(
    form: str, records: Iterable[Record], columns: Sequence[Column], *, whole: object = None, empty: str = "nothing"
) -> int:
    """Print records as a ``table``, as ``jsonl`` with a line for each, as ``csv``, or as ``json``; return their number.

    The JSON is ``whole`` if that is named: an object that holds the records.
    """
    if form == "table":
        return print_table(columns, records, empty=empty)
    if form == "json":
        found = list(records)
        print_json(found if whole is None else whole)
        return len(found)
    number = 0
    for number, record in enumerate(records, 1):
        if form == "jsonl":
            print_json(record, indent=None)
            continue
        if number == 1:
            _print_csv(record)
        _print_csv(_csv_cell(json_safe(value)) for value in record.values())
    return number


def _print_csv(cells: Iterable[object]) -> None:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    click.echo(text.getvalue(), nl=False)


def _csv_cell(value: object) -> object:
    """Return a value that is safe in a terminal and a spreadsheet: with escapes, and an apostrophe before formulas."""
    if isinstance(value, list):
        value = "; ".join(map(str, value))
    if not isinstance(value, str):
        return value
    value = "\n".join(map(visible_name, value.split("\n")))
    return f"'{value}" if value.lstrip(" \u3000").startswith(FORMULA_STARTS) else value


def print_table(
    columns: Sequence[Column], records: Iterable[Record], *, title: str = "", empty: str = "nothing"
) -> int:
    """Print a table with a row for each record, or a text if there are none; return their number."""
    if title:
        click.secho(visible(title), bold=True)
    cells = [[column.text(record) for column in columns] for record in records]
    if not cells:
        click.echo(empty)
        return 0
    widths = _widths(columns, cells)
    for row in ([column.title for column in columns], *cells):
        folded = [
            [short(text, width)] if isinstance(column, Name) else textwrap.wrap(text, width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        for line in zip_longest(*folded, fillvalue=""):
            texts = [
                text.rjust(width) if column.is_number else text.ljust(width)
                for text, width, column in zip(line, widths, columns, strict=True)
            ]
            click.echo(GAP.join(texts).rstrip())
    return len(cells)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column; on a terminal titles of numbers fold, then names and text, until it fits."""
    longest = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    widths = [max(len(column.title), width) for column, width in zip(columns, longest, strict=True)]
    if not sys.stdout.isatty():
        return widths
    least = [
        max(longest[index] if column.is_number else MIN_WIDTH, *map(len, re.findall(r"[^ -]+-?", column.title)))
        for index, column in enumerate(columns)
    ]
    room = shutil.get_terminal_size().columns - len(GAP) * (len(columns) - 1)
    while sum(widths) > room and (wide := [index for index, width in enumerate(widths) if width > least[index]]):
        widths[max(wide, key=lambda index: (columns[index].priority, widths[index]))] -= 1
    return widths


def print_facts(facts: Sequence[tuple[str, Value]]) -> None:
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{name.ljust(width)}{GAP}{_text(value)}")


def _text(value: Value) -> str:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NO_VALUE if value is None else number(value)


def print_unknown_client_hint(context: OperatorContext, client_id: str | None) -> None:
    print_hint(client_id and unknown_client_hint(context, client_id))


def print_hint(hint: str | None) -> None:
    if hint:
        click.secho(hint, fg="yellow", err=True)
