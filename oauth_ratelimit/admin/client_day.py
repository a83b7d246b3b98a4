"""Query for the recorded traffic of one client in a day."""

from datetime import tzinfo

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.params import zone
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.operations.serialize import Record, tally_data
from oauth_ratelimit.report.findings import ClientFinding, find
from oauth_ratelimit.report.letter import Period, letter_to, observations

DAY_S = 86_400
TTL_S = 20.0
MAX_HEAVIEST = 5


def client_day(cache: ReadCache, params: Params) -> object:
    """Return the recorded traffic of a client in the last day, and a letter to its owner with times in a zone."""
    client_id, chosen = checked_client_id(params.get("id", "")), zone(params, "utc_offset")
    return cache.read_cached(
        ("client-day", client_id, chosen), lambda context: _client_day(context, client_id, chosen), ttl_s=TTL_S
    )


def _client_day(context: OperatorContext, client_id: str, chosen: tzinfo) -> Record:
    settings = context.settings
    period = Period(context.now_s - DAY_S, context.now_s, chosen)
    minutes = context.stores.statistics.minutes(period.since_s, period.until_s, storable_name(client_id))
    findings = find(minutes, assumed_lifetime_s=settings.statistics.token_lifetime_s)
    if not findings:
        return {"offered": 0}
    (finding,) = findings
    letter = letter_to(finding, period, error_uri=settings.denial.error_uri) if finding.faults else None
    return {
        **_totals(finding),
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
            for user in finding.total.heaviest(MAX_HEAVIEST)
        ],
    }


def _totals(finding: ClientFinding) -> Record:
    total, requests = finding.total, finding.total.tally()
    busiest_count, busiest_s = total.busiest
    return {
        "offered": requests.offered,
        "over": requests.over,
        "retries": requests.retries,
        "user_count": total.user_count,
        "per_user_hour": finding.tokens_per_user_hour,
        "refresh_share": finding.refresh_share,
        "needed": finding.needed,
        "burst": total.burst,
        "busiest_count": busiest_count,
        "busiest_at": utc_time(busiest_s),
    }
