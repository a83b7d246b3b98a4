"""
What ``explain --id`` shows of a denial that may be long over.
"""

import math

import click

from oauth_ratelimit.cli.context import Session
from oauth_ratelimit.cli.output import Cell, mode_cell, print_facts, print_json
from oauth_ratelimit.core.denial_record import DenialRecord, decision_id_of, parse_decision_id
from oauth_ratelimit.operations.denial import denial_data
from oauth_ratelimit.operations.words import duration, moment
from oauth_ratelimit.store.mongo.denials import DenialStore

NOT_FOUND = 1

UNKNOWN = (
    "No denial with the id {id} is known. Either it is older than events.keep_denials ({kept}), or it was among "
    "those that events.per_minute leaves out, or its process has not told of it yet, which takes ten seconds."
)


def explain_denial(session: Session, decision_id: str, *, as_json: bool) -> None:
    """
    Show the denial with an id, or say that there is none.
    """
    try:
        number = parse_decision_id(decision_id.strip().lower())
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--id") from None
    record = DenialStore(session.connection).find(number)
    if record is None:
        kept = duration(session.settings.events.keep_denials_s)
        click.echo(UNKNOWN.format(id=decision_id_of(number), kept=kept), err=True)
        click.get_current_context().exit(NOT_FOUND)
    position = number - record.denial.first_id
    if as_json:
        print_json(denial_data(record, position))
    else:
        _print(record, position)


def _print(record: DenialRecord, position: int) -> None:
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
