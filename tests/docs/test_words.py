"""One word for one thing: the table of docs/words.md against titles on the page and in the terminal."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import oauth_ratelimit.cli
from oauth_ratelimit.cli.output import Column
from tests.docs.blocks import ROOT

TITLE = re.compile(
    r'<(?:th|dt)\b[^>]*>([a-zA-Z -]+)<|data-title="([a-zA-Z -]+)"|m\.fact\("([a-zA-Z -]+)"|tile\("([^"]+)"'
)


def titles() -> Iterator[str]:
    for found in pkgutil.iter_modules(oauth_ratelimit.cli.__path__, "oauth_ratelimit.cli."):
        for value in vars(importlib.import_module(found.name)).values():
            if isinstance(value, list):
                yield from (each.title for each in value if isinstance(each, Column))
    for path in (ROOT / "oauth_ratelimit" / "admin" / "templates").rglob("*.html"):
        yield from ("".join(groups).lower() for groups in TITLE.findall(path.read_text()))
        yield from re.findall(r'"([a-z -]+)": tally', path.read_text())


def test_titles_on_the_page_and_in_the_terminal_are_the_words_of_the_table() -> None:
    rows = re.findall(r"^\| ([^|`]+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", (ROOT / "docs" / "words.md").read_text(), re.M)[
        2:
    ]
    found = set(titles())

    assert len(rows) > 7 and {"limit", "over-admitted", "token again"} <= found
    assert [] == [other for _, others in rows for other in others.split(", ") if other in found]
    assert [] == [word for word, _ in rows if word not in found]
