"""Files of recorded traffic, for the commands that read one: options, progress, facts."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from oauth_ratelimit.cli.context import Function
from oauth_ratelimit.cli.options import invalid
from oauth_ratelimit.cli.output import Value, visible
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.operations.summary import names_text
from oauth_ratelimit.traffic.formats import SECOND_US, ColumnNames, Format, Row, Selection, UnusableFile
from oauth_ratelimit.traffic.rows import OrderedRows, Recording, RowReader

NO_USERS = (
    "No request has a user, so all count as grants without one: limits.client applies, limits.user does not. If the "
    "file has a column with the user, name it: --column user=NAME"
)
ADDRESSES = (
    "{requests} without a client: the address is taken for the client. Log the client, or find it in the line: "
    "--client-pattern 'client_id=(?P<client>[^& ]+)'"
)
NO_TOKEN_PATH = "None of these is taken for the path of the token endpoint: {paths}. Name the right one with --path."
MAX_NAMED = 5  # paths and reasons
MIN_BAR_BYTES = 4 << 20  # a smaller file takes a second or two
ROWS_PER_STEP = 10_000  # of the progress bar


def pattern(value: str) -> re.Pattern[str]:
    """Return a regular expression with a group for the client."""
    try:
        compiled = re.compile(value)
    except re.error as exc:
        raise invalid(value, f"is not a regular expression: {exc}") from None
    if not compiled.groups:
        raise invalid(value, "has no group; mark the client with (?P<client>...)")
    return compiled


def column(value: str) -> tuple[str, str]:
    """Return one of ``time``, ``client``, ``user`` and ``grant``, and its name in a file, of such as ``time=ts``."""
    name, equals, field = value.partition("=")
    if name not in ("time", "client", "user", "grant") or not equals or not field:
        raise invalid(value, "is not time=FIELD, client=FIELD, user=FIELD or grant=FIELD")
    return name, field


def recording_options(command: Function) -> Function:
    """Add the options of a recording, from which ``recording_of`` makes one."""
    for option in (
        click.option(
            "--client-pattern",
            metavar="REGEX",
            type=pattern,
            help="Client in a line: 'client_id=(?P<client>[^& ]+)'. Default: the authenticated user, or the column.",
        ),
        click.option(
            "--path",
            "request_path",
            metavar="PATH",
            help="Path of the token endpoint in a file with paths: /oauth/token, or a pattern such as '/*/token'. "
            "Default: the usual ones. Only answers 200 and 429 count.",
        ),
        click.option(
            "--column",
            "columns",
            metavar="NAME=FIELD",
            multiple=True,
            type=column,
            help="Column name of time, client, user or grant in the file: time=ts. Repeatable.",
        ),
        click.option("--format", "form", type=click.Choice([form.value for form in Format]), help="Default: detected."),
    ):
        command = option(command)
    return command


def recording_of(options: Mapping[str, Any]) -> Recording:
    columns: dict[str, tuple[str, ...]] = {}
    for name, field in options["columns"]:
        columns[name] = (*columns.get(name, ()), field)
    selection = Selection(
        ColumnNames(**columns), path=options["request_path"], client_pattern=options["client_pattern"]
    )
    return Recording(options["file"], form=options["form"] and Format(options["form"]), selection=selection)


@contextmanager
def opened(recording: Recording) -> Iterator["RecordingFacts"]:
    try:
        with recording.opened() as (source, rows):
            yield RecordingFacts(recording, source, rows)
    except OSError as exc:
        raise click.ClickException(f"{visible(str(exc.filename or recording.path))}: {exc.strerror}") from None
    except UnusableFile as exc:
        raise click.ClickException(f"{visible(recording.path)}: {visible(str(exc))}") from None


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """A recording that is read: its rows, and then its format, period and problems."""

    recording: Recording
    source: RowReader
    rows: OrderedRows

    def read(self) -> Iterator[Row]:
        """Yield the rows, on a terminal with a progress bar if the file is large."""
        size = self.recording.byte_count or 0
        if size < MIN_BAR_BYTES or not sys.stderr.isatty():
            yield from self.rows
            return
        with click.progressbar(length=size, label="reading", file=sys.stderr) as bar:
            for number, row in enumerate(self.rows):
                if number % ROWS_PER_STEP == 0:
                    bar.update(self.source.stream.tell() - bar.pos)
                yield row
            bar.update(size - bar.pos)

    @property
    def notes(self) -> list[str]:
        """Sentences about what is left out, and about what the file does not hold."""
        source, parser, late_count = self.source, self.source.parser, self.rows.late_count
        found = (
            (source.bad_count, f"{counted(source.bad_count, 'line')} not understood and not counted"),
            (late_count, f"{counted(late_count, 'row')} too late to be sorted"),
            (source.is_cut_short, "the file is truncated: it could not be decompressed to its end"),
            (not source.row_count, f"{self.recording.path}: no requests"),
            (parser.address_count, ADDRESSES.format(requests=counted(parser.address_count, "request"))),
            (parser.paths and not source.row_count, NO_TOKEN_PATH.format(paths=_named(parser.paths))),
            (source.row_count and not source.user_count, NO_USERS),
        )
        return [text for is_so, text in found if is_so]

    def data(self) -> Record:
        source, parser, rows = self.source, self.source.parser, self.rows
        return {
            "file": self.recording.path,
            "format": parser.form and parser.form.value,
            "requests": source.row_count,
            "first": None if rows.first_us is None else utc_time(rows.first_us / SECOND_US),
            "last": None if rows.last_us is None else utc_time(rows.last_us / SECOND_US),
            "is_spread": bool(rows.is_spread),
            "paths": dict(parser.paths.most_common(MAX_NAMED)) if source.row_count else {},
            "left_out_lines": source.left_out.total(),
            "left_out": dict(source.left_out),
            "bad_lines": source.bad_count,
            "problems": [problem._asdict() for problem in source.problems],
            "notes": self.notes,
        }

    def table(self) -> list[tuple[str, Value]]:
        data, paths, first_us, last_us = self.data(), self.source.parser.paths, self.rows.first_us, self.rows.last_us
        facts: list[tuple[str, Value]] = [
            ("file", f"{self.recording.path}, {data['format']}"),
            ("requests", data["requests"]),
            *([("path", _named(paths))] if data["requests"] and paths else []),
            ("left out", _named(self.source.left_out) or "nothing"),
        ]
        if first_us is not None and last_us is not None:
            facts += [("from", data["first"]), ("for", duration((last_us - first_us) / SECOND_US))]
        return facts

    def print_problems(self) -> None:
        for problem in self.source.problems:
            click.echo(f"line {problem.line_number}: {visible(problem.reason)}", err=True)
        for note in self.notes:
            click.secho(visible(note), fg="yellow", err=True)


def _named(counts: Counter[str]) -> str:
    """Return names with their numbers, the most frequent first."""
    if len(counts) == 1 and (name := next(iter(counts))).startswith("/"):
        return name
    texts = [f"{count:,} {visible(name)}" for name, count in counts.most_common()]
    return ", ".join(names_text(texts, at_most=MAX_NAMED))
