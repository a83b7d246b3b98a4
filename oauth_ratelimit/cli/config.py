"""Command about the configuration file. It needs no application, and a database only to compare with instances."""

from contextlib import closing
from importlib.resources import files

import click
from flask import Flask

from oauth_ratelimit.cli.context import STILL_OFF, CliContext, reason_text, says_off, script_of
from oauth_ratelimit.cli.options import examples, json_option
from oauth_ratelimit.cli.output import Value, print_facts, print_json, print_text, visible
from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.config.loader import permission_warning
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.errors import ConfigError, StoreError
from oauth_ratelimit.flask_authlib.app_config import overrides_of
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION
from oauth_ratelimit.operations.format import counted, store_text, summary_data, warnings_of
from oauth_ratelimit.operations.status import LEFT_OUT, Status, restart_text
from oauth_ratelimit.store.factory import ELSEWHERE, open_stores

EMPTY = {"clients": "none with own rules", "grants": "none with own rules", "endpoints": "token only"}
NOT_COMPARED = (
    "the application cannot be loaded ({error}), so grant types and endpoints are not compared with those that it has"
)


@click.command("check-config")
@examples("check-config ratelimit.yaml --running", "check-config --schema > ratelimit.schema.json")
@click.argument("file", required=False, type=click.Path())
@click.option("--schema", "is_schema", is_flag=True, help="Print the JSON Schema of the file, for editors.")
@click.option("--running", "is_compared", is_flag=True, help="Also list what running instances need a restart for.")
@json_option
@click.pass_context
def check_config(ctx: click.Context, file: str | None, is_schema: bool, is_compared: bool, as_json: bool) -> None:
    """Check a configuration FILE.

    Lists all problems at once, or what the file means: the mode, the limits by kind, the store, the trusted clients.
    A worker logs the same as ratelimit_started when it starts. If flask finds the application, grant types and
    endpoints that it does not have are warnings, and its OAUTH_RATELIMIT_MONGO_URI and OAUTH_RATELIMIT_MODE come before
    store.uri and mode. --running looks for instances in the database of --config, the application, else FILE.
    Exits with 1 if the file is not valid.
    """
    if (file is None) != is_schema:
        raise click.UsageError("name either a FILE or --schema")
    if file is None:
        click.echo(files("oauth_ratelimit").joinpath("config.schema.json").read_text("utf-8"), nl=False)
        return
    problems: tuple[str, ...] = ()
    effect = ""
    settings = running = failure = None
    context: CliContext = ctx.obj
    warnings = []
    try:
        settings = load_config(file)
        app, not_compared = _application(ctx)
        if app is not None:
            settings = load_config(file, **overrides_of(app.config))
        warnings = [
            *filter(None, (permission_warning(file),)),
            *(text for _, text in warnings_of(settings)),
            *not_compared,
            *(_unknown_names(app, settings.policies) if app is not None else ()),
        ]
        if app is None:
            context = context.or_file(file)
    except ConfigError as exc:
        problems, effect = exc.problems, STILL_OFF if says_off(exc) else ""
    if is_compared and settings is not None and not problems:
        try:
            running = _compared(context, settings)
        except StoreError as exc:  # what the file says is known all the same
            failure = exc
    if as_json:
        more = summary_data(settings) if settings else {}
        found = {"file": file, "ok": not problems, "problems": problems, "warnings": warnings}
        print_json({**found, "running": running, "summary": more})
    elif problems:
        for problem in problems:
            print_text(f"{visible(file)}: {visible_name(problem)}", err=True)
        print_text(f"{visible(file)}: {counted(len(problems), 'problem')}", fg="red", err=True)
        if effect:
            print_text(effect, fg="yellow", err=True)
    elif settings is not None:
        print_text(f"{visible(file)}: valid (mode {settings.policies.mode.value})", fg="green")
        _print_summary(settings)
        for warning in warnings:
            print_text(f"Warning: {visible_name(warning)}", fg="yellow", err=True)
        if running:
            print_text(f"Running instances: {visible_name(running)}")
    if failure is not None:
        raise failure
    ctx.exit(1 if problems else 0)


def _application(ctx: click.Context) -> tuple[Flask | None, list[str]]:
    """Return the protected application if there is one, and a sentence if it cannot be loaded."""
    script = script_of(ctx)
    if script is None:
        return None, []
    try:
        app = script.load_app()
    except Exception as exc:  # noqa: BLE001  # the file can be checked all the same
        is_named = script.app_import_path is not None or script.create_app is not None
        return None, [NOT_COMPARED.format(error=reason_text(exc))] if is_named else []
    return (app if EXTENSION in app.extensions else None), []


def _compared(context: CliContext, settings: Settings) -> str:
    context.allows_invalid_config = True
    status = Status(context)
    text = f"no instance was seen in the last 10 minutes in {store_text(context.settings.store)}"
    if beats := status.heartbeats:
        text = restart_text(settings, beats) or f"no restart needed by {counted(len(beats), 'instance')}"
        text += _elsewhere_text(settings, context.settings, {beat.instance for beat in beats})
    return text if status.is_complete else f"{text}; {LEFT_OUT}"


def _elsewhere_text(settings: Settings, former: Settings, instances: set[str]) -> str:
    """Return a sentence if the address in the file leads to a database without these instances."""
    is_other = settings.store.uri != former.store.uri and settings.store.has_same_collections(former.store)
    stores = open_stores(settings.store) if is_other else None
    if stores is None:
        return ""
    try:
        with closing(stores):
            found = stores.heartbeats.read(stores.documents.facts().clock_s)
    except StoreError as exc:
        return f". From here its store.uri cannot be used: {exc}"
    return "" if instances.intersection(each.instance for each in found) else f". {ELSEWHERE}"


def _unknown_names(app: Flask, policies: PolicySet) -> list[str]:
    """Return sentences about the grant types and endpoints that the application does not have."""
    start = app.extensions[EXTENSION].start_report
    return [
        *(f"grant type {name}: {hint}" for name, hint in start.unknown_grants(policies)),
        *(f"endpoint {name}: {hint}" for name, hint in start.unknown_endpoints(policies)),
    ]


def _print_summary(settings: Settings) -> None:
    facts: list[tuple[str, Value]] = []
    for name, value in summary_data(settings).items():
        if isinstance(value, dict):
            facts += [(f"limit of {kind}", text) for kind, text in value.items()]
        else:
            text = ", ".join(value) or EMPTY.get(name, "none") if isinstance(value, list) else str(value)
            facts.append((name.replace("_", " "), text))
    print_facts(facts)
