"""Commands that read the state of instances, counters and rollout: status, show, rollout."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

import click

from oauth_ratelimit.cli.context import CliContext, invocation, pass_context
from oauth_ratelimit.cli.options import count_option, examples, format_option, json_option, name_argument
from oauth_ratelimit.cli.output import (
    STATISTICS_LAG,
    Column,
    Name,
    Number,
    Value,
    print_facts,
    print_json,
    print_records,
    print_table,
    print_text,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.statistics import HOUR_S, OTHER_CLIENTS
from oauth_ratelimit.counters.usage import UsageReader
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.denial_run import last_runs, state_of
from oauth_ratelimit.operations.denied import denial_minutes, since_texts_of, who_in
from oauth_ratelimit.operations.format import (
    MAX_NAMED,
    NOT_SHARED,
    about,
    canary_text,
    counted,
    duration,
    instance_text,
    limit_text,
    listed,
    mode_source_text,
    mode_text,
    next_text,
    not_enforced,
    percent_text,
    quoted,
    spared_text,
    usage_data,
    utc_time,
)
from oauth_ratelimit.operations.marks import changes_of, last_change_text
from oauth_ratelimit.operations.status import LEFT_OUT, Rollout, RolloutStep, Status, nearest_to_limit, restart_text
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat

MAX_REJECTING = 5
MAX_RECORDS = 1000  # denials of the last hour that are looked at
NO_DENIALS = "No denial is recorded in the last hour."
ENFORCED_BY_OVERRIDE = "{limits}. An override says so; to have the configuration say it:"
OTHER_MODES = (
    "\nNot yet in mode {mode} when last seen: {instances}. A change takes effect within two sync intervals; if it does "
    "not, check the configuration and OAUTH_RATELIMIT_MODE there."
)
GUARD_FACTS = "{mode}: {denied:,} denied, {would_deny:,} would be denied"
REJECTED = (
    "\nRejected by {instances} since {since}: the configuration file{path}. {effect} Logs have the problems "
    "(config_rejected), check-config lists them."
)
LAST_VALID = "Limits are off on those that started with it; on others the last valid file applies."
ALL_OFF = "Limits are off there."
RECONNECTING = "\nThe new store.uri is not used yet on {instances} ({what}), which use the former one and try again."
REFUSED = "\nRefused by MongoDB to {instances}, which lack a right: {what}."
DIFFERENT_FILES = "\nThe configuration files differ: {files}."
NO_INSTANCES = "No instance seen in the last 10 minutes; an instance starts with its first token request."

INSTANCE_COLUMNS = [
    Name("instance", lambda beat: instance_text(beat["instance"])),
    Column("mode", "effective_mode"),
    Number("seen ago", lambda beat: f"{'late ' if beat['is_late'] else ''}{duration(beat['seen_s'])}"),
    Number("up", lambda beat: " ".join(duration(beat["up_s"]).split()[:2])),
    Number("lag", lambda beat: f"{beat['lag_s']:.1f} s"),
    Number("failed cycles", "failure_count"),
    Number("over-admitted", "over_admitted_count"),
    Number("clock", lambda beat: f"{beat['clock_offset_s']:+.1f} s"),
]
USAGE_COLUMNS = [
    Name("client", "client_id"),
    Name("user", "username"),
    Column("where", lambda usage: usage["scope"] or "token"),
    Column("limit", limit_text),
    Column("mode", "mode"),
    Number("hits", "estimate"),
    Number("used", lambda usage: percent_text(usage["used_ratio"])),
    Number("next in", next_text),
]


@click.command("status")
@examples("status", "status --json")
@format_option()
@pass_context
def status_command(context: CliContext, form: str) -> None:
    """Show the mode, the database, the instances.

    "hosts" are instances that count as one, in one file; one of each synchronises for all.
    An instance sends a heartbeat every ten seconds, and when its mode or overrides change; "seen" is the age of the
    last one, "lag" the longest time between two sync cycles since the one before. A stopped instance leaves the
    list at once, a killed one is "late" after half a minute and leaves after ten. One that runs with
    OAUTH_RATELIMIT_MODE=off does not use MongoDB and is not listed. JSON has more of each instance.
    """
    context.allows_invalid_config = True
    status = Status(context)
    data = status.data()
    file = None if context.invalid else status.file_policies
    facts, mode = status.facts, context.mode
    if form != "table":
        whole = {**data, "mode": mode, "file_mode": file and mode_text(file)}
        print_records(form, data["instances"], INSTANCE_COLUMNS, whole=whole)
        return
    documents = counted(facts.document_count, "counter document") if facts else ""
    print_facts(
        [
            ("mode", context.mode_text),
            ("mode from", mode_source_text(file, status.mode_origin)),
            ("canary", "unknown" if context.invalid else canary_text(status.policies.canary)),
            ("overrides", status.override_count),
            ("hosts", status.hosts_text),
            ("MongoDB", f"{facts.version}, about {documents}" if facts else NOT_SHARED),
        ]
    )
    if facts is None:
        return
    with suppress(StoreError):  # a user without the right to read denials sees the instances all the same
        since_s = context.now_s - HOUR_S
        denials = context.stores.denials.between(since_s, context.now_s, at_most=MAX_RECORDS)
        since_s = denials[-1].denial.at_s if len(denials) == MAX_RECORDS else since_s
        for text in since_texts_of(context, denials, since_s=since_s) or [NO_DENIALS]:
            print_text(visible(text), fg="yellow" if denials else None)
    with suppress(StoreError):  # nor may everybody read statistics
        for text in _trial_texts(context):
            print_text(visible(text), fg="yellow")
    click.echo()
    print_table(INSTANCE_COLUMNS, data["instances"], empty=NO_INSTANCES)
    if not status.is_complete:
        print_text(f"\nAttention: {LEFT_OUT}.", fg="red")
    for text in _rejected_texts(status.heartbeats):
        print_text(text, fg="red")
    for name, text, colour in (("connection_problem", RECONNECTING, "yellow"), ("refused", REFUSED, "red")):
        for what, count in status.counted_by(name):
            print_text(text.format(instances=counted(count, "instance"), what=visible(what)), fg=colour)
    restart = None if context.invalid else restart_text(context.settings, status.heartbeats)
    if restart:
        print_text(f"\nThe file asks for changes: {visible(restart)}.", fg="yellow")
    if len(found := status.counted_by("config_digest")) > 1:
        files = [f"{visible(digest) or 'unreadable'} on {counted(count, 'instance')}" for digest, count in found]
        print_text(DIFFERENT_FILES.format(files=", ".join(files)), fg="yellow")
    others = sum(beat.mode != mode for beat in status.heartbeats)
    if others and mode is not None:
        print_text(OTHER_MODES.format(mode=mode, instances=counted(others, "instance")), fg="yellow")


def _rejected_texts(heartbeats: Sequence[Heartbeat]) -> Iterator[str]:
    """Yield a text for each configuration file that instances have rejected."""
    rejecting = defaultdict[str, list[Heartbeat]](list)
    for beat in heartbeats:
        if beat.config_rejected_at_s is not None:
            rejecting[f" {beat.config_file}" if beat.config_file else ""].append(beat)
    for path, beats in islice(rejecting.items(), MAX_REJECTING):
        instances = listed(instance_text(beat.instance) for beat in beats)
        since = utc_time(min(beat.config_rejected_at_s or 0.0 for beat in beats))
        effect = ALL_OFF if all(beat.mode == Mode.OFF for beat in beats) else LAST_VALID
        yield REJECTED.format(instances=visible(instances), since=since, path=visible(path), effect=effect)
    if len(rejecting) > MAX_REJECTING:
        yield f"\nAnd {counted(len(rejecting) - MAX_REJECTING, 'other rejected file')}: status --json lists them."


def _trial_texts(context: CliContext) -> list[str]:
    """Return whom a dry run would deny, else whom it would have denied lately: since when, by which limits."""
    totals = context.stores.rollups.rows(context.now_s - HOUR_S, context.now_s).clients
    over = Counter({each.client_id: each.own.would_deny for each in totals if each.client_id != OTHER_CLIENTS})
    found = defaultdict[bool, list[str]](list)
    for client_id, _ in (+over).most_common(MAX_NAMED):
        _, minutes, is_beyond = denial_minutes(context, client_id)
        changes, delay_s = changes_of(context, client_id), 2 * context.settings.sync.interval_s
        runs = last_runs(minutes, changes, delay_s=delay_s)
        denied_s = max((run.last_s for run in runs if run.is_real), default=0)
        trials = [run for run in runs if not run.is_real]
        state = state_of(trials, changes, now_s=context.now_s, delay_s=delay_s)
        if state is not None and (state.is_active or state.run.last_s > denied_s):  # else enforced since
            who = who_in(client_id, minutes, state.run)
            text = state.run.text(is_now=state.is_active, is_beyond=is_beyond)
            found[state.is_now].append(f"{about(who, text)} {state.change_text()}".rstrip())
    more = [f"And {counted(len(+over) - MAX_NAMED, 'other client')}."] if len(+over) > MAX_NAMED else []
    return [*(found[True] or found[False]), *more]


@click.command()
@examples("show", "show partner-app alice --json")
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
    """
    documents, now_s = context.stores.documents, context.now_s
    found = documents.every(now_s) if client is None else documents.of_client(storable_name(client))
    pseudonym = None if user is None else context.pseudonyms.typed(user)
    chosen = ((key, snapshot) for key, snapshot in found if pseudonym in (None, key.username))
    reader = UsageReader(context.policies)
    usages = (usage for key, snapshot in chosen for usage in reader.of(key, snapshot, now_s))
    nearest = nearest_to_limit((usage for usage in usages if client is not None or usage.estimate > 0), count)
    print_records(form, list(map(usage_data, nearest)), USAGE_COLUMNS, empty="No recent limited requests.")
    if form == "table":
        print_unknown_client_hint(context, client)


