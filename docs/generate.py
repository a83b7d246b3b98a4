"""
Writes the page of the reference that comes from the code, into ``docs/reference``. The site's build does it each time.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from oauth_ratelimit.cli import command  # noqa: E402  # the sources beside this file, not what is installed

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


PAGES = {"cli.md": cli_page}


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
