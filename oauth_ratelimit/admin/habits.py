"""
How a client asks for tokens: what tells one that mints them from one that reuses them.
"""

from oauth_ratelimit.admin.reading import Question, Readings
from oauth_ratelimit.core.statistics import ClientSum, Tally
from oauth_ratelimit.operating.change import checked_client_id
from oauth_ratelimit.operating.desk import Desk
from oauth_ratelimit.operating.records import Record
from oauth_ratelimit.operating.words import moment
from oauth_ratelimit.store.statistics import StatisticsStore

SPAN_S = 86_400  # of one client, so at most 1,440 documents
KEPT_S = 20.0
HEAVIEST_SHOWN = 5
HOUR_S = 3600


def habits(readings: Readings, question: Question) -> object:
    """
    Return what a client has done in the last day.
    """
    client_id = checked_client_id(question.get("id", ""))
    return readings.read_once(("habits", client_id), lambda desk: _habits(desk, client_id), keep_s=KEPT_S)


def _habits(desk: Desk, client_id: str) -> Record:
    total = ClientSum(client_id)
    first_s = desk.now_s
    for minute in StatisticsStore(desk.connection).minutes(desk.now_s - SPAN_S, desk.now_s, client_id):
        total.add(minute)
        first_s = min(first_s, minute.minute_s)
    of_users, requests = total.tally("user"), total.tally()
    user_count = total.user_count
    hours = max(1.0, (desk.now_s - first_s) / HOUR_S)  # of a client that has only just come, the first hour
    busiest_count, busiest_s = total.busiest
    return {
        "span_s": SPAN_S,
        "offered": requests.offered,
        "over": requests.over,
        "retries": requests.retries,
        "user_count": user_count,
        "per_user_hour": of_users.issued / user_count / hours if user_count else None,
        "refresh_share": _refresh_share(total, of_users),
        "burst": total.burst,
        "busiest_count": busiest_count,
        "busiest_at": moment(busiest_s) if busiest_count else None,
        "peaks": [
            {"policy": policy, **peak._asdict()}
            for policy, peak in sorted(total.peaks.items(), key=lambda item: -item[1].share)
        ],
        "grants": [
            {"kind": source.kind, "grant": source.grant, **_tally_data(tally)}
            for source, tally in sorted(total.tallies.items(), key=lambda item: -item[1].offered)
        ],
        "users": [
            {"username": user.username, "offered": user.offered, "over": user.denied + user.would_deny}
            for user in total.heaviest(HEAVIEST_SHOWN)
        ],
    }


def _refresh_share(total: ClientSum, of_users: Tally) -> float | None:
    """
    Return which share of the tokens for users was refreshed and not newly asked for.
    """
    if not of_users.issued:
        return None
    refreshed = sum(tally.issued for source, tally in total.tallies.items() if source.grant == "refresh_token")
    return refreshed / of_users.issued


def _tally_data(tally: Tally) -> Record:
    return {
        "offered": tally.offered,
        "issued": tally.issued,
        "denied": tally.denied,
        "would_deny": tally.would_deny,
    }
