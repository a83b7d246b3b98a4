"""YAML that may be half written or hostile. Imported for files only, because PyYAML takes 20 ms."""

import codecs
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import yaml

from oauth_ratelimit.config.errors import dotted, show
from oauth_ratelimit.errors import ConfigError

MAX_ITEMS = 10_000  # of one list, such as trusted clients
MAX_DEPTH = 20  # the configuration needs 8; deeper nesting only exhausts the stack

NOT_A_MAPPING = "allowed: a mapping; for example mode: dry-run, with a space after the colon"
EMPTY = "the file is empty, like one that is still being written; for the defaults alone write {}"

_SECTION = re.compile(rb"^[\"']?(\w+)[\"']? *:.*(?:\n(?:[ \t#].*)?)*", re.MULTILINE)  # up to the next one


def parse_yaml(content: bytes, *, source: str) -> dict[str, object]:
    """Return the mapping in a YAML document.

    Raises ``ConfigError`` if it is empty, nested too deeply, no mapping or no YAML, or has an alias or a doubled key.
    """
    problem = None
    value: object = None
    try:
        value = _Reader(content).read()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = f"not usable YAML: {exc.problem or exc.context}{where}"  # not the line, which may hold a password
    except yaml.reader.ReaderError as exc:
        problem = _encoding_problem(content, source) or f"not YAML: {exc.reason}"
    except ValueError:
        problem = "not YAML: a number is too long"  # Python refuses some thousand digits
    # Raised outside of the except clauses, because the error of PyYAML quotes the line with any password in it.
    if problem is None and isinstance(value, dict):
        return value
    raise ConfigError([problem or (EMPTY if value is None else f"got {show(value)}, {NOT_A_MAPPING}")], source=source)


def _encoding_problem(content: bytes, source: str) -> str | None:
    """Return what to do about a document that is not UTF-8, None if it is."""
    try:
        content.decode()
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        return (
            f"not UTF-8: byte 0x{content[exc.start]:02x} in line {line}; if the file is in Latin-1, convert it: "
            f"iconv -f latin1 -t utf-8 {shlex.quote(source)} > new.yaml"
        )
    return None


def readable_sections(content: bytes) -> dict[str, object]:
    """Return the sections that matter in a YAML document that is broken elsewhere, as far as they can be read.

    Of a key that is there twice, the last one counts. A value that cannot be read is the text of the section.
    """
    found: dict[str, object] = {}
    for section in _SECTION.finditer(content.replace(b"\0", b"").lstrip(codecs.BOM_UTF8 + codecs.BOM_UTF16)):
        name = section[1].decode(errors="replace")
        if name in ("instance", "store", "privacy", "guard"):
            found[name] = section[0].decode(errors="replace")
            with suppress(ConfigError):
                found |= parse_yaml(section[0], source="section")
    return found


def line_numbers(content: bytes) -> Callable[[str], int | None]:
    """Return a function from the path of a key to its line in a YAML document, or to that of the nearest one above.

    Its first call reads the document.
    """
    lines: dict[str, int] = {}

    def line_of(path: str) -> int | None:
        if not lines:
            _Reader(content, lines).read()
        while path and path not in lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return lines.get(path)

    return line_of


_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)").fullmatch
_FLOAT = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
).fullmatch


class _Reader:
    """YAML without surprises: ``off`` is text, ``010`` is no octal number; no aliases, doubled keys or tags.

    It makes the value of PyYAML's events, which takes a fifth of the time that its nodes take. ``lines`` gets the line
    of each path; None for none.
    """

    def __init__(self, content: bytes, lines: dict[str, int] | None = None) -> None:
        loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
        self._next: Callable[[], Any] = loader(content).get_event
        self._lines = lines

    def read(self) -> object:
        self._next()  # start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), "", 0)
        self._next()  # end of the document
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise _problem("but found another document", event)
        return value

    def _value(self, event: Any, at: str, depth: int) -> object:
        is_scalar = isinstance(event, yaml.ScalarEvent)
        if not is_scalar and isinstance(event, yaml.AliasEvent):
            raise _problem("aliases (*name) are not allowed; what clients share goes into a plan", event)
        if event.tag is not None:
            raise _problem("tags (!name) are not allowed", event)
        if depth == MAX_DEPTH:
            raise _problem(f"nested deeper than {MAX_DEPTH} levels", event)
        if is_scalar:
            return plain_value(event.value) if event.implicit[0] else event.value
        return (self._mapping if isinstance(event, yaml.MappingStartEvent) else self._list)(at, depth + 1)

    def _mapping(self, at: str, depth: int) -> dict[object, object]:
        found: dict[object, object] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._value(event, at, depth)
            if not isinstance(event, yaml.ScalarEvent):
                raise _problem("found unhashable key", event)
            if key in found:
                raise _problem(f"the key {show(event.value)} is there twice", event)
            found[key] = self._value(self._next(), self._noted(event, at, event.value), depth)
        return found

    def _list(self, at: str, depth: int) -> list[object]:
        found: list[object] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            if len(found) == MAX_ITEMS:
                raise _problem(f"a list of more than {MAX_ITEMS:,} items", event)
            found.append(self._value(event, self._noted(event, at, len(found)), depth))
        return found

    def _noted(self, event: Any, at: str, place: str | int) -> str:
        if self._lines is None:
            return at
        path = dotted(at, place) if isinstance(place, str) else f"{at}[{place}]"
        self._lines[path] = event.start_mark.line + 1
        return path


def _problem(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def plain_value(text: str) -> object:
    """Return the value of a text without quotes."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] in "-+.0123456789":
        if _INT(text):
            return int(text.replace("_", ""))
        if _FLOAT(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
