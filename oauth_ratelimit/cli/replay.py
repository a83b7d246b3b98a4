"""Command that replays recorded traffic. It needs neither the application nor a database."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any

import click

from oauth_ratelimit.cli.options import columns, frame_counts, interval_s, json_option, pattern, rate
from oauth_ratelimit.cli.output import Cell, Column, Row, print_facts, print_json, print_table, visible
from oauth_ratelimit.core.policy import MAX_LIMIT
from oauth_ratelimit.core.window import MAX_FRAMES, default_frame_count
from oauth_ratelimit.operations.format import counted, duration, utc_time
from oauth_ratelimit.replay.chart_data import BusiestSegment, chart_data
from oauth_ratelimit.replay.fleet import FleetPlan, Sharing
from oauth_ratelimit.replay.formats import SECOND_US, ColumnNames, Format
from oauth_ratelimit.replay.plot import SUFFIXES, NoCharts, draw, require_charts
from oauth_ratelimit.replay.run import ALGORITHMS, COMMON, EXACT_LOG, ClientUser, Contender, Rate, Replay, Result
from oauth_ratelimit.replay.source import STANDARD_INPUT, OrderedRows, Recording, Source

MAX_INSTANCES = 1000
MOST_DENIED_ROWS, MOST_DENIED_RECORDS = 5, 20
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
class DeniedClient:
    """A client with denied requests.

    Args:
        client_id: The client.
        denied: Number of denied requests.
        user_count: Number of users with denied requests.
    """

    client_id: str
    denied: int = 0
    user_count: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of all contenders on one recording.

    Args:
        path: The file.
        source: Format and problems of the file.
        rows: The requests, all read.
        rate: The limit.
        results: The contenders, the exact log first.
        denied: Number of requests of each key that the exact log denied.
    """

    path: str
    source: Source
    rows: OrderedRows
    rate: Rate
    results: Sequence[Result]
    denied: Mapping[ClientUser, int]

    def data(self) -> Mapping[str, object]:
        """Return the results as a record."""
        source, rows = self.source, self.rows
        return {
            "file": self.path,
            "format": source.form and source.form.value,
            "requests": source.row_count,
            "first": None if rows.first_us is None else utc_time(rows.first_us / SECOND_US),
            "last": None if rows.last_us is None else utc_time(rows.last_us / SECOND_US),
            "is_spread": bool(rows.is_spread),
            "left_out_lines": source.left_out_count,
            "bad_lines": source.bad_count,
            "problems": [asdict(problem) for problem in source.problems],
            "late_rows": rows.late_count,
            "is_cut_short": source.is_cut_short,
            "limit": self.rate.limit,
            "window_s": self.rate.window_s,
            "contenders": [self._result_data(result) for result in self.results],
            "most_denied": [asdict(each) for each in self._most_denied(MOST_DENIED_RECORDS)],
        }

    def _result_data(self, result: Result) -> Mapping[str, object]:
        contender, tally, plan = result.contender, result.tally, result.contender.plan
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
        """Print the results; problems of the file go to the standard error."""
        source, rows = self.source, self.rows
        self._print_problems()
        if rows.first_us is None or rows.last_us is None:
            click.secho(f"{visible(self.path)}: no requests", fg="red", err=True)
            return
        seconds = Cell("spread evenly, the file has whole seconds", "dim") if rows.is_spread else "as they are"
        print_facts(
            [
                ("file", f"{self.path}, {source.form and source.form.value}"),
                ("requests", f"{source.row_count:,}"),
                ("from", utc_time(rows.first_us / SECOND_US)),
                ("for", duration((rows.last_us - rows.first_us) / SECOND_US)),
                ("seconds", seconds),
                ("limit", f"{self.rate.limit} in {duration(self.rate.window_s)}"),
            ]
        )
        click.echo()
        print_table([Column(name, is_number=number) for name, number in COLUMNS], list(map(self._row, self.results)))
        click.echo(
            "\nShares of all requests; peak: most in a window / limit; operations: documents per 1,000 requests."
            "\nWrong compares with an exact log of the algorithm's own admissions. In a flood one free hit is denied to"
            "\nmany requests, and each counts as wrongly denied: compare the total share of denied requests."
        )
        self._print_most_denied()

    def _print_most_denied(self) -> None:
        total = sum(self.denied.values())
        if not total:
            return
        click.echo()
        has_users = any(user is not None for _, user in self.denied)
        columns = [Column("client"), *(Column(name, is_number=True) for name in ("denied", "of all denied"))]
        rows: list[Row] = [
            (each.client_id, f"{each.denied:,}", f"{each.denied / total:.0%}", *[f"{each.user_count:,}"] * has_users)
            for each in self._most_denied(MOST_DENIED_ROWS)
        ]
        users = [Column("denied users", is_number=True)] * has_users
        print_table([*columns, *users], rows, title="Most denied clients, by the exact log")

    def _most_denied(self, count: int) -> list[DeniedClient]:
        clients: dict[str, DeniedClient] = {}
        for (client_id, user), denied in self.denied.items():
            client = clients.setdefault(client_id, DeniedClient(client_id))
            client.denied += denied
            client.user_count += user is not None
        return nsmallest(count, clients.values(), key=lambda client: (-client.denied, client.client_id))

    def _row(self, result: Result) -> Sequence[str | Cell]:
        contender, tally, plan = result.contender, result.tally, result.contender.plan
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

    def _print_problems(self) -> None:
        source = self.source
        for problem in source.problems:
            click.echo(f"line {problem.line_number}: {visible(problem.reason)}", err=True)
        if source.bad_count:
            click.secho(f"{counted(source.bad_count, 'line')} not understood and not counted", fg="yellow", err=True)
        if self.rows.late_count:
            click.secho(f"{counted(self.rows.late_count, 'row')} too late to be sorted", fg="yellow", err=True)
        if source.is_cut_short:
            click.secho("the file is truncated: it could not be decompressed to its end", fg="yellow", err=True)


