"""
Recorded traffic as a whole: a file and how to read it, as often as it takes.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from oauth_ratelimit.replay.formats import AccessLogParser, CsvParser, Format, JsonParser, Names, Parser
from oauth_ratelimit.replay.rows import Ordered, Row
from oauth_ratelimit.replay.source import Source

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Recording:
    """
    A file of recorded traffic.

    Args:
        path: Where it is; ``-`` is the standard input, which can be read only once.

        form: How it is written; None guesses.

        names: What its columns or members are called.

        request_path: Of an access log, only requests of this path count.

        client_pattern: Where an access log says who the client is.

        is_per_client: Whether users of one client are counted together.

        spread: See ``Ordered``.
    """

    path: str
    form: Format | None = None
    names: Names = field(default_factory=Names)
    request_path: str | None = None
    client_pattern: re.Pattern[str] | None = None
    is_per_client: bool = False
    spread: bool | None = None

    @contextmanager
    def opened(self) -> Iterator[tuple[Source, Ordered]]:
        """
        Yield what the file turns out to be and its rows, both filled while the rows are taken.

        Raises:
            OSError: The file cannot be read.
        """
        with Path(self.path).open("rb") if self.path != STANDARD_INPUT else _standard_input() as stream:
            source = Source(stream, self.parser, form=self.form)
            rows = source.rows()
            yield source, Ordered(_without_users(rows) if self.is_per_client else rows, spread=self.spread)

    def parser(self, form: Format) -> Parser:
        """
        Return what understands a format.
        """
        match form:
            case Format.CSV:
                return CsvParser(self.names)
            case Format.JSON_LINES:
                return JsonParser(self.names)
        return AccessLogParser(path=self.request_path, client_pattern=self.client_pattern)


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    yield sys.stdin.buffer


def _without_users(rows: Iterable[Row]) -> Iterator[Row]:
    return (Row(at_us, client) for at_us, client, _ in rows)