@click.command("rollout")
@examples("rollout", "rollout --json")
@json_option
@pass_context
def rollout_command(context: CliContext, as_json: bool) -> None:
    """Show the step of the rollout and the next.

    The steps are dry run, canary, enforce. Shows what the last day says about going on: the requests over a limit and
    their clients, whether counters are shared, and whether the instances are healthy; then one command for the next
    step, which shows whom it hits before it asks, and one for going back. Changes nothing.
    """
    rollout = Rollout(context)
    data = rollout.data()
    if as_json:
        print_json(data)
        return
    steps = list(RolloutStep) if rollout.step is RolloutStep.OFF else list(RolloutStep)[1:]
    click.echo(" > ".join(f"[{step}]" if step is rollout.step else step for step in steps))
    click.echo()
    facts: list[tuple[str, Value]] = [
        ("mode", mode_text(context.policies)),
        ("mode from", mode_source_text(rollout.status.file_policies, rollout.status.mode_origin)),
    ]
    if rollout.is_shared:
        day = data["last_day"]
        clients = [f"{quoted(each['client_id'])} ({each['over']:,})" for each in day["clients"]]
        if (more := day["client_count"] - len(clients)) > 0:
            clients.append(f"… and {more:,} more")
        named = ", ".join(clients)
        facts += [
            ("requests, last day", day["requests"]),
            ("denied", day["denied"]),
            ("would be denied", day["would_deny"]),
            ("reuse would spare", spared_text(day["would_reuse"], day["denied"] + day["would_deny"])),
            ("token again", day["reused"]),
            ("guard (its own mode)", GUARD_FACTS.format(**day["guard"])),
            ("clients over a limit", f"{day['client_count']:,}{f': {named}' if named else ''}"),
            ("instances", data["instance_count"]),
            ("last change", last_change_text(context)),
        ]
        print_text(STATISTICS_LAG, err=True)
    print_facts([*facts, ("counters", "shared through MongoDB" if rollout.is_shared else "not shared")])
    click.echo()
    for problem in rollout.problems:
        print_text(f"{'Note' if rollout.step is RolloutStep.ENFORCE else 'Wait'}: {visible(problem)}", fg="yellow")
    if rollout.step is RolloutStep.ENFORCE:
        others = listed(not_enforced(context.policies))
        limits = f"Limits are enforced, but not for {others}" if others else "All limits are enforced"
        text = ENFORCED_BY_OVERRIDE if rollout.next_commands else "{limits}. Keep the alerts."
        print_text(visible(text.format(limits=limits)))
    else:
        click.echo("Next, in spite of that:" if rollout.problems else "Nothing speaks against the next step:")
    back = rollout.back_commands
    _print_steps(rollout.next_commands)
    if back:
        click.echo("Back:")
    _print_steps(back)


def _print_steps(steps: Sequence[str]) -> None:
    """Print commands, each in a line to copy, and changes of the file, which are folded."""
    for each in steps:
        if each.startswith("#"):
            print_text(f"  {each}", indent=4)
        else:
            click.echo(f"  {invocation()} {each}")
