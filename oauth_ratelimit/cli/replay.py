"""Command that replays recorded traffic. It needs no database."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, Function, pass_context
from oauth_ratelimit.cli.options import columns, frame_counts, interval_s, json_option, pattern, rate
from oauth_ratelimit.cli.output import print_json
from oauth_ratelimit.core.policy import MAX_LIMIT
from oauth_ratelimit.core.window import MAX_FRAMES, default_frame_count
from oauth_ratelimit.replay.fleet import FleetPlan, Sharing
from oauth_ratelimit.replay.formats import Format
from oauth_ratelimit.replay.plot import SUFFIXES, NoCharts, draw, require_charts
from oauth_ratelimit.replay.run import ALGORITHMS, COMMON, EXACT_LOG, Contender, Rate, Replay
from oauth_ratelimit.replay.source import STANDARD_INPUT, Recording

MAX_INSTANCES = 1000
INSTANCES = 3  # beside a single one, in the answer to "what would be denied"
OF_COMPARISON = ("algorithms", "frames", "burst", "sharings", "picture")  # options that only a comparison has


def recording_options(command: Function) -> Function:
    """Add the options of commands that read recorded traffic."""
    for option in reversed(
        (
            click.option(
                "--format", "form", type=click.Choice([form.value for form in Format]), help="Default: detected."
            ),
            click.option(
                "--column",
                "columns",
                metavar="NAME=FIELD",
                multiple=True,
                callback=columns,
                help="Column name of time, client, user or grant in the file: time=ts. Repeatable.",
            ),
            click.option(
                "--path",
                "request_path",
                metavar="PATH",
                help="Only these requests of an access log, or of JSON with a path: /oauth/token.",
            ),
            click.option(
                "--client-pattern",
                metavar="REGEX",
                callback=pattern,
                help="Client in a line of an access log or of JSON: 'client_id=(?P<client>[^& ]+)'. Default: the "
                "authenticated user.",
            ),
            click.option(
                "--spread/--no-spread",
                default=None,
                help="Spread the requests of a second over it. Default: if all times are whole seconds.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command("replay")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "--limit",
    metavar="RATE",
    callback=rate,
    help="One limit instead of those of the configuration, such as 100/minute or 5 per 10 second.",
)
@click.option(
    "--per",
    type=click.Choice(["user", "client"]),
    default="user",
    show_default=True,
    help="With --limit: limit of each user or each client.",
)
@click.option(
    "--instances",
    type=click.IntRange(1, MAX_INSTANCES),
    help=f"Also replay on this many instances; the file is read twice.  [default: {INSTANCES}; with --compare none]",
)
@click.option("--compare", "is_comparison", is_flag=True, help="Compare algorithms under --limit.")
@click.option(
    "--algorithm", "algorithms", multiple=True, type=click.Choice(ALGORITHMS), help="Compare this one; repeatable."
)
@click.option("--frames", metavar="K,...", callback=frame_counts, help="Compare these frames per window: 1,2,10.")
@click.option("--burst", type=click.IntRange(1, MAX_LIMIT), help="For token bucket and GCRA; default: the limit.")
@click.option(
    "--interval",
    metavar="DURATION",
    callback=interval_s,
    help="The sync interval of instances.  [default: the configuration's; with --limit 1s]",
)
@click.option(
    "--near-limit",
    "sharings",
    multiple=True,
    type=click.Choice([sharing.value for sharing in Sharing]),
    help="Compare how instances share counts near a limit; interval: only at the sync interval. Repeatable.  "
    "[default: flush]",
)
@click.option("--picture", metavar="FILE", help=f"Draw the busiest stretch: {' or '.join(SUFFIXES)}.")
@recording_options
@json_option
@pass_context
@click.pass_context
def replay_command(ctx: click.Context, context: CliContext, /, **options: Any) -> None:
    """Show what limits would have denied.

    FILE holds recorded requests: CSV or JSON lines with time, client and user, or an access log, gzipped or not; - is
    the standard input. The limiter itself decides them, under the configuration of the application or of --config
    and without overrides: how many are denied, whose, by which limit, in which minute; on one instance and on three
    that share their counts. Requests count as over a limit whether it is enforced or a dry run.

    \b
    flask oauth-ratelimit --config ratelimit.yaml replay access.log.gz --path /oauth/token
    flask oauth-ratelimit replay tokens.csv --column client=app --limit 100/minute

    With --compare each algorithm enforces --limit on the same requests, and each decision is compared with an exact
    log of the requests that this algorithm admitted. The options about algorithms, frames and pictures imply it.

    \b
    wrongly allowed   admitted although the window already held the limit
    wrongly denied    denied although it did not
    peak              the most admitted in any window, as a multiple of the limit

    With --instances our estimators also run on several instances, each request on a random one, sharing counts as
    they do through MongoDB; the other algorithms then query the database for each request.
    """
    is_comparison = options["is_comparison"] or any(options[name] for name in OF_COMPARISON)
    if is_comparison and options["limit"] is None:
        raise click.UsageError("a comparison needs one limit: --limit 100/minute")
    request_count = _compare(options) if is_comparison else _print_denials(context, options)
    ctx.exit(0 if request_count else 1)


def _print_denials(context: CliContext, options: Mapping[str, Any]) -> int:
    """Print the requests that the configuration would deny. Return the number of all requests."""
    from oauth_ratelimit.cli.denials import Denials
    from oauth_ratelimit.cli.recording import RecordingFacts, opened, recording_of
    from oauth_ratelimit.replay.configured import ConfiguredReplay

    settings, origin = _settings(context, options)
    recording = recording_of(options)
    alone = ConfiguredReplay(settings, instance_count=1)
    with opened(recording) as (source, rows):
        alone.run(rows.batches())
    outcomes = [alone.outcomes]
    instance_count = options["instances"] or INSTANCES
    if instance_count > 1 and recording.path != STANDARD_INPUT:
        fleet = ConfiguredReplay(settings, instance_count=instance_count, clients=alone.outcomes.over_clients)
        with opened(recording) as (_, again):
            fleet.run(again.batches())
        outcomes.append(fleet.outcomes)
    denials = Denials(
        RecordingFacts(recording.path, source, rows),
        origin,
        settings.policies.mode,
        outcomes,
    )
    if options["as_json"]:
        print_json(denials.data())
    else:
        denials.print()
    return source.row_count


def _settings(context: CliContext, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the configuration to replay, and its origin in words."""
    from dataclasses import replace

    from oauth_ratelimit.config import load_config
    from oauth_ratelimit.operations.format import duration

    if options["limit"] is None:
        settings, origin = context.settings, context.config_path or "the configuration of the application"
    else:
        amount, window_s = options["limit"]
        limit = [{"limit": amount, "window": window_s}]
        limits = {"user": limit, "client": limit} if options["per"] == "user" else {"client_total": limit}
        settings = load_config({"mode": "enforce", "limits": limits})
        origin = f"{amount} in {duration(window_s)} per {options['per']}"
    if options["interval"]:
        settings = replace(settings, sync=replace(settings.sync, interval_s=options["interval"]))
    return settings, origin


