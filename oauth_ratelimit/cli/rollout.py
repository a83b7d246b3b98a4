"""Command that leads through a rollout."""

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import json_option
from oauth_ratelimit.cli.output import STATISTICS_LAG, Cell, print_facts, print_json, visible
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.operations.rollout import MAX_NAMED, Rollout, Step


@click.command("rollout")
@json_option
@pass_context
def rollout_command(context: CliContext, as_json: bool) -> None:
    """Show the step of the rollout and the next.

    The steps are dry run, canary, enforce for some clients, enforce. Shows what the last day says about going on: the
    requests over a limit and their clients, compared with the day before, whether counters are shared, and whether the
    instances are healthy; then the commands for the next step and for going back. Changes nothing.

    \b
    flask oauth-ratelimit rollout
    flask oauth-ratelimit rollout --json
    """
    rollout = Rollout(context)
    if as_json:
        print_json(rollout.data())
        return
    steps = [step for step in Step if step is not Step.OFF or rollout.step is Step.OFF]
    click.echo(" > ".join(click.style(f"[{step}]", bold=True) if step is rollout.step else step for step in steps))
    click.echo()
    canary = [("canary", f"{rollout.canary_percent:g} % of the clients")] if rollout.canary_percent is not None else []
    if rollout.is_shared:
        print_facts([*canary, *_day_facts(rollout), ("counters", "shared through MongoDB")])
        click.echo(STATISTICS_LAG, err=True)
    else:
        print_facts([*canary, ("counters", Cell("not shared", "bold red"))])
    click.echo()
    for problem in rollout.problems:
        click.secho(f"{'Wait' if rollout.next_commands else 'Note'}: {visible(problem)}", fg="yellow")
    if rollout.next_commands:
        click.echo("Next, in spite of that:" if rollout.problems else "Nothing speaks against the next step:")
        _print_commands(rollout.next_commands)
    else:
        click.echo("All limits are enforced. Keep the alerts.")
    click.echo("Back:")
    _print_commands(rollout.back_commands)


def _day_facts(rollout: Rollout) -> list[tuple[str, str]]:
    day, before = rollout.day, rollout.day_before
    named = ", ".join(f"{visible(client_id)} ({count:,})" for client_id, count in day.worst(MAX_NAMED))
    return [
        ("requests, last day", f"{day.offered:,}"),
        ("denied", f"{day.denied:,}"),
        ("would be denied", f"{day.would_deny:,}"),
        ("the day before", f"{before.denied:,} denied, {before.would_deny:,} would be denied"),
        ("clients over a limit", f"{len(day.over):,}{f': {named}' if named else ''}"),
        ("instances", counted(rollout.instance_count, "instance")),
    ]


def _print_commands(commands: list[str]) -> None:
    for command in commands:
        click.echo(f"  {command}" if command.startswith("#") else f"  flask oauth-ratelimit {command}")
