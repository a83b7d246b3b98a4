"""
From a line of a file to a row: CSV, JSON lines, access logs.
"""

import csv
import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from oauth_ratelimit.replay.rows import Row
from oauth_ratelimit.replay.times import access_log_us, moment_us

MAX_NAME_LENGTH = 1024  # of a client or user, as in the configuration
NOWHERE = 1 << 30  # the position of a column that a header does not have
ACCESS_LOG = re.compile(
    r'(?P<host>\S+) \S+ (?P<user>\S+(?: \S+)*?) \[(?P<time>[^\]]{1,64})\] "(?P<request>(?:[^"\\]|\\.)*)"(?: |$)'
)


class Format(enum.StrEnum):
    """
    How a file is written.
    """

    CSV = "csv"
    """``time,client[,user]``, or a header with these names in any order."""

    JSON_LINES = "jsonl"
    """One object a line, with the same names."""

    ACCESS_LOG = "access-log"
    """The common or combined log format of Apache and nginx."""


@dataclass(frozen=True, slots=True)
class Names:
    """
    Under which names a line of CSV or JSON holds what matters.

    Args:
        time: When the request came.

        client: Who asked.

        user: On whose behalf; it may be missing.
    """

    time: str = "time"
    client: str = "client"
    user: str = "user"


class Parser(Protocol):
    """
    Understands one format.
    """

    def parse(self, line: str) -> Row | None:
        """
        Return a line's row, None if it has none and need not: a header, say.

        Raises:
            ValueError: The line is not in this format; the text says why.
        """
        ...


class CsvParser:
    """
    Understands ``time,client[,user]``, and other orders after a header.

    Args:
        names: What the header calls the columns.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._columns: tuple[int, ...] | None = None

    def parse(self, line: str) -> Row | None:
        """
        See ``Parser.parse``.
        """
        fields = line.split(",") if '"' not in line else _quoted(line)
        if self._columns is None:
            header = [field.strip() for field in fields]
            names = (self._names.time, self._names.client, self._names.user)
            if names[0] in header:
                self._columns = tuple(header.index(name) if name in header else NOWHERE for name in names)
                return None
            self._columns = (0, 1, 2)
        time, client, user = self._columns
        if max(time, client) >= len(fields):
            raise ValueError("the column of the time or of the client is missing")
        return Row(moment_us(fields[time]), _name(fields[client]), _user(fields[user]) if user < len(fields) else None)


def _quoted(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as exc:
        raise ValueError(f"no CSV: {exc}") from None


class JsonParser:
    """
    Understands one object a line.

    Args:
        names: Its names.
    """

    def __init__(self, names: Names) -> None:
        self._names = names

    def parse(self, line: str) -> Row | None:
        """
        See ``Parser.parse``.
        """
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("no JSON") from None
        if not isinstance(found, Mapping):
            raise ValueError("no JSON object")
        names = self._names
        if names.time not in found or names.client not in found:
            raise ValueError(f"{names.time!r} or {names.client!r} is missing")
        return Row(moment_us(found[names.time]), _name(found[names.client]), _user(found.get(names.user)))


class AccessLogParser:
    """
    Understands the common and the combined log format.

    Args:
        path: Only requests of this path count; None counts all.

        client_pattern: Finds the client in a line, in its group ``client`` or its first one, and the user in its group
            ``user`` if it has one; lines without a match do not count. None takes the authenticated user of the log,
            which is the client where clients authenticate by HTTP Basic, or the host where there is none.
    """

    def __init__(self, *, path: str | None = None, client_pattern: re.Pattern[str] | None = None) -> None:
        self._path = path
        self._pattern = client_pattern
        groups = client_pattern.groupindex if client_pattern else {}
        self._client_group = groups.get("client", 1)
        self._user_group = groups.get("user")

    def parse(self, line: str) -> Row | None:
        """
        See ``Parser.parse``.
        """
        match = ACCESS_LOG.match(line)
        if match is None:
            raise ValueError("not the common or combined log format")
        host, remote_user, time, request = match.group("host", "user", "time", "request")
        if self._path is not None and _path(request) != self._path:
            return None
        if self._pattern is None:
            return Row(access_log_us(time), _name(host if remote_user == "-" else remote_user))
        found = self._pattern.search(line)
        if found is None or found[self._client_group] is None:
            return None
        user = found[self._user_group] if self._user_group else None
        return Row(access_log_us(time), _name(found[self._client_group]), _user(user))


def _path(request: str) -> str:
    words = request.split(" ")
    return words[1].partition("?")[0] if len(words) > 1 else ""


def _name(value: object) -> str:
    name = value.strip() if isinstance(value, str) else str(value) if type(value) is int else ""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"no name of a client or user: 1 to {MAX_NAME_LENGTH} characters")
    return name


def _user(value: object) -> str | None:
    return None if value is None or value == "" else _name(value)


def guess(line: str) -> Format:
    """
    Return the format that a file's first line looks like.
    """
    if line.startswith("{"):
        return Format.JSON_LINES
    return Format.ACCESS_LOG if ACCESS_LOG.match(line) else Format.CSV
