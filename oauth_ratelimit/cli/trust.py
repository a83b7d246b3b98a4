"""
Commands that change who is trusted.
"""

from typing import Any

import click

from oauth_ratelimit.cli.context import Session, json_option, pass_session
from oauth_ratelimit.cli.options import checked, override, print_kind, put, remove, until_when, who_and_why
from oauth_ratelimit.cli.output import visible
from oauth_ratelimit.core.enforcement import matches_any
from oauth_ratelimit.core.overrides import OverrideKind, Target


@click.group()
def trust() -> None:
    """
    Trust clients at run time.

    A trusted client is never denied and never counted.
    """


@trust.command("add")
@click.argument("client")
@until_when
@who_and_why
@json_option
@pass_session
def add_trust(session: Session, /, client: str, as_json: bool, **options: Any) -> None:
    """
    Trust a CLIENT, or all that match a pattern such as 'mobile-*'.
    """
    target = Target(OverrideKind.TRUSTED, checked(client))
    put(session, [override(session, target, options)], as_json=as_json)


@trust.command("remove")
@click.argument("client")
@who_and_why
@json_option
@pass_session
@click.pass_context
def remove_trust(ctx: click.Context, session: Session, client: str, author: str, reason: str, as_json: bool) -> None:
    """
    Trust a CLIENT no longer that was trusted here.

    Exits with 1 if it was not. A client that the configuration trusts stays trusted, and that is said.
    """
    target = Target(OverrideKind.TRUSTED, checked(client))
    code = remove(session, [target], author=author, reason=reason, as_json=as_json)
    patterns = [pattern for pattern in session.settings.policies.trusted if matches_any([pattern], client)]
    if patterns:
        click.echo(f"Still trusted by the configuration: {visible(', '.join(patterns))}", err=True)
    ctx.exit(code)


@trust.command("list")
@json_option
@pass_session
def list_trust(session: Session, as_json: bool) -> None:
    """
    List the clients that were trusted here.
    """
    print_kind(session, OverrideKind.TRUSTED, as_json=as_json)
