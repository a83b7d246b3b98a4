"""Reading of YAML files that may be huge, half written or hostile."""

import codecs
import errno
import os
import re
import shlex
import stat
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oauth_ratelimit.config.errors import dotted, show
from oauth_ratelimit.errors import ConfigError

MAX_FILE_BYTES = 1_000_000  # some ten thousand clients; YAML takes seconds to parse beyond that
MAX_DEPTH = 20  # the configuration needs 8; deeper nesting only exhausts the stack
_TOO_DEEP = re.compile(rb"(?:[\[{][\s,?]*+){%d}" % (MAX_DEPTH + 1))  # a thousand of them take PyYAML 0.4 s to look at

ABSOLUTE = "an absolute one such as /etc/myauth/ratelimit.yaml works from everywhere"
NOT_A_MAPPING = "allowed: a mapping; for example mode: dry-run, with a space after the colon"
EMPTY = "the file is empty, as one that is being written; for nothing but defaults write {}"


_STORE = re.compile(rb"^store:.*(?:\n(?:[ \t#].*)?)*", re.MULTILINE)  # up to the next key that is not indented


@dataclass(frozen=True, slots=True)
class Stamp:
    """The status of a file. It differs if the file has changed."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp in a file's status."""
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, Stamp]:
    """Return a file's content and its stamp.

    Raises:
        ConfigError: It cannot be read, is no regular file or is too large.
    """
    try:
        return _read(path)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
    name = os.fspath(path)
    where = "" if Path(name).is_absolute() else f"; the path is relative to {Path.cwd()}, {ABSOLUTE}"
    raise ConfigError([f"cannot be read: {reason}{where}"], source=name)


def _read(path: str | os.PathLike[str]) -> tuple[bytes, Stamp]:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES} bytes")
    return content, Stamp.of(status)


def parse_yaml(content: bytes, *, source: str) -> dict[str, object]:
    """Return the mapping in a YAML document.

    Raises:
        ConfigError: It is not YAML, is empty, is no mapping, is nested too deeply, or has an alias or a doubled key.
    """
    problem = _encoding_problem(content, source)
    if problem is None and _TOO_DEEP.search(content):
        problem = f"not usable YAML: nested deeper than {MAX_DEPTH} levels"
    value: object = None
    try:
        value = None if problem else yaml.load(content, Loader=_Loader)  # a SafeLoader that accepts less
    except yaml.MarkedYAMLError as exc:
        problem = _describe(exc)
    except yaml.reader.ReaderError as exc:
        problem = f"not YAML: {exc.reason}"
    except ValueError:
        problem = "not YAML: a number is too long"  # Python refuses some thousand digits
    # Raised outside of the except clauses, because the error of PyYAML quotes the line with any password in it.
    if problem is None and isinstance(value, dict):
        return value
    raise ConfigError([problem or (EMPTY if value is None else f"got {show(value)}, {NOT_A_MAPPING}")], source=source)


def _encoding_problem(content: bytes, source: str) -> str | None:
    """Return the problem of a text that is not UTF-8, such as Latin-1; None if it is or has another mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    try:
        content.decode()
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        return (
            f"not UTF-8: byte 0x{content[exc.start]:02x} in line {line}; if the file is in Latin-1, convert it: "
            f"iconv -f latin1 -t utf-8 {shlex.quote(source)} > new.yaml"
        )
    return None


def store_section(content: bytes) -> object:
    """Return the section ``store`` of a YAML document that may be broken elsewhere; None if it cannot be read."""
    found = _STORE.search(content)
    try:
        return parse_yaml(found[0], source="store").get("store") if found else None
    except ConfigError:
        return None


def line_numbers(content: bytes) -> Callable[[str], int | None]:
    """Return a function from the path of a key to its line in a YAML document, or to that of the nearest one above."""
    lines: dict[str, int] = {}
    loader = _Loader(content)
    try:
        _note_lines(loader.get_single_node(), "", lines)
    finally:
        loader.dispose()

    def line_of(path: str) -> int | None:
        while path and path not in lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return lines.get(path)

    return line_of


def _note_lines(node: yaml.Node | None, at: str, lines: dict[str, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = dotted(at, key.value)
            lines[path] = key.start_mark.line + 1
            _note_lines(value, path, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            path = f"{at}[{index}]"
            lines[path] = value.start_mark.line + 1
            _note_lines(value, path, lines)


def plain_mapping(source: Mapping[str, object]) -> dict[str, object]:
    """Return a copy that consists of dicts and lists, whatever mappings and tuples it is made of.

    Raises:
        ConfigError: It is nested too deeply, or holds itself.
    """
    try:
        return {key: _plain(value, depth=1) for key, value in source.items()}
    except _TooDeep:
        problem = f"nested deeper than {MAX_DEPTH} levels"
    raise ConfigError([problem])


class _TooDeep(Exception):
    pass


def _plain(value: object, *, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise _TooDeep
    if isinstance(value, Mapping):
        return {key: _plain(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth=depth + 1) for item in value]
    return value


def _describe(error: yaml.MarkedYAMLError) -> str:
    """Return the problem and its position, without the line, which may hold a password."""
    mark = error.problem_mark or error.context_mark
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"not usable YAML: {error.problem or error.context}{where}"


class _Loader(yaml.SafeLoader):
    """YAML without surprises: ``off`` is text, ``010`` is no octal number; no aliases, doubled keys or tags."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (*name) are not allowed; what clients share goes into a plan"
        elif getattr(event, "tag", None) is not None:
            problem = "tags (!name) are not allowed"
        elif self.depth == MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
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
                    problem = f"the key {key_node.value[:60]!r} is there twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


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
