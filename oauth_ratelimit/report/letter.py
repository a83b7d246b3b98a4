"""Letter to the owner of a client: what it does, what is wrong, and what helps."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.report.findings import ClientFinding, Fault


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to the owner of a client. It names no user.

    Args:
        subject: Subject line.
        text: Paragraphs separated by empty lines.
    """

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Period:
    """Time that a report covers.

    Args:
        since_s: Start, seconds since the epoch.
        until_s: End, seconds since the epoch.
        zone: Time zone of the text.
    """

    since_s: float
    until_s: float
    zone: tzinfo = UTC

    def __str__(self) -> str:
        begin, end = (datetime.fromtimestamp(at_s, self.zone) for at_s in (self.since_s, self.until_s))
        return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S %Z}"


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


def observations(finding: ClientFinding) -> Iterator[tuple[Fault, str]]:
    """Yield each fault with a sentence about it."""
    for fault in finding.faults:
        yield fault, _observation(fault, finding)


def _observation(fault: Fault, finding: ClientFinding) -> str:
    tally = finding.total.tally()
    match fault:
        case Fault.REFRESHES_EARLY:
            return _per_user(finding, "mostly to refresh tokens that were still valid")
        case Fault.LOGS_IN_AGAIN:
            return _per_user(finding, "mostly by new logins")
        case Fault.TOKEN_PER_CALL:
            return f"{_number(finding.tokens_per_hour or 0)} requests per hour for tokens without a user."
        case Fault.BURSTS:
            busiest, average = _counted(finding.total.busiest[0], "request"), _number(finding.requests_per_minute)
            return f"{busiest} in the busiest minute; the average is {average}."
        case Fault.IGNORES_RETRY_AFTER:
            retries, denied = _count(tally.retries), _count(tally.denied)
            return f"{retries} of {denied} denied requests were sent before the time in Retry-After was over."
        case Fault.OVER_LIMIT:
            return _over_limit(finding)


def letter_to(finding: ClientFinding, period: Period, *, error_uri: str | None = None) -> Letter:
    """Return the letter to the owner of a client.

    Args:
        finding: Finding about the client.
        period: Time of the finding.
        error_uri: Address of a page that explains how to reuse tokens.
    """
    name = visible_name(finding.client_id)
    seen = "\n".join(f"- {text}" for _, text in observations(finding))
    advice = [HELP[fault] for fault in finding.faults if fault in HELP] or [HELP[Fault.TOKEN_PER_CALL]]
    excess = f", about {_number(finding.excess_ratio)} times as many as it needs" if finding.excess_ratio >= 2 else ""
    lifetime = lifetime_text(finding)
    valid_for = f" An access token is valid for {lifetime}." if lifetime else ""
    parts = [
        f"Hello,\n\nFrom {period}, your OAuth client {name} sent {_counted(finding.offered, 'request')} for access "
        f"tokens to our token endpoint{excess}.{valid_for}",
        f"What we saw:\n{seen}" if seen else "We found no problem.",
        "What helps:\n" + "\n".join(f"- {text}" for text in advice) if seen else "",
        f"More information: {error_uri}" if error_uri else "",
    ]
    subject = f"Your client {name} requests too many access tokens" if seen else f"Access tokens of your client {name}"
    return Letter(subject, "\n\n".join(filter(None, parts)) + "\n")


def lifetime_text(finding: ClientFinding) -> str | None:
    """Return the lifetime of a client's tokens: ``1 hour``, ``5 minutes to 10 days``; None if it is not known."""
    if finding.lifetime_s is None:
        return None
    shortest, longest = map(_lifetime, finding.lifetime_s)
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _lifetime(seconds: float) -> str:
    for unit_s, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return _counted(int(seconds // unit_s), unit)
    return _counted(round(seconds), "second")


def _per_user(finding: ClientFinding, purpose: str) -> str:
    return f"{_number(finding.tokens_per_user_hour or 0)} requests per user and hour, {purpose}."


def _over_limit(finding: ClientFinding) -> str:
    tally = finding.total.tally()
    if not tally.would_deny:
        return f"{_counted(tally.denied, 'request')} over the limit, rejected with status 429."
    admitted = f"{_counted(tally.would_deny, 'request')} over the limit, admitted because the limit is not enforced yet"
    if tally.denied:
        return f"{admitted}, and {_count(tally.denied)} rejected with status 429."
    return f"{admitted}. Once it is, such requests will be rejected with status 429."


def _counted(count: int, word: str) -> str:
    return f"{_count(count)} {word}{'' if count == 1 else 's'}"


def _count(count: int) -> str:
    return f"{count:,}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
