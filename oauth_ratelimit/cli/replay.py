"""The command that replays recorded traffic. It needs neither the application nor a database."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any

import click

from oauth_ratelimit.cli.context import json_option
from oauth_ratelimit.cli.options import columns, frame_counts, interval_s, pattern, rate
from oauth_ratelimit.cli.output import Cell, Column, Row, print_facts, print_json, print_table, visible
from oauth_ratelimit.core.policy import MAX_LIMIT
from oauth_ratelimit.core.window import MAX_FRAMES, default_frame_count
from oauth_ratelimit.operations.serialize import counted, duration, moment
from oauth_ratelimit.replay.fleet import FleetPlan, Sharing
from oauth_ratelimit.replay.formats import SECOND_US, Format, Ordered, Pseudonyms
from oauth_ratelimit.replay.plot import SUFFIXES, NoCharts, draw, require_charts
from oauth_ratelimit.replay.run import ALGORITHMS, COMMON, EXACT_LOG, Contender, Entry, Rate, Replay, Who
from oauth_ratelimit.replay.scene import Busiest, look
from oauth_ratelimit.replay.source import STANDARD_INPUT, Recording, Source

SHOWN, NAMED = 5, 20  # clients most denied: for people, and for programs
COLUMNS = (
    ("algorithm", False),
    ("k", True),
    ("instances", True),
    ("shared", False),
    ("denied", True),
    ("wrongly allowed", True),
    ("wrongly denied", True),
    ("peak", True),
    ("operations", True),
    ("conflicts", True),
    ("waits", True),
)


@dataclass(slots=True)
class Denied:
    """A client with denied requests.

    Args:
        client_id: The client.
        denied: Its denied requests.
        user_count: Users of whom requests were denied.
    """

    client_id: str
    denied: int = 0
    user_count: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A recording and what each contender made of it.

    Args:
        path: The file.
        source: What it turned out to be.
        rows: Its rows, all taken.
        rate: The limit.
        entries: The contenders, the exact log first.
        denied: How many requests of each key the exact log has denied.
    """

    path: str
    source: Source
    rows: Ordered
    rate: Rate
    entries: Sequence[Entry]
    denied: Mapping[Who, int]

    def data(self) -> Mapping[str, object]:
        """Return everything, for programs."""
        source, rows = self.source, self.rows
        return {
            "file": self.path,
            "format": source.form and source.form.value,
            "requests": source.row_count,
            "first": None if rows.first_us is None else moment(rows.first_us / SECOND_US),
            "last": None if rows.last_us is None else moment(rows.last_us / SECOND_US),
            "is_spread": bool(rows.is_spread),
            "left_out_lines": source.left_out_count,
            "bad_lines": source.bad_count,
            "problems": [asdict(problem) for problem in source.problems],
            "late_rows": rows.late_count,
            "is_cut_short": source.is_cut_short,
            "limit": self.rate.limit,
            "window_s": self.rate.window_s,
            "contenders": [self._entry_data(entry) for entry in self.entries],
            "most_denied": [asdict(each) for each in self._most_denied(NAMED)],
        }

    def _entry_data(self, entry: Entry) -> Mapping[str, object]:
        contender, tally, plan = entry.contender, entry.tally, entry.contender.plan
        return {
            "algorithm": contender.algorithm,
            "frames": contender.frame_count or None,
            "instances": plan and plan.instance_count,
            "interval_s": plan and plan.interval_s,
            "near_limit": plan and plan.sharing.value,
            **asdict(tally),
            "wrongly_allowed_percent": tally.percent(tally.wrongly_allowed),
            "wrongly_denied_percent": tally.percent(tally.wrongly_denied),
            "peak_over_limit": tally.peak / self.rate.limit,
        }

    def print(self) -> None:
        """Show everything, for people: what is wrong with the file on the standard error."""
        source, rows = self.source, self.rows
        self._complain()
        if rows.first_us is None or rows.last_us is None:
            click.secho(f"{visible(self.path)}: no requests", fg="red", err=True)
            return
        seconds = Cell("spread evenly, the file has no parts of one", "dim") if rows.is_spread else "as they are"
        print_facts(
            [
                ("file", f"{self.path}, {source.form and source.form.value}"),
                ("requests", f"{source.row_count:,}"),
                ("from", moment(rows.first_us / SECOND_US)),
                ("for", duration((rows.last_us - rows.first_us) / SECOND_US)),
                ("seconds", seconds),
                ("limit", f"{self.rate.limit} in {duration(self.rate.window_s)}"),
            ]
        )
        click.echo()
        print_table([Column(name, is_number=number) for name, number in COLUMNS], list(map(self._row, self.entries)))
        click.echo(
            "\nShares of all requests; peak: most in a window / limit; operations: documents per 1,000 requests."
            "\nWrong is what an exact log of the algorithm's own admissions says. In a flood the same little room is"
            "\nrefused to many, and each counts as wrongly denied: compare what was denied in all."
        )
        self._print_denied()

    def _print_denied(self) -> None:
        total = sum(self.denied.values())
        if not total:
            return
        click.echo()
        has_users = any(user is not None for _, user in self.denied)
        columns = [Column("client"), *(Column(name, is_number=True) for name in ("denied", "of all denied"))]
        rows: list[Row] = [
            (each.client_id, f"{each.denied:,}", f"{each.denied / total:.0%}", *[f"{each.user_count:,}"] * has_users)
            for each in self._most_denied(SHOWN)
        ]
        users = [Column("denied users", is_number=True)] * has_users
        print_table([*columns, *users], rows, title="Most denied clients, by the exact log")

    def _most_denied(self, count: int) -> list[Denied]:
        clients: dict[str, Denied] = {}
        for (client_id, user), denied in self.denied.items():
            client = clients.setdefault(client_id, Denied(client_id))
            client.denied += denied
            client.user_count += user is not None
        return nsmallest(count, clients.values(), key=lambda client: (-client.denied, client.client_id))

    def _row(self, entry: Entry) -> Sequence[str | Cell]:
        contender, tally, plan = entry.contender, entry.tally, entry.contender.plan
        is_shared = plan is not None or contender.asks_database
        is_reference = contender.algorithm == EXACT_LOG
        return (
            contender.algorithm,
            str(contender.frame_count or ""),
            str(plan.instance_count) if plan else "",
            f"{plan.sharing.value}, {plan.interval_s:g} s" if plan else "each request" if is_shared else "",
            f"{tally.percent(tally.requests - tally.admitted):.3f} %",
            Cell("0", "dim") if is_reference else f"{tally.percent(tally.wrongly_allowed):.3f} %",
            Cell("0", "dim") if is_reference else f"{tally.percent(tally.wrongly_denied):.3f} %",
            f"{tally.peak / self.rate.limit:.2f}",
            f"{1000 * tally.operations / tally.requests:,.0f}" if is_shared else "",
            f"{tally.conflicts:,}" if plan else "",
            f"{tally.percent(tally.waits):.1f} %" if is_shared else "",
        )

    def _complain(self) -> None:
        source = self.source
        for problem in source.problems:
            click.echo(f"line {problem.line_number}: {visible(problem.reason)}", err=True)
        if source.bad_count:
            click.secho(f"{counted(source.bad_count, 'line')} not understood, and not counted", fg="yellow", err=True)
        if self.rows.late_count:
            click.secho(f"{counted(self.rows.late_count, 'row')} too late to be put in order", fg="yellow", err=True)
        if source.is_cut_short:
            click.secho("the file breaks off: it could not be unpacked to its end", fg="yellow", err=True)


