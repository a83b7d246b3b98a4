"""The command line: ``flask oauth-ratelimit``.

::

  session.py    the application's configuration or a file's, and its database
  output.py     JSON for programs, tables for people
  files.py      check-config, schema
  database.py   init-db, db upgrade, db status
  look.py       status, top, show
  explain.py    explain; denial.py, explain --id
  stranger.py   a word about a client that nobody knows
  change.py     what all changes have in common
  limit.py      limit set, limit unset, limit list; likewise trust.py, mode.py
  reset.py      reset
  what_if.py    what-if; report.py: report
  erase.py      erase
  record.py     overrides, export
  replay.py     replay; parameters.py, comparison.py: what it is told and what it tells
"""

import sys
from typing import Any

import click
import structlog
from flask.cli import ScriptInfo

from oauth_ratelimit.cli.config import check_config, schema
from oauth_ratelimit.cli.context import CliContext
from oauth_ratelimit.cli.database import db, erase, init_db
from oauth_ratelimit.cli.explain import explain
from oauth_ratelimit.cli.output import export, list_overrides, visible
from oauth_ratelimit.cli.overrides import limit, mode, reset, trust
from oauth_ratelimit.cli.replay import replay
from oauth_ratelimit.cli.statistics import report, what_if
from oauth_ratelimit.cli.status import show, status, top
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.errors import ConfigError, StoreError, StoreUnavailable

BAD_CONFIGURATION = 1
NO_DATABASE = 3


class Commands(click.Group):
    """Turns the errors of this package into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ConfigError as exc:
            for problem in exc.problems:
                click.echo(f"Error: {visible_name(problem)}", err=True)
            ctx.exit(BAD_CONFIGURATION)
        except click.NoSuchOption as exc:
            option = next((each for each in self.params if exc.option_name in each.opts), None)
            if option is None or exc.ctx is None:
                raise
            rest = exc.ctx.command_path.removeprefix(ctx.command_path)
            before = f"{ctx.command_path} {exc.option_name} {option.metavar}{rest}"
            raise click.UsageError(f"{exc.option_name} goes before the command: {before}", exc.ctx) from None
        except StoreError as exc:
            where = ctx.obj.servers if isinstance(exc, StoreUnavailable) else None
            click.echo(f"Error: {visible(str(exc))}{f' ({where})' if where else ''}", err=True)
            ctx.exit(NO_DATABASE)


@click.group("oauth-ratelimit", cls=Commands)
@click.option("--config", "config_path", metavar="FILE", help="A configuration file, instead of the application's.")
@click.option(
    "--mongo-uri", metavar="URI", help="Instead of the configuration's store.uri: of a user with more rights, say."
)
@click.pass_context
def command(ctx: click.Context, config_path: str | None, mongo_uri: str | None) -> None:
    """Look at and change the rate limit of an OAuth server while it runs.

    Works from MongoDB alone; no instance needs to be running. Changes arrive on every instance within two sync
    intervals.

    \b
    Exit codes:
      0  all is well
      1  the answer is no: a bad configuration, nothing to take back, migrations pending
      2  the command was called in a wrong way
      3  MongoDB is out of reach or refuses
    """
    if not structlog.is_configured():
        # Not on the standard output, where the JSON goes. Looked up anew for each event: it may be replaced.
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    ctx.obj = CliContext(config_path, mongo_uri, ctx.find_object(ScriptInfo))


for _command in (
    check_config,
    db,
    erase,
    explain,
    export,
    init_db,
    limit,
    mode,
    list_overrides,
    replay,
    report,
    reset,
    schema,
    show,
    status,
    top,
    trust,
    what_if,
):
    command.add_command(_command)
