"""Letter to the owner of a client: what it does, what is wrong, and what helps. The finding as a record."""

from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from urllib.parse import urlencode

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.traffic.findings import ClientFinding, Fault


class Letter(NamedTuple):
    """A message to the owner of a client, in paragraphs separated by empty lines. It names no user."""

    subject: str
    text: str


ANSWERS = {
    "would_deny": "admitted while the limit was on trial",
    "reused": "answered with the token that the client already had",
    "denied": "rejected with status 429",
}
ENFORCED = "Where the limit is enforced, such requests are rejected with status 429."
HELP = {
    Fault.REFRESHES_EARLY: "Use each access token until shortly before it expires (see expires_in), and refresh it "
    "only then.",
    Fault.LOGS_IN_AGAIN: "Keep each user's access token until it expires, and then use the refresh token instead of a "
    "new login.",
    Fault.TOKEN_PER_CALL: "Keep the client's own token until it expires, and share it between the threads and "
    "processes of your application.",
    Fault.BURSTS: "Let processes that start at the same time share one token, and add a random delay to scheduled "
    "jobs.",
    Fault.IGNORES_RETRY_AFTER: "After a response with status 429, wait for the number of seconds in its Retry-After "
    "header before the next request.",
}


def period_text(since_s: float, until_s: float, zone: tzinfo = UTC) -> str:
    begin, end = (datetime.fromtimestamp(at_s, zone) for at_s in (since_s, until_s))
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S %Z}"


def observation(fault: Fault, finding: ClientFinding) -> str:
    tally = finding.total.tally()
    per_user = f"{_number(finding.tokens_per_user_hour or 0)} requests per user and hour, mostly"
    match fault:
        case Fault.REFRESHES_EARLY:
            return f"{per_user} to refresh tokens that were still valid."
        case Fault.LOGS_IN_AGAIN:
            return f"{per_user} by new logins."
        case Fault.TOKEN_PER_CALL:
            return f"{_number(finding.tokens_per_hour or 0)} requests per hour for tokens without a user."
        case Fault.BURSTS:
            busiest, average = counted(finding.total.busiest[0], "request"), _number(finding.requests_per_minute)
            return f"{busiest} in the busiest minute; the average is {average}."
        case Fault.IGNORES_RETRY_AFTER:
            retries, denied = f"{tally.retries:,}", counted(tally.denied, "denied request")
            return f"{retries} of {denied} were sent before the time in Retry-After was over."
        case Fault.OVER_LIMIT:
            answers = [f"{count:,} {answer}" for name, answer in ANSWERS.items() if (count := getattr(tally, name))]
            more = f" {ENFORCED}" if tally.would_deny and not tally.denied else ""
            return f"{counted(tally.over, 'request')} over the limit: {', '.join(answers)}.{more}"


def letter_to(finding: ClientFinding, period: str, *, error_uri: str | None = None) -> Letter:
    name = visible_name(finding.client_id)
    seen = "\n".join(f"- {observation(fault, finding)}" for fault in finding.faults)
    advice = [HELP[fault] for fault in finding.faults if fault in HELP] or [HELP[Fault.TOKEN_PER_CALL]]
    excess = f", about {_number(finding.excess_ratio)} times as many as the {finding.needed:,.0f} it needs"
    excess = excess if finding.excess_ratio >= 2 else ""
    lifetime = lifetime_text(finding)
    valid_for = f" An access token is valid for {lifetime}." if lifetime else ""
    parts = [
        f"Hello,\n\nFrom {period}, your OAuth client {name} sent {counted(finding.offered, 'request')} for access "
        f"tokens to our token endpoint{excess}.{valid_for}",
        f"What we saw:\n{seen}" if seen else "We found no problem.",
        "What helps:\n" + "\n".join(f"- {text}" for text in advice) if seen else "",
        f"More information: {error_uri}" if error_uri else "",
    ]
    subject = f"Your client {name} requests too many access tokens" if seen else f"Access tokens of your client {name}"
    return Letter(subject, "\n\n".join(filter(None, parts)) + "\n")


def page_address(page: str, finding: ClientFinding) -> str:
    """Return the address of a client on the admin page, with its limit of highest use and its busiest minute."""
    peaks = finding.total.peaks
    policy = max(peaks, key=lambda name: peaks[name].share, default=None)
    choice = {"id": finding.client_id, "limit": policy, "at": finding.total.busiest[1] or None}
    return f"{page.rstrip('/')}/client?{urlencode({name: value for name, value in choice.items() if value})}"


def lifetime_text(finding: ClientFinding) -> str | None:
    """Return the lifetime of a client's tokens: ``1 hour``, ``5 minutes to 10 days``; None if it is not known."""
    if finding.lifetime_s is None:
        return None
    shortest, longest = map(_lifetime, finding.lifetime_s)
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _lifetime(seconds: float) -> str:
    for unit_s, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return counted(int(seconds // unit_s), unit)
    return counted(round(seconds), "second")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def record_of(
    finding: ClientFinding, rank: int, *, period: str, error_uri: str | None = None, page: str | None = None
) -> dict[str, object]:
    """Return a finding as a record, for programs and spreadsheets."""
    tally = finding.total.tally()
    busiest, busiest_s = finding.total.busiest
    letter = letter_to(finding, period, error_uri=error_uri)
    return {
        "rank": rank,
        "client_id": finding.client_id,
        "verdict": finding.verdict.value,
        "is_trusted": tally.is_mostly_trusted,
        "faults": [fault.value for fault in finding.faults],
        "requests": tally.offered,
        "issued": tally.issued,
        "denied": tally.denied,
        "would_deny": tally.would_deny,
        "retries_while_denied": tally.retries,
        "reused": tally.reused,
        "would_reuse": tally.would_reuse,
        "needed": round(finding.needed),
        "needless": finding.needless,
        "token_lifetime_s": finding.lifetime_s and list(finding.lifetime_s),
        "user_count": round(finding.total.user_count),
        "requests_per_user_hour": finding.tokens_per_user_hour,
        "own_requests_per_hour": finding.tokens_per_hour,
        "refresh_share": finding.refresh_share,
        "busiest_minute_requests": busiest,
        "busiest_minute_s": busiest_s,
        "most_in_a_second": finding.total.burst,
        "page": page and page_address(page, finding),
        "subject": letter.subject,
        "letter": letter.text,
    }
