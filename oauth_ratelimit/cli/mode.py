"""Commands that show and change the mode at run time."""

from typing import Any

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import (
    client_id,
    json_option,
    name_argument,
    operator_and_reason,
    override_options,
    yes_option,
)
from oauth_ratelimit.cli.output import print_hint, print_json, visible
from oauth_ratelimit.cli.overrides import apply, of_kind, override_of, print_overrides, remove, show_impact_and_ask
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import OverrideKind, Target
from oauth_ratelimit.operations.changes import enforce_refusal, unaffected_by_mode
from oauth_ratelimit.operations.format import mode_source_text, mode_text
from oauth_ratelimit.operations.serialize import override_data

MAY_STAY_OFF = "If the last valid configuration has mode: off, everything stays off: that beats every override."


@click.group(invoke_without_command=True)
@json_option
@pass_context
@click.pass_context
def mode(ctx: click.Context, context: CliContext, as_json: bool) -> None:
    """Show or change the mode at run time.

    \b
    Examples:
      mode
      mode --json
    """
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
            click.echo(f"From {visible(mode_source_text(file, context.origins.of_mode('')))}.")
        print_overrides("table", overrides)


@mode.command("set")
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

    \b
    Examples:
      mode set enforce --canary 5 --reason "canary"
      mode set dry-run partner-app --for 7d --reason "ticket 4711"
    """
    if canary_percent is not None and (mode != Mode.ENFORCE or client is not None):
        raise click.UsageError("--canary is for enforce, without a CLIENT")
    target = Target(OverrideKind.MODE, client)
    change = override_of(context, target, options, mode=Mode(mode), canary_percent=canary_percent)
    if change.mode is Mode.ENFORCE:
        is_for_all = client is None and canary_percent is None
        if is_for_all and (refusal := enforce_refusal(context, is_invalid=context.invalid is not None)):
            raise click.UsageError(refusal)
        share = "" if canary_percent in (None, 100) else f"{canary_percent:g} % of the clients"
        question = f"Enforce limits for {client or share or 'everybody'}?"
        show_impact_and_ask(context, change, question, options)
    apply(context, change, as_json=options["as_json"])
    for sentence in unaffected_by_mode(context.settings.policies, context.overrides, change):
        print_hint(visible(sentence))
    if context.invalid and mode != Mode.OFF:
        print_hint(MAY_STAY_OFF)


@mode.command("unset")
@name_argument("client", client_id)
@operator_and_reason
@pass_context
def unset_mode(context: CliContext, /, client: str | None, **options: Any) -> None:
    """Remove an overridden mode.

    That of everybody, or of a CLIENT: the configuration applies again. Exits with 1 if there is no such override.

    \b
    Examples:
      mode unset --reason "incident 17 is over"
      mode unset partner-app --reason "ticket 4711"
    """
    remove(context, [Target(OverrideKind.MODE, client)], **options)