MAX_INSTANCES = 1000


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--limit", metavar="RATE", required=True, callback=rate, help="Such as 100/minute or 5 per 10 second.")
@click.option("--per", type=click.Choice(["user", "client"]), default="user", show_default=True, help="Who has it.")
@click.option("--algorithm", "algorithms", multiple=True, type=click.Choice(ALGORITHMS), help="Only these; repeatable.")
@click.option("--frames", metavar="K,...", callback=frame_counts, help="Frames per window of ours: 1,2,10.")
@click.option("--burst", type=click.IntRange(1, MAX_LIMIT), help="Of token bucket and GCRA; default: the limit.")
@click.option("--instances", type=click.IntRange(1, MAX_INSTANCES), help="Replay ours on so many instances, too.")
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    show_default=True,
    callback=interval_s,
    help="The sync interval of instances.",
)
@click.option(
    "--near-limit",
    "sharings",
    multiple=True,
    type=click.Choice([sharing.value for sharing in Sharing]),
    default=[Sharing.FLUSH.value],
    show_default=True,
    help="How instances share counts near a limit; interval: no sooner than elsewhere. Repeatable.",
)
@click.option("--format", "form", type=click.Choice([form.value for form in Format]), help="Default: a guess.")
@click.option(
    "--column",
    "columns",
    metavar="NAME=FIELD",
    multiple=True,
    callback=columns,
    help="What time, client or user is called in the file: time=ts. Repeatable.",
)
@click.option("--path", "request_path", metavar="PATH", help="Only these requests of an access log: /oauth/token.")
@click.option(
    "--client-pattern",
    metavar="REGEX",
    callback=pattern,
    help="Where an access log says who the client is: 'client_id=(?P<client>[^& ]+)'. Default: the authenticated user.",
)
@click.option(
    "--spread/--no-spread",
    default=None,
    help="Whether to spread the requests of a second over it. Default: if all times are whole seconds.",
)
@click.option("--picture", metavar="FILE", help=f"Draw the busiest stretch: {' or '.join(SUFFIXES)}.")
@json_option
@click.pass_context
def replay(ctx: click.Context, /, **options: Any) -> None:
    """Replay recorded traffic through algorithms.

    FILE holds the requests: CSV or JSON lines with time, client and user, or an access log; packed by gzip or not; -
    is the standard input. The limit is enforced by each algorithm on the same requests, and each decision compared
    with an exact log of what that algorithm had admitted.

    \b
    wrongly allowed   admitted although the window held the limit already
    wrongly denied    denied although it did not
    peak              the most admitted in any window, as a multiple of the limit

    With --instances ours also run on so many, each request on one of them at random, sharing counts as they do
    through MongoDB; the others then ask the database for each request.
    """
    limit, window_s = options["limit"]
    rate = Rate(limit, window_s, options["burst"])
    contenders = _contenders(options, window_s)
    recording = _recording(options)
    picture = _picture(options["picture"], recording)
    busiest = Busiest(rate)
    run = Replay(rate, contenders, watch=busiest if picture else None)
    try:
        with recording.opened() as (source, rows):
            run.run(rows.batches())
        stretch = busiest.found()
        if picture and stretch:
            with recording.opened() as (_, again):
                draw(look(again.batches(), stretch, rate, contenders=contenders), picture)
    except OSError as exc:
        raise click.ClickException(f"{visible(str(exc.filename or recording.path))}: {exc.strerror}") from None
    except NoCharts as exc:
        raise click.ClickException(str(exc)) from None
    comparison = Comparison(recording.path, source, rows, rate, run.entries, run.denied)
    if options["as_json"]:
        print_json(comparison.data())
    else:
        comparison.print()
    ctx.exit(0 if source.row_count else 1)


