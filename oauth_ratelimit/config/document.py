"""YAML that may be half written or hostile. Imported for files only, because PyYAML takes 20 ms."""

import codecs
import re
import shlex
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any

import yaml
from yaml.composer import Composer

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
        value = yaml.load(content, Loader=_Loader)  # a SafeLoader that accepts less
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
        lines.update(() if lines else _lines_below(_Loader(content).get_single_node(), ""))
        while path and path not in lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return lines.get(path)

    return line_of


def _lines_below(node: yaml.Node | None, at: str) -> Iterator[tuple[str, int]]:
    below: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        below = [(dotted(at, key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        below = [(f"{at}[{index}]", value, value) for index, value in enumerate(node.value)]
    for path, first, value in below:
        yield path, first.start_mark.line + 1
        yield from _lines_below(value, path)


_Parser: Any = yaml.SafeLoader
if yaml.__with_libyaml__:

    class _CParser(Composer, yaml.CSafeLoader):
        """libyaml's parser with PyYAML's composer: that of libyaml cannot be told what to refuse."""

        def __init__(self, content: bytes) -> None:
            yaml.CSafeLoader.__init__(self, content)
            Composer.__init__(self)

    _Parser = _CParser


class _Loader(_Parser):  # type: ignore[misc]  # one of two classes
    """YAML without surprises: ``off`` is text, ``010`` is no octal number; no aliases, doubled keys or tags."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (*name) are not allowed; what clients share goes into a plan"
        elif getattr(event, "tag", None) is not None:
            problem = "tags (!name) are not allowed"
        elif self.depth == MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
        elif isinstance(parent, yaml.SequenceNode) and index == MAX_ITEMS:
            problem = f"a list of more than {MAX_ITEMS:,} items"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    problem = f"the key {show(key_node.value)} is there twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key_node.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"|~|null|Null|NULL", ["", "~", "n", "N"]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
