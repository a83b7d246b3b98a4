"""Commands that look: status, top, show."""

import time
from collections.abc import Sequence

import click

from oauth_ratelimit.cli.context import CliContext, json_option, pass_context
from oauth_ratelimit.cli.output import (
    Cell,
    Column,
    Row,
    is_terminal,
    mode_cell,
    print_facts,
    print_json,
    print_table,
    print_unknown_client_hint,
    share,
)
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import Canary, Mode
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.serialize import LATE_AFTER_S, counted, duration, nearest, origin_text, usage_data
from oauth_ratelimit.operations.status import Status
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat

LAGGING_INTERVALS = 3  # without a sync cycle: limits are kept less well
USAGE_COLUMNS = (
    Column("client"),
    Column("user"),
    Column("counted at"),
    Column("policy"),
    Column("mode"),
    Column("used"),
    Column("hits", is_number=True),
    Column("limit", is_number=True),
    Column("window", is_number=True),
    Column("next in", is_number=True),
)

SWITCHED_OFF = (
    "OAUTH_RATELIMIT_MODE=off stands in the environment of this command. Instances that have it in theirs do nothing "
    "and are not listed; all of the above is about the others."
)


@click.command()
@json_option
@pass_context
def status(context: CliContext, as_json: bool) -> None:
    """Show the mode, the database, the instances.

    An instance tells of itself every ten seconds, and when its mode or overrides have changed; "seen" is how long ago
    that was, "lag" the longest time from one sync cycle to the next since it told before. One that ended in good order
    is gone from the list at once, one that died after ten minutes. One that was started with OAUTH_RATELIMIT_MODE=off
    leaves everything alone, MongoDB too: it is not in the list.
    """
    state = Status(context)
    now_s = state.facts.clock_s
    if as_json:
        print_json(state.data())
        return
    print_facts(
        [
            ("mode", mode_cell(state.policies.mode.value)),
            ("mode from", origin_text(state.mode_origin)),
            ("canary", _canary_text(state.policies.canary)),
            ("overrides", str(state.override_count)),
            ("MongoDB", f"{state.facts.version}, about {counted(state.facts.document_count, 'counter document')}"),
        ]
    )
    click.echo()
    columns = (
        "instance",
        "seen",
        "up",
        "mode",
        "interval",
        "lag",
        "overrides",
        "flushed",
        "conflicts",
        "failures",
        "clock",
    )
    print_table(
        [Column(columns[0]), *(Column(name, is_number=name != "mode") for name in columns[1:])],
        [_beat_row(beat, now_s) for beat in state.beats],
        empty="No instance has told of itself lately; one starts with its first token request.",
    )
    _say_who_differs(state.beats, state.policies.mode)
    if context.is_switched_off:
        click.secho(SWITCHED_OFF, fg="yellow", err=True)


def _say_who_differs(beats: Sequence[Heartbeat], mode: Mode) -> None:
    count = sum(beat.mode != mode for beat in beats)
    if count:
        click.secho(
            f"\nNot yet in mode {mode.value} when last seen: {counted(count, 'instance')}. After a change they follow "
            "within two sync intervals; if not, look at their file and at OAUTH_RATELIMIT_MODE there.",
            fg="yellow",
        )


def _canary_text(canary: Canary | None) -> str:
    if canary is None:
        return "none"
    if canary.instances:
        return f"instances {', '.join(canary.instances)}"
    return f"{canary.percent:g} % of the clients"


def _beat_row(beat: Heartbeat, now_s: float) -> Row:
    seen_s = max(0.0, now_s - beat.beat_at_s)
    return (
        beat.instance,
        Cell(f"{duration(seen_s)} ago", "bold red" if seen_s > LATE_AFTER_S else ""),
        duration(beat.beat_at_s - beat.started_at_s),
        mode_cell(beat.mode),
        f"{beat.interval_s:g} s",
        Cell(f"{beat.lag_s:.1f} s", "yellow" if beat.lag_s > LAGGING_INTERVALS * beat.interval_s else ""),
        str(beat.override_count),
        str(beat.flushed_count),
        str(beat.conflict_count),
        Cell(str(beat.failure_count), "yellow" if beat.failure_count else ""),
        Cell(f"{beat.clock_offset_s:+.1f} s", "yellow" if beat.clock_offset_s else "dim"),
    )


@click.command()
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to show.")
@click.option(
    "--watch", "every_s", type=click.FloatRange(0.5), metavar="SECONDS", help="Look again this often, until Ctrl-C."
)
@json_option
@pass_context
def top(context: CliContext, count: int, every_s: float | None, as_json: bool) -> None:
    """Show who is nearest to a limit.

    Across all instances. Reads every counter document that still matters; what instances have counted in the last
    moment is not in it yet.
    """
    if every_s is None:
        _print_top(context, count, as_json=as_json)
        return
    try:
        while True:
            _print_top(context, count, as_json=as_json, is_screen=is_terminal())
            time.sleep(every_s)
            context.refresh()
    except KeyboardInterrupt:
        return  # which is how it is meant to end


def _print_top(context: CliContext, count: int, *, as_json: bool, is_screen: bool = False) -> None:
    usages = _nearest(context, count)
    if as_json:
        print_json([usage_data(usage) for usage in usages])
        return
    if is_screen:
        click.clear()
    print_table(USAGE_COLUMNS, list(map(usage_row, usages)), empty="No requests lately.")


def _nearest(context: CliContext, count: int) -> list[LimitUsage]:
    usages = UsageReader(context.policies)
    everybody = usages.of_all(context.documents.every(context.now_s), context.now_s)
    return nearest((usage for usage in everybody if usage.estimate > 0), count)


@click.command()
@click.argument("client")
@click.argument("user", required=False)
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to show.")
@json_option
@pass_context
def show(context: CliContext, client: str, user: str | None, count: int, as_json: bool) -> None:
    """Show the counters of a CLIENT.

    Of one USER of it, or of all and of the client itself. Of a client with many users, those nearest to their limit.
    """
    pseudonym = None if user is None else context.names.typed(user)
    found = context.documents.of_client(storable_name(client))
    documents = (item for item in found if user is None or item[0].username == pseudonym)
    usages = nearest(UsageReader(context.policies).of_all(documents, context.now_s), count)
    if as_json:
        print_json([usage_data(usage) for usage in usages])
    else:
        print_table(USAGE_COLUMNS, list(map(usage_row, usages)), empty="No limited requests lately.")
        print_unknown_client_hint(context, client)


def usage_row(usage: LimitUsage) -> Row:
    """Return where a key stands, for people."""
    key, policy = usage.key, usage.policy
    return (
        key.client_id,
        Cell("–", "dim") if key.username is None else key.username,
        key.scope or "token",
        policy.name,
        mode_cell(usage.mode.value),
        share(usage.used_ratio),
        f"{usage.estimate:.1f}",
        str(policy.limit),
        duration(policy.window.window_s),
        Cell("now", "dim") if not usage.retry_after_s else duration(usage.retry_after_s),
    )
