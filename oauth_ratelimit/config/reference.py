"""The reference of the configuration file in Markdown, made from the models.

``python -m oauth_ratelimit.config.reference docs/configuration.md`` writes it into the documentation, between two
marks; a test fails when that was forgotten.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oauth_ratelimit.config.notation import DURATION_PATTERN, RATES_NOTATION, RATES_PATTERN, UNIT_MS
from oauth_ratelimit.config.schema import config_schema

BEGIN = "<!-- The reference is generated: python -m oauth_ratelimit.config.reference docs/configuration.md -->"
END = "<!-- End of the generated reference. -->"

# Where each model stands in the file, in the order in which people meet them.
SECTIONS = {
    "StoreModel": "store",
    "SyncModel": "sync",
    "LimitsModel": "limits",
    "LimitModel": "One limit",
    "PlaceModel": "One place",
    "PlanModel": "One plan",
    "ClientModel": "One client",
    "EndpointModel": "One endpoint",
    "CanaryModel": "canary",
    "DenialModel": "denial",
    "GuardModel": "guard",
    "GuardLimitsModel": "Limits of the guard",
    "EventsModel": "events",
    "StatisticsModel": "statistics",
    "PrivacyModel": "privacy",
    "NameKeyModel": "One key of user names",
}

_DURATIONS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))


def reference_text() -> str:
    """Return the reference."""
    schema = config_schema()
    parts = [*_section("The file", schema, schema)]
    for name, title in SECTIONS.items():
        parts += _section(title, schema["$defs"][name], schema)
    return "\n".join(parts).rstrip() + "\n"


def with_reference(page: str) -> str:
    """Return a page with the reference between its marks brought up to date.

    Raises:
        ValueError: The page does not have both marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"expected the marks {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{reference_text()}\n{END}{tail}"


def _section(title: str, definition: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield definition["description"]
    yield ""
    yield "| key | value | default | what it is |"
    yield "| --- | --- | --- | --- |"
    required = definition.get("required", ())
    for key, value in definition["properties"].items():
        default = "required" if key in required else _default(value)
        yield f"| `{key}` | {_words(value)} | {default} | {_description(value, schema)} |"
    yield ""


def _description(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    text: str = value.get("description") or schema["$defs"][_name(value["$ref"])]["description"]
    return text.replace("|", "\\|").replace("*", "\\*")


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    if default is None:
        return ""
    return f"`{_written_duration(default)}`" if _is_duration(value) else f"`{json.dumps(default)}`"


def _words(value: Mapping[str, Any]) -> str:
    """Return what may stand for a value, in words."""
    if "$ref" in value:
        title = SECTIONS[_name(value["$ref"])]
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if "anyOf" in value:
        return _choice([part for part in value["anyOf"] if part != {"type": "null"}])
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    kind = value["type"]
    if kind == "array":
        return f"list: {_words(value['items'])}"
    if kind == "object":
        return f"mapping: {_words(value['additionalProperties'])} by name"
    if kind in ("integer", "number"):
        name = "whole number" if kind == "integer" else "number"
        return f"{name} from {value['minimum']} to {value['maximum']}"
    return {"boolean": "`true`, `false`", "string": "text"}[kind]


def _choice(parts: list[Mapping[str, Any]]) -> str:
    if _is_duration({"anyOf": parts}):
        low, high = (_duration(parts[0][bound]) for bound in ("minimum", "maximum"))
        return f"duration from {low} to {high}"
    if RATES_PATTERN in {part.get("pattern") for part in parts}:
        return f"{_words(parts[0])}, or {RATES_NOTATION}"
    return " or ".join(map(_words, parts))


def _is_duration(value: Mapping[str, Any]) -> bool:
    return any(part.get("pattern") == DURATION_PATTERN for part in value.get("anyOf", ()))


def _written_duration(seconds: float) -> str:
    """Return a duration as one writes it into the file: in the largest unit of which it is a whole number."""
    milliseconds = round(seconds * 1000)
    unit, size = next((unit, size) for unit, size in reversed(UNIT_MS.items()) if milliseconds % size == 0)
    return f"{milliseconds // size}{unit}"


def _duration(seconds: float) -> str:
    unit_s, unit = next((item for item in _DURATIONS if seconds >= item[0]), (1, "s"))
    return f"{seconds / unit_s:g} {unit}"


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_reference(path.read_text(encoding="utf-8")), encoding="utf-8")
