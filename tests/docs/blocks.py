"""The code blocks of the documentation, and what may stand in them.

A block that a test cannot run has a comment in the line before it that says why::

    <!-- not run: needs a cluster -->
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda path: path.as_posix(),
)

_FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>.+?) -->\n+)?"
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})(?P<language>[^\s`]*)[^\n`]*\n(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its place, the language after the fence, its text, and why it is not run; None if it is."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is to be written to, from a first line such as ``# ratelimit.yaml``."""
        found = re.match(r"# ([\w./-]+)\n", self.text)
        return found and found[1]


def blocks_of(path: Path) -> Iterator[Block]:
    page = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(page):
        line = page.count("\n", 0, found.start("fence")) + 1
        text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(path.relative_to(ROOT).as_posix(), line, found["language"], text, found["reason"])


def all_blocks(*languages: str) -> list[Block]:
    return [block for path in PAGES for block in blocks_of(path) if block.language in languages]


def the_block(path: Path, language: str, containing: str) -> str:
    (found,) = [block for block in blocks_of(path) if block.language == language and containing in block.text]
    return found.text
