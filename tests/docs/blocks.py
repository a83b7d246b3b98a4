"""The code blocks of the documentation, and what may stand in them.

A block that a test cannot run has a comment in the line before it that says why::

    <!-- not run: needs a cluster -->
"""

import re
import shlex
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
    """One fenced block.

    Attributes:
        page: Its file, relative to the project.
        line: Where it begins.
        language: What stands after the fence.
        text: What is in it, without what indents it.
        reason: Why it is not run, None if it is.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None

    @property
    def name(self) -> str:
        """Page and line of the block."""
        return f"{self.page}:{self.line}"


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    page = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(page):
        line = page.count("\n", 0, found.start("fence")) + 1
        text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(path.relative_to(ROOT).as_posix(), line, found["language"], text, found["reason"])


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in these languages."""
    return [block for path in PAGES for block in blocks_of(path) if block.language in languages]


def the_block(path: Path, language: str, containing: str) -> str:
    """Return the one block of a page in this language that contains a text."""
    (found,) = [block for block in blocks_of(path) if block.language == language and containing in block.text]
    return found.text


def commands_of(block: Block) -> Iterator[str]:
    """
    Yield the commands of a block of shell lines; in a ``console`` they stand behind ``$``, and the rest is output.
    """
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language != "console":
            if line.strip():
                yield line
        elif line.startswith("$ "):
            yield line.removeprefix("$ ")


def words_of(command: str) -> list[str]:
    """Return the words of a command line without the comment at its end."""
    return shlex.split(command, comments=True)
