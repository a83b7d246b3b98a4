"""Recorded traffic for the commands that read it, from a file or from MongoDB: options, progress, facts."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from oauth_ratelimit.cli.context import CliContext, Function
from oauth_ratelimit.cli.options import invalid
from oauth_ratelimit.cli.output import (
    STATISTICS_LAG,
    Value,
    print_facts,
    print_text,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.statistics import ClientMinute
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.format import Record, counted, duration, listed, utc_time
from oauth_ratelimit.store.mongo.statistics import PARTS
from oauth_ratelimit.traffic.formats import (
    SECOND_US,
    ColumnNames,
    Format,
    OrderedRows,
    Recording,
    Row,
    RowReader,
    UnusableFile,
)
from oauth_ratelimit.traffic.minutes import ADMITTED, minutes_of_rows

NO_USERS = (
    "No request has a user, so all count as grants without one: limits.client applies, limits.user does not. If the "
    "file has a column with the user, name it: --column user=NAME"
)
ADDRESSES = (
    "{requests} without a client: the address is taken for the client. Log the client, or find it in the line: "
    "--client-pattern 'client_id=(?P<client>[^& ]+)'"
)
UNCHECKED = (
    "{requests} without a path and a status: all count, whatever they asked for and got. Name the columns: "
    "--column path=NAME --column status=NAME"
)
NO_TOKEN_PATH = "None of these is taken for the path of the token endpoint: {paths}. Name the right one with --path."
NO_LIFETIME = "Tokens are taken to be valid for an hour, because a file does not tell: name it with --token-lifetime."
NO_TRUST = "No configuration, so no client is taken for a trusted one."
TRUSTED = Decision(Mode.OFF, trusted=True)
RECORDING_OPTIONS = ("client_pattern", "request_path", "columns", "file_format")
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
    """Return a field of ``ColumnNames``, and its name in a file, of such as ``time=ts``."""
    name, equals, field = value.partition("=")
    if name not in ColumnNames._fields or not equals or not field:
        raise invalid(value, f"is not NAME=FIELD with one of {', '.join(ColumnNames._fields)}, such as time=ts")
    return name, field


def recording_options(command: Function) -> Function:
    """Add the options of a file beside its name, from which ``recording_of`` makes a recording."""
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
            help="Column name of time, client, user, grant, path, method or status in the file: time=ts. Repeatable.",
        ),
        click.option("--file-format", type=click.Choice([form.value for form in Format]), help="Default: detected."),
    ):
        command = option(command)
    return command


def source_options(command: Function) -> Function:
    """Add ``--file`` and the options of a file to a command that reads MongoDB without them."""
    words = "Recorded requests, instead of the statistics in MongoDB: as replay reads them."
    return click.option("--file", metavar="FILE", help=words)(recording_options(command))


class Source(NamedTuple):
    """Recorded minutes in the order of time."""

    minutes: Iterator[ClientMinute]
    settings: Settings
    since_s: float  # begin of the time in question; minutes before it may come first
    until_s: float
    facts: "RecordingFacts | None"  # of a file

    @property
    def period(self) -> tuple[float, float]:
        """Begin and end, of a file known when its minutes were read."""
        if self.facts is None:
            return self.since_s, self.until_s
        return (self.facts.rows.first_us or 0) / SECOND_US, (self.facts.rows.last_us or 0) / SECOND_US

    def data(self) -> Record:
        since, until = (utc_time(at_s) if at_s else None for at_s in self.period)  # None for a file without rows
        return {"since": since, "until": until, "recording": self.facts and self.facts.data()}

    def print_facts(self, form: str, *, needs_lifetime: bool = False) -> None:
        """Print what was read of a file, before a table; its problems alone before letters and records."""
        if self.facts is not None and form != "json":
            self.facts.print_problems()
            if needs_lifetime and not self.settings.statistics.token_lifetime_s:
                print_text(NO_LIFETIME, fg="yellow", err=True)
            if form == "table":
                print_facts(self.facts.table())

    def print_notes(self, context: CliContext, client_id: str | None, *, is_empty: bool) -> None:
        """Print what people should know about statistics of MongoDB, after a table."""
        if self.facts is None:
            print_text(STATISTICS_LAG, err=True)
            if is_empty:
                print_unknown_client_hint(context, client_id)


@contextmanager
def source_of(
    context: CliContext, options: Mapping[str, Any], *, before_s: float = 0.0, parts: Collection[str] = PARTS
) -> Iterator[Source]:
    """Yield the minutes of a file, or those that MongoDB has of the last time and of ``before_s`` before it."""
    context.allows_invalid_config = True
    client_id = options.get("client")
    if options["file"] is None:
        _refuse(RECORDING_OPTIONS, "is about a file; name it with --file FILE")
        since_s = context.now_s - options["span_s"]
        minutes = context.minutes(since_s - before_s, client_id, parts=parts)
        yield Source(minutes, context.settings, context.recorded_since(since_s), context.now_s, None)
        return
    _refuse(["span_s"], "is about the statistics in MongoDB; a file is read whole")
    settings = _settings_or_none(context)
    trusts = settings.policies.trusts

    def decide(row: Row) -> Decision:
        return TRUSTED if trusts(row.client) else ADMITTED

    with opened(recording_of(options)) as facts:
        found = minutes_of_rows(facts.read(), decide)
        minutes = (minute for minute in found if client_id in (None, minute.client_id))
        yield Source(minutes, settings, 0.0, 0.0, facts)


def _refuse(names: Collection[str], reason: str) -> None:
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} {reason}")


def _settings_or_none(context: CliContext) -> Settings:
    """Return the configuration, or an empty one: a file can be read without any."""
    try:
        return context.settings
    except (click.UsageError, ConfigError):
        print_text(NO_TRUST, fg="yellow", err=True)
        return Settings()


def recording_of(options: Mapping[str, Any]) -> Recording:
    columns: dict[str, tuple[str, ...]] = {}
    for name, field in options["columns"]:
        columns[name] = (*columns.get(name, ()), field)
    return Recording(
        options["file"],
        options["file_format"] and Format(options["file_format"]),
        ColumnNames(**columns),
        request_path=options["request_path"],
        client_pattern=options["client_pattern"],
    )


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
        source, late_count = self.source, self.rows.late_count
        found = (
            (source.bad_count, f"{counted(source.bad_count, 'line')} not understood and not counted"),
            (late_count, f"{counted(late_count, 'row')} too late to be sorted"),
            (source.is_cut_short, "the file is truncated: it could not be decompressed to its end"),
            (not source.row_count, f"{self.recording.path}: no requests"),
            (source.address_count, ADDRESSES.format(requests=counted(source.address_count, "request"))),
            (source.unchecked_count, UNCHECKED.format(requests=counted(source.unchecked_count, "request"))),
            (source.paths and not source.row_count, NO_TOKEN_PATH.format(paths=_named(source.paths))),
            (source.row_count and not source.user_count, NO_USERS),
        )
        return [text for is_so, text in found if is_so]

    def data(self) -> Record:
        source, rows = self.source, self.rows
        return {
            "file": self.recording.path,
            "format": source.form and source.form.value,
            "requests": source.row_count,
            "first": None if rows.first_us is None else utc_time(rows.first_us / SECOND_US),
            "last": None if rows.last_us is None else utc_time(rows.last_us / SECOND_US),
            "is_spread": bool(rows.is_spread),
            "paths": dict(source.paths.most_common(MAX_NAMED)) if source.row_count else {},
            "left_out_lines": source.left_out.total(),
            "left_out": dict(source.left_out),
            "bad_lines": source.bad_count,
            "late_rows": rows.late_count,
            "problems": [{"line_number": number, "reason": reason} for number, reason in source.problems],
            "notes": self.notes,
        }

    def table(self) -> list[tuple[str, Value]]:
        data, paths, first_us, last_us = self.data(), self.source.paths, self.rows.first_us, self.rows.last_us
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
        for number, reason in self.source.problems:
            print_text(f"line {number}: {visible(reason)}", err=True)
        for note in self.notes:
            print_text(visible(note), fg="yellow", err=True)


def _named(counts: Counter[str]) -> str:
    """Return names with their numbers, the most frequent first."""
    if len(counts) == 1 and (name := next(iter(counts))).startswith("/"):
        return name
    texts = [f"{count:,} {visible(name)}" for name, count in counts.most_common()]
    return listed(texts)
