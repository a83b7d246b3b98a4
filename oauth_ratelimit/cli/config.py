"""Commands about the configuration file. They need neither the application nor a database."""

import click

from oauth_ratelimit.cli.context import json_option
from oauth_ratelimit.cli.output import print_json, visible
from oauth_ratelimit.config import load_config, schema_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.operations.serialize import counted
from oauth_ratelimit.store.mongo.client import problem_of


@click.command("check-config")
@click.argument("file", type=click.Path())
@json_option
@click.pass_context
def check_config(ctx: click.Context, file: str, as_json: bool) -> None:
    """Check a configuration FILE.

    Says everything that is wrong with it at once. Exits with 1 if it cannot be used.
    """
    problems: tuple[str, ...] = ()
    summary = ""
    try:
        settings = load_config(file)
        problem = settings.store.uri and problem_of(settings.store.uri)
        problems = (f"store.uri: {problem}",) if problem else ()
        policies = settings.policies
        summary = (
            f"mode {policies.mode.value}, {counted(len(policies.clients), 'client')}, {len(policies.trusted)} trusted, "
            f"{counted(len(policies.endpoints), 'other endpoint')}"
        )
        privacy = settings.privacy
        if privacy.key is not None:
            summary += f", user names hashed under {privacy.key}"
        if privacy.former_keys:
            summary += f", former keys {', '.join(map(str, privacy.former_keys))}"
    except ConfigError as exc:
        problems = exc.problems
    if as_json:
        print_json({"file": file, "ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            click.echo(visible_name(problem), err=True)  # a bad value in it is written as JSON already
        click.secho(f"{visible(file)}: {counted(len(problems), 'problem')}", fg="red", err=True)
    else:
        click.secho(f"{visible(file)}: in order ({summary})", fg="green")
    ctx.exit(1 if problems else 0)


@click.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of the file.

    Editors use it to complete and to check the configuration. It is JSON with and without --json.
    """
    click.echo(schema_text(), nl=False)
