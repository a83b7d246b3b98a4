"""Commands about the configuration file: check-config, schema. They need neither the application nor a database."""

import click

from oauth_ratelimit.cli.options import json_option
from oauth_ratelimit.cli.output import print_json, visible
from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.config.reference import schema_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.store.mongo.client import problem_of


@click.command("check-config")
@click.argument("file", type=click.Path())
@json_option
@click.pass_context
def check_config(ctx: click.Context, file: str, as_json: bool) -> None:
    """Check a configuration FILE.

    Lists all problems at once. Exits with 1 if the file is not valid.
    """
    problems: tuple[str, ...] = ()
    summary = ""
    try:
        settings = load_config(file)
        problem = settings.store.uri and problem_of(settings.store.uri)
        problems = (f"store.uri: {problem}",) if problem else ()
        summary = _summary(settings)
    except ConfigError as exc:
        problems = exc.problems
    if as_json:
        print_json({"file": file, "ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            click.echo(visible_name(problem), err=True)
        click.secho(f"{visible(file)}: {counted(len(problems), 'problem')}", fg="red", err=True)
    else:
        click.secho(f"{visible(file)}: valid ({summary})", fg="green")
    ctx.exit(1 if problems else 0)


def _summary(settings: Settings) -> str:
    policies, privacy = settings.policies, settings.privacy
    parts = [
        f"mode {policies.mode.value}",
        counted(len(policies.clients), "client"),
        f"{len(policies.trusted)} trusted",
        counted(len(policies.endpoints), "other endpoint"),
    ]
    if privacy.key is not None:
        parts.append(f"user names hashed under {privacy.key}")
    if privacy.former_keys:
        parts.append(f"former keys {', '.join(map(str, privacy.former_keys))}")
    return ", ".join(parts)


@click.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of the file.

    Editors use it to complete and to check the configuration. It is JSON with and without --json.
    """
    click.echo(schema_text(), nl=False)
