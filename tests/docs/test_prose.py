"""Plain English: phrases that readers stumbled over stay out of pages, docstrings and the admin page."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import ROOT

FOLDERS = ("oauth_ratelimit", "tests", "benchmarks", "demo", "docs", "examples")
BANNED = {
    r"whoever": "name the person: a client, a reader, an attacker",
    r"of whom": "whose, or a sentence of its own",
    r"what stands for": "the word for it: pseudonym, placeholder",
    r"(?:takes?|took|put|puts|is|are) (?:in )?force|in force": "takes effect, applies, active",
    r"(?:is|are) in order": "is valid",
    r"be told of|hears? of|tells? of": "learn, differ, report",
    r"(?:is|was|were) away": "is unreachable",
    r"such as there is": "the thing itself",
    r"hardly meant": "unlikely",
}
ANY_BANNED = re.compile("|".join(BANNED), re.IGNORECASE)
OPENERS = re.compile(r"(?:What|Who|Whether|How|Where|When|Why|That)\b")


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file with its first line: whole pages, or the docstrings of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield (
            1,
            re.sub(r"^ *```.*?^ *```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE),
        )
    elif path.suffix != ".py":
        yield 1, text
    else:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    yield first.lineno, str(first.value.value)


def found_in(first_line: int, text: str) -> Iterator[str]:
    """Yield each banned phrase with its line and what to write instead."""
    if not ANY_BANNED.search(text):
        return
    for pattern, instead in BANNED.items():
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield f"{first_line + text[: match.start()].count(chr(10))}: {match[0]!r} -> {instead}"


def files() -> list[Path]:
    """Return the files with prose of this project, without those of others."""
    found = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".html", ".js")
    ]
    kept = [path for path in (*ROOT.glob("*.md"), *found) if not {"vendor", "reference"} & set(path.parts)]
    return [path for path in kept if path != Path(__file__)]


def test_prose_uses_plain_words_and_docstrings_open_with_a_noun_or_a_verb() -> None:
    paths, found = files(), []
    for path in paths:
        name = path.relative_to(ROOT)
        for start, text in texts_of(path):
            found += [f"{name}:{line}" for line in found_in(start, text)]
            if path.suffix == ".py" and OPENERS.match(text):
                found.append(f"{name}:{start}: {text[:60]!r} -> a noun or a verb first")
    assert {".md", ".py", ".html", ".js"} == {path.suffix for path in paths}
    assert [] == found


def test_banned_phrase_is_found_with_its_line() -> None:
    assert ["8: 'Whoever' -> name the person: a client, a reader, an attacker"] == list(
        found_in(7, "One.\nWhoever asks")
    )
