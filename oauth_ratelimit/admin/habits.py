"""
How a client asks for tokens: what tells one that mints them from one that reuses them, and what to write to its owner.
"""

from oauth_ratelimit.admin.cache import Question, Readings
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import Desk
from oauth_ratelimit.operations.serialize import Record, tally_data
from oauth_ratelimit.operations.words import moment
from oauth_ratelimit.report.findings import ClientFinding, find
from oauth_ratelimit.report.letter import Span, letter_to, observations
from oauth_ratelimit.store.mongo.statistics import StatisticsStore

SPAN_S = 86_400  # of one client, so at most 1,440 documents
KEPT_S = 20.0
HEAVIEST_SHOWN = 5


def habits(readings: Readings, question: Question) -> object:
    """
    Return what a client has done in the last day.
    """
    client_id = checked_client_id(question.get("id", ""))
    return readings.read_once(("habits", client_id), lambda desk: _habits(desk, client_id), keep_s=KEPT_S)


def _habits(desk: Desk, client_id: str) -> Record:
    settings = desk.settings
    store, stored = StatisticsStore(desk.connection), storable_name(client_id)
    minutes = store.minutes(desk.now_s - SPAN_S, desk.now_s, stored)
    found = find(minutes, token_lifetime_s=settings.statistics.token_lifetime_s)
    if not found:
        return {"span_s": SPAN_S, "offered": 0}
    (finding,) = found
    span = Span(desk.now_s - SPAN_S, desk.now_s, settings.statistics.token_lifetime_s)
    letter = letter_to(finding, span, error_uri=settings.denial.error_uri) if finding.faults else None
    return {
        **_numbers(finding),
        "verdict": finding.verdict.value,
        "faults": [text for _, text in observations(finding)],
        "letter": letter and f"{letter.subject}\n\n{letter.text}",
        "peaks": [
            {"policy": policy, **peak._asdict()}
            for policy, peak in sorted(finding.total.peaks.items(), key=lambda item: -item[1].share)
        ],
        "grants": [
            {"kind": source.kind, "grant": source.grant, **tally_data(tally)}
            for source, tally in sorted(finding.total.tallies.items(), key=lambda item: -item[1].offered)
        ],
        "users": [
            {"username": user.username, "offered": user.offered, "over": user.denied + user.would_deny}
            for user in finding.total.heaviest(HEAVIEST_SHOWN)
        ],
    }


def _numbers(finding: ClientFinding) -> Record:
    total, requests = finding.total, finding.total.tally()
    busiest_count, busiest_s = total.busiest
    return {
        "span_s": SPAN_S,
        "offered": requests.offered,
        "over": requests.over,
        "retries": requests.retries,
        "user_count": total.user_count,
        "per_user_hour": finding.tokens_per_user_hour,
        "refresh_share": finding.refresh_share,
        "needed": finding.needed,
        "burst": total.burst,
        "busiest_count": busiest_count,
        "busiest_at": moment(busiest_s),
    }
