"""Commands that prepare the database: init-db, db upgrade, db status."""

from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, json_option, pass_context
from oauth_ratelimit.cli.output import Cell, Column, print_json, print_table, visible
from oauth_ratelimit.core.failed_auth import folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.operations.serialize import moment
from oauth_ratelimit.store.mongo.erasure import Erasure, Person
from oauth_ratelimit.store.mongo.migrations import Migrations


@click.command("init-db")
@json_option
@pass_context
def init_db(context: CliContext, as_json: bool) -> None:
    """Create collections and indexes.

    For instances that may not create them at run time: run it once with --mongo-uri and a user that may. Instances
    then need to read and write only. It can be run again at any time.
    """
    migrations = _migrations(context)
    created, applied = migrations.create_collections(), migrations.upgrade()
    if as_json:
        print_json({"created_collections": created, "applied_migrations": applied})
        return
    for name in created:
        click.echo(f"created collection {name}")
    _say_applied(applied)


@click.group()
def db() -> None:
    """Keep the database's format up to date."""


@db.command()
@json_option
@pass_context
def upgrade(context: CliContext, as_json: bool) -> None:
    """Run the migrations that were not run yet.

    Any number of processes may call this at once, such as all instances when they start: each migration can run
    twice or in parallel without harm.
    """
    applied = _migrations(context).upgrade()
    if as_json:
        print_json({"applied_migrations": applied})
    else:
        _say_applied(applied)


@db.command("status")
@json_option
@pass_context
@click.pass_context
def show_status(ctx: click.Context, context: CliContext, as_json: bool) -> None:
    """List the migrations.

    Exits with 1 if some were not run yet.
    """
    states = _migrations(context).states()
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "name": state.name,
                "description": state.description,
                "applied": None if state.applied_at_s is None else moment(state.applied_at_s),
            }
            for state in states
        ]
        print_json(rows)
    else:
        print_table(
            [Column("migration"), Column("applied"), Column("what it does")],
            [
                (
                    state.name,
                    Cell("pending", "yellow") if state.applied_at_s is None else moment(state.applied_at_s),
                    state.description,
                )
                for state in states
            ],
        )
    ctx.exit(1 if any(state.applied_at_s is None for state in states) else 0)


def _migrations(context: CliContext) -> Migrations:
    return Migrations(context.connection, collection=context.settings.store.collection)


def _say_applied(names: list[str]) -> None:
    for name in names:
        click.echo(f"applied {name}")
    if not names:
        click.echo("The database is up to date.")


AGAIN_AFTER_S = 120  # instances send statistics of a minute when it is over, and what they could not send before

HELD_IN = {
    "counters": "ratelimits",
    "failures": "ratelimit_failures",
    "statistics": "ratelimit_stats: the heaviest users of a minute",
    "denials": "ratelimit_stats: what explain --id reads",
    "overrides": "ratelimit_overrides: names in reasons and authors, and of whose counters were reset",
}
OUTSIDE = (
    "log files",
    "backups of the database",
    "what hooks and traces have handed on",
    "memory of running instances, until the user has been idle for the longest window; nothing is stored from it",
)


@click.command()
@click.argument("user")
@click.option("--client", metavar="CLIENT", help="Only at this client.")
@click.option("--dry-run", is_flag=True, help="Only say what there is.")
@json_option
@pass_context
def erase(context: CliContext, user: str, client: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove all records of a person.

    Finds USER under the plain name and under every key that the configuration lists, or by a hash as logs show it.
    Counters of the user start at zero on all instances. Where somebody gave the name as the reason of an override, or
    is its author, the name is blanked, and where it is on record that the counters were reset.

    What instances have counted and not yet sent may come after it: run it again two minutes later. It never touches
    log files, backups, or what was handed on to others.
    """
    if not user.strip():
        raise click.UsageError("name a user")
    erasure = Erasure(
        context.connection,
        collection=context.settings.store.collection,
        person=_person(context, user, client),
    )
    counts: dict[str, int] = {}
    refused: dict[str, str] = {}
    for name, part in erasure.parts.items():
        try:
            counts[name] = part(not dry_run)
        except StoreRejected as exc:
            refused[name] = str(exc)
    if as_json:
        print_json(
            {
                "is_dry_run": dry_run,
                "found" if dry_run else "removed": counts,
                "refused": refused,
                "outside": OUTSIDE,
                "again_after_s": AGAIN_AFTER_S,
            }
        )
    else:
        _print(counts, refused, is_dry_run=dry_run)
    if refused:
        raise StoreRejected(f"not everything could be looked at: {', '.join(refused)}")


def _person(context: CliContext, user: str, client: str | None) -> Person:
    names = context.names.all_of(user)
    return Person(
        names=names,
        claims=context.names.all_of(folded(user)),
        mentions=tuple(dict.fromkeys((user, *names))),
        client_id=None if client is None else storable_name(client),
    )


def _print(counts: dict[str, int], refused: dict[str, str], *, is_dry_run: bool) -> None:
    columns = [Column("what"), Column("found" if is_dry_run else "removed", is_number=True), Column("where")]
    print_table(
        columns,
        [
            (name, str(counts[name]) if name in counts else Cell("refused", "bold red"), where)
            for name, where in HELD_IN.items()
        ],
    )
    for name, reason in refused.items():
        click.echo(f"{name}: {visible(reason)}", err=True)
    click.echo("Not reached from here: " + "; ".join(OUTSIDE) + ".")
    if not is_dry_run:
        click.echo(f"Run it again in {AGAIN_AFTER_S} s: instances may still send what they have counted.")
