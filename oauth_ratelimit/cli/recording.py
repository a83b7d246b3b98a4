"""Facts about a file of recorded traffic, for the commands that read one."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import click

from oauth_ratelimit.cli.output import Cell, visible
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.replay.formats import SECOND_US, ColumnNames, Format, UnusableFile
from oauth_ratelimit.replay.source import OrderedRows, Recording, Source

NO_USERS = (
    "No request has a user, so all count as grants without one: limits.client applies, limits.user does not. If the "
    "file has a column with the user, name it: --column user=NAME"
)
ADDRESSES = (
    "{requests} without a client: the address is taken for the client. Log the client, or find it in the line: "
    "--client-pattern 'client_id=(?P<client>[^& ]+)'"
)
MIN_BAR_BYTES = 4 << 20  # a smaller file takes a second or two


def recording_of(options: Mapping[str, Any], *, is_per_client: bool = False) -> Recording:
    """Return the recording that a command's options describe."""
    return Recording(
        options["file"],
        form=options["form"] and Format(options["form"]),
        names=ColumnNames(**options["columns"]),
        request_path=options["request_path"],
        client_pattern=options["client_pattern"],
        is_per_client=is_per_client,
        spread=options["spread"],
    )


@contextmanager
def opened(recording: Recording) -> Iterator[tuple[Source, OrderedRows]]:
    """Open a recording, with a progress bar on a terminal if the file is large.

    Raises:
        ClickException: The file cannot be read, or it has no column for the time or the client.
    """
    try:
        size = recording.byte_count or 0
        if size < MIN_BAR_BYTES or not sys.stderr.isatty():
            with recording.opened() as parts:
                yield parts
            return
        with (
            click.progressbar(length=size, label="reading", file=sys.stderr) as bar,
            recording.opened(on_read=bar.update) as parts,
        ):
            yield parts
    except OSError as exc:
        raise click.ClickException(f"{visible(str(exc.filename or recording.path))}: {exc.strerror}") from None
    except UnusableFile as exc:
        raise click.ClickException(f"{visible(recording.path)}: {visible(str(exc))}") from None


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """Format, period and problems of a recording.

    Args:
        path: The file.
        source: Format and problems of the file.
        rows: The requests, all read.
    """

    path: str
    source: Source
    rows: OrderedRows

    @property
    def notes(self) -> list[str]:
        """Sentences about what the file does not hold."""
        count = self.source.address_count
        notes = [ADDRESSES.format(requests=counted(count, "request"))] if count else []
        return notes if self.source.user_count or not self.source.row_count else [*notes, NO_USERS]

    def data(self) -> Mapping[str, object]:
        """Return the facts as a record."""
        source, rows = self.source, self.rows
        return {
            "file": self.path,
            "format": source.form and source.form.value,
            "requests": source.row_count,
            "first": None if rows.first_us is None else utc_time(rows.first_us / SECOND_US),
            "last": None if rows.last_us is None else utc_time(rows.last_us / SECOND_US),
            "is_spread": bool(rows.is_spread),
            "user_requests": source.user_count,
            "address_count": source.address_count,
            "left_out_lines": source.left_out_count,
            "bad_lines": source.bad_count,
            "problems": [asdict(problem) for problem in source.problems],
            "late_rows": rows.late_count,
            "is_cut_short": source.is_cut_short,
        }

    def table(self) -> list[tuple[str, str | Cell]]:
        """Return names and values to print; empty without requests."""
        source, rows = self.source, self.rows
        if rows.first_us is None or rows.last_us is None:
            return []
        seconds = Cell("spread evenly, the file has whole seconds", "dim") if rows.is_spread else "as they are"
        return [
            ("file", f"{visible(self.path)}, {source.form and source.form.value}"),
            ("requests", f"{source.row_count:,}"),
            ("from", utc_time(rows.first_us / SECOND_US)),
            ("for", duration((rows.last_us - rows.first_us) / SECOND_US)),
            ("seconds", seconds),
        ]

    def print_problems(self) -> None:
        """Print malformed lines and missing requests to the standard error."""
        source = self.source
        for problem in source.problems:
            click.echo(f"line {problem.line_number}: {visible(problem.reason)}", err=True)
        if source.bad_count:
            click.secho(f"{counted(source.bad_count, 'line')} not understood and not counted", fg="yellow", err=True)
        if self.rows.late_count:
            click.secho(f"{counted(self.rows.late_count, 'row')} too late to be sorted", fg="yellow", err=True)
        if source.is_cut_short:
            click.secho("the file is truncated: it could not be decompressed to its end", fg="yellow", err=True)
        if not source.row_count:
            click.secho(f"{visible(self.path)}: no requests", fg="red", err=True)
