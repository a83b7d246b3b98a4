"""
The command that removes a person's records.
"""

import click

from oauth_ratelimit.cli.context import Session, json_option, pass_session
from oauth_ratelimit.cli.output import Cell, Column, print_json, print_table, visible
from oauth_ratelimit.core.failed_auth import folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.store.mongo.erasure import Erasure, Person

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
@pass_session
def erase(session: Session, user: str, client: str | None, dry_run: bool, as_json: bool) -> None:
    """
    Remove all records of a person.

    Finds USER under the plain name and under every key that the configuration lists, or by a hash as logs show it.
    Counters of the user start at zero on all instances. Where somebody gave the name as the reason of an override, or
    is its author, the name is blanked, and where it is on record that the counters were reset.

    What instances have counted and not yet sent may come after it: run it again two minutes later. It never touches
    log files, backups, or what was handed on to others.
    """
    if not user.strip():
        raise click.UsageError("name a user")
    erasure = Erasure(
        session.connection,
        collection=session.settings.store.collection,
        person=_person(session, user, client),
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


def _person(session: Session, user: str, client: str | None) -> Person:
    names = session.names.all_of(user)
    return Person(
        names=names,
        claims=session.names.all_of(folded(user)),
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
