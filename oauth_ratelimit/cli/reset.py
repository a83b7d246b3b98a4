"""
The command that sets counters to zero.
"""

import click

from oauth_ratelimit.cli.context import Session, json_option, pass_session
from oauth_ratelimit.cli.options import by_whom
from oauth_ratelimit.cli.output import print_json
from oauth_ratelimit.cli.parameters import kept
from oauth_ratelimit.cli.stranger import say_if_strange
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.overrides import Counters
from oauth_ratelimit.operations.words import counted


@click.command()
@click.argument("client")
@click.argument("user", required=False)
@by_whom
@click.option("--reason", default="", metavar="TEXT", callback=kept, help="Why; kept on record.")
@json_option
@pass_session
def reset(session: Session, client: str, user: str | None, author: str, reason: str, as_json: bool) -> None:
    """
    Set counters to zero on all instances.

    Those of a CLIENT and all its users, or of one USER. An instance learns it with the next sync cycle in which the
    client asks. The total of the client goes on when only one user is reset. It is put on record: see overrides
    --history.
    """
    counters = Counters(storable_name(client), None if user is None else session.names.typed(user))
    # Before the deed: what cannot be put on record is not done.
    session.override_store.note_reset(counters, author=author, reason=reason, at_s=session.now_s)
    count = session.documents.reset(counters.client_id, counters.username)
    if as_json:
        print_json({"reset_count": count})
    else:
        click.echo(f"{counted(count, 'counter document')} set to zero")
        say_if_strange(session, client)
