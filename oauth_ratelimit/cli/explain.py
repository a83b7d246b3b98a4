"""Command that explains a decision or a recorded denial."""

import math

import click

from oauth_ratelimit.cli.context import CliContext, pass_context
from oauth_ratelimit.cli.options import json_option
from oauth_ratelimit.cli.output import (
    Cell,
    Column,
    Row,
    mode_cell,
    print_facts,
    print_hint,
    print_json,
    print_table,
    print_unknown_client_hint,
    user_cell,
    visible,
)
from oauth_ratelimit.config.errors import did_you_mean
from oauth_ratelimit.config.policies import GRANT_TYPES, STANDARD_GRANTS, full_grant_type
from oauth_ratelimit.core.denial_record import DenialRecord, decision_id_of, parse_decision_id
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.explain import LimitExplanation, OutcomeKind
from oauth_ratelimit.operations.format import counted, duration, origin_text, utc_time
from oauth_ratelimit.operations.serialize import denial_data, usage_data

NOT_FOUND = 1
DENIAL_NOT_FOUND = (
    "No denial with the id {id} is recorded. It is older than events.keep_denials{kept}, or events.per_minute left it "
    "out, or its instance has not sent it yet, which takes ten seconds."
)
OUTCOME_STYLES = {
    OutcomeKind.ADMITTED: "green",
    OutcomeKind.WOULD_BE_DENIED: "yellow",
    OutcomeKind.DENIED: "bold red",
}
NO_USER = Cell("none: a grant without a user", "dim")
UNKNOWN = Cell("unknown", "dim")
NO_LIMIT_WITHOUT_USER = (
    "No limit applies to grants without a user. For the limits of a user, name one: explain CLIENT USER"
)


@click.command("explain")
@click.argument("client", required=False)
@click.argument("user", required=False)
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
    that it comes from, how much of it is used, and when the next request is admitted. Without store.uri each process
    counts alone, so the use is unknown.

    With --id a denial of the last weeks, by the decision_id in its response: client, policy, time, instance. Exits
    with 1 if there is none.
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
    known = {*STANDARD_GRANTS, *GRANT_TYPES, *GRANT_TYPES.values(), *context.policies.grants}
    if grant_type in known:
        return None
    name = visible(grant_type)
    return f"'{name}' is neither a standard grant type nor one of the configuration{did_you_mean(name, known)}"


def _print_explanation(explanation: LimitExplanation) -> None:
    usages = list(explanation.usages())
    trust = explanation.trust_origin
    expected = explanation.expected_outcome(usage for usage, _ in usages)
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
            ("forecast", Cell(expected.text, OUTCOME_STYLES[expected.kind]) if is_known else UNKNOWN),
            ("sent by", f"{counted(explanation.instance_count(), 'instance')} lately" if is_shared else UNKNOWN),
        ]
    )
    columns = ("policy", "from", "mode", "hits", "limit", "window", "left", "next in", "reset in")
    click.echo()
    print_table(
        [Column(name, is_number=name not in columns[:3]) for name in columns],
        [
            (
                usage.policy.name,
                origin_text(origin),
                mode_cell(usage.mode.value),
                f"{usage.estimate:.1f}" if is_shared else UNKNOWN,
                str(usage.policy.limit),
                duration(usage.policy.window.window_s),
                *(_measured_cells(usage) if is_shared else (UNKNOWN,) * 3),
            )
            for usage, origin in usages
        ],
        empty=NO_LIMIT_WITHOUT_USER if explanation.has_user_limits else "No limit applies.",
    )
    if others := explanation.other_users():
        click.echo()
        print_table(
            [Column("user"), Column("policy"), *(Column(name, is_number=True) for name in ("hits", "limit", "window"))],
            [
                (
                    user_cell(usage.key.username),
                    usage.policy.name,
                    f"{usage.estimate:.1f}",
                    str(usage.policy.limit),
                    duration(usage.policy.window.window_s),
                )
                for usage in others
            ],
            title="Other users of the client's total",
        )


def _measured_cells(usage: LimitUsage) -> Row:
    return (
        str(usage.remaining),
        duration(usage.retry_after_s) if usage.retry_after_s else Cell("now", "dim"),
        duration(usage.reset_after_s),
    )


def _explain_denial(context: CliContext, decision_id: str, *, as_json: bool) -> None:
    context.accept_broken()
    try:
        number = parse_decision_id(decision_id.strip().lower())
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--id") from None
    record = context.stores.denials.find(number)
    if record is None:
        kept = "" if context.broken else f" ({duration(context.settings.events.keep_denials_s)})"
        click.echo(DENIAL_NOT_FOUND.format(id=decision_id_of(number), kept=kept), err=True)
        click.get_current_context().exit(NOT_FOUND)
    position = number - record.denial.first_id
    if as_json:
        print_json(denial_data(record, position))
    else:
        _print_denial(record, position)


def _print_denial(record: DenialRecord, position: int) -> None:
    denial = record.denial
    has_limit = denial.limit and denial.window_s
    retry_after = "never" if math.isinf(denial.retry_after_s) else duration(denial.retry_after_s)
    print_facts(
        [
            ("denial", decision_id_of(denial.first_id + position)),
            ("position", _position_text(record, position)),
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
            ("retry after", retry_after),
            ("instance", record.instance),
            ("trace id", _request_cell(denial.trace.trace_id, position)),
            ("request id", _request_cell(denial.trace.request_id, position)),
        ]
    )


def _position_text(record: DenialRecord, position: int) -> str:
    first = f"the first denial, {decision_id_of(record.denial.first_id)}"
    count = record.suppressed_count
    if position == 0:
        return f"the first; {count} more within a minute" if count else "the first and only one"
    if position > count:
        return f"after {first}; its instance has reported {count} more so far"
    return f"number {position} of {count} after {first}"


def _request_cell(name: str | None, position: int) -> str | Cell:
    if name is None:
        return Cell("none", "dim")
    return f"{name}, of the first denial" if position else name
