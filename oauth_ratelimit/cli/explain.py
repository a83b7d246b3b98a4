"""Command that explains a decision or a recorded denial."""

from dataclasses import replace

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import json_option, name_argument
from oauth_ratelimit.cli.output import (
    Cell,
    Column,
    Number,
    mode_cell,
    next_cell,
    print_facts,
    print_hint,
    print_json,
    print_table,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.config.errors import did_you_mean
from oauth_ratelimit.core.denial_record import DenialRecord, parse_decision_id
from oauth_ratelimit.core.grant_type import COMMON_NAMES, STANDARD_GRANTS, full_grant_type
from oauth_ratelimit.core.origin import Origin
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.explain import Forecast, LimitExplanation
from oauth_ratelimit.operations.format import counted, duration, origin_text, policy_text, utc_time
from oauth_ratelimit.operations.serialize import denial_data, usage_data

NOT_FOUND = 1
DENIAL_NOT_FOUND = (
    "No denial with the id {id} is recorded. It is older than events.keep_denials{kept}, or events.per_minute left it "
    "out, or its instance has not sent it yet, which takes ten seconds."
)
FORECAST_STYLES = {Forecast.ADMITTED: "green", Forecast.WOULD_BE_DENIED: "yellow", Forecast.DENIED: "bold red"}
NO_USER = Cell("none: a grant without a user", "dim")
UNKNOWN = Cell("unknown", "dim")
LIMIT_COLUMNS: list[Column[tuple[LimitUsage, Origin]]] = [
    Column("policy", lambda limit: limit[0].policy.name),
    Column("from", lambda limit: origin_text(limit[1])),
    Column("mode", lambda limit: mode_cell(limit[0].mode)),
    Number("limit", lambda limit: limit[0].policy.limit),
    Number("window", lambda limit: duration(limit[0].policy.window.window_s)),
    Number("hits", lambda limit: f"{limit[0].estimate:.1f}"),
    Number("left", lambda limit: limit[0].remaining),
    Number("next in", lambda limit: next_cell(limit[0].retry_after_s)),
    Number("reset in", lambda limit: duration(limit[0].reset_after_s)),
]
MEASURED = ("hits", "left", "next in", "reset in")  # unknown without shared counters
OTHER_COLUMNS: list[Column[LimitUsage]] = [
    Column("user", lambda usage: usage.key.username),
    Column("limit", lambda usage: policy_text(usage.policy)),
    Number("hits", lambda usage: f"{usage.estimate:.1f}"),
]
NO_LIMIT_WITHOUT_USER = (
    "No limit applies to grants without a user. For the limits of a user, name one: explain CLIENT USER"
)


@click.command("explain")
@name_argument("client")
@name_argument("user")
@click.option("--id", "decision_id", metavar="ID", help="A past denial: the decision_id in its response.")
@click.option("--grant", metavar="G", help="The grant type, such as refresh_token.")
@click.option("--endpoint", default=TOKEN_ENDPOINT, show_default=True, help="The configured endpoint.")
@json_option
@pass_context
def explain_command(
    context: CliContext,
    client: str | None,
    user: str | None,
    decision_id: str | None,
    grant: str | None,
    endpoint: str,
    as_json: bool,
) -> None:
    """Explain a decision, or a denial by its id.

    For a CLIENT, with a USER or without one: each limit that applies, the part of the configuration or the override
    that it comes from, how much of it is used, and when the next request is admitted. Use far below a limit is up to
    10 s old (sync.max_interval). Without store.uri each process counts alone, so the use is unknown.

    With --id a denial of the last weeks, by the decision_id in its response: client, policy, time, instance. Exits
    with 1 if there is none.

    \b
    Examples:
      explain partner-app alice
      explain --id 5f2b8c1d9e3a4b6c
    """
    if (client is None) == (decision_id is None):
        raise click.UsageError("name either a CLIENT or a denial with --id")
    if client is None:
        _explain_denial(context, decision_id or "", as_json=as_json)
        return
    grant_type = full_grant_type(grant) if grant else None
    endpoints = (TOKEN_ENDPOINT, *context.policies.endpoints)
    if endpoint not in endpoints:
        raise click.BadParameter(
            f"'{visible(endpoint)}', allowed: {visible(', '.join(endpoints))}", param_hint="--endpoint"
        )
    explanation = LimitExplanation(context, client, username=user, grant_type=grant_type, endpoint=endpoint)
    if as_json:
        others, hint = list(map(usage_data, explanation.other_users())), unknown_client_hint(context, client)
        print_json({**explanation.data(), "others": others, "hint": hint})
    else:
        _print_explanation(explanation)
        print_unknown_client_hint(context, client)
    if grant_type is not None:
        print_hint(_unknown_grant_hint(context, grant_type))


def _unknown_grant_hint(context: CliContext, grant_type: str) -> str | None:
    known = {*STANDARD_GRANTS, *COMMON_NAMES, *context.policies.grants}
    if grant_type in known:
        return None
    name = visible(grant_type)
    return f"'{name}' is neither a standard grant type nor one of the configuration{did_you_mean(name, known)}"


def _print_explanation(explanation: LimitExplanation) -> None:
    trust = explanation.trust_origin
    forecast, text = explanation.forecast()
    is_shared = explanation.context.is_shared
    is_known = is_shared or trust is not None
    print_facts(
        [
            ("client", explanation.client_id),
            ("user", NO_USER if explanation.username is None else explanation.username),
            ("counted at", explanation.matched.scope or "token"),
            ("trusted", f"yes, by {origin_text(trust)}" if trust else "no"),
            ("mode", mode_cell(explanation.matched.mode.value)),
            ("mode from", origin_text(explanation.mode_origin)),
            ("canary", explanation.canary),
            ("forecast", Cell(text, FORECAST_STYLES[forecast]) if is_known else UNKNOWN),
            ("sent by", f"{counted(explanation.instance_count(), 'instance')} lately" if is_shared else UNKNOWN),
        ]
    )
    click.echo()
    columns = [
        column if is_shared or column.title not in MEASURED else replace(column, value=lambda _: UNKNOWN)
        for column in LIMIT_COLUMNS
    ]
    empty = NO_LIMIT_WITHOUT_USER if explanation.matched.limits.user else "No limit applies."
    print_table(columns, explanation.usages, empty=empty)
    if others := explanation.other_users():
        click.echo()
        print_table(OTHER_COLUMNS, others, title="Other users of the client's total")


def _explain_denial(context: CliContext, decision_id: str, *, as_json: bool) -> None:
    context.allow_invalid_config()
    try:
        decision_id = parse_decision_id(decision_id)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--id") from None
    record = context.stores.denials.find(decision_id)
    if record is None:
        kept = "" if context.invalid else f" ({duration(context.settings.events.keep_denials_s)})"
        click.echo(DENIAL_NOT_FOUND.format(id=decision_id, kept=kept), err=True)
        click.get_current_context().exit(NOT_FOUND)
    if as_json:
        print_json(denial_data(record))
    else:
        _print_denial(record)


def _print_denial(record: DenialRecord) -> None:
    denial = record.denial
    has_limit = denial.limit and denial.window_s
    none = Cell("none", "dim")
    print_facts(
        [
            ("denial", denial.decision_id or none),
            ("repeats", f"{record.suppressed_count} within a minute" if record.suppressed_count else none),
            ("client", denial.client_id),
            ("user", NO_USER if denial.username is None else denial.username),
            ("grant type", denial.grant_type or UNKNOWN),
            ("counted at", denial.scope or "token"),
            ("policy", denial.policy or UNKNOWN),
            ("limit", f"{denial.limit} in {duration(denial.window_s or 0)}" if has_limit else UNKNOWN),
            ("mode", mode_cell(denial.mode)),
            ("canary", "yes" if denial.is_canary else "no"),
            ("first", utc_time(denial.at_s)),
            ("last", utc_time(record.last_at_s) if record.suppressed_count else "the same"),
            ("retry after", duration(denial.retry_after_s)),
            ("instance", record.instance),
            ("trace id", denial.trace.trace_id or none),
            ("request id", denial.trace.request_id or none),
        ]
    )
