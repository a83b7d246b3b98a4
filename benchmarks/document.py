"""Brings ``docs/performance.md`` up to date with the kept results, its pictures too: ``python -m benchmarks.document``.

Each table stands between ``<!-- results: flush -->``, which names the beginning of its results, and ``<!-- end -->``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import pictures
from benchmarks.charts.rows import number
from benchmarks.results import load

PATH = Path(__file__).parents[1] / "docs" / "performance.md"

_TABLE = re.compile(r"<!-- results: (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def main() -> None:
    """Write the tables anew, and draw the pictures."""
    PATH.write_text(with_tables(PATH.read_text(), load()))
    pictures.draw()


def with_tables(page: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with its tables made anew."""

    def table_of(found: re.Match[str]) -> str:
        chosen = [entry for entry in entries if entry["name"].startswith(found[1] + "/")]
        return f"<!-- results: {found[1]} -->\n{_markdown(chosen, len(found[1]) + 1)}<!-- end -->"

    return _TABLE.sub(table_of, page)


def _markdown(entries: Iterable[Mapping[str, Any]], prefix_length: int) -> str:
    met = {True: "met", False: "**missed**", None: ""}
    rows = [
        f"| {entry['name'][prefix_length:]} | {number(entry['value'])} {entry['unit']} | {_spread(entry['spread'])} "
        f"| {entry['goal'] or ''} | {met[entry['met']]} |\n"
        for entry in entries
    ]
    return "".join(["| what | value | ± | goal | |\n| --- | ---: | ---: | --- | --- |\n", *rows])


def _spread(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
