"""The command that answers "why is this client limited like that"."""

import math

import click

from oauth_ratelimit.cli.context import CliContext, json_option, pass_context
from oauth_ratelimit.cli.output import (
    Cell,
    Column,
    mode_cell,
    print_facts,
    print_json,
    print_table,
    print_unknown_client_hint,
    visible,
)
from oauth_ratelimit.cli.status import usage_row
from oauth_ratelimit.config.models import GRANT_TYPES
from oauth_ratelimit.core.denial_record import DenialRecord, decision_id_of, parse_decision_id
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.operations.explain import ForecastKind, LimitExplanation
from oauth_ratelimit.operations.serialize import counted, denial_data, duration, moment, origin_text
from oauth_ratelimit.store.mongo.denials import DenialStore

NOT_FOUND = 1

UNKNOWN = (
    "No denial with the id {id} is known. Either it is older than events.keep_denials ({kept}), or it was among "
    "those that events.per_minute leaves out, or its process has not told of it yet, which takes ten seconds."
)


def explain_denial(context: CliContext, decision_id: str, *, as_json: bool) -> None:
    """Show the denial with an id, or say that there is none."""
    try:
        number = parse_decision_id(decision_id.strip().lower())
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--id") from None
    record = DenialStore(context.connection).find(number)
    if record is None:
        kept = duration(context.settings.events.keep_denials_s)
        click.echo(UNKNOWN.format(id=decision_id_of(number), kept=kept), err=True)
        click.get_current_context().exit(NOT_FOUND)
    position = number - record.denial.first_id
    if as_json:
        print_json(denial_data(record, position))
    else:
        _print_denial(record, position)


def _print_denial(record: DenialRecord, position: int) -> None:
    denial = record.denial
    nothing = Cell("unknown", "dim")
    limit = f"{denial.limit} in {duration(denial.window_s)}" if denial.limit and denial.window_s else nothing
    print_facts(
        [
            ("denial", decision_id_of(denial.first_id + position)),
            ("which", _which(record, position)),
            ("client", denial.client_id),
            ("user", Cell("none: a grant without a user", "dim") if denial.username is None else denial.username),
            ("grant type", denial.grant_type or nothing),
            ("counted at", denial.scope or "token"),
            ("policy", denial.policy or nothing),
            ("limit", limit),
            ("mode", mode_cell(denial.mode)),
            ("canary", "yes" if denial.is_canary else "no"),
            ("first", moment(denial.at_s)),
            ("last", moment(record.last_at_s) if record.suppressed_count else "that one"),
            ("told to wait", "for ever" if math.isinf(denial.retry_after_s) else duration(denial.retry_after_s)),
            ("instance", record.instance),
            ("trace id", _of_request(denial.trace.trace_id, position)),
            ("request id", _of_request(denial.trace.request_id, position)),
        ]
    )


def _of_request(name: str | None, position: int) -> str | Cell:
    if name is None:
        return Cell("none", "dim")
    return f"{name}, of the first one" if position else name


def _which(record: DenialRecord, position: int) -> str:
    first = f"the first one, {decision_id_of(record.denial.first_id)}"
    if position == 0:
        more = record.suppressed_count
        return f"the first one; {more} more within a minute followed" if more else "the first one, and no other"
    if position > record.suppressed_count:
        return f"after {first}; its process has told of {record.suppressed_count} more so far"
    return f"number {position} of {record.suppressed_count} after {first}"


STYLES = {ForecastKind.ADMITTED: "green", ForecastKind.WOULD_BE_DENIED: "yellow", ForecastKind.DENIED: "bold red"}


@click.command()
@click.argument("client", required=False)
@click.argument("user", required=False)
@click.option("--id", "decision_id", metavar="ID", help="A denial that happened: the decision_id in its answer.")
@click.option("--grant", metavar="G", help="The grant type, such as refresh_token.")
@click.option("--endpoint", default=TOKEN_ENDPOINT, show_default=True, help="The configured endpoint.")
@json_option
@pass_context
def explain(
    context: CliContext,
    client: str | None,
    user: str | None,
    decision_id: str | None,
    grant: str | None,
    endpoint: str,
    as_json: bool,
) -> None:
    """Explain a decision, or a denial by its id.

    Now, of a CLIENT, for a USER of it or without one. Names each limit that applies, the layer of the configuration
    or the override that it comes from, how much of it is used, and when the next request is admitted.

    With --id a denial of the last weeks, by the decision_id in its answer: whose, by which policy, when, where. If
    there is none, the exit code is 1.
    """
    if client is None:
        if decision_id is None:
            raise click.UsageError("name a CLIENT, or a denial with --id")
        explain_denial(context, decision_id, as_json=as_json)
        return
    if decision_id is not None:
        raise click.UsageError("name either a CLIENT or a denial with --id")
    grant_type = GRANT_TYPES.get(grant, grant) if grant else None
    endpoints = (TOKEN_ENDPOINT, *context.policies.endpoints)
    if endpoint not in endpoints:
        raise click.BadParameter(
            f"'{visible(endpoint)}', allowed: {visible(', '.join(endpoints))}", param_hint="--endpoint"
        )
    case = LimitExplanation(context, client, username=user, grant_type=grant_type, endpoint=endpoint)
    if as_json:
        print_json(case.data())
    else:
        _print(case)
        print_unknown_client_hint(context, client)


def _print(case: LimitExplanation) -> None:
    usages = list(case.usages())
    trust, mode = case.trust_origin, case.mode_origin
    forecast = case.forecast(usage for usage, _ in usages)
    print_facts(
        [
            ("client", case.client_id),
            ("user", Cell("none: a grant without a user", "dim") if case.username is None else case.username),
            ("counted at", case.found.scope or "token"),
            ("trusted", f"yes, by {origin_text(trust)}" if trust else "no"),
            ("mode", mode_cell(case.found.mode.value)),
            ("mode from", origin_text(mode)),
            ("canary", case.canary),
            ("forecast", Cell(forecast.text, STYLES[forecast.kind])),
            ("sent by", f"{counted(case.instance_count(), 'instance')} lately"),
        ]
    )
    columns = ("policy", "from", "mode", "hits", "limit", "window", "left", "next in", "reset in")
    click.echo()
    print_table(
        [Column(name, is_number=name not in columns[:3]) for name in columns],
        [
            (
                usage.policy.name,
                origin_text(layer),
                mode_cell(usage.mode.value),
                f"{usage.estimate:.1f}",
                str(usage.policy.limit),
                duration(usage.policy.window.window_s),
                str(usage.remaining),
                duration(usage.retry_after_s) if usage.retry_after_s else Cell("now", "dim"),
                duration(usage.reset_after_s),
            )
            for usage, layer in usages
        ],
        empty="No limit applies.",
    )
    if others := case.others():
        click.echo()
        names = ("user", "policy", "hits", "limit", "window")
        print_table(
            [Column(name, is_number=name not in names[:2]) for name in names],
            [(row[1], row[3], *row[6:9]) for row in map(usage_row, others)],
            title="Who else is using up the client's total",
        )
