"""Commands that change limits, trust and modes at run time, and that list the changes."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    client_id,
    confirm,
    examples,
    format_option,
    json_option,
    kind_option,
    name_argument,
    operator_and_reason,
    override_options,
    yes_option,
)
from oauth_ratelimit.cli.output import (
    Column,
    Name,
    Time,
    print_hint,
    print_json,
    print_records,
    print_text,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.core.key import matches_any, visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind, OnLimit
from oauth_ratelimit.errors import ConfigError, StoreError, StoreRejected
from oauth_ratelimit.operations.changes import (
    check_obeyed,
    end_after,
    enforce_refusal,
    limit_override,
    notes_on_mode,
)
from oauth_ratelimit.operations.context import unknown_client_hint
from oauth_ratelimit.operations.format import Record, counted, entry_data, mode_source_text, mode_text, override_data
from oauth_ratelimit.operations.marks import last_change_text
from oauth_ratelimit.traffic.preview import UNCHANGED, impact_of, new_ends

NO_OVERRIDES = "No overrides: the configuration applies."
NO_HISTORY = "No overrides and no resets so far."
MAY_STAY_OFF = "If the last valid configuration has mode: off, everything stays off: that beats every override."


def _what(change: Record) -> str:
    return f"{change['limit_kind']} limit" if change["limit_kind"] else str(change["kind"])


def _whose(change: Record) -> str:
    if change["client_id"] is None:
        return "everybody"
    return f"{change['client_id']} {change['username']}" if change.get("username") else str(change["client_id"])


def _value(change: Record) -> Any:
    if change.get("action", "set") != "set":
        return ""
    if change["canary_percent"] is not None:
        return f"{change['mode']}, {change['canary_percent']:g} % of the clients"
    if change["kind"] == OverrideKind.LIMIT:
        return ", ".join(change["limits"]) or "no limit"
    return change["mode"] or "trusted"


CHANGE_COLUMNS = [Column("what", _what), Name("client", _whose), Column("value", _value)]
OVERRIDE_COLUMNS = [
    *CHANGE_COLUMNS,
    Time("until", lambda change: change["until"] or "no end"),
    Column("by", "by"),
    Column("reason", "reason"),
]
HISTORY_COLUMNS = [
    Time("when", "at"),
    Column("by", "by"),
    Column("action", "action"),
    *CHANGE_COLUMNS,
    Column("reason", "reason"),
]


@click.group()
@examples("limit list", 'limit set partner-app --limit 100/minute --kind user --reason "ticket 4711"')
@pass_context
def limit(context: CliContext) -> None:
    """Change limits at run time."""
    context.allows_invalid_config = True


client_or_everybody = name_argument("client", client_id, everybody="The defaults instead of one CLIENT.")


@limit.command("set")
@examples(
    'limit set partner-app --limit 100/minute --kind user --reason "ticket 4711"',
    'limit set --everybody --limit 9000/minute --kind client --reason "sale"',
)
@client_or_everybody
@click.option("--limit", "limits", required=True, multiple=True, metavar="LIMIT", help="New limit; several make tiers.")
@kind_option("The limits to replace. The other kinds stay as they are.", required=True)
@click.option(
    "--on-limit", type=click.Choice([each.value for each in OnLimit]), help="What a request over these limits gets."
)
@yes_option
@override_options
@pass_context
def set_limit(
    context: CliContext, /, client: str | None, limits: Sequence[str], kind: str, on_limit: str | None, **options: Any
) -> None:
    """Set the limits of one kind of a CLIENT on all instances.

    LIMIT is 100/minute, or a mapping as in the configuration: '{limit: 100, window: 1m, mode: dry-run}'; "none" lifts
    the limit. They apply at the token endpoint, and where a grant type under grants does not name that kind. Shows what
    they do if clients go on as in the last minutes, and asks.
    """
    template = override_of(context, Target(OverrideKind.LIMIT, client, LimitKind(kind)), options)
    policies = context.policies
    try:
        override = limit_override(policies, template, limits, on_limit=OnLimit(on_limit) if on_limit else None)
    except ConfigError as exc:
        raise click.UsageError("\n".join(map(visible_name, exc.problems))) from None
    question = f"Set the {kind} limits of {'everybody' if client is None else repr(client)}?"
    show_impact_and_ask(context, override, question, options)
    apply(context, override, as_json=options["as_json"], is_previewed=True)


@limit.command("unset")
@examples(
    'limit unset partner-app --kind user --reason "migration is over"',
    'limit unset --everybody --reason "sale is over"',
)
@client_or_everybody
@kind_option("Only this kind.  [default: all]")
@operator_and_reason
@pass_context
def unset_limit(context: CliContext, /, client: str | None, kind: str | None, **options: Any) -> None:
    """Remove overridden limits of a CLIENT.

    The configuration applies again. Exits with 1 if there is no such override.
    """
    kinds = [
        each for each in LimitKind if kind in (None, each) and (client is None or each is not LimitKind.USER_TOTAL)
    ]
    targets = [Target(OverrideKind.LIMIT, client, each) for each in kinds]
    remove(context, targets, **options)


@limit.command("list")
@examples("limit list", "limit list --format csv")
@format_option()
@pass_context
def list_limits(context: CliContext, form: str) -> None:
    """List overridden limits."""
    print_overrides(form, of_kind(context, OverrideKind.LIMIT), empty="No override changes a limit.")


@click.group()
@examples("trust list", 'trust add partner-app --for 1d --reason "denied by mistake"')
@pass_context
def trust(context: CliContext) -> None:
    """Trust clients at run time.

    A trusted client is never denied and never counted.
    """
    context.allows_invalid_config = True


@trust.command("add")
@examples(
    'trust add partner-app --for 1d --reason "denied by mistake"',
    'trust add --client nightly --for 31d --reason "year-end run" --json',
)
@name_argument("client", client_id, is_required=True)
@override_options
@pass_context
def add_trust(context: CliContext, /, client: str, as_json: bool, **options: Any) -> None:
    """Trust a CLIENT. Patterns such as 'mobile-*' are for the configuration file."""
    apply(context, override_of(context, Target(OverrideKind.TRUSTED, client), options), as_json=as_json)


@trust.command("remove")
@examples(
    'trust remove partner-app --reason "mended"', 'trust remove --client nightly --reason "year-end run is over" --json'
)
@name_argument("client", client_id, is_required=True)
@operator_and_reason
@pass_context
def remove_trust(context: CliContext, /, client: str, **options: Any) -> None:
    """Stop trusting a CLIENT that was trusted at run time.

    Exits with 1 if there is no such override. A client that the configuration trusts stays trusted, with a warning.
    """
    patterns = [pattern for pattern in context.settings.policies.trusted if matches_any([pattern], client)]
    if patterns:
        print_text(f"Still trusted by the configuration: {visible(', '.join(patterns))}", err=True)
    remove(context, [Target(OverrideKind.TRUSTED, client)], **options)


@trust.command("list")
@examples("trust list", "trust list --json")
@format_option()
@pass_context
def list_trust(context: CliContext, form: str) -> None:
    """List the clients that are trusted by an override."""
    print_overrides(form, of_kind(context, OverrideKind.TRUSTED), empty="No override trusts a client.")


@click.group(invoke_without_command=True)
@examples("mode", "mode --json")
@json_option
@pass_context
@click.pass_context
def mode(ctx: click.Context, context: CliContext, as_json: bool) -> None:
    """Show or change the mode at run time."""
    context.allows_invalid_config = True
    if ctx.invoked_subcommand is not None:
        return
    file = context.settings.policies
    overrides = of_kind(context, OverrideKind.MODE)
    if as_json:
        file_mode = None if context.invalid else mode_text(file)
        print_json({"mode": context.mode, "file_mode": file_mode, "overrides": list(map(override_data, overrides))})
    else:
        click.echo(context.mode_text if context.mode is None else mode_text(context.policies))
        if not context.invalid:
            print_text(f"From {visible(mode_source_text(file, context.origins.of_mode('')))}.")
        with suppress(StoreError):  # it is shown also to those who may not read changes
            if context.is_shared:
                print_text(f"Last change of a mode: {visible(last_change_text(context, of_mode=True))}.")
        print_overrides("table", overrides, empty="No override changes the mode.")


@mode.command("set")
@examples(
    'mode set enforce --canary 5 --reason "canary"', 'mode set dry-run partner-app --for 7d --reason "ticket 4711"'
)
@click.argument("mode", type=click.Choice([mode.value for mode in Mode]))
@name_argument("client", client_id)
@click.option(
    "--canary",
    "canary_percent",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="With enforce: only this share of the clients, in place of the configuration's canary; 100 for all of them.",
)
@yes_option
@override_options
@pass_context
def set_mode(
    context: CliContext, /, mode: str, client: str | None, canary_percent: float | None, **options: Any
) -> None:
    """Set the mode of everybody or of a CLIENT on all instances.

    off and dry-run apply to everybody, also where the configuration has a mode of its own; enforce applies where it
    has none. So off or dry-run for everybody beats enforce for a client, and dry-run for a client beats enforce for
    everybody. mode: off in the configuration of an instance, or OAUTH_RATELIMIT_MODE=off in its environment, beats
    every override.

    enforce shows whom it would have denied in the last hour, and asks. For everybody it needs --canary while a canary
    is active, or if there was no dry run. off and dry-run deny nobody, so they do not ask.
    """
    if canary_percent is not None and (mode != Mode.ENFORCE or client is not None):
        raise click.UsageError("--canary is for enforce, without a CLIENT")
    target = Target(OverrideKind.MODE, client)
    change = override_of(context, target, options, mode=Mode(mode), canary_percent=canary_percent)
    shown = list[str]()
    if change.mode is Mode.ENFORCE:
        is_for_all = client is None and canary_percent is None
        if is_for_all and (refusal := enforce_refusal(context, is_invalid=context.invalid is not None)):
            raise click.UsageError(refusal)
        if client is None and is_enforced(context, change):
            print_text(UNCHANGED, err=True)
            if options["as_json"]:
                print_overrides("json", [each for each in context.overrides if each.target == target])
            return
        share = "" if canary_percent in (None, 100) else f"{canary_percent:g} % of the clients"
        question = f"Enforce limits for {(client and repr(client)) or share or 'everybody'}?"
        shown = show_impact_and_ask(context, change, question, options)
    apply(context, change, as_json=options["as_json"], is_previewed=change.mode is Mode.ENFORCE)
    for sentence in notes_on_mode(context.settings, context.overrides, change):
        if sentence not in shown:
            print_hint(visible(sentence))
    if context.invalid and Mode.OFF not in (mode, context.settings.policies.mode):
        print_hint(MAY_STAY_OFF)


@mode.command("unset")
@examples('mode unset --reason "incident 17 is over"', 'mode unset partner-app --reason "ticket 4711"')
@name_argument("client", client_id)
@operator_and_reason
@pass_context
def unset_mode(context: CliContext, /, client: str | None, **options: Any) -> None:
    """Remove an overridden mode.

    That of everybody, or of a CLIENT: the configuration applies again. Exits with 1 if there is no such override.
    """
    remove(context, [Target(OverrideKind.MODE, client)], **options)


@click.command("overrides")
@examples("overrides partner-app", "overrides --history --format csv")
@name_argument("client")
@click.option("--history", "is_history", is_flag=True, help="All changes, oldest first.")
@format_option()
@pass_context
def list_overrides(context: CliContext, client: str | None, is_history: bool, form: str) -> None:
    """List overrides, or their history.

    Active overrides of one CLIENT or of all; with --history all changes, including resets of counters: the last
    thousand of each target.
    """
    context.allows_invalid_config = True
    if is_history:
        history = list(map(entry_data, context.stores.overrides.history(client)))
        print_records(form, history, HISTORY_COLUMNS, empty=NO_HISTORY)
    else:
        print_overrides(form, [each for each in context.overrides if client in (None, each.target.client_id)])


def override_of(context: CliContext, target: Target, options: dict[str, Any], **more: Any) -> Override:
    try:
        until_s = end_after(length, now_s=context.now_s) if (length := options["length"]) is not None else None
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--for") from None
    return Override(target, options["author"], options["reason"], context.now_s, until_s=until_s, **more)


def is_enforced(context: CliContext, change: Override) -> bool:
    """Return whether what a change for everybody says applies, until the same time if by an override."""
    applies = context.policies.mode is Mode.ENFORCE and context.after([change]).policies == context.policies
    return applies and not new_ends(context.overrides, [change])


def show_impact_and_ask(context: CliContext, override: Override, question: str, options: dict[str, Any]) -> list[str]:
    """Print what an override does, unless nobody is to read it, and ask. Returns the lines that were printed."""
    lines = list[str]()
    if not (options["is_confirmed"] and options["as_json"]):
        try:
            lines = impact_of(context, [override]).lines
        except StoreRejected as exc:  # a user without the right to read statistics may still change limits
            lines = [f"Whom this hits is not known: {exc}"]
        for line in lines:
            print_text(visible(line), err=True)
    confirm(question, is_confirmed=options["is_confirmed"])
    return lines


def apply(context: CliContext, override: Override, *, as_json: bool, is_previewed: bool = False) -> None:
    client, ends = override.target.client_id, list[str]()
    if not (as_json or is_previewed):
        with suppress(StoreError):  # the way back works without it, and is not to wait for those of all clients
            present = context.overrides if client else context.stores.overrides.read_for_everybody()
            ends = new_ends(present, [override])
    # Looked up first, because the override itself makes the client known.
    hint = None if client is None else unknown_client_hint(context, client)
    if client is not None and override.target.kind is not OverrideKind.TRUSTED:
        is_trusted = context.policies.trusts(client)
        hint = f"'{visible(client)}' is a trusted client: its limits have no effect" if is_trusted else hint
    applied = context.stores.overrides.put(override)
    print_overrides("json" if as_json else "table", [applied])
    _print_effect(context, as_json=as_json)
    if not as_json:
        print_hint("\n".join(filter(None, (*map(visible, ends), hint))))


def remove(context: CliContext, targets: Sequence[Target], *, author: str, reason: str, as_json: bool) -> None:
    store = context.stores.overrides
    removed = [target for target in targets if store.remove(target, author=author, reason=reason)]
    if as_json:
        print_json({"removed_count": len(removed)})
    elif removed:
        click.echo(f"{counted(len(removed), 'override')} removed")
    else:
        click.echo("No such override.", err=True)
        print_unknown_client_hint(context, targets[0].client_id)
    if removed:
        _print_effect(context, as_json=as_json)
    click.get_current_context().exit(0 if removed else 1)


def _print_effect(context: CliContext, *, as_json: bool) -> None:
    doubt = check_obeyed(context)
    delay = "two sync intervals" if context.invalid else f"{2 * context.settings.sync.interval_s:g} s"
    is_off = context.settings.policies.mode is Mode.OFF
    when = "when the configuration no longer has mode: off" if is_off else f"on every instance within {delay}"
    if not as_json:
        click.echo(f"Takes effect {when}.")
    print_hint(doubt and visible(doubt))


def of_kind(context: CliContext, kind: OverrideKind) -> list[Override]:
    return [override for override in context.overrides if override.target.kind is kind]


def print_overrides(form: str, overrides: Iterable[Override], *, empty: str = NO_OVERRIDES) -> None:
    print_records(form, list(map(override_data, overrides)), OVERRIDE_COLUMNS, empty=empty)
