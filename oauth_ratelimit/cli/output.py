"""Output of the commands: JSON and CSV for programs, tables for people.

Clients choose their own names, so control characters are escaped. On a terminal sentences and tables fit its width:
texts fold, names are cut last. Elsewhere each sentence and each row is one line.
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
from itertools import chain, zip_longest
from typing import Any, ClassVar, TextIO

import click

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.operations.context import OperatorContext, unknown_client_hint
from oauth_ratelimit.operations.format import Record, json_safe, number, short, width_of

GAP = "  "
NO_VALUE, CUT = ("–", "-"), ("…", "~")  # what each is on an output that cannot encode it
MIN_WIDTH = 8  # of a column with folded text
# Spreadsheets take cells that start with these for formulas, also their full-width forms in East Asian languages.
FORMULA_STARTS = ("=", "+", "-", "@", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
ESCAPE = re.compile(r"\\([nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")  # what ``visible_name`` writes
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
    is_whole: ClassVar[bool] = False  # True if its cells are never folded nor cut

    def text(self, record: Record) -> str:
        return _text(record[self.value] if isinstance(self.value, str) else self.value(record))


class Number(Column):
    """Column of numbers, aligned to the right and not folded."""

    is_number = is_whole = True


class Time(Column):
    """Column of times, which are not folded."""

    is_whole = True


class Name(Column):
    """Column of names, ids or addresses: cut on a terminal if it is too narrow although all other columns fold."""


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
    if not value.replace("\n", "").isprintable() or ESCAPE.search(value):
        lines = (line.replace("\\", r"\\") if line.isprintable() else visible_name(line) for line in value.split("\n"))
        value = "\n".join(lines)
    return f"'{value}" if value.lstrip(" \u3000'").startswith(FORMULA_STARTS) else value


def print_table(
    columns: Sequence[Column], records: Iterable[Record], *, title: str = "", empty: str = "nothing"
) -> int:
    """Print a table with a row for each record, or a text if there are none; return their number."""
    if title:
        click.secho(visible(title), bold=True)
    cells = [[column.text(record) for column in columns] for record in records]
    if not cells:
        print_text(empty)
        return 0
    widths = _widths(columns, cells)
    for row in ([column.title for column in columns], *cells):
        folded = [
            [short(text, width).replace(CUT[0], _sign(CUT))] if isinstance(column, Name) else _folded(text, width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        for line in zip_longest(*folded, fillvalue=""):
            texts = []
            for text, width, column in zip(line, widths, columns, strict=True):
                padding = " " * (width - width_of(text))
                texts.append(padding + text if column.is_number else text + padding)
            click.echo(GAP.join(texts).rstrip())
    return len(cells)


def _folded(text: str, width: int) -> list[str]:
    """Return lines of a width, broken within a word, if possible at a hyphen, only if that does not fit."""
    return textwrap.wrap(text, width, break_on_hyphens=_longest_part([text], " ") > width)


def _longest_part(texts: Iterable[str], separators: str) -> int:
    return max(width_of(part) for text in texts for part in re.findall(f"[^{separators}]+-?|$", text))


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column, on a terminal made narrower in steps until the table fits."""
    cells = [*zip(*rows, strict=True)]
    widths = [max(map(width_of, (column.title, *texts))) for column, texts in zip(columns, cells, strict=True)]
    if (width := _terminal_width(sys.stdout)) is None:
        return widths
    room = width - len(GAP) * (len(columns) - 1)
    # Titles and texts fold between words, then at hyphens; names are cut after that, and words last.
    for separators, is_cut in ((" ", False), (" -", False), (" -", True), ("", True)):
        least = [
            max(_least(column, texts, separators, is_cut=is_cut), _longest_part([column.title], " -"))
            for column, texts in zip(columns, cells, strict=True)
        ]
        while sum(widths) > room and (wide := [index for index, each in enumerate(widths) if each > least[index]]):
            widths[max(wide, key=lambda index: widths[index])] -= 1
    return widths


def _least(column: Column, texts: Sequence[str], separators: str, *, is_cut: bool) -> int:
    is_name = isinstance(column, Name)
    if column.is_whole or (is_name and not is_cut):
        return max(map(width_of, texts))
    return _longest_part(texts, separators) if separators and not is_name else MIN_WIDTH


def print_facts(facts: Sequence[tuple[str, Value]]) -> None:
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print_text(f"{name.ljust(width)}{GAP}{_text(value)}", indent=width + len(GAP))


def print_text(text: str, *, indent: int = 0, err: bool = False, **style: Any) -> None:
    """Print lines, on a terminal folded between words; ``indent`` is that of what follows the first line."""
    if width := _terminal_width(sys.stderr if err else sys.stdout):
        more: dict[str, Any] = {"subsequent_indent": " " * indent, "break_long_words": False}
        lines = (textwrap.wrap(each, width, break_on_hyphens=False, **more) or [""] for each in text.split("\n"))
        text = "\n".join(chain.from_iterable(lines))
    click.secho(text, err=err, **style)


def _terminal_width(stream: TextIO) -> int | None:
    return shutil.get_terminal_size().columns if stream.isatty() else None


def _text(value: Value) -> str:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _sign(NO_VALUE) if value is None else number(value)


def _sign(forms: tuple[str, str]) -> str:
    sign, in_ascii = forms
    return sign if visible(sign) == sign else in_ascii


def print_unknown_client_hint(context: OperatorContext, client_id: str | None) -> None:
    print_hint(client_id and unknown_client_hint(context, client_id))


def print_hint(hint: str | None) -> None:
    if hint:
        print_text(hint, fg="yellow", err=True)
