"""Types of values in the configuration file.

Each type parses a value, reports what is not allowed, and describes itself in JSON Schema and in the reference page.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

from oauth_ratelimit.config.errors import EXAMPLES, MAX_SHOWN, Problems, dotted, without_address
from oauth_ratelimit.config.notation import DURATION_NOTATION, DURATION_PATTERN, parse_duration

NULL = {"type": "null"}


class ValueType(NamedTuple):
    """A type of value."""

    # Returns the value as the package uses it. If it is not allowed, adds to the problems and returns None.
    parse: Callable[[object, str, Problems], Any]
    schema: dict[str, Any]
    words: str  # its values in Markdown, for the reference page
    sections: Sequence["Section"] = ()  # the sections that it contains, each before those below it
    example: str = ""  # a value as it is written in the file; empty for none


def scalar(
    convert: Callable[[Any], Any],
    allowed: str,
    *,
    schema: dict[str, Any],
    words: str,
    advice: Callable[[object], str] = lambda _: "",
) -> ValueType:
    """Return a type of single values. ``convert`` raises ``ValueError`` for one that is not allowed."""

    def parse(value: object, at: str, problems: Problems) -> Any:
        try:
            return convert(value)
        except ValueError:
            problems.bad_value(at, value, allowed + advice(value))
            return None

    return ValueType(parse, schema, words)


def text(allowed: str = "text", *, pattern: str = "", shortest: int = 0, longest: int | None = None) -> ValueType:
    """Return the type of text. Restricted text has to be valid Unicode. ``pattern`` is that of a JSON Schema."""
    regex = re.sub(r"\$$", r"\\Z", pattern)  # in a JSON Schema, $ does not match before a final line feed
    found = {"pattern": pattern, "minLength": shortest, "maxLength": longest}
    restrictions = {name: value for name, value in found.items() if value}

    def convert(value: object) -> str:
        if not isinstance(value, str) or (pattern and not re.search(regex, value)):
            raise ValueError
        if len(value) < shortest or (longest is not None and len(value) > longest):
            raise ValueError
        if restrictions:
            value.encode()  # raises UnicodeEncodeError, which is a ValueError
        return value

    def quoted(value: object) -> str:
        """Return advice for a number, true or false that would be right as text."""
        with suppress(ValueError):
            if isinstance(value, int | float):
                return f'; in quotes it is text: "{convert(json.dumps(value))}"'
        return ""

    return scalar(convert, allowed, schema={"type": "string", **restrictions}, words=allowed, advice=quoted)


def number(low: int, high: int, allowed: str = "", *, is_whole: bool = False) -> ValueType:
    types: Any = int if is_whole else int | float

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, types) or not low <= value <= high:
            raise ValueError
        return int(value) if is_whole else float(value)

    words = f"{'whole ' if is_whole else ''}number from {low} to {high}"
    schema = {"type": "integer" if is_whole else "number", "minimum": low, "maximum": high}
    return scalar(convert, allowed or f"a {words}", schema=schema, words=words)


whole = partial(number, is_whole=True)


def seconds(low_s: float, high_s: float, bounds: str, *, is_whole: bool = False) -> ValueType:
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


def choice(options: Iterable[str]) -> ValueType:
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


def oauth_text(longest: int) -> ValueType:
    """Return the type of what RFC 6749, section 5.2, allows; anything else makes Authlib answer 500."""
    allowed = f"1 to {longest} printable ASCII characters other than quotation mark and backslash"
    return text(allowed, pattern=r"^[ !#-\[\]-~]+$", longest=longest)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


FLAG = scalar(_flag, "true or false", schema={"type": "boolean"}, words="`true`, `false`")


def or_null(kind: ValueType) -> ValueType:
    """Return a type whose value may also be null, which is the same as leaving the key out."""

    def parse(value: object, at: str, problems: Problems) -> Any:
        return None if value is None else kind.parse(value, at, problems)

    schema = {"anyOf": [*kind.schema.get("anyOf", [kind.schema]), NULL]}
    return ValueType(parse, schema, kind.words, kind.sections, kind.example)


def unique(items: list[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))


def list_of(
    item: ValueType, *, build: Callable[[list[Any]], Any] = tuple, most: int | None = None, too_many: str = "items"
) -> ValueType:
    """Return the type of lists of up to ``most`` items. A longer one is refused before its items are parsed.

    ``build`` returns the value made of the parsed items; it raises ValueError if they do not fit together.
    """

    def parse(value: object, at: str, problems: Problems) -> Any:
        if not isinstance(value, list | tuple):
            problems.bad_value(at, value, "a list", example=_as_list(value, at))
            return None
        if most is not None and len(value) > most:
            problems.add(at, f"got {len(value)} {too_many}")
            return None
        known = len(problems)
        items = [item.parse(each, f"{at}[{index}]", problems) for index, each in enumerate(value)]
        return _built(build, items, at, problems, known=known)

    def _as_list(value: object, at: str) -> str:
        """Return an item that is not in a list as a list, if it is a short text that could be one."""
        attempt = Problems()
        if not isinstance(value, str) or len(value) > MAX_SHOWN or value != without_address(value):
            return ""
        item.parse(value, "", attempt)
        return "" if attempt else f"{at.rpartition('.')[2]}: [{json.dumps(value, ensure_ascii=False)}]"

    example = f"[{item.example}]" if item.example else ""
    schema = {"type": "array", "items": item.schema, **({"maxItems": most} if most is not None else {})}
    return ValueType(parse, schema, f"list: {item.words}", item.sections, example)


def map_of(names: ValueType, item: ValueType, *, build: Callable[[dict[str, Any]], Any] = dict) -> ValueType:
    """Return the type of mappings with names that the file chooses. ``build`` is as that of ``list_of``."""

    def parse(value: object, at: str, problems: Problems) -> Any:
        if not isinstance(value, Mapping):
            problems.bad_value(at, value, "a mapping")
            return None
        known = len(problems)
        items = {}
        for name, each in value.items():
            path = dotted(at, name)
            key = names.parse(name, path, problems)
            items[key] = item.parse(each, path, problems)
        return _built(build, items, at, problems, known=known)

    restrictions = {name: value for name, value in names.schema.items() if name != "type"}
    schema = {"type": "object", "propertyNames": restrictions, "additionalProperties": item.schema}
    return ValueType(parse, schema, f"mapping: {item.words} by name", item.sections)


def _built(build: Callable[[Any], Any], parsed: Any, at: str, problems: Problems, *, known: int) -> Any:
    """Return what ``build`` makes of parsed values; None if there are more problems than are known."""
    if len(problems) > known:
        return None
    try:
        return build(parsed)
    except ValueError as exc:
        problems.add(at, str(exc))
        return None


class ConfigKey(NamedTuple):
    """A key of a section."""

    name: str
    kind: ValueType
    default: Any = None  # value when the key is left out, as it is written in the file; None for that of ``build``
    is_required: bool = False
    attribute: str = ""  # the argument of ``build`` that gets the value; empty for ``name``

    def parsed_default(self) -> Any:
        return None if self.default is None else self.kind.parse(self.default, self.name, Problems())

    def example(self) -> str:
        """Return a value as it is written in the file."""
        return EXAMPLES.get(self.name) or self.kind.example or json.dumps(self.default)


@dataclass(slots=True, eq=False)
class Section:
    """The keys of a mapping, for the reference page and the JSON Schema. ``anchor`` is its name in both."""

    title: str
    anchor: str
    doc: str
    keys: dict[str, ConfigKey]


def section(
    title: str,
    doc: str,
    keys: Iterable[ConfigKey],
    *,
    build: Callable[..., Any],
    check: Callable[[dict[str, Any], str, Problems], None] | None = None,
) -> ValueType:
    """Return the type of mappings with known keys. The reference page and the schema have the title.

    ``check`` reports values that do not fit together, even if others are missing or bad; a bad value is None.
    """
    own = Section(title, title.lower().replace(" ", "-"), doc, {key.name: key for key in keys})
    defaults = {
        key.attribute or name: key.parsed_default() for name, key in own.keys.items() if key.default is not None
    }

    def parse(value: object, at: str, problems: Problems) -> Any:
        if not isinstance(value, Mapping):
            problems.bad_value(at, value, "a mapping")
            return None
        known = len(problems)
        values = defaults.copy()
        for name, key in own.keys.items():
            if name not in value and not key.is_required:
                continue
            before, path = len(problems), f"{at}.{name}" if at else name
            if name in value:
                values[key.attribute or name] = key.kind.parse(value[name], path, problems)
            else:
                problems.add(path, "missing", example="")
            if len(problems) > before:
                problems.give_example(name, key.example(), since=before)
        if check:
            check(values, at, problems)
        for name in value:
            if name not in own.keys:
                problems.unknown_key(dotted(at, name), str(name), own.keys)
        return _built(lambda values: build(**values), values, at, problems, known=known)

    first, *_ = own.keys.values()
    below = [each for key in own.keys.values() for each in key.kind.sections]
    example = f"{{{first.name}: {first.example()}}}"
    return ValueType(parse, {"$ref": f"#/$defs/{own.anchor}"}, f"[{title}](#{own.anchor})", [own, *below], example)


def setting(kind: ValueType, *, default: Any = None, is_secret: bool = False) -> Any:
    """Return a dataclass field that is a key of the file, with its default as it is written there.

    The key has the name of the field, without its unit. A secret is left out of ``repr``.
    """
    key = ConfigKey("", kind, default)
    return field(default=key.parsed_default(), repr=not is_secret, metadata={"key": key})


def keys_of(settings: type) -> list[ConfigKey]:
    declared = ((each.name, each.metadata["key"]) for each in fields(settings) if "key" in each.metadata)
    return [key._replace(name=re.sub("_(s|count)$", "", name), attribute=name) for name, key in declared]


def subsection(settings: type, title: str) -> Any:
    """Return a dataclass field that is a section of the file, with the keys that another dataclass declares."""
    return setting(section(title, settings.__doc__ or "", keys_of(settings), build=settings), default={})
