"""Commands that change limits, modes, trust and counters at run time, and that list the changes."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, Function, pass_context
from oauth_ratelimit.cli.options import (
    author_and_reason,
    author_option,
    client_argument,
    confirm,
    end_options,
    json_option,
    text,
    yes_option,
)
from oauth_ratelimit.cli.output import (
    print_hint,
    print_history,
    print_json,
    print_overrides,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.core.key import matches_any, storable_name, visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Counters, Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.changes import end_after, end_at, limit_overrides, unaffected_by_mode
from oauth_ratelimit.operations.client_hints import trusted_client_hint, unknown_client_hint
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.operations.serialize import entry_data, override_data

MAY_STAY_OFF = "If the last valid configuration has mode: off, everything stays off: that beats every override."
NO_OVERRIDE = {
    OverrideKind.LIMIT: "No override of limits: those of the configuration apply.",
    OverrideKind.MODE: "No override of the mode: that of the configuration applies.",
    OverrideKind.TRUSTED: "No client is trusted by an override: only those of the configuration are.",
}


@click.group()
@pass_context
def limit(context: CliContext) -> None:
    """Change limits at run time."""
    context.accept_broken()


def _limit_parameter(kind: LimitKind) -> str:
    return f"{kind.value}_limits"


def _limit_options(command: Function) -> Function:
    for kind in reversed(LimitKind):
        option = click.option(
            f"--{kind.value.replace('_', '-')}",
            _limit_parameter(kind),
            multiple=True,
            metavar="LIMIT",
            help=f"Replaces the {kind.value} limits.",
        )
        command = option(command)
    return command


@limit.command("set")
@click.argument("client", required=False)
@click.option("--everybody", is_flag=True, help="Change the defaults instead of one CLIENT.")
@_limit_options
@end_options
@author_and_reason
@json_option
@pass_context
def set_limit(context: CliContext, /, client: str | None, everybody: bool, as_json: bool, **options: Any) -> None:
    """Set limits of a CLIENT on all instances.

    LIMIT is 100/minute, or a mapping as in the configuration: '{limit: 100, window: 1m, mode: dry-run}'; several make
    tiers; "none" lifts the limit. A kind that is not named stays as it is. They apply at the token endpoint; where a
    grant type has limits of its own, those stay.

    \b
    Examples:
      limit set partner-app --user 100/minute --for 7d --reason "migration, ticket 4711"
      limit set nightly --client none --until 2026-12-01T00:00:00Z --reason "year-end run"
      limit set --everybody --client 20000/minute --for 36h --reason "Black Friday"
    """
    client_id = _client_or_everybody(client, everybody)
    limits = {kind: list(options[_limit_parameter(kind)]) for kind in LimitKind if options[_limit_parameter(kind)]}
    if not limits:
        raise click.UsageError("name at least one limit: --client, --user or --client-total")
    template = _override(context, Target(OverrideKind.LIMIT, client_id, next(iter(limits))), options)
    policies = context.policies
    try:
        overrides = limit_overrides(policies, client_id, limits, template=template)
    except ConfigError as exc:
        raise click.UsageError("\n".join(map(visible_name, exc.problems))) from None
    _apply(context, overrides, as_json=as_json)
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
@author_and_reason
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
    """Remove overridden limits of a CLIENT: the configuration applies again.

    Exits with 1 if there is no such override.
    """
    client_id = _client_or_everybody(client, everybody)
    targets = [Target(OverrideKind.LIMIT, client_id, kind) for kind in LimitKind if not kinds or kind in kinds]
    ctx.exit(_remove(context, targets, author=author, reason=reason, as_json=as_json))


@limit.command("list")
@json_option
@pass_context
def list_limits(context: CliContext, as_json: bool) -> None:
    """List overridden limits."""
    _print_kind(context, OverrideKind.LIMIT, as_json=as_json)


@click.group(invoke_without_command=True)
@json_option
@pass_context
@click.pass_context
def mode(ctx: click.Context, context: CliContext, as_json: bool) -> None:
    """Show or change the mode at run time."""
    context.accept_broken()
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        overrides = list(map(override_data, _of_kind(context, OverrideKind.MODE)))
        print_json({"mode": context.mode, "overrides": overrides})
    else:
        click.echo(context.mode_text)
        _print_kind(context, OverrideKind.MODE, as_json=False)


@mode.command("set")
@click.argument("mode", type=click.Choice([mode.value for mode in Mode]))
@click.option("--client", help="Only for this client.")
@end_options
@author_and_reason
@json_option
@pass_context
def set_mode(context: CliContext, /, mode: str, client: str | None, as_json: bool, **options: Any) -> None:
    """Set the mode on all instances.

    off and dry-run apply to everybody, also where the configuration has a mode of its own; enforce applies where it
    has none. So off or dry-run for everybody beats enforce for a client, and dry-run for a client beats enforce for
    everybody. A canary stays active. mode: off in the configuration of an instance, or OAUTH_RATELIMIT_MODE=off in its
    environment, beats every override.
    """
    target = Target(OverrideKind.MODE, None if client is None else client_argument(client))
    change = _override(context, target, options, mode=Mode(mode))
    _apply(context, [change], as_json=as_json)
    for sentence in unaffected_by_mode(context.settings.policies, context.overrides, change):
        print_hint(visible(sentence))
    if context.broken and mode != Mode.OFF:
        print_hint(MAY_STAY_OFF)
    if client is not None:
        print_hint(trusted_client_hint(context, client))


@mode.command("unset")
@click.option("--client", help="Only for this client.")
@author_and_reason
@json_option
@pass_context
@click.pass_context
def unset_mode(
    ctx: click.Context, context: CliContext, client: str | None, author: str, reason: str, as_json: bool
) -> None:
    """Remove an overridden mode: the configuration applies again.

    Exits with 1 if there is no such override.
    """
    target = Target(OverrideKind.MODE, None if client is None else client_argument(client))
    ctx.exit(_remove(context, [target], author=author, reason=reason, as_json=as_json))


@click.group()
@pass_context
def trust(context: CliContext) -> None:
    """Trust clients at run time.

    A trusted client is never denied and never counted.
    """
    context.accept_broken()


@trust.command("add")
@click.argument("client")
@end_options
@author_and_reason
@json_option
@pass_context
def add_trust(context: CliContext, /, client: str, as_json: bool, **options: Any) -> None:
    """Trust a CLIENT. Patterns such as 'mobile-*' are for the configuration file."""
    target = Target(OverrideKind.TRUSTED, client_argument(client))
    _apply(context, [_override(context, target, options)], as_json=as_json)


@trust.command("remove")
@click.argument("client")
@author_and_reason
@json_option
@pass_context
@click.pass_context
def remove_trust(ctx: click.Context, context: CliContext, client: str, author: str, reason: str, as_json: bool) -> None:
    """Stop trusting a CLIENT that was trusted at run time.

    Exits with 1 if there is no such override. A client that the configuration trusts stays trusted, with a warning.
    """
    target = Target(OverrideKind.TRUSTED, client_argument(client))
    code = _remove(context, [target], author=author, reason=reason, as_json=as_json)
    patterns = [pattern for pattern in context.settings.policies.trusted if matches_any([pattern], client)]
    if patterns:
        click.echo(f"Still trusted by the configuration: {visible(', '.join(patterns))}", err=True)
    ctx.exit(code)


@trust.command("list")
@json_option
@pass_context
def list_trust(context: CliContext, as_json: bool) -> None:
    """List the clients that are trusted by an override."""
    _print_kind(context, OverrideKind.TRUSTED, as_json=as_json)


@click.command()
@click.argument("client")
@click.argument("user", required=False)
@author_option
@click.option("--reason", default="", metavar="TEXT", callback=text, help="Why; kept in the history.")
@yes_option
@json_option
@pass_context
def reset(
    context: CliContext,
    client: str,
    user: str | None,
    author: str,
    reason: str,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    """Set counters to zero on all instances.

    Those of a CLIENT and all its users, or of one USER. An instance applies it in the next sync cycle in which the
    client is active. The total of the client is kept when only one user is reset. The reset is recorded: see
    overrides --history. Asks first on a terminal.
    """
    if user is None:  # else the configuration says how names are stored
        context.accept_broken()
    whose = f"{client} and all its users" if user is None else f"{user} at {client}"
    confirm(f"Set the counters of {whose} to zero?", is_confirmed=is_confirmed)
    counters = Counters(storable_name(client), None if user is None else context.pseudonyms.typed(user))
    # Recorded first: a reset that cannot be recorded is not made.
    context.stores.overrides.note_reset(counters, author=author, reason=reason, at_s=context.now_s)
    count = context.stores.documents.reset(counters.client_id, counters.username)
    if as_json:
        print_json({"reset_count": count})
    else:
        click.echo(f"{counted(count, 'counter document')} set to zero")
        print_unknown_client_hint(context, client)


@click.command("overrides")
@click.argument("client", required=False)
@click.option("--history", "is_history", is_flag=True, help="All changes, oldest first.")
@json_option
@pass_context
def list_overrides(context: CliContext, client: str | None, is_history: bool, as_json: bool) -> None:
    """List overrides, or their history.

    Active overrides of one CLIENT or of all; with --history all changes, including resets of counters: the last
    thousand of each target.
    """
    context.accept_broken()
    if is_history:
        entries = context.stores.overrides.history(client)
        if as_json:
            print_json(list(map(entry_data, entries)))
        else:
            print_history(entries)
        return
    overrides = [override for override in context.overrides if client in (None, override.target.client_id)]
    if as_json:
        print_json(list(map(override_data, overrides)))
    else:
        print_overrides(overrides)


def _client_or_everybody(client: str | None, everybody: bool) -> str | None:
    if (client is None) != everybody:
        raise click.UsageError("name either a CLIENT or --everybody")
    return None if client is None else client_argument(client)


def _override(context: CliContext, target: Target, options: dict[str, Any], *, mode: Mode | None = None) -> Override:
    """Return an override from the options of ``author_and_reason`` and ``end_options``."""
    return Override(
        target=target,
        author=options["author"],
        reason=options["reason"],
        made_at_s=context.now_s,
        until_s=_end_s(options["length"], options["end"], now_s=context.now_s),
        mode=mode,
    )


def _end_s(length: str | None, end: str | None, *, now_s: float) -> float | None:
    if length is not None and end is not None:
        raise click.UsageError("name either --for or --until")
    try:
        if length is not None:
            return end_after(length, now_s=now_s)
        return None if end is None else end_at(end, now_s=now_s)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--for" if length is not None else "--until") from None


def _apply(context: CliContext, overrides: Iterable[Override], *, as_json: bool) -> None:
    """Store overrides and print them."""
    applied = tuple(overrides)
    client_id = applied[0].target.client_id
    # Looked up first, because the override itself makes the client known.
    hint = None if client_id is None or as_json else unknown_client_hint(context, client_id)
    for override in applied:
        context.stores.overrides.put(override)
    if as_json:
        print_json(list(map(override_data, applied)))
    else:
        print_overrides(applied)
        _print_delay(context)
        print_hint(hint)


def _remove(context: CliContext, targets: Sequence[Target], *, author: str, reason: str, as_json: bool) -> int:
    """Remove overrides and return the exit code: 1 if there was none."""
    store = context.stores.overrides
    removed = [target for target in targets if store.remove(target, author=author, reason=reason, at_s=context.now_s)]
    if as_json:
        print_json({"removed_count": len(removed)})
    elif removed:
        click.echo(f"{counted(len(removed), 'override')} removed")
        _print_delay(context)
    else:
        click.echo("No such override.", err=True)
        for client_id in {target.client_id for target in targets if target.client_id is not None}:
            print_unknown_client_hint(context, client_id)
    return 0 if removed else 1


def _print_delay(context: CliContext) -> None:
    delay = "two sync intervals" if context.broken else f"{2 * context.settings.sync.interval_s:g} s"
    click.echo(f"Takes effect on every instance within {delay}.")


def _of_kind(context: CliContext, kind: OverrideKind) -> list[Override]:
    return [override for override in context.overrides if override.target.kind is kind]


def _print_kind(context: CliContext, kind: OverrideKind, *, as_json: bool) -> None:
    overrides = _of_kind(context, kind)
    if as_json:
        print_json(list(map(override_data, overrides)))
    else:
        print_overrides(overrides, empty=NO_OVERRIDE[kind])
