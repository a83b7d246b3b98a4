"""What comes from the code: pages of the reference, and the JSON Schema of the configuration file.

``keys.yaml`` says what each key of the file means.

``python docs/generate.py`` writes it, as the site's build does each time. Tests fail if that was forgotten.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from oauth_ratelimit.cli import command  # noqa: E402  # the sources beside this file, not what is installed
from oauth_ratelimit.config.notation import RATES_NOTATION  # noqa: E402
from oauth_ratelimit.config.settings import FILE  # noqa: E402
from oauth_ratelimit.config.types import NULL, ConfigKey, Section  # noqa: E402

CONFIGURATION = DOCS / "configuration.md"
SCHEMA = DOCS.parent / "oauth_ratelimit" / "config.schema.json"
BEGIN = "<!-- The reference is generated: python docs/generate.py -->"
END = "<!-- End of the generated reference. -->"
DESCRIPTIONS = yaml.safe_load((DOCS / "keys.yaml").read_text(encoding="utf-8"))
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


def schema() -> str:
    """Return the JSON Schema of the configuration file."""
    definitions = {section.anchor: definition(section) for section in FILE.sections[1:]}
    version = "https://json-schema.org/draft/2020-12/schema"
    whole = {"$schema": version, **definition(FILE.sections[0]), "title": "oauth_ratelimit", "$defs": definitions}
    return json.dumps(whole, indent=2) + "\n"


def definition(section: Section) -> dict[str, Any]:
    """Return the JSON Schema that the schemas of keys refer to."""
    required = [name for name, key in section.keys.items() if key.is_required]
    return {
        "title": section.title,
        "description": section.doc,
        "type": "object",
        "properties": {name: schema_of(section, key) for name, key in section.keys.items()},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def description_of(section: Section, key: ConfigKey) -> str:
    """Return what a key means, by default what the section means that it holds."""
    texts: dict[str, str] = DESCRIPTIONS.get(section.title, {})
    if key.name not in texts and not key.kind.sections:
        raise SystemExit(f"docs/keys.yaml lacks a text for {key.name} under {section.title}")
    return texts.get(key.name) or key.kind.sections[0].doc


def schema_of(section: Section, key: ConfigKey) -> dict[str, Any]:
    """Return the JSON Schema of a key's value, with default and description."""
    is_shown = NULL in key.kind.schema.get("anyOf", ()) if key.default is None else key.default not in ([], {})
    return {
        **key.kind.schema,
        **({"default": key.default} if is_shown else {}),
        "description": description_of(section, key),
    }


def configuration_page() -> str:
    """Return the page about the configuration with an up-to-date reference: a table for each section of the file."""
    head, _, rest = CONFIGURATION.read_text(encoding="utf-8").partition(BEGIN)
    described: dict[str, str] = {}
    lines = [line for section in dict.fromkeys(FILE.sections) for line in table_of(section, described)]
    return "\n".join([head + BEGIN, "", *lines, END + rest.partition(END)[2]])


def table_of(section: Section, described: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a section. What an earlier one has described is not repeated: ``described`` has its title."""
    yield from (f"### {section.title}", "", section.doc, "")
    yield from ("| key | value | default | description |", "| --- | --- | --- | --- |")
    for key in section.keys.values():
        doc = description_of(section, key).replace("|", "\\|").replace("*", "\\*")
        title = described.setdefault(doc, section.title)
        doc = doc if title is section.title else f"as in *{title}*"
        words = key.kind.words.replace(RATES_NOTATION, "[text](#durations-and-limits)")
        yield f"| `{key.name}` | {words} | {default_of(key)} | {doc} |"
    yield ""


def default_of(key: ConfigKey) -> str:
    """Return the default of a key as it is written in the file."""
    if key.is_required:
        return "required"
    if key.default in (None, [], {}):
        return ""
    return f"`{(isinstance(key.default, str) and key.default) or json.dumps(key.default)}`"


WRITTEN = {DOCS / "reference" / "cli.md": cli_page, CONFIGURATION: configuration_page, SCHEMA: schema}


def main() -> None:
    """Write what has changed: an unchanged page is not built again."""
    (DOCS / "reference").mkdir(exist_ok=True)
    for path, make in WRITTEN.items():
        text = make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
