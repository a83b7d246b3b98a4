"""What to tell the owner of a client: what it does, what is wrong with it, and what helps."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.report.findings import ClientFinding, Fault


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to the owner of a client. It names no user.

    Args:
        subject: One line.
        text: Paragraphs with empty lines between them.
    """

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a report is about.

    Args:
        since_s: When it begins, seconds since the epoch.
        until_s: When it ends.
        token_lifetime_s: How long a token could be used.
    """

    since_s: float
    until_s: float
    token_lifetime_s: float

    def __str__(self) -> str:
        begin, end = (f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}" for at_s in (self.since_s, self.until_s))
        return f"{begin} to {end} UTC"

    @property
    def lifetime(self) -> str:
        """The lifetime of a token in words."""
        for unit_s, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
            if self.token_lifetime_s >= unit_s and self.token_lifetime_s % unit_s == 0:
                return _many(int(self.token_lifetime_s // unit_s), unit)
        return _many(round(self.token_lifetime_s), "second")


HELP = {
    Fault.REFRESHES_EARLY: "Use each access token until shortly before expires_in is over; refresh it only then.",
    Fault.LOGS_IN_AGAIN: "Keep each user's access token until it expires, then use the refresh token instead of a new "
    "login.",
    Fault.TOKEN_PER_CALL: "Keep the client's own token until it expires, and share it between the threads and "
    "processes of your application.",
    Fault.BURSTS: "Let processes that start together share one token, and add some random delay to scheduled jobs.",
    Fault.IGNORES_RETRY_AFTER: "After an answer with status 429, wait for the seconds in its header Retry-After before "
    "you ask again.",
}


def observations(finding: ClientFinding) -> Iterator[tuple[Fault, str]]:
    """Yield each fault with what was seen of it."""
    for fault in finding.faults:
        yield fault, _seen(fault, finding)


def _seen(fault: Fault, finding: ClientFinding) -> str:
    tally = finding.total.tally()
    match fault:
        case Fault.REFRESHES_EARLY:
            return _per_user(finding, "mostly refreshes of tokens that were still good")
        case Fault.LOGS_IN_AGAIN:
            return _per_user(finding, "mostly new logins")
        case Fault.TOKEN_PER_CALL:
            return f"{_number(finding.tokens_per_hour or 0)} requests of the client's own in each hour."
        case Fault.BURSTS:
            busiest, average = _many(finding.total.busiest[0], "request"), _number(finding.requests_per_minute)
            return f"{busiest} in the busiest minute, against {average} on average."
        case Fault.IGNORES_RETRY_AFTER:
            retries, denied = _count(tally.retries), _count(tally.denied)
            return f"{retries} of {denied} denied requests came before the time in Retry-After was over."
        case Fault.OVER_LIMIT:
            return _over(finding)


def letter_to(finding: ClientFinding, span: Span, *, error_uri: str | None = None) -> Letter:
    """Return the message to the owner of a client.

    Args:
        finding: What it does.
        span: When.
        error_uri: Address of a page that explains how to do better, None for none.
    """
    name = visible_name(finding.client_id)
    seen = "\n".join(f"- {text}" for _, text in observations(finding))
    helps = [HELP[fault] for fault in finding.faults if fault in HELP] or [HELP[Fault.TOKEN_PER_CALL]]
    excess = f"about {_number(finding.excess_ratio)} times what it needs" if finding.excess_ratio >= 2 else ""
    parts = [
        f"Hello,\n\nfrom {span} your OAuth client {name} sent our token endpoint {_many(finding.offered, 'request')} "
        f"for access tokens{f', {excess}' if excess else ''}. A token can be used for {span.lifetime}.",
        f"What we saw:\n{seen}" if seen else "We saw nothing wrong with that.",
        "What helps:\n" + "\n".join(f"- {text}" for text in helps) if seen else "",
        f"More about it: {error_uri}" if error_uri else "",
    ]
    subject = f"Your client {name} asks for too many access tokens" if seen else f"Access tokens of your client {name}"
    return Letter(subject, "\n\n".join(filter(None, parts)) + "\n")


def _per_user(finding: ClientFinding, what: str) -> str:
    return f"{_number(finding.tokens_per_user_hour or 0)} requests per user and hour, {what}."


def _over(finding: ClientFinding) -> str:
    tally = finding.total.tally()
    if not tally.would_deny:
        return f"{_many(tally.denied, 'request')} over the limit, answered with status 429."
    admitted = f"{_many(tally.would_deny, 'request')} over the limit, admitted all the same in a dry run"
    if tally.denied:
        return f"{admitted}, and {_count(tally.denied)} answered with status 429."
    return f"{admitted}; where limits are enforced, the answer is status 429."


def _many(count: int, word: str) -> str:
    return f"{_count(count)} {word}{'' if count == 1 else 's'}"


def _count(count: int) -> str:
    return f"{count:,}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
