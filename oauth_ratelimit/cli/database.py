"""Commands about the database: init-db, db upgrade, db status, erase."""

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import confirm, json_option, yes_option
from oauth_ratelimit.cli.output import Cell, Column, print_json, print_table, visible
from oauth_ratelimit.core.failed_auth import folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.store.mongo.erasure import Person

RUN_AGAIN_AFTER_S = 120  # instances send the statistics of a minute when it is over, and what failed before
COLLECTIONS = {
    "counters": "ratelimits",
    "failures": "ratelimit_failures",
    "statistics": "ratelimit_stats: the heaviest users of a minute",
    "denials": "ratelimit_stats: records for explain --id",
    "overrides": "ratelimit_overrides: names in reasons and authors, and in resets of counters",
}
NOT_ERASED = (
    "log files",
    "backups of the database",
    "what hooks and traces have passed on",
    "memory of running instances, until the next document that they read",
)


@click.command("init-db")
@json_option
@pass_context
def init_db(context: CliContext, as_json: bool) -> None:
    """Create collections and indexes.

    For instances that may not create them at run time: run it once with --mongo-uri and a user that may. Instances
    then need to read and write only. It can be run again at any time.
    """
    context.accept_broken()
    created, applied = context.stores.migrations.create_collections(), context.stores.migrations.upgrade()
    if as_json:
        print_json({"created_collections": created, "applied_migrations": applied})
        return
    for name in created:
        click.echo(f"created collection {name}")
    _print_applied(applied)


@click.group()
@pass_context
def db(context: CliContext) -> None:
    """Keep the database's format up to date."""
    context.accept_broken()


@db.command()
@json_option
@pass_context
def upgrade(context: CliContext, as_json: bool) -> None:
    """Apply the pending migrations.

    Any number of processes may call this at once, such as all instances when they start: each migration can run
    twice or in parallel without harm.
    """
    applied = context.stores.migrations.upgrade()
    if as_json:
        print_json({"applied_migrations": applied})
    else:
        _print_applied(applied)


@db.command("status")
@json_option
@pass_context
@click.pass_context
def list_migrations(ctx: click.Context, context: CliContext, as_json: bool) -> None:
    """List the migrations.

    Exits with 1 if some are pending. Instances make the same indexes where their rights allow: then there is nothing
    to apply, and no time of it.
    """
    states = context.stores.migrations.states()
    times = [None if state.applied_at_s is None else utc_time(state.applied_at_s) for state in states]
    if as_json:
        print_json(
            [
                {
                    "name": state.name,
                    "description": state.description,
                    "applied": applied,
                    "is_pending": state.is_pending,
                }
                for state, applied in zip(states, times, strict=True)
            ]
        )
    else:
        print_table(
            [Column("migration"), Column("applied"), Column("description")],
            [
                (
                    state.name,
                    applied or (Cell("pending", "yellow") if state.is_pending else "by instances"),
                    state.description,
                )
                for state, applied in zip(states, times, strict=True)
            ],
        )
    ctx.exit(1 if any(state.is_pending for state in states) else 0)


def _print_applied(names: list[str]) -> None:
    for name in names:
        click.echo(f"applied {name}")
    if not names:
        click.echo("The database is up to date.")


@click.command()
@click.argument("user")
@click.option("--client", metavar="CLIENT", help="Only at this client.")
@click.option("--dry-run", is_flag=True, help="Only count the records.")
@yes_option
@json_option
@pass_context
def erase(context: CliContext, user: str, client: str | None, dry_run: bool, is_confirmed: bool, as_json: bool) -> None:
    """Remove all records of a person.

    Finds USER under the plain name and under every key that the configuration lists, or by a hash as logs show it.
    Counters of the user start at zero on all instances. Overrides and resets stay in the history; the name is blanked
    where it is the author, part of the reason or the user of the reset.

    Instances may still send hits that they have counted before: run it again two minutes later. Log files, backups
    and what was passed on to others stay untouched. Asks first on a terminal.
    """
    if not user.strip():
        raise click.UsageError("name a user")
    if not dry_run:
        where = "at all clients" if client is None else f"at {client}"
        confirm(f"Remove all records of {user} {where}? There is no way back.", is_confirmed=is_confirmed)
    erasure = context.stores.erasure_of(_person(context, user, client))
    counts: dict[str, int] = {}
    rejected: dict[str, str] = {}
    for name, part in erasure.parts.items():
        try:
            counts[name] = part(not dry_run)
        except StoreRejected as exc:
            rejected[name] = str(exc)
    if as_json:
        print_json(
            {
                "is_dry_run": dry_run,
                "found" if dry_run else "removed": counts,
                "refused": rejected,
                "outside": NOT_ERASED,
                "again_after_s": RUN_AGAIN_AFTER_S,
            }
        )
    else:
        _print_erasure(counts, rejected, is_dry_run=dry_run)
    if rejected:
        raise StoreRejected(f"not all records could be read: {', '.join(rejected)}")


def _person(context: CliContext, user: str, client: str | None) -> Person:
    names = context.pseudonyms.all_of(user)
    return Person(
        names=names,
        failed_auth_names=context.pseudonyms.all_of(folded(user)),
        mentions=tuple(dict.fromkeys((user, *names))),
        client_id=None if client is None else storable_name(client),
    )


def _print_erasure(counts: dict[str, int], rejected: dict[str, str], *, is_dry_run: bool) -> None:
    columns = [Column("what"), Column("found" if is_dry_run else "removed", is_number=True), Column("where")]
    print_table(
        columns,
        [
            (name, str(counts[name]) if name in counts else Cell("rejected", "bold red"), where)
            for name, where in COLLECTIONS.items()
        ],
    )
    for name, reason in rejected.items():
        click.echo(f"{name}: {visible(reason)}", err=True)
    click.echo(f"Not erased: {'; '.join(NOT_ERASED)}.")
    if not is_dry_run:
        click.echo(f"Run it again in {RUN_AGAIN_AFTER_S} s: instances may still send what they have counted.")
