"""
A denial that may be long over, as plain data for programs.
"""

from oauth_ratelimit.core.denial_record import DenialRecord, decision_id_of
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.operations.words import moment


def denial_data(record: DenialRecord, position: int) -> Record:
    """
    Return a denial.

    Args:
        record: The logged one that it belongs to.

        position: How many it came after that.
    """
    denial = record.denial
    return {
        "decision_id": decision_id_of(denial.first_id + position),
        "logged_decision_id": decision_id_of(denial.first_id),
        "position": position,
        "is_recorded": position <= record.suppressed_count,
        "client_id": denial.client_id,
        "username": denial.username,
        "scope": denial.scope,
        "grant_type": denial.grant_type,
        "policy": denial.policy,
        "limit": denial.limit,
        "window_s": denial.window_s,
        "mode": denial.mode,
        "canary": denial.is_canary,
        "retry_after_s": denial.retry_after_s,
        "first_at": moment(denial.at_s),
        "last_at": moment(record.last_at_s),
        "suppressed_count": record.suppressed_count,
        "instance": record.instance,
        "trace_id": denial.trace.trace_id,
        "request_id": denial.trace.request_id,
    }
