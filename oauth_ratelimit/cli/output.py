"""
What the commands print: JSON for programs, tables for people, with colours if rich is there and a terminal listens.

Names come from clients, which may call themselves anything: no control character of theirs reaches the terminal.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from oauth_ratelimit.operations.serialize import finite

BAR_WIDTH = 12


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of a table.

    Args:
        title: Its heading.

        is_number: Whether it is aligned to the right.
    """

    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """
    A text with a colour, where there are colours.

    Args:
        text: The text.

        style: In the words of rich.
    """

    text: str
    style: str = ""


Row = Sequence[str | Cell]


def visible(text: str) -> str:
    """
    Return a text with everything that would not simply be seen written as an escape: controls, direction marks.
    """
    shown = "".join(letter if letter.isprintable() else _escaped(letter) for letter in text.replace("\\", "\\\\"))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def print_json(value: object) -> None:
    """
    Print a value as JSON in ASCII; a number that JSON does not have becomes null.
    """
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """
    Return a value as ``print_json`` prints it.
    """
    return json.dumps(finite(value), indent=2, allow_nan=False)


def json_line(value: Mapping[str, object]) -> str:
    """
    Return a mapping as one line of JSON in ASCII.
    """
    return json.dumps(finite(value), allow_nan=False)


def print_table(columns: Sequence[Column], rows: Sequence[Row], *, title: str = "", empty: str = "nothing") -> None:
    """
    Print a table, or a word if there are no rows.
    """
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
    """
    Print names and values below each other.
    """
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        cell = _cell(value)
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {_styled(cell)}")


def rich_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Any:
    """
    Return the table as rich draws it, None if rich is not installed.
    """
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
    """
    Whether somebody is looking.
    """
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
    """
    Return how much of something is used up, as a bar with its figure.
    """
    filled = min(BAR_WIDTH, int(ratio * BAR_WIDTH))
    style = "bold red" if ratio >= 1 else "yellow" if ratio >= 0.8 else "green"  # 0.8: where "near the limit" begins
    return Cell(f"{'█' * filled}{'·' * (BAR_WIDTH - filled)} {ratio:4.0%}", style)


def mode_cell(mode: str) -> Cell:
    """
    Return a mode in its colour.
    """
    return Cell(mode, {"enforce": "bold", "dry-run": "cyan"}.get(mode, "dim"))
