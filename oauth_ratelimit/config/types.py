"""Types of values in the configuration file.

Each type parses a value, reports what is not allowed, and describes itself in JSON Schema and in the reference page.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from oauth_ratelimit.config.errors import EXAMPLES, MAX_SHOWN, Problems, dotted
from oauth_ratelimit.config.notation import DURATION_NOTATION, DURATION_PATTERN, parse_duration

NULL = {"type": "null"}


class Kind:
    """A type of value.

    Args:
        parse: Returns the value as the package uses it. If it is not allowed, adds to the problems and returns None.
        schema: Its JSON Schema.
        words: Its values in Markdown, for the reference page.
        sections: The sections that it contains, each before those below it.
    """

    def __init__(
        self,
        parse: Callable[[object, str, Problems], Any],
        schema: dict[str, Any],
        words: str,
        sections: Sequence["Section"] = (),
    ) -> None:
        self.parse = parse
        self.schema = schema
        self.words = words
        self.sections = sections


def scalar(convert: Callable[[Any], Any], allowed: str, *, schema: dict[str, Any], words: str) -> Kind:
    """Return a type of single values.

    Args:
        convert: Returns the value as the package uses it; raises ValueError if it is not allowed.
        allowed: The allowed values, for the error message.
        schema: Its JSON Schema.
        words: Its values in Markdown.
    """

    def parse(value: object, at: str, problems: Problems) -> Any:
        try:
            return convert(value)
        except ValueError:
            problems.bad_value(at, value, allowed)
            return None

    return Kind(parse, schema, words)


def text(
    allowed: str = "text",
    *,
    pattern: str = "",
    shortest: int = 0,
    longest: int | None = None,
    reserved: Sequence[str] = (),
) -> Kind:
    """Return the type of text. Restricted text has to be valid Unicode. ``pattern`` is that of a JSON Schema."""
    regex = re.compile(re.sub(r"\$$", r"\\Z", pattern))  # in a JSON Schema, $ does not match before a final line feed
    excluded = {"enum": list(reserved)} if reserved else None
    found = {"pattern": pattern, "minLength": shortest, "maxLength": longest, "not": excluded}
    restrictions = {name: value for name, value in found.items() if value}

    def convert(value: object) -> str:
        if not isinstance(value, str) or value in reserved or not regex.search(value):
            raise ValueError
        if len(value) < shortest or (longest is not None and len(value) > longest):
            raise ValueError
        if restrictions:
            value.encode()  # raises UnicodeEncodeError, which is a ValueError
        return value

    def parse(value: object, at: str, problems: Problems) -> Any:
        try:
            return convert(value)
        except ValueError:
            problems.bad_value(at, value, allowed + _quoted(value))
            return None

    def _quoted(value: object) -> str:
        """Return advice for a number, true or false that would be right as text."""
        if not isinstance(value, int | float):
            return ""
        try:
            return f'; in quotes it is text: "{convert(json.dumps(value))}"'
        except ValueError:
            return ""

    return Kind(parse, {"type": "string", **restrictions}, "text")


def whole(low: int, high: int, allowed: str = "") -> Kind:
    """Return the type of whole numbers within bounds."""

    def convert(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    words = f"whole number from {low} to {high}"
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return scalar(convert, allowed or f"a {words}", schema=schema, words=words)


def number(low: int, high: int) -> Kind:
    """Return the type of numbers within bounds."""

    def convert(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError
        return float(value)

    words = f"number from {low} to {high}"
    return scalar(convert, f"a {words}", schema={"type": "number", "minimum": low, "maximum": high}, words=words)


def seconds(low_s: float, high_s: float, bounds: str, *, is_whole: bool = False) -> Kind:
    """Return the type of durations within bounds, which ``bounds`` names in words. Whole seconds are an int."""

    def convert(value: object) -> float:
        duration_s = parse_duration(value)
        if not low_s <= duration_s <= high_s or (is_whole and not duration_s.is_integer()):
            raise ValueError
        return int(duration_s) if is_whole else duration_s

    allowed = f"{'whole seconds from ' if is_whole else ''}{bounds} ({DURATION_NOTATION})"
    plain = {"type": "integer" if is_whole else "number", "minimum": low_s, "maximum": high_s}
    schema = {"anyOf": [plain, {"type": "string", "pattern": DURATION_PATTERN}]}
    return scalar(convert, allowed, schema=schema, words=f"duration from {bounds}")


def choice(options: Iterable[str]) -> Kind:
    """Return the type of one of several words, or of the members of a string enum."""
    by_name = {str(option): option for option in options}

    def convert(value: object) -> str:
        if not isinstance(value, str) or value not in by_name:
            raise ValueError
        return by_name[value]

    *names, last = by_name
    words = ", ".join(f"`{name}`" for name in by_name)
    schema = {"type": "string", "enum": list(by_name)}
    return scalar(convert, f"{', '.join(names)} or {last}", schema=schema, words=words)


def flag() -> Kind:
    """Return the type of ``true`` and ``false``."""

    def convert(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return scalar(convert, "true or false", schema={"type": "boolean"}, words="`true`, `false`")


def or_null(kind: Kind) -> Kind:
    """Return a type whose value may also be null, which is the same as leaving the key out."""

    def parse(value: object, at: str, problems: Problems) -> Any:
        return None if value is None else kind.parse(value, at, problems)

    schema = {"anyOf": [*kind.schema.get("anyOf", [kind.schema]), NULL]}
    return Kind(parse, schema, kind.words, kind.sections)


def unique(items: list[Any]) -> tuple[Any, ...]:
    """Return the items in their order, each once."""
    return tuple(dict.fromkeys(items))


def list_of(item: Kind, *, shortest: int = 0, build: Callable[[list[Any]], Any] = tuple) -> Kind:
    """Return the type of lists.

    Args:
        item: The type of each item.
        shortest: The smallest number of items, 0 or 1.
        build: Returns the value made of the parsed items; raises ValueError if they do not fit together.
    """

    def parse(value: object, at: str, problems: Problems) -> Any:
        if not isinstance(value, list) or len(value) < shortest:
            allowed = "a list with at least one item" if isinstance(value, list) else "a list"
            problems.bad_value(at, value, allowed, example=_as_list(value, at))
            return None
        known = len(problems)
        items = [item.parse(each, f"{at}[{index}]", problems) for index, each in enumerate(value)]
        return _built(build, items, at, problems, known=known)

    def _as_list(value: object, at: str) -> str:
        """Return an item that is not in a list as a list, if it is a short text that could be one."""
        attempt = Problems()
        if not isinstance(value, str) or len(value) > MAX_SHOWN or "://" in value:
            return ""
        item.parse(value, "", attempt)
        return "" if attempt else f"{at.rpartition('.')[2]}: [{json.dumps(value, ensure_ascii=False)}]"

    schema = {"type": "array", "items": item.schema, **({"minItems": shortest} if shortest else {})}
    return Kind(parse, schema, f"list: {item.words}", item.sections)


def map_of(names: Kind, item: Kind, *, build: Callable[[dict[str, Any]], Any] = dict) -> Kind:
    """Return the type of mappings with names that the file chooses.

    Args:
        names: The type of the names.
        item: The type of the values.
        build: Returns the value made of the parsed mapping; raises ValueError if its items do not fit together.
    """

    def parse(value: object, at: str, problems: Problems) -> Any:
        if not isinstance(value, dict):
            problems.bad_value(at, value, "a mapping")
            return None
        known = len(problems)
        items = {
            names.parse(name, dotted(at, name), problems): item.parse(each, dotted(at, name), problems)
            for name, each in value.items()
        }
        return _built(build, items, at, problems, known=known)

    restrictions = {name: value for name, value in names.schema.items() if name != "type"}
    schema = {"type": "object", "propertyNames": restrictions, "additionalProperties": item.schema}
    return Kind(parse, schema, f"mapping: {item.words} by name", item.sections)


def _built(build: Callable[[Any], Any], parsed: Any, at: str, problems: Problems, *, known: int) -> Any:
    """Return what ``build`` makes of parsed values; None if there are more problems than are known."""
    if len(problems) > known:
        return None
    try:
        return build(parsed)
    except ValueError as exc:
        problems.add(at, str(exc))
        return None


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section.

    Args:
        name: As it is written in the file.
        kind: The type of its value.
        doc: Description.
        default: Value when the key is left out, as it is written in the file; None for no value.
        is_required: True if the key is required.
        attribute: The argument of ``build`` that gets the value; empty for ``name``.
    """

    name: str
    kind: Kind
    doc: str
    default: Any = None
    is_required: bool = False
    attribute: str = ""

    def parse_default(self) -> Any:
        """Return the value when the key is left out."""
        return None if self.default is None else self.kind.parse(self.default, self.name, Problems())

    def example(self) -> str:
        """Return a value as it is written in the file."""
        return EXAMPLES.get(self.name) or json.dumps(self.default)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the value, with default and description."""
        is_shown = NULL in self.kind.schema.get("anyOf", ()) if self.default is None else self.default not in ([], {})
        return {**self.kind.schema, **({"default": self.default} if is_shown else {}), "description": self.doc}


class Section(Kind):
    """A mapping with known keys.

    Args:
        title: Heading in the reference page, and its name in the schema.
        doc: Description.
        keys: Its keys.
        build: Returns the value made of the parsed keys; raises ValueError if they do not fit together.
        check: Reports values that do not fit together, even if others are bad; a bad value is None.
    """

    def __init__(
        self,
        title: str,
        doc: str,
        keys: Iterable[Key],
        *,
        build: Callable[..., Any],
        check: Callable[[dict[str, Any], str, Problems], None] | None = None,
    ) -> None:
        self.title = title
        self.doc = doc
        self.keys = {key.name: key for key in keys}
        self.anchor = title.lower().replace(" ", "-")
        self._build = build
        self._check = check
        below = [section for key in self.keys.values() for section in key.kind.sections]
        super().__init__(
            self._parse, {"$ref": f"#/$defs/{self.anchor}"}, f"[{title}](#{self.anchor})", sections=[self, *below]
        )

    @classmethod
    def of(cls, settings: type, title: str) -> "Section":
        """Return the section of a dataclass whose fields are made by ``setting``."""
        return cls(title, settings.__doc__ or "", keys_of(settings), build=settings)

    def _parse(self, value: object, at: str, problems: Problems) -> Any:
        if not isinstance(value, dict):
            problems.bad_value(at, value, "a mapping")
            return None
        known = len(problems)
        values = {}
        for name, key in self.keys.items():
            before = len(problems)
            parsed = key.kind.parse(value[name], dotted(at, name), problems) if name in value else key.parse_default()
            values[key.attribute or name] = parsed
            if key.is_required and name not in value:
                problems.missing(dotted(at, name))
            if len(problems) > before:
                problems.give_example(name, key.example(), since=before)
        if self._check:
            self._check(values, at, problems)
        for name in value:
            if name not in self.keys:
                problems.unknown_key(dotted(at, name), str(name), self.keys)
        return _built(lambda values: self._build(**values), values, at, problems, known=known)

    def definition(self) -> dict[str, Any]:
        """Return the JSON Schema that ``schema`` refers to."""
        required = [name for name, key in self.keys.items() if key.is_required]
        return {
            "title": self.title,
            "description": self.doc,
            "type": "object",
            "properties": {name: key.schema() for name, key in self.keys.items()},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }


def setting(kind: Kind, doc: str = "", *, default: Any = None, name: str = "", is_secret: bool = False) -> Any:
    """Return a dataclass field that is a key of the file.

    Args:
        kind: The type of its value.
        doc: Description; empty for that of a section.
        default: Value when the key is left out, as it is written in the file.
        name: Name of the key; empty for that of the field.
        is_secret: True to leave the value out of ``repr``.
    """
    declared = Key(name, kind, doc or (kind.doc if isinstance(kind, Section) else ""), default)
    return field(default=declared.parse_default(), repr=not is_secret, metadata={"key": declared})


def keys_of(settings: type) -> list[Key]:
    """Return the keys that the fields of a dataclass declare."""
    declared = ((each.name, each.metadata["key"]) for each in fields(settings) if "key" in each.metadata)
    return [replace(key, name=key.name or name, attribute=name) for name, key in declared]
