"""
What commands say about a client that nobody has ever heard of.
"""

import click

from oauth_ratelimit.cli.context import Session
from oauth_ratelimit.operations.suggestions import stranger_hint


def say_if_strange(session: Session, client_id: str) -> None:
    """
    Say on the standard error if nothing is known of a client: most likely it is mistyped.
    """
    say_hint(stranger_hint(session, client_id))


def say_hint(hint: str | None) -> None:
    """
    Say what ``stranger_hint`` has found, for where it has to be looked up earlier than said.
    """
    if hint:
        click.secho(hint, fg="yellow", err=True)