@click.command("replay")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--limit", metavar="RATE", required=True, callback=rate, help="Such as 100/minute or 5 per 10 second.")
@click.option(
    "--per",
    type=click.Choice(["user", "client"]),
    default="user",
    show_default=True,
    help="Limit of each user or each client.",
)
@click.option(
    "--algorithm", "algorithms", multiple=True, type=click.Choice(ALGORITHMS), help="Only this one; repeatable."
)
@click.option("--frames", metavar="K,...", callback=frame_counts, help="Frames per window of our estimators: 1,2,10.")
@click.option("--burst", type=click.IntRange(1, MAX_LIMIT), help="For token bucket and GCRA; default: the limit.")
@click.option(
    "--instances", type=click.IntRange(1, MAX_INSTANCES), help="Also replay our estimators on this many instances."
)
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
    help="How instances share counts near a limit; interval: only at the sync interval. Repeatable.",
)
@click.option("--format", "form", type=click.Choice([form.value for form in Format]), help="Default: detected.")
@click.option(
    "--column",
    "columns",
    metavar="NAME=FIELD",
    multiple=True,
    callback=columns,
    help="Column name of time, client or user in the file: time=ts. Repeatable.",
)
@click.option("--path", "request_path", metavar="PATH", help="Only these requests of an access log: /oauth/token.")
@click.option(
    "--client-pattern",
    metavar="REGEX",
    callback=pattern,
    help="Client in an access log: 'client_id=(?P<client>[^& ]+)'. Default: the authenticated user.",
)
@click.option(
    "--spread/--no-spread",
    default=None,
    help="Spread the requests of a second over it. Default: if all times are whole seconds.",
)
@click.option("--picture", metavar="FILE", help=f"Draw the busiest stretch: {' or '.join(SUFFIXES)}.")
@json_option
@click.pass_context
def replay_command(ctx: click.Context, /, **options: Any) -> None:
    """Replay recorded traffic through algorithms.

    FILE holds the requests: CSV or JSON lines with time, client and user, or an access log, gzipped or not; - is the
    standard input. Each algorithm enforces the limit on the same requests, and each decision is compared with an exact
    log of the requests that this algorithm admitted.

    \b
    wrongly allowed   admitted although the window already held the limit
    wrongly denied    denied although it did not
    peak              the most admitted in any window, as a multiple of the limit

    With --instances our estimators also run on several instances, each request on a random one, sharing counts as
    they do through MongoDB; the other algorithms then query the database for each request.
    """
    limit, window_s = options["limit"]
    rate = Rate(limit, window_s, options["burst"])
    contenders = _contenders(options, window_s)
    recording = _recording(options)
    picture = _picture(options["picture"], recording)
    busiest = BusiestSegment(rate)
    run = Replay(rate, contenders, on_decisions=busiest if picture else None)
    try:
        with recording.opened() as (source, rows):
            run.run(rows.batches())
        segment = busiest.found()
        if picture and segment:
            with recording.opened() as (_, again):
                draw(chart_data(again.batches(), segment, rate, contenders=contenders), picture)
    except OSError as exc:
        raise click.ClickException(f"{visible(str(exc.filename or recording.path))}: {exc.strerror}") from None
    except NoCharts as exc:
        raise click.ClickException(str(exc)) from None
    comparison = Comparison(recording.path, source, rows, rate, run.results, run.denied)
    if options["as_json"]:
        print_json(comparison.data())
    else:
        comparison.print()
    ctx.exit(0 if source.row_count else 1)


def _contenders(options: Mapping[str, Any], window_s: int) -> list[Contender]:
    """Return the algorithms to compare. The exact log is first, because the others are compared with it."""
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
        names=ColumnNames(**options["columns"]),
        request_path=options["request_path"],
        client_pattern=options["client_pattern"],
        is_per_client=options["per"] == "client",
        spread=options["spread"],
    )


def _picture(name: str | None, recording: Recording) -> Path | None:
    """Return the path of the picture. Checked before the replay, which may take long."""
    if name is None:
        return None
    if Path(name).suffix not in SUFFIXES:
        raise click.BadParameter(f"the name must end in {' or '.join(SUFFIXES)}", param_hint="--picture")
    if recording.path == STANDARD_INPUT:
        raise click.BadParameter("needs a file, to be read twice", param_hint="--picture")
    try:
        require_charts()
    except NoCharts as exc:
        raise click.ClickException(str(exc)) from None
    return Path(name)
