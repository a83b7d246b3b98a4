"""
The command that replays recorded traffic. It needs neither the application nor a database.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oauth_ratelimit.cli import parameters
from oauth_ratelimit.cli.comparison import Comparison
from oauth_ratelimit.cli.context import json_option
from oauth_ratelimit.cli.output import print_json, visible
from oauth_ratelimit.core.policy import MAX_LIMIT
from oauth_ratelimit.core.window import MAX_FRAMES, default_frame_count
from oauth_ratelimit.replay.fleet import FleetPlan, Sharing
from oauth_ratelimit.replay.formats import Format, Names
from oauth_ratelimit.replay.plot import SUFFIXES, NoCharts, draw, require_charts
from oauth_ratelimit.replay.recording import STANDARD_INPUT, Recording
from oauth_ratelimit.replay.run import ALGORITHMS, COMMON, EXACT_LOG, Contender, Rate, Replay
from oauth_ratelimit.replay.scene import Busiest, look

MAX_INSTANCES = 1000


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--limit", metavar="RATE", required=True, callback=parameters.rate, help="Such as 100/minute or 5 per 10 second."
)
@click.option("--per", type=click.Choice(["user", "client"]), default="user", show_default=True, help="Who has it.")
@click.option("--algorithm", "algorithms", multiple=True, type=click.Choice(ALGORITHMS), help="Only these; repeatable.")
@click.option("--frames", metavar="K,...", callback=parameters.frame_counts, help="Frames per window of ours: 1,2,10.")
@click.option("--burst", type=click.IntRange(1, MAX_LIMIT), help="Of token bucket and GCRA; default: the limit.")
@click.option("--instances", type=click.IntRange(1, MAX_INSTANCES), help="Replay ours on so many instances, too.")
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    show_default=True,
    callback=parameters.interval_s,
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
    callback=parameters.columns,
    help="What time, client or user is called in the file: time=ts. Repeatable.",
)
@click.option("--path", "request_path", metavar="PATH", help="Only these requests of an access log: /oauth/token.")
@click.option(
    "--client-pattern",
    metavar="REGEX",
    callback=parameters.pattern,
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
    """
    Replay recorded traffic through algorithms.

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
    """
    Return what is compared, the exact log first: all others are measured by it.
    """
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
        names=Names(**options["columns"]),
        request_path=options["request_path"],
        client_pattern=options["client_pattern"],
        is_per_client=options["per"] == "client",
        spread=options["spread"],
    )


def _picture(name: str | None, recording: Recording) -> Path | None:
    """
    Return where to draw, after making sure that it can be done: a replay may take long.
    """
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
