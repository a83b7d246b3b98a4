"""Commands that prepare the database, and that remove counts and records: init-db, reset, erase."""

from collections import Counter
from time import sleep
from typing import NamedTuple

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    confirm,
    examples,
    format_option,
    json_option,
    name_argument,
    operator_option,
    text,
    yes_option,
)
from oauth_ratelimit.cli.output import (
    Column,
    Number,
    print_hint,
    print_json,
    print_records,
    print_table,
    print_text,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.core.failed_auth import folded
from oauth_ratelimit.core.key import cross_site_name, storable_name
from oauth_ratelimit.core.overrides import Counters
from oauth_ratelimit.counters.rules import EVERY_CLIENT
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.operations.changes import check_obeyed
from oauth_ratelimit.operations.format import counted, instance_text, utc_time
from oauth_ratelimit.store.mongo.client import STATISTICS
from oauth_ratelimit.store.mongo.erasure import PARTS, Person

MIGRATION_COLUMNS = [
    Column("migration", "name"),
    Column("applied", lambda each: each["applied"] or ("pending" if each["is_pending"] else "by instances")),
    Column("description", "description"),
]
DONE_COLUMNS = [
    Column("created collections", lambda done: ", ".join(done["created_collections"]) or "none"),
    Column("applied migrations", lambda done: ", ".join(done["applied_migrations"]) or "none: up to date"),
]
NO_TOTAL = (
    "CLIENT: got '*', allowed: a client id such as partner-app. '*' is for the limits of the kind user_total, through "
    "all clients, and none applies."
)
RUN_AGAIN_AFTER_S = 120  # instances send the statistics of a minute when it is over, and what failed before
WAITING = "Waiting {wait_s:g} s for what instances still send."
MAX_ROUNDS = 3
CUT_OFF_AFTER_S = 15.0  # an instance that runs has a heartbeat every ten seconds
NOT_ERASED = (
    "log files",
    "backups of the database",
    "what hooks and traces have passed on",
    "names in memory of instances, until they are idle",
)


@click.command("init-db")
@examples("init-db", "init-db --check")
@click.option("--check", "is_check", is_flag=True, help="Change nothing; exit with 1 if something is pending or wrong.")
@format_option()
@pass_context
@click.pass_context
def init_db(ctx: click.Context, context: CliContext, is_check: bool, form: str) -> None:
    """Create collections and indexes, migrate.

    With --check it names each index that is missing, and those in its way.

    For a new release, and for instances that may not create indexes: run it with --mongo-uri and a user that may.
    Instances then need to read and write only. Any number of processes may run it at once, and again.
    """
    context.allows_invalid_config = True
    migrations = context.stores.migrations
    if is_check:
        states = migrations.states()
        records = [
            {
                **state._asdict(),
                "applied": state.applied_at_s and utc_time(state.applied_at_s),
                "problems": [visible(str(problem)) for problem in state.problems],
            }
            for state in states
        ]
        print_records(form, records, MIGRATION_COLUMNS)
        for problem in (problem for each in records for problem in each["problems"]):
            print_text(problem, err=form != "table")
        ctx.exit(1 if any(state.is_pending or state.problems for state in states) else 0)
    done = {"created_collections": migrations.create_collections(), "applied_migrations": migrations.upgrade()}
    print_records(form, [done], DONE_COLUMNS, whole=done)


@click.command()
@examples('reset partner-app --reason "ticket 4711"', "reset partner-app alice --yes")
@name_argument("client", is_required=True)
@name_argument("user")
@operator_option
@click.option("--reason", default="", metavar="TEXT", type=text, help="Why; kept in the history.")
@yes_option
@json_option
@pass_context
def reset(
    context: CliContext, client: str, user: str | None, author: str, reason: str, is_confirmed: bool, as_json: bool
) -> None:
    """Set counters to zero on all instances.

    Those of a CLIENT and all its users, or of one USER. An instance applies it in the next sync cycle in which the
    client is active. The total of the client is kept when only one user is reset. The reset is recorded: see
    overrides --history. Asks first.
    """
    if user is None:  # else the configuration says how names are stored
        context.allows_invalid_config = True
    if client == EVERY_CLIENT and not context.invalid and not context.policies.limits.user_total:
        raise click.UsageError(NO_TOTAL)
    whose = f"{client!r} and all its users" if user is None else f"{user!r} at {client!r}"
    confirm(f"Set the counters of {whose} to zero?", is_confirmed=is_confirmed)
    counters = Counters(storable_name(client), None if user is None else context.pseudonyms.typed(user))
    # Recorded first: a reset that cannot be recorded is not made.
    context.stores.overrides.note_reset(counters, author=author, reason=reason)
    count = context.stores.documents.reset(counters.client_id, counters.username)
    if as_json:
        print_json({"reset_count": count})
    else:
        print_text(f"{counted(count, 'counter document')} set to zero")
        print_unknown_client_hint(context, None if client == EVERY_CLIENT else client)


@click.command("forget-tokens")
@examples("forget-tokens partner-app", "forget-tokens --client partner-app --json")
@name_argument("client", is_required=True)
@json_option
@pass_context
def forget_tokens(context: CliContext, client: str, as_json: bool) -> None:
    """Drop the kept tokens of a CLIENT everywhere.

    Limits with on_limit: reuse give out a token again. Use this after tokens of the client were revoked otherwise than
    by the client itself. It does not ask: the next requests over a limit get a new token, or are denied.
    """
    context.allows_invalid_config = True
    if reasons := context.stores.revocations.announce({storable_name(client): 0.0}):
        raise StoreRejected(f"instances do not see the notice: {', '.join(reasons.values())}")
    if as_json:
        print_json({"client_id": client})
    doubt = check_obeyed(context, STATISTICS)
    print_hint(doubt and visible(doubt))
    if not as_json:
        print_text("Takes effect on every instance within two sync intervals.")
        print_unknown_client_hint(context, client)


@click.command()
@examples("erase --user alice --dry-run", "erase partner-app alice --yes")
@name_argument("client")
@name_argument("user")
@click.option("--dry-run", is_flag=True, help="Only count the records.")
@yes_option
@json_option
@pass_context
def erase(
    context: CliContext, client: str | None, user: str | None, dry_run: bool, is_confirmed: bool, as_json: bool
) -> None:
    """Remove all records of a person, at one CLIENT or with --user USER at all.

    Finds USER under the plain name and under every key that the configuration lists, or by a hash as logs show it.
    Counters of the user start at zero on all instances. Overrides and resets stay in the history; the name is blanked
    where it is the author, part of the reason or the user of the reset.

    Removes them again after sync.max_interval and two sync intervals, in which instances send what they have counted,
    up to three times, and says what came back. Instances may still send statistics of the present minute: run it again
    two minutes later. Log files, backups and what was passed on to others stay untouched. Asks first.
    """
    if not (user and user.strip()):
        raise click.UsageError("name a USER: erase --user USER at all clients, or erase CLIENT USER")
    if not dry_run:
        where = "at all clients" if client is None else f"at {client!r}"
        confirm(f"Remove all records of {user!r} {where}? There is no way back.", is_confirmed=is_confirmed)
    pseudonyms = context.pseudonyms
    names = pseudonyms.all_of(user)
    person = Person(
        names=(*names, *map(cross_site_name, names)),
        failed_auth_names=pseudonyms.all_of(folded(user)),
        mentions=tuple(dict.fromkeys((user, *names))),
        client_id=None if client is None else storable_name(client),
    )
    erased = _erase(context, person, dry_run=dry_run)
    done = "found" if dry_run else "removed"
    if as_json:
        facts = erased._asdict() | {"outside": NOT_ERASED, "again_after_s": RUN_AGAIN_AFTER_S}
        print_json({"is_dry_run": dry_run, done: facts.pop("counts"), **facts})
    else:
        parts = [{"what": name, done: erased.counts.get(name, "rejected")} for name in PARTS]
        print_table([Column("what", "what"), Number(done, done)], parts)
        for name, reason in erased.refused.items():
            print_text(f"{name}: {visible(reason)}", err=True)
        print_text(f"Not erased: {'; '.join(NOT_ERASED)}.")
        if not dry_run:
            print_text(f"Run it again in {RUN_AGAIN_AFTER_S} s: instances may still send statistics of this minute.")
        for instance in erased.cut_off:
            print_text(f"{visible(instance_text(instance))} is cut off and may bring counters back, until they expire.")
    if erased.refused:
        raise StoreRejected(f"not all records could be read: {', '.join(erased.refused)}")
    if erased.came_back:
        last = ", ".join(f"{count} in {name}" for name, count in erased.came_back.items())
        raise StoreRejected(f"records came back, at last {last}: run it again when the user is idle")


class Erased(NamedTuple):
    """Numbers of records by kind, and what was refused or came back."""

    counts: dict[str, int]
    refused: dict[str, str]  # reasons by kind
    came_back: dict[str, int]  # what the last round found again
    cut_off: list[str]  # instances without a heartbeat


def _erase(context: CliContext, person: Person, *, dry_run: bool) -> Erased:
    """Count the records of a person, or remove them in rounds until none comes back."""
    erasure, stores = context.stores.erasure_of(person), context.stores
    counts: Counter[str] = Counter()
    refused: dict[str, str] = {}
    sync = context.settings.sync
    wait_s = max(sync.interval_s, sync.max_interval_s) + 2 * sync.interval_s  # until each has sent its hits
    for number in range(1 if dry_run else MAX_ROUNDS):
        if number:
            print_text(WAITING.format(wait_s=wait_s), err=True)
            sleep(wait_s)
        found: dict[str, int] = {}
        for name in PARTS:
            try:
                found[name] = erasure.count(name, remove=not dry_run)
            except StoreRejected as exc:
                refused[name] = str(exc)
        counts.update(found)
        if number and not any(found.values()):
            break
    cut_off: list[str] = []
    if not dry_run:
        try:
            now_s = stores.documents.facts().clock_s
            beats = stores.heartbeats.read(now_s)
            cut_off = [each.instance for each in beats if now_s - each.beat_at_s > CUT_OFF_AFTER_S]
        except StoreRejected as exc:  # what was removed is said all the same
            refused["heartbeats"] = str(exc)
    came_back = {} if dry_run else {name: count for name, count in found.items() if count}
    return Erased(dict(counts), refused, came_back, cut_off)
