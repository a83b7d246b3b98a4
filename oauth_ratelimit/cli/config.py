"""Commands about the configuration file: check-config, schema. They need no database, and no application."""

import click
from flask.cli import ScriptInfo

from oauth_ratelimit.cli.options import json_option
from oauth_ratelimit.cli.output import Cell, mode_cell, print_facts, print_json, visible
from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.config.reference import schema_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.flask_authlib.extension import START
from oauth_ratelimit.operations.format import canary_text, counted
from oauth_ratelimit.operations.summary import (
    NO_LIMIT,
    guard_warnings_of,
    limits_by_kind,
    names_text,
    store_text,
    summary_data,
    warnings_of,
)
from oauth_ratelimit.store.mongo.client import problem_of

NOT_COMPARED = (
    "the application cannot be loaded ({error}), so grant types and endpoints are not compared with those that it has"
)


@click.command("check-config")
@click.argument("file", type=click.Path())
@json_option
@click.pass_context
def check_config(ctx: click.Context, file: str, as_json: bool) -> None:
    """Check a configuration FILE.

    Lists all problems at once, or what the file means: the mode, the limits by kind, the store, the trusted clients.
    A worker logs the same as ratelimit_started when it starts. If flask finds the application, grant types and
    endpoints that it does not have are warnings. Exits with 1 if the file is not valid.
    """
    problems: tuple[str, ...] = ()
    settings = None
    warnings = []
    try:
        settings = load_config(file)
        problem = settings.store.uri and problem_of(settings.store.uri)
        problems = (f"store.uri: {problem}",) if problem else ()
        warnings = [*warnings_of(settings), *guard_warnings_of(settings), *_unknown_names(ctx, settings.policies)]
    except ConfigError as exc:
        problems = exc.problems
    if as_json:
        more = summary_data(settings) if settings else {}
        print_json({"file": file, "ok": not problems, "problems": problems, "warnings": warnings, "summary": more})
    elif problems:
        for problem in problems:
            click.echo(f"{visible(file)}: {visible_name(problem)}", err=True)
        click.secho(f"{visible(file)}: {counted(len(problems), 'problem')}", fg="red", err=True)
    elif settings is not None:
        click.secho(f"{visible(file)}: valid (mode {settings.policies.mode.value})", fg="green")
        _print_summary(settings)
        for warning in warnings:
            click.secho(f"Warning: {visible_name(warning)}", fg="yellow", err=True)
    ctx.exit(1 if problems else 0)


def _unknown_names(ctx: click.Context, policies: PolicySet) -> list[str]:
    """Return sentences about the grant types and endpoints that the application does not have, if there is one."""
    script = ctx.find_object(ScriptInfo)
    if script is None:
        return []
    try:
        start = script.load_app().extensions.get(START)
    except Exception as exc:  # noqa: BLE001  # the file can be checked all the same
        is_named = script.app_import_path is not None or script.create_app is not None
        reason = next(iter(str(exc).splitlines()), "no message")
        return [NOT_COMPARED.format(error=f"{type(exc).__name__}: {reason}")] if is_named else []
    if start is None:
        return []
    return [
        *(f"grant type {name}: {hint}" for name, hint in start.unknown_grants(policies)),
        *(f"endpoint {name}: {hint}" for name, hint in start.unknown_endpoints(policies)),
    ]


def _print_summary(settings: Settings) -> None:
    """Print what applies to whom, as ``ratelimit_started`` logs it."""
    policies, privacy = settings.policies, settings.privacy
    former = ", ".join(map(str, privacy.former_keys))
    names = f"hashed under {privacy.key}" if privacy.key is not None else "plain"
    facts: list[tuple[str, str | Cell]] = [
        ("mode", mode_cell(policies.mode.value)),
        ("canary", canary_text(policies.canary)),
    ]
    for kind, text in limits_by_kind(policies).items():
        facts.append((f"limit of {kind}", Cell(text, "yellow") if text == NO_LIMIT else text))
    facts += [
        ("store", store_text(settings.store)),
        ("trusted clients", ", ".join((*policies.trusted, *policies.trusted_ids)) or "none"),
        ("clients", ", ".join(names_text(list(policies.clients))) or "none with own rules"),
        ("grants", ", ".join(policies.grants) or "none with own rules"),
        ("endpoints", ", ".join(policies.endpoints) or "token only"),
        ("guard", mode_cell(settings.guard.mode.value)),
        ("user names", f"{names}, former keys {former}" if former else names),
    ]
    print_facts(facts)


@click.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of the file.

    Editors use it to complete and to check the configuration. It is JSON with and without --json.
    """
    click.echo(schema_text(), nl=False)
