"""
Commands that prepare the database: init-db, db upgrade, db status.
"""

from typing import Any

import click

from oauth_ratelimit.cli.context import Session, json_option, pass_session
from oauth_ratelimit.cli.output import Cell, Column, print_json, print_table
from oauth_ratelimit.operations.words import moment
from oauth_ratelimit.store.mongo.migrations import Migrations


@click.command("init-db")
@json_option
@pass_session
def init_db(session: Session, as_json: bool) -> None:
    """
    Create collections and indexes.

    For instances that may not create them at run time: run it once with --mongo-uri and a user that may. Instances
    then need to read and write only. It can be run again at any time.
    """
    migrations = _migrations(session)
    created, applied = migrations.create_collections(), migrations.upgrade()
    if as_json:
        print_json({"created_collections": created, "applied_migrations": applied})
        return
    for name in created:
        click.echo(f"created collection {name}")
    _say_applied(applied)


@click.group()
def db() -> None:
    """
    Keep the database's format up to date.
    """


@db.command()
@json_option
@pass_session
def upgrade(session: Session, as_json: bool) -> None:
    """
    Run the migrations that were not run yet.

    Any number of processes may call this at once, such as all instances when they start: each migration can run
    twice or in parallel without harm.
    """
    applied = _migrations(session).upgrade()
    if as_json:
        print_json({"applied_migrations": applied})
    else:
        _say_applied(applied)


@db.command("status")
@json_option
@pass_session
@click.pass_context
def show_status(ctx: click.Context, session: Session, as_json: bool) -> None:
    """
    List the migrations.

    Exits with 1 if some were not run yet.
    """
    states = _migrations(session).states()
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


def _migrations(session: Session) -> Migrations:
    return Migrations(session.connection, collection=session.settings.store.collection)


def _say_applied(names: list[str]) -> None:
    for name in names:
        click.echo(f"applied {name}")
    if not names:
        click.echo("The database is up to date.")
