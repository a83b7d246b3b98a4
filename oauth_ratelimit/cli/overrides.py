"""
Commands that change limits.
"""

from collections.abc import Sequence
from typing import Any

import click

from oauth_ratelimit.cli.context import Function, Session, json_option, pass_session
from oauth_ratelimit.cli.options import checked, override, print_kind, put, remove, until_when, who_and_why
from oauth_ratelimit.cli.stranger import say_hint
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.overrides import LimitKind, OverrideKind, Target
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import limit_overrides
from oauth_ratelimit.operations.suggestions import trusted_hint


@click.group()
def limit() -> None:
    """
    Change limits at run time.
    """


def _parameter(kind: LimitKind) -> str:
    return f"{kind.value}_limits"


def _limit_options(command: Function) -> Function:
    for kind in reversed(LimitKind):
        name = kind.value.replace("_", "-")
        option = click.option(
            f"--{name}", _parameter(kind), multiple=True, metavar="LIMIT", help=f"Instead of the {kind.value} limits."
        )
        command = option(command)
    return command


@limit.command("set")
@click.argument("client", required=False)
@click.option("--everybody", is_flag=True, help="Change the defaults instead of one CLIENT.")
@_limit_options
@until_when
@who_and_why
@json_option
@pass_session
def set_limit(session: Session, /, client: str | None, everybody: bool, as_json: bool, **options: Any) -> None:
    """
    Put limits of a CLIENT in force, on all instances.

    LIMIT is 100/minute, or a mapping as in the configuration: '{limit: 100, window: 1m, mode: dry-run}'; several make
    tiers; "none" lifts the limit. A kind that is not named stays as it is. They hold at the token endpoint; where a
    grant type has limits of its own, those stay.

    \b
    Examples:
      limit set partner-app --user 100/minute --for 7d --reason "migration, ticket 4711"
      limit set nightly --client none --until 2026-12-01T00:00:00Z --reason "year-end run"
      limit set --everybody --client 20000/minute --for 36h --reason "Black Friday"
    """
    client_id = _whose(client, everybody)
    named = {kind: list(options[_parameter(kind)]) for kind in LimitKind if options[_parameter(kind)]}
    if not named:
        raise click.UsageError("name at least one limit: --client, --user or --client-total")
    like = override(session, Target(OverrideKind.LIMIT, client_id, next(iter(named))), options)
    policies = session.policies
    try:
        made = limit_overrides(policies, client_id, named, like=like)
    except ConfigError as exc:
        raise click.UsageError("\n".join(map(visible_name, exc.problems))) from None
    put(session, made, as_json=as_json)
    if client_id is not None and not as_json:
        say_hint(trusted_hint(session, client_id))


@limit.command("unset")
@click.argument("client", required=False)
@click.option("--everybody", is_flag=True, help="The defaults instead of one CLIENT.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in LimitKind]),
    help="Only this kind; by default all.",
)
@who_and_why
@json_option
@pass_session
@click.pass_context
def unset_limit(
    ctx: click.Context,
    session: Session,
    client: str | None,
    everybody: bool,
    kinds: Sequence[str],
    author: str,
    reason: str,
    as_json: bool,
) -> None:
    """
    Take limits of a CLIENT back: what the configuration says holds again.

    Exits with 1 if there is nothing to take back.
    """
    client_id = _whose(client, everybody)
    targets = [Target(OverrideKind.LIMIT, client_id, kind) for kind in LimitKind if not kinds or kind in kinds]
    ctx.exit(remove(session, targets, author=author, reason=reason, as_json=as_json))


@limit.command("list")
@json_option
@pass_session
def list_limits(session: Session, as_json: bool) -> None:
    """
    List the limits that were put in force here.
    """
    print_kind(session, OverrideKind.LIMIT, as_json=as_json)


def _whose(client: str | None, everybody: bool) -> str | None:
    if (client is None) != everybody:
        raise click.UsageError("name either a CLIENT or --everybody")
    return None if client is None else checked(client)
