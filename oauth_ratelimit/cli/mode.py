"""
Commands that change the mode.
"""

from typing import Any

import click

from oauth_ratelimit.cli.context import Session, json_option, pass_session
from oauth_ratelimit.cli.options import checked, data_of, override, print_kind, put, remove, until_when, who_and_why
from oauth_ratelimit.cli.output import print_json
from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.overrides import OverrideKind, Target


@click.group(invoke_without_command=True)
@json_option
@pass_session
@click.pass_context
def mode(ctx: click.Context, session: Session, as_json: bool) -> None:
    """
    Show or change the mode at run time.
    """
    if ctx.invoked_subcommand is None:
        if as_json:
            print_json({"mode": session.policies.mode.value, "overrides": data_of(session, OverrideKind.MODE)})
            return
        click.echo(session.policies.mode.value)
        print_kind(session, OverrideKind.MODE, as_json=False)


@mode.command("set")
@click.argument("mode", type=click.Choice([mode.value for mode in Mode]))
@click.option("--client", help="Only for this client.")
@until_when
@who_and_why
@json_option
@pass_session
def set_mode(session: Session, /, mode: str, client: str | None, as_json: bool, **options: Any) -> None:
    """
    Put a mode in force, on all instances.

    off and dry-run hold for everybody, also where the configuration has a mode of its own; enforce holds where it has
    none. A canary stays in force. OAUTH_RATELIMIT_MODE=off in an instance's environment beats everything.
    """
    target = Target(OverrideKind.MODE, None if client is None else checked(client))
    put(session, [override(session, target, options, mode=Mode(mode))], as_json=as_json)


@mode.command("unset")
@click.option("--client", help="Only for this client.")
@who_and_why
@json_option
@pass_session
@click.pass_context
def unset_mode(
    ctx: click.Context, session: Session, client: str | None, author: str, reason: str, as_json: bool
) -> None:
    """
    Take a mode back: what the configuration says holds again.

    Exits with 1 if there is nothing to take back.
    """
    target = Target(OverrideKind.MODE, None if client is None else checked(client))
    ctx.exit(remove(session, [target], author=author, reason=reason, as_json=as_json))
