"""Commands that read the state of instances and counters: status, top, show, export."""

import csv
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import count_option, json_option, output_format
from oauth_ratelimit.cli.output import (
    Cell,
    Column,
    Row,
    is_terminal,
    json_line,
    mode_cell,
    print_facts,
    print_json,
    print_table,
    print_unknown_client_hint,
    print_usages,
)
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.format import canary_text, counted, duration, origin_text
from oauth_ratelimit.operations.serialize import LATE_AFTER_S, entry_data, override_data, usage_data
from oauth_ratelimit.operations.status import Status, nearest_to_limit
from oauth_ratelimit.operations.summary import NOT_SHARED
from oauth_ratelimit.report.table import csv_cell
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat
from oauth_ratelimit.store.mongo.inspect import ServerFacts

MAX_LAG_INTERVALS = 3  # sync intervals; a longer lag makes limits less accurate
SWITCHED_OFF = (
    "OAUTH_RATELIMIT_MODE=off is set in the environment of this command. Instances that have it set too do nothing "
    "and are not listed; all of the above is about the others."
)
UNKNOWN = Cell("unknown", "yellow")
NO_INSTANCES = "No instance seen in the last 10 minutes; an instance starts with its first token request."
INSTANCE_COLUMNS = (
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
    "over limit",
    "clock",
)


@click.command("status")
@json_option
@pass_context
def status_command(context: CliContext, as_json: bool) -> None:
    """Show the mode, the database, the instances.

    An instance sends a heartbeat every ten seconds, and when its mode or overrides change; "seen" is the age of the
    last one, "lag" the longest time between two sync cycles since the one before. A stopped instance leaves the list
    at once, a killed one after ten minutes. One that runs with OAUTH_RATELIMIT_MODE=off does not use MongoDB and is
    not listed.
    """
    context.accept_broken()
    status = Status(context)
    if as_json:
        print_json({**status.data(), "mode": context.mode})
        return
    is_overridden = status.mode_origin.override is not None
    print_facts(
        [
            ("mode", Cell(context.mode_text, "yellow") if context.mode is None else mode_cell(context.mode.value)),
            ("mode from", origin_text(status.mode_origin) if is_overridden else "the configuration"),
            ("canary", UNKNOWN if context.broken else canary_text(status.policies.canary)),
            ("overrides", str(status.override_count)),
            ("MongoDB", _database_text(status.facts)),
        ]
    )
    if status.facts is None:
        return
    click.echo()
    print_table(
        [Column(name, is_number=name not in ("instance", "mode")) for name in INSTANCE_COLUMNS],
        [_instance_row(heartbeat, status.facts.clock_s) for heartbeat in status.heartbeats],
        empty=NO_INSTANCES,
    )
    if context.mode is not None:
        _warn_of_other_modes(status.heartbeats, context.mode)
    if context.is_switched_off:
        click.secho(SWITCHED_OFF, fg="yellow", err=True)


def _database_text(facts: ServerFacts | None) -> str:
    if facts is None:
        return NOT_SHARED
    return f"{facts.version}, about {counted(facts.document_count, 'counter document')}"


def _warn_of_other_modes(heartbeats: Sequence[Heartbeat], mode: Mode) -> None:
    count = sum(heartbeat.mode != mode for heartbeat in heartbeats)
    if count:
        click.secho(
            f"\nNot yet in mode {mode.value} when last seen: {counted(count, 'instance')}. A change takes effect "
            "within two sync intervals; if it does not, check the configuration and OAUTH_RATELIMIT_MODE there.",
            fg="yellow",
        )


def _instance_row(heartbeat: Heartbeat, now_s: float) -> Row:
    seen_s = max(0.0, now_s - heartbeat.beat_at_s)
    is_lagging = heartbeat.lag_s > MAX_LAG_INTERVALS * heartbeat.interval_s
    return (
        heartbeat.instance,
        Cell(f"{duration(seen_s)} ago", "bold red" if seen_s > LATE_AFTER_S else ""),
        duration(heartbeat.beat_at_s - heartbeat.started_at_s),
        mode_cell(heartbeat.mode),
        f"{heartbeat.interval_s:g} s",
        Cell(f"{heartbeat.lag_s:.1f} s", "yellow" if is_lagging else ""),
        str(heartbeat.override_count),
        str(heartbeat.flushed_count),
        str(heartbeat.conflict_count),
        Cell(str(heartbeat.failure_count), "yellow" if heartbeat.failure_count else ""),
        str(heartbeat.over_admitted_count),
        Cell(f"{heartbeat.clock_offset_s:+.1f} s", "yellow" if heartbeat.clock_offset_s else "dim"),
    )