def _compare(options: Mapping[str, Any]) -> int:
    """Print the errors of each algorithm. Return the number of requests."""
    from oauth_ratelimit.cli.comparison import Comparison
    from oauth_ratelimit.cli.recording import RecordingFacts, opened, recording_of
    from oauth_ratelimit.replay.chart_data import BusiestSegment, chart_data

    limit, window_s = options["limit"]
    rate = Rate(limit, window_s, options["burst"])
    contenders = _contenders(options, window_s)
    recording = recording_of(options, is_per_client=options["per"] == "client")
    picture = _picture(options["picture"], recording)
    busiest = BusiestSegment(rate)
    run = Replay(rate, contenders, on_decisions=busiest if picture else None)
    with opened(recording) as (source, rows):
        run.run(rows.batches())
    segment = busiest.found()
    if picture and segment:
        try:
            with opened(recording) as (_, again):
                draw(chart_data(again.batches(), segment, rate, contenders=contenders), picture)
        except NoCharts as exc:
            raise click.ClickException(str(exc)) from None
    facts = RecordingFacts(recording.path, source, rows)
    comparison = Comparison(facts, rate, run.results, run.denied)
    if options["as_json"]:
        print_json(comparison.data())
    else:
        comparison.print()
    return source.row_count


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
    sharings, interval = options["sharings"] or (Sharing.FLUSH,), options["interval"] or 1.0
    plans = [FleetPlan(count, interval, Sharing(sharing)) for sharing in sharings if count]
    alone = [Contender(name, frame_count) for name, frame_count in ours]
    return common + alone + [Contender(name, frame_count, plan) for plan in plans for name, frame_count in ours]


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
