"""Command line: ``flask oauth-ratelimit``."""

import os
import sys
from io import TextIOWrapper
from typing import Any

import click

from oauth_ratelimit.cli.config import check_config
from oauth_ratelimit.cli.context import CliContext, effect_of, script_of
from oauth_ratelimit.cli.database import erase, forget_tokens, init_db, reset
from oauth_ratelimit.cli.explain import denials_command, explain_command
from oauth_ratelimit.cli.output import print_text, visible
from oauth_ratelimit.cli.overrides import limit, list_overrides, mode, trust
from oauth_ratelimit.cli.statistics import replay_command, report, suggest_command, what_if
from oauth_ratelimit.cli.status import rollout_command, show, status_command
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.errors import ConfigError, StoreError, StoreUnavailable

BAD_CONFIGURATION = 1
NO_DATABASE = 3
NEEDS_CONFIGURATION = (
    "{command} needs a valid configuration: correct it, or name another file with --config FILE before the command. "
    "{effect}"
)
WITHOUT_MONGODB = (
    "Limits go on from memory meanwhile. Without MongoDB only the configuration changes them: mode: off in the file of "
    "each instance takes effect within seconds, whatever overrides say; OAUTH_RATELIMIT_MODE=off in its environment "
    "does with a restart."
)
NEEDS_STORE = "No store.uri can be read; with --mongo-uri before the command it works all the same. {effect}"


class Commands(click.Group):
    """Group that turns errors of this package into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as exc:
            for problem in exc.problems:
                print_text(f"Error: {visible_name(exc.source)}: {visible_name(problem)}", err=True)
            advice = NEEDS_STORE if ctx.obj.allows_invalid_config else NEEDS_CONFIGURATION
            text = advice.format(command=ctx.invoked_subcommand, effect=effect_of(exc))
            print_text(text, fg="yellow", err=True)
            ctx.exit(BAD_CONFIGURATION)
        except click.NoSuchOption as exc:
            option = next((each for each in self.params if exc.option_name in each.opts), None)
            if option is None or exc.ctx is None:
                raise
            rest = exc.ctx.command_path.removeprefix(ctx.command_path)
            usage = f"{ctx.command_path} {exc.option_name} {option.metavar}{rest}"
            raise click.UsageError(f"{exc.option_name} goes before the command: {usage}", exc.ctx) from None
        except StoreError as exc:
            servers = ctx.obj.servers if isinstance(exc, StoreUnavailable) else None
            print_text(f"Error: {visible(str(exc))}{f' ({servers})' if servers else ''}", err=True)
            if isinstance(exc, StoreUnavailable) or ctx.invoked_subcommand == mode.name:
                print_text(WITHOUT_MONGODB, fg="yellow", err=True)
            ctx.exit(NO_DATABASE)


@click.group(
    "oauth-ratelimit",
    cls=Commands,
    commands=[
        check_config,
        denials_command,
        erase,
        explain_command,
        forget_tokens,
        init_db,
        limit,
        list_overrides,
        mode,
        replay_command,
        report,
        reset,
        rollout_command,
        show,
        status_command,
        suggest_command,
        trust,
        what_if,
    ],
)
@click.option("--config", "config_path", metavar="FILE", help="A configuration file, instead of the application's.")
@click.option(
    "--mongo-uri",
    envvar="OAUTH_RATELIMIT_MONGO_URI",
    metavar="URI",
    help="Replaces store.uri of the configuration, such as for a user with more rights. The list of processes shows "
    "it with its password; OAUTH_RATELIMIT_MONGO_URI in the environment is not shown.",
)
@click.pass_context
def command(ctx: click.Context, config_path: str | None, mongo_uri: str | None) -> None:
    """Inspect and change the rate limits of an OAuth server while it runs.

    Works from MongoDB alone; no instance needs to be running. Changes take effect on every instance within two sync
    intervals. Commands that need no limits or modes of the configuration work while it is invalid, too.

    \b
    Exit codes:
      0  success
      1  a negative result: invalid configuration, no such override, pending migrations
      2  wrong usage
      3  MongoDB is unreachable or rejects the command, or instances do not see the change
    """
    if os.environ.get("NO_COLOR"):  # https://no-color.org; commands inherit it
        ctx.color = False
    if isinstance(sys.stdout, TextIOWrapper):  # a name that its encoding lacks ends no command
        sys.stdout.reconfigure(errors="backslashreplace")
    ctx.obj = CliContext(config_path, mongo_uri, script_of(ctx))
