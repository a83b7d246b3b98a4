"""The JSON Schema of the configuration file and its reference in Markdown, made from the declared keys.

``python -m oauth_ratelimit.config.reference docs/configuration.md`` writes the schema, and the reference into the
documentation, between two marks. Tests fail if that was forgotten.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oauth_ratelimit.config.settings import FILE
from oauth_ratelimit.config.types import Key, Section

BEGIN = "<!-- The reference is generated: python -m oauth_ratelimit.config.reference docs/configuration.md -->"
END = "<!-- End of the generated reference. -->"
SCHEMA_PATH = Path(__file__).parents[1] / "config.schema.json"


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FILE.definition(),
        "title": "oauth_ratelimit",
        "$defs": {section.anchor: section.definition() for section in FILE.sections if section is not FILE},
    }


def schema_text() -> str:
    """Return the shipped ``config.schema.json``, byte for byte."""
    return json.dumps(config_schema(), indent=2) + "\n"


def reference_text() -> str:
    """Return the reference: a table for each section of the file."""
    lines = [line for section in dict.fromkeys(FILE.sections) for line in _table(section)]
    return "\n".join(lines).rstrip() + "\n"


def with_reference(page: str) -> str:
    """Return a page with an up-to-date reference between its marks.

    Raises:
        ValueError: The page does not have both marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"expected the marks {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{reference_text()}\n{END}{tail}"


def _table(section: Section) -> Iterator[str]:
    yield f"### {section.title}"
    yield ""
    yield section.doc
    yield ""
    yield "| key | value | default | description |"
    yield "| --- | --- | --- | --- |"
    for key in section.keys.values():
        doc = key.doc.replace("|", "\\|").replace("*", "\\*")
        yield f"| `{key.name}` | {key.kind.words} | {_default(key)} | {doc} |"
    yield ""


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    if key.default in (None, [], {}):
        return ""
    return f"`{(isinstance(key.default, str) and key.default) or json.dumps(key.default)}`"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    path = Path(sys.argv[1])
    path.write_text(with_reference(path.read_text(encoding="utf-8")), encoding="utf-8")