def _contenders(options: Mapping[str, Any], window_s: int) -> list[Contender]:
    """Return what is compared, the exact log first: all others are measured by it."""
    frames = options["frames"] or (default_frame_count(window_s),)
    for count in frames:
        if not 1 <= count <= MAX_FRAMES or window_s % count:
            raise click.BadParameter(f"{count} frames do not divide a window of {window_s} s", param_hint="--frames")
    count = options["instances"]
    chosen = [name for name in ALGORITHMS if name in (options["algorithms"] or ALGORITHMS) or name == EXACT_LOG]
    common = [Contender(name, asks_database=count is not None) for name in chosen if name in COMMON]
    ours = [(name, frame_count) for name in chosen if name not in COMMON for frame_count in frames]
    plans = [FleetPlan(count, options["interval"], Sharing(sharing)) for sharing in options["sharings"] if count]
    alone = [Contender(name, frame_count) for name, frame_count in ours]
    return common + alone + [Contender(name, frame_count, plan) for plan in plans for name, frame_count in ours]


def _recording(options: Mapping[str, Any]) -> Recording:
    return Recording(
        options["file"],
        form=options["form"] and Format(options["form"]),
        names=Pseudonyms(**options["columns"]),
        request_path=options["request_path"],
        client_pattern=options["client_pattern"],
        is_per_client=options["per"] == "client",
        spread=options["spread"],
    )


def _picture(name: str | None, recording: Recording) -> Path | None:
    """Return where to draw, after making sure that it can be done: a replay may take long."""
    if name is None:
        return None
    if Path(name).suffix not in SUFFIXES:
        raise click.BadParameter(f"pictures end in {' or '.join(SUFFIXES)}", param_hint="--picture")
    if recording.path == STANDARD_INPUT:
        raise click.BadParameter("needs a file, to be read twice", param_hint="--picture")
    try:
        require_charts()
    except NoCharts as exc:
        raise click.ClickException(str(exc)) from None
    return Path(name)
