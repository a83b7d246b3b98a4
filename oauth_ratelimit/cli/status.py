"""Commands that read the state of instances, counters and rollout: status, show, rollout."""

from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import count_option, format_option, json_option, name_argument
from oauth_ratelimit.cli.output import (
    STATISTICS_LAG,
    Cell,
    Column,
    Number,
    Value,
    mode_cell,
    next_cell,
    print_facts,
    print_json,
    print_records,
    print_table,
    print_unknown_client_hint,
    records_text,
    used_cell,
    visible,
)
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.format import (
    canary_text,
    counted,
    duration,
    mode_source_text,
    mode_text,
    policy_text,
    utc_time,
)
from oauth_ratelimit.operations.rollout import MAX_NAMED, Rollout, RolloutStep
from oauth_ratelimit.operations.serialize import Record, usage_data
from oauth_ratelimit.operations.status import Status, nearest_to_limit
from oauth_ratelimit.operations.summary import NOT_SHARED

SWITCHED_OFF = (
    "OAUTH_RATELIMIT_MODE=off is set in the environment of this command. Instances that have it set too do nothing "
    "and are not listed; all of the above is about the others."
)
MAX_REJECTING = 5
UNKNOWN = Cell("unknown", "yellow")
ENFORCED_BY_OVERRIDE = "All limits are enforced, by an override. To have the configuration say it:"
OTHER_MODES = (
    "\nNot yet in mode {mode} when last seen: {instances}. A change takes effect within two sync intervals; if it does "
    "not, check the configuration and OAUTH_RATELIMIT_MODE there."
)
REJECTED = (
    "\nRejected by {instance} since {since}: its configuration file. If it started with that file, its limits are off; "
    "else the last valid file applies. Its log has the problems (config_rejected), check-config lists them."
)
DIFFERENT_FILES = "\nThe configuration files differ: {files}."
NO_INSTANCES = "No instance seen in the last 10 minutes; an instance starts with its first token request."
INSTANCE_COLUMNS: list[Column[Any]] = [
    Column("instance", lambda beat: beat["instance"]),
    Column("mode", lambda beat: mode_cell(beat["mode"])),
    Number("seen ago", lambda beat: _seen_cell(beat)),
    Number("up", lambda beat: duration(beat["up_s"])),
    Number("lag", lambda beat: Cell(f"{beat['lag_s']:.1f} s", "yellow" if beat["is_lagging"] else "")),
    Number("failures", lambda beat: Cell(f"{beat['failure_count']:,}", "yellow" if beat["failure_count"] else "")),
    Number("over limit", lambda beat: beat["over_admitted_count"]),
    Number(
        "clock", lambda beat: Cell(f"{beat['clock_offset_s']:+.1f} s", "yellow" if beat["clock_offset_s"] else "dim")
    ),
]
USAGE_COLUMNS: list[Column[LimitUsage]] = [
    Column("client", lambda usage: usage.key.client_id),
    Column("user", lambda usage: usage.key.username),
    Column("counted at", lambda usage: usage.key.scope or "token"),
    Column("limit", lambda usage: policy_text(usage.policy)),
    Column("mode", lambda usage: mode_cell(usage.mode)),
    Number("hits", lambda usage: f"{usage.estimate:.1f}"),
    Number("used", lambda usage: used_cell(usage.used_ratio)),
    Number("next in", lambda usage: next_cell(usage.retry_after_s)),
]


def _seen_cell(beat: Record) -> Cell:
    seen = duration(beat["seen_s"])
    return Cell(f"late {seen}", "bold red") if beat["is_late"] else Cell(seen)


@click.command("status")
@format_option()
@pass_context
def status_command(context: CliContext, form: str) -> None:
    """Show the mode, the database, the instances.

    An instance sends a heartbeat every ten seconds, and when its mode or overrides change; "seen" is the age of the
    last one, "lag" the longest time between two sync cycles since the one before. A stopped instance leaves the
    list at once, a killed one is "late" after half a minute and leaves after ten. One that runs with
    OAUTH_RATELIMIT_MODE=off does not use MongoDB and is not listed. JSON has more of each instance.

    \b
    Examples:
      status
      status --json
    """
    context.allow_invalid_config()
    status = Status(context)
    data = status.data()
    file = None if context.invalid else status.file_policies
    if form != "table":
        whole = {**data, "mode": context.mode, "file_mode": file and mode_text(file)}
        click.echo(records_text(form, data["instances"], whole=whole), nl=False)
        return
    facts = status.facts
    documents = counted(facts.document_count, "counter document") if facts else ""
    print_facts(
        [
            ("mode", Cell(context.mode_text, "yellow") if context.mode is None else mode_cell(context.mode.value)),
            ("mode from", mode_source_text(file, status.mode_origin)),
            ("canary", UNKNOWN if context.invalid else canary_text(status.policies.canary)),
            ("overrides", status.override_count),
            ("MongoDB", f"{facts.version}, about {documents}" if facts else NOT_SHARED),
        ]
    )
    if facts is None:
        return
    click.echo()
    print_table(INSTANCE_COLUMNS, data["instances"], empty=NO_INSTANCES)
    for beat in status.rejecting[:MAX_REJECTING]:
        since = utc_time(beat.config_invalid_since_s or 0.0)
        click.secho(REJECTED.format(instance=visible(beat.instance), since=since), fg="red")
    if len(status.files) > 1:
        files = ", ".join(
            f"{visible(digest) or 'unreadable'} on {counted(count, 'instance')}"
            for digest, count in status.files.items()
        )
        click.secho(DIFFERENT_FILES.format(files=files), fg="yellow")
    others = sum(beat.mode != context.mode for beat in status.heartbeats)
    if others and context.mode is not None:
        click.secho(OTHER_MODES.format(mode=context.mode, instances=counted(others, "instance")), fg="yellow")
    if context.is_switched_off:
        click.secho(SWITCHED_OFF, fg="yellow", err=True)