@click.command()
@count_option
@click.option("--watch", "every_s", type=click.FloatRange(0.5), metavar="SECONDS", help="Repeat until Ctrl-C.")
@json_option
@pass_context
def top(context: CliContext, count: int, every_s: float | None, as_json: bool) -> None:
    """Show who is nearest to a limit.

    Across all instances. Reads every counter document that can still affect a decision; hits that are not
    synchronised yet are missing.
    """
    if every_s is None:
        _print_top(context, count, as_json=as_json)
        return
    try:
        while True:
            _print_top(context, count, as_json=as_json, clear=is_terminal())
            time.sleep(every_s)
            context.refresh()
    except KeyboardInterrupt:
        return  # the way to end it


def _print_top(context: CliContext, count: int, *, as_json: bool, clear: bool = False) -> None:
    documents = context.stores.documents.every(context.now_s)
    usages = UsageReader(context.policies).of_all(documents, context.now_s)
    nearest = nearest_to_limit((usage for usage in usages if usage.estimate > 0), count)
    if clear and not as_json:
        click.clear()
    _print(nearest, as_json=as_json, empty="No recent requests.")


@click.command()
@click.argument("client")
@click.argument("user", required=False)
@count_option
@json_option
@pass_context
def show(context: CliContext, client: str, user: str | None, count: int, as_json: bool) -> None:
    """Show the counters of a CLIENT.

    Of one USER, or of the client and all its users: those nearest to their limit.
    """
    pseudonym = None if user is None else context.pseudonyms.typed(user)
    documents = context.stores.documents.of_client(storable_name(client))
    chosen = ((key, snapshot) for key, snapshot in documents if user is None or key.username == pseudonym)
    usages = nearest_to_limit(UsageReader(context.policies).of_all(chosen, context.now_s), count)
    _print(usages, as_json=as_json, empty="No recent limited requests.")
    if not as_json:
        print_unknown_client_hint(context, client)


def _print(usages: Sequence[LimitUsage], *, as_json: bool, empty: str) -> None:
    if as_json:
        print_json(list(map(usage_data, usages)))
    else:
        print_usages(usages, empty=empty)


@click.command()
@click.argument("what", type=click.Choice(["counters", "overrides", "history"]), default="counters")
@click.option(
    "--format",
    "chosen_format",
    type=click.Choice(["jsonl", "json", "csv"]),
    help="jsonl is one record per line, json one list of them, the same as --json.  [default: jsonl]",
)
@json_option
@pass_context
def export(context: CliContext, what: str, chosen_format: str | None, as_json: bool) -> None:
    """Export counters, overrides or history.

    Writes WHAT to the standard output; counters are the default: the usage of each limit by each client and user.
    CSV is safe to open in a spreadsheet: an apostrophe precedes text that looks like a formula.
    """
    if what != "counters":
        context.accept_broken()
    records: Iterable[Mapping[str, object]]
    if what == "counters":
        documents = context.stores.documents.every(context.now_s)
        records = map(usage_data, UsageReader(context.policies).of_all(documents, context.now_s))
    elif what == "overrides":
        records = map(override_data, context.overrides)
    else:
        records = map(entry_data, context.stores.overrides.history())
    form = output_format(chosen_format, as_json=as_json, default="jsonl")
    if form == "csv":
        _write_csv(records)
    elif form == "json":
        _write_list(records)
    else:
        for record in records:
            click.echo(json_line(record))


def _write_list(records: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON list, record by record, because there may be many counters."""
    separator = "["
    for record in records:
        click.echo(f"{separator}\n{json_line(record)}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def _write_csv(records: Iterable[Mapping[str, object]]) -> None:
    writer = None
    for record in records:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(record))
            writer.writeheader()
        writer.writerow({name: csv_cell(value, separator="; ") for name, value in record.items()})
