"""
Writes the pages of the reference that come from the code, into ``docs/reference``. The site's build does it each time.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "oauth_ratelimit"
sys.path.insert(0, str(PACKAGE.parent))

from oauth_ratelimit.cli import command  # noqa: E402  # the sources beside this file, not what is installed
from oauth_ratelimit.observe.metric_catalog import CATALOG, NAMESPACE  # noqa: E402

WIDTH = 100  # characters of a line of help
PROGRAM = "flask oauth-ratelimit"


def cli_page() -> str:
    """Return the page about the command line: what ``--help`` says, for each command."""
    intro = "What `--help` says. Flask finds the application by `--app` or `FLASK_APP`."
    lines = ["# Command line", "", intro]
    for names, found in commands(command, ()):
        text = help_of(found, names)
        lines += ["", f"## {' '.join(names)}" if names else f"## {PROGRAM}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def commands(found: click.Command, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and all below it, each with its names."""
    yield names, found
    if isinstance(found, click.Group):
        for name in sorted(found.commands):
            yield from commands(found.commands[name], (*names, name))


def help_of(found: click.Command, names: tuple[str, ...]) -> str:
    """Return what a command says of itself."""
    context = click.Context(found, info_name=" ".join((PROGRAM, *names)), terminal_width=WIDTH, max_content_width=WIDTH)
    return "\n".join(line.rstrip() for line in found.get_help(context).splitlines())


def signals_page() -> str:
    """Return the page about metrics and events."""
    return "\n".join(
        [
            "# Metrics and events",
            "",
            "",
            "## Metrics",
            "",
            "| metric | type | labels | what it is |",
            "| --- | --- | --- | --- |",
            *metric_rows(),
            "",
            "## Events",
            "",
            "Keys are those that every such event has; some have more.",
            "",
            "| event | level | keys | logged in |",
            "| --- | --- | --- | --- |",
            *event_rows(),
            "",
        ]
    )


def metric_rows() -> Iterator[str]:
    """Yield a row for each metric."""
    for metric in CATALOG:
        suffix = "_total" if metric.kind == "counter" else ""
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        yield f"| `{NAMESPACE}_{metric.name}{suffix}` | {metric.kind} | {labels} | {metric.help} |"


LOGS = ("log", "self._log")
LEVELS = ("debug", "info", "warning", "error")


def event_rows() -> Iterator[str]:
    """Yield a row for each event."""
    found: dict[str, tuple[str, set[str], set[str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "demo" in path.parts:
            continue
        for name, level, keys in events_of(path):
            before = found.setdefault(name, (level, set(keys), set()))
            before[1].intersection_update(keys)
            before[2].add(path.relative_to(PACKAGE).as_posix())
    for name in sorted(found):
        level, keys, places = found[name]
        shown = (", ".join(f"`{item}`" for item in sorted(items)) for items in (keys, places))
        yield f"| `{name}` | {level} | {' | '.join(shown)} |"


def events_of(path: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Yield the events that a module logs by name: the event, its level, its keys."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        level = node.func.attr
        if ast.unparse(node.func.value) not in LOGS or level not in LEVELS:
            continue
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and re.fullmatch(r"[a-z_]+", part.value):
                yield part.value, level, {keyword.arg for keyword in node.keywords if keyword.arg not in (None, "key")}


PAGES = {"cli.md": cli_page, "signals.md": signals_page}


def main() -> None:
    """Write the pages."""
    folder = DOCS / "reference"
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        text = page()
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not built again
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