@click.command()
@name_argument("client")
@name_argument("user")
@count_option
@format_option()
@pass_context
def show(context: CliContext, client: str | None, user: str | None, count: int, form: str) -> None:
    """Show who is nearest to a limit.

    Of all clients and users, of a CLIENT and its users, or of one USER. Across all instances; hits that are not
    synchronised yet are missing: up to 10 s (sync.max_interval) of those far from their limits. Without a CLIENT only
    those with recent requests.

    \b
    Examples:
      show
      show partner-app alice --json
    """
    documents, reader = context.stores.documents, UsageReader(context.policies)
    if client is None:
        usages = reader.of_all(documents.every(context.now_s), context.now_s)
        found = nearest_to_limit((usage for usage in usages if usage.estimate > 0), count)
    else:
        pseudonym = None if user is None else context.pseudonyms.typed(user)
        stored = documents.of_client(storable_name(client))
        chosen = ((key, snapshot) for key, snapshot in stored if user is None or key.username == pseudonym)
        found = nearest_to_limit(reader.of_all(chosen, context.now_s), count)
    print_records(form, found, usage_data, USAGE_COLUMNS, empty="No recent limited requests.")
    if client is not None and form == "table":
        print_unknown_client_hint(context, client)


@click.command("rollout")
@json_option
@pass_context
def rollout_command(context: CliContext, as_json: bool) -> None:
    """Show the step of the rollout and the next.

    The steps are dry run, canary, enforce. Shows what the last day says about going on: the requests over a limit and
    their clients, compared with the day before, whether counters are shared, and whether the instances are healthy;
    then one command for the next step, which shows whom it hits before it asks, and one for going back. Changes
    nothing.

    \b
    Examples:
      rollout
      rollout --json
    """
    rollout = Rollout(context, read_minutes=context.minutes)
    if as_json:
        print_json(rollout.data())
        return
    rare = {RolloutStep.OFF, RolloutStep.SOME} - {rollout.step}
    steps = [step for step in RolloutStep if step not in rare]
    click.echo(" > ".join(click.style(f"[{step}]", bold=True) if step is rollout.step else step for step in steps))
    click.echo()
    source = mode_source_text(rollout.status.file_policies, rollout.status.mode_origin)
    mode: list[tuple[str, Value]] = [("mode", Cell(mode_text(context.policies), "bold")), ("mode from", source)]
    if rollout.is_shared:
        print_facts([*mode, *_day_facts(rollout), ("counters", "shared through MongoDB")])
        click.echo(STATISTICS_LAG, err=True)
    else:
        print_facts([*mode, ("counters", Cell("not shared", "bold red"))])
    click.echo()
    for problem in rollout.problems:
        click.secho(f"{'Note' if rollout.step is RolloutStep.ENFORCE else 'Wait'}: {visible(problem)}", fg="yellow")
    if rollout.step is RolloutStep.ENFORCE:
        click.echo(ENFORCED_BY_OVERRIDE if rollout.is_override else "All limits are enforced. Keep the alerts.")
    else:
        click.echo("Next, in spite of that:" if rollout.problems else "Nothing speaks against the next step:")
    _print_commands(rollout.next_commands)
    click.echo("Back:")
    _print_commands(rollout.back_commands)


def _day_facts(rollout: Rollout) -> list[tuple[str, str]]:
    day, total, before = rollout.day, rollout.day.total, rollout.day_before.total
    named = ", ".join(f"{visible(client_id)} ({count:,})" for client_id, count in day.over.most_common(MAX_NAMED))
    return [
        ("requests, last day", f"{total.offered:,}"),
        ("denied", f"{total.denied:,}"),
        ("would be denied", f"{total.would_deny:,}"),
        ("the day before", f"{before.denied:,} denied, {before.would_deny:,} would be denied"),
        ("clients over a limit", f"{len(day.over):,}{f': {named}' if named else ''}"),
        ("instances", counted(len(rollout.status.heartbeats), "instance")),
    ]


def _print_commands(commands: list[str]) -> None:
    for command in commands:
        click.echo(f"  {command}" if command.startswith("#") else f"  flask oauth-ratelimit {command}")
