"""Commands that change limits."""

from collections.abc import Sequence
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, Function, json_option, pass_context
from oauth_ratelimit.cli.options import (
    by_whom,
    checked,
    data_of,
    kept,
    override,
    print_kind,
    put,
    remove,
    until_when,
    who_and_why,
)
from oauth_ratelimit.cli.output import print_hint, print_json, print_unknown_client_hint, visible
from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.overrides import Counters, LimitKind, OverrideKind, Target
from oauth_ratelimit.core.policy import Mode, matches_any
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import limit_overrides
from oauth_ratelimit.operations.serialize import counted
from oauth_ratelimit.operations.suggestions import trusted_client_hint


@click.group()
def limit() -> None:
    """Change limits at run time."""


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
@pass_context
def set_limit(context: CliContext, /, client: str | None, everybody: bool, as_json: bool, **options: Any) -> None:
    """Put limits of a CLIENT in force, on all instances.

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
    like = override(context, Target(OverrideKind.LIMIT, client_id, next(iter(named))), options)
    policies = context.policies
    try:
        made = limit_overrides(policies, client_id, named, like=like)
    except ConfigError as exc:
        raise click.UsageError("\n".join(map(visible_name, exc.problems))) from None
    put(context, made, as_json=as_json)
    if client_id is not None and not as_json:
        print_hint(trusted_client_hint(context, client_id))


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
@pass_context
@click.pass_context
def unset_limit(
    ctx: click.Context,
    context: CliContext,
    client: str | None,
    everybody: bool,
    kinds: Sequence[str],
    author: str,
    reason: str,
    as_json: bool,
) -> None:
    """Take limits of a CLIENT back: what the configuration says holds again.

    Exits with 1 if there is nothing to take back.
    """
    client_id = _whose(client, everybody)
    targets = [Target(OverrideKind.LIMIT, client_id, kind) for kind in LimitKind if not kinds or kind in kinds]
    ctx.exit(remove(context, targets, author=author, reason=reason, as_json=as_json))


@limit.command("list")
@json_option
@pass_context
def list_limits(context: CliContext, as_json: bool) -> None:
    """List the limits that were put in force here."""
    print_kind(context, OverrideKind.LIMIT, as_json=as_json)


def _whose(client: str | None, everybody: bool) -> str | None:
    if (client is None) != everybody:
        raise click.UsageError("name either a CLIENT or --everybody")
    return None if client is None else checked(client)


@click.group(invoke_without_command=True)
@json_option
@pass_context
@click.pass_context
def mode(ctx: click.Context, context: CliContext, as_json: bool) -> None:
    """Show or change the mode at run time."""
    if ctx.invoked_subcommand is None:
        if as_json:
            print_json({"mode": context.policies.mode.value, "overrides": data_of(context, OverrideKind.MODE)})
            return
        click.echo(context.policies.mode.value)
        print_kind(context, OverrideKind.MODE, as_json=False)


@mode.command("set")
@click.argument("mode", type=click.Choice([mode.value for mode in Mode]))
@click.option("--client", help="Only for this client.")
@until_when
@who_and_why
@json_option
@pass_context
def set_mode(context: CliContext, /, mode: str, client: str | None, as_json: bool, **options: Any) -> None:
    """Put a mode in force, on all instances.

    off and dry-run hold for everybody, also where the configuration has a mode of its own; enforce holds where it has
    none. A canary stays in force. OAUTH_RATELIMIT_MODE=off in an instance's environment beats everything.
    """
    target = Target(OverrideKind.MODE, None if client is None else checked(client))
    put(context, [override(context, target, options, mode=Mode(mode))], as_json=as_json)


@mode.command("unset")
@click.option("--client", help="Only for this client.")
@who_and_why
@json_option
@pass_context
@click.pass_context
def unset_mode(
    ctx: click.Context, context: CliContext, client: str | None, author: str, reason: str, as_json: bool
) -> None:
    """Take a mode back: what the configuration says holds again.

    Exits with 1 if there is nothing to take back.
    """
    target = Target(OverrideKind.MODE, None if client is None else checked(client))
    ctx.exit(remove(context, [target], author=author, reason=reason, as_json=as_json))


@click.group()
def trust() -> None:
    """Trust clients at run time.

    A trusted client is never denied and never counted.
    """


@trust.command("add")
@click.argument("client")
@until_when
@who_and_why
@json_option
@pass_context
def add_trust(context: CliContext, /, client: str, as_json: bool, **options: Any) -> None:
    """Trust a CLIENT, or all that match a pattern such as 'mobile-*'."""
    target = Target(OverrideKind.TRUSTED, checked(client))
    put(context, [override(context, target, options)], as_json=as_json)


@trust.command("remove")
@click.argument("client")
@who_and_why
@json_option
@pass_context
@click.pass_context
def remove_trust(ctx: click.Context, context: CliContext, client: str, author: str, reason: str, as_json: bool) -> None:
    """Trust a CLIENT no longer that was trusted here.

    Exits with 1 if it was not. A client that the configuration trusts stays trusted, and that is said.
    """
    target = Target(OverrideKind.TRUSTED, checked(client))
    code = remove(context, [target], author=author, reason=reason, as_json=as_json)
    patterns = [pattern for pattern in context.settings.policies.trusted if matches_any([pattern], client)]
    if patterns:
        click.echo(f"Still trusted by the configuration: {visible(', '.join(patterns))}", err=True)
    ctx.exit(code)


@trust.command("list")
@json_option
@pass_context
def list_trust(context: CliContext, as_json: bool) -> None:
    """List the clients that were trusted here."""
    print_kind(context, OverrideKind.TRUSTED, as_json=as_json)


@click.command()
@click.argument("client")
@click.argument("user", required=False)
@by_whom
@click.option("--reason", default="", metavar="TEXT", callback=kept, help="Why; kept on record.")
@json_option
@pass_context
def reset(context: CliContext, client: str, user: str | None, author: str, reason: str, as_json: bool) -> None:
    """Set counters to zero on all instances.

    Those of a CLIENT and all its users, or of one USER. An instance learns it with the next sync cycle in which the
    client asks. The total of the client goes on when only one user is reset. It is put on record: see overrides
    --history.
    """
    counters = Counters(storable_name(client), None if user is None else context.names.typed(user))
    # Before the deed: what cannot be put on record is not done.
    context.override_store.note_reset(counters, author=author, reason=reason, at_s=context.now_s)
    count = context.documents.reset(counters.client_id, counters.username)
    if as_json:
        print_json({"reset_count": count})
    else:
        click.echo(f"{counted(count, 'counter document')} set to zero")
        print_unknown_client_hint(context, client)
