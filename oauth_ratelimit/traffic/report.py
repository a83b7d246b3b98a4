"""Faults of each client, from its minutes, and letters to the owners."""

import enum
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from urllib.parse import urlencode

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import (
    HOUR_S,
    MINUTE_S,
    NO_REQUESTS,
    OTHER_CLIENTS,
    ClientMinute,
    ClientSum,
    Source,
)
from oauth_ratelimit.operations.format import counted, duration, number
from oauth_ratelimit.traffic.need import ClientNeed

REFRESHES = Source("user", "refresh_token")

BURST_RATIO = 10.0  # of the busiest minute to the average of the hours with requests
MIN_BURST = 60  # requests in the busiest minute
MIN_DENIED = 10  # denied requests before retries count as a fault
RETRY_SHARE = 0.25  # of the denied requests
REFRESH_SHARE = 0.5  # of the requests for users


class Fault(enum.StrEnum):
    REFRESHES_EARLY = "refreshes-early"  # refreshes tokens that are still valid
    LOGS_IN_AGAIN = "logs-in-again"  # requests new tokens for the same users repeatedly
    TOKEN_PER_CALL = "token-per-call"  # requests tokens without a user repeatedly
    BURSTS = "bursts"  # far above its average
    IGNORES_RETRY_AFTER = "ignores-retry-after"
    OVER_LIMIT = "over-limit"


class Verdict(enum.StrEnum):
    FINE = "fine"  # keeps its tokens, or sends too few requests to tell
    WASTEFUL = "wasteful"  # requests more than it needs, within its limits
    OVER_LIMIT = "over its limits"


SEEN = {
    Fault.REFRESHES_EARLY: "{per_user} requests per user within an hour, mostly to refresh tokens that were still "
    "valid.",
    Fault.LOGS_IN_AGAIN: "{per_user} requests per user within an hour, mostly by new logins.",
    Fault.TOKEN_PER_CALL: "{per_hour} requests within an hour for tokens without a user.",
    Fault.BURSTS: "{busiest} in the busiest minute; the average is {average}.",
    Fault.IGNORES_RETRY_AFTER: "At least {retries} of {denied} came before the Retry-After of an earlier answer was "
    "over.",
    Fault.OVER_LIMIT: "{over} over the limit: {answers}.",
}
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
ANSWERS = {
    "would_deny": "admitted in a dry run of the limit",
    "reused": "answered with the token that the client already had",
    "denied": "denied with status 429",
}
ENFORCED = ". Without a dry run such requests would be denied with status 429"


class _Sums:
    """Sums of a client, and what it needs in periods of its tokens and of an hour. About 2 kB."""

    __slots__ = ("first_hour", "hour", "hour_count", "hourly", "need", "total")

    def __init__(self, client_id: str, need: ClientNeed) -> None:
        self.total, self.need, self.hourly = ClientSum(client_id), need, ClientNeed(period_s=HOUR_S)
        self.first_hour, self.hour, self.hour_count = -1, -1, 0  # the first and last hour with requests; their number

    def add(self, minute: ClientMinute) -> None:
        self.total.add(minute)
        self.total.users.clear()  # of which there may be millions
        self.need.add(minute)
        self.hourly.add(minute)
        hour = minute.minute_s // HOUR_S
        self.first_hour = hour if self.hour_count == 0 else self.first_hour
        self.hour, self.hour_count = hour, self.hour_count + (hour != self.hour)

    def minutes_within(self, since_s: float, until_s: float) -> float:
        """Return the length of the hours with requests, without what a period leaves out of its first and last."""
        before_s = since_s % HOUR_S if self.first_hour == since_s // HOUR_S else 0.0
        after_s = -until_s % HOUR_S if self.hour == until_s // HOUR_S else 0.0
        return max(MINUTE_S, self.hour_count * HOUR_S - before_s - after_s) / MINUTE_S


class ClientFinding:
    """Requests of one client for tokens in a period, denied ones included, and its faults."""

    def __init__(self, sums: _Sums, period: tuple[float, float]) -> None:
        self.total, need, hourly = sums.total, sums.need, sums.hourly
        self.client_id = self.total.client_id
        self.tally = tally = self.total.tally()
        own, users = need.of(LimitKind.CLIENT), need.of(LimitKind.USER)
        self.need = own + users
        self.needed = self.need.needed  # estimated number of tokens
        # Shortest and longest usual lifetime of its tokens; None if not known
        self.lifetime_s = need.lifetime_range
        self.tokens_per_user_hour = hourly.of(LimitKind.USER).per_period
        self.tokens_per_hour = hourly.of(LimitKind.CLIENT).per_period  # requests without a user
        refreshes = self.total.tallies.get(REFRESHES, NO_REQUESTS).offered
        self.refresh_share = refreshes / users.offered if users.offered else None
        # Share of the denied requests that came before the time in an earlier ``Retry-After`` was over, at least
        self.retry_share = tally.retries / tally.denied if tally.denied else None
        self.busiest, self.busiest_s = self.total.busiest
        self.requests_per_minute = tally.offered / sums.minutes_within(*period)  # average in the hours with requests
        is_refreshing = (self.refresh_share or 0.0) >= REFRESH_SHARE
        faults = {
            Fault.REFRESHES_EARLY: users.is_wasteful and is_refreshing,
            Fault.LOGS_IN_AGAIN: users.is_wasteful and not is_refreshing,
            Fault.TOKEN_PER_CALL: own.is_wasteful,
            Fault.BURSTS: self.busiest >= max(MIN_BURST, BURST_RATIO * self.requests_per_minute),
            Fault.IGNORES_RETRY_AFTER: tally.denied >= MIN_DENIED and (self.retry_share or 0.0) >= RETRY_SHARE,
            Fault.OVER_LIMIT: tally.over > 0,
        }
        self.faults = tuple(fault for fault, is_found in faults.items() if is_found)
        verdict = Verdict.WASTEFUL if self.faults else Verdict.FINE
        self.verdict = Verdict.OVER_LIMIT if tally.over else verdict


def find(
    minutes: Iterable[ClientMinute],
    period: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    *,
    token_lifetime_s: float | None = None,
    assumed_lifetime_s: float | None = None,
) -> Iterator[ClientFinding]:
    """Return a finding for each client, the one with most needless requests first.

    The minutes come in order of time, with all parts. Their ``period`` is asked for when they are read. A token is
    valid for ``token_lifetime_s``, else as long as those that were issued to the client, else ``assumed_lifetime_s``,
    else an hour.
    """
    clients: dict[str, _Sums] = {}
    for minute in minutes:
        if minute.client_id != OTHER_CLIENTS and minute.tally().offered:
            if minute.client_id not in clients:
                need = ClientNeed(token_lifetime_s, assumed_lifetime_s)
                clients[minute.client_id] = _Sums(minute.client_id, need)
            clients[minute.client_id].add(minute)
    needs = {name: sums.need.of(LimitKind.CLIENT_TOTAL) for name, sums in clients.items()}
    ordered = sorted(needs, key=lambda name: (-needs[name].needless, -needs[name].offered, name))
    span = period()
    return (ClientFinding(clients[name], span) for name in ordered)


class Letter(NamedTuple):
    """A message to the owner of a client, in paragraphs separated by empty lines. It names no user."""

    subject: str
    text: str


def period_text(since_s: float, until_s: float, zone: tzinfo = UTC) -> str:
    begin, end = (datetime.fromtimestamp(at_s, zone) for at_s in (since_s, until_s))
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S %Z}"


def observations(finding: ClientFinding) -> list[str]:
    """Return what was seen of each fault."""
    tally = finding.tally
    answers = ", ".join(f"{count:,} {answer}" for name, answer in ANSWERS.items() if (count := getattr(tally, name)))
    facts = {
        "per_user": number(finding.tokens_per_user_hour or 0),
        "per_hour": number(finding.tokens_per_hour or 0),
        "busiest": counted(finding.busiest, "request"),
        "average": number(finding.requests_per_minute),
        "retries": f"{tally.retries:,}",
        "denied": counted(tally.denied, "denied request"),
        "over": counted(tally.over, "request"),
        "answers": answers + (ENFORCED if tally.would_deny and not tally.denied else ""),
    }
    return [SEEN[fault].format(**facts) for fault in finding.faults]


def letter_to(finding: ClientFinding, period: str, *, error_uri: str | None = None) -> Letter:
    name, seen, ratio = visible_name(finding.client_id), observations(finding), finding.need.excess_ratio
    advice = [HELP[fault] for fault in finding.faults if fault in HELP] or [HELP[Fault.TOKEN_PER_CALL]]
    excess = (
        f", about {number(ratio)} times as many as the {finding.needed:,.0f} it needs" if seen and ratio >= 2 else ""
    )
    valid_for = " to ".join(dict.fromkeys(map(duration, finding.lifetime_s or ())))
    valid_for = f" An access token is valid for {valid_for}." if valid_for else ""
    requests = counted(finding.tally.offered, "request")
    parts = [
        f"Hello,\n\nFrom {period}, your OAuth client {name} sent {requests} for access tokens to our token endpoint"
        f"{excess}.{valid_for}",
        "\n- ".join(["What we saw:", *seen]) if seen else "We found no problem.",
        "\n- ".join(["What helps:", *advice]) if seen else "",
        f"More information: {error_uri}" if error_uri else "",
    ]
    subject = f"Your client {name} requests too many access tokens" if seen else f"Access tokens of your client {name}"
    return Letter(subject, "\n\n".join(filter(None, parts)) + "\n")


def page_address(page: str, finding: ClientFinding) -> str:
    """Return the address of a client on the admin page, with its limit of highest use and its busiest minute."""
    peaks = finding.total.peaks
    policy = max(peaks, key=lambda name: peaks[name].share, default=None)
    choice = {"id": finding.client_id, "limit": policy, "at": finding.busiest_s or None}
    return f"{page.rstrip('/')}/client?{urlencode({name: value for name, value in choice.items() if value})}"


def record_of(
    finding: ClientFinding, rank: int, *, period: str, error_uri: str | None = None, page: str | None = None
) -> dict[str, object]:
    """Return a finding as a record, for programs and spreadsheets."""
    tally, letter = finding.tally, letter_to(finding, period, error_uri=error_uri)
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
        "needless": finding.need.needless,
        "token_lifetime_s": finding.lifetime_s and list(finding.lifetime_s),
        "user_count": finding.total.user_count,
        "requests_per_user_hour": finding.tokens_per_user_hour,
        "own_requests_per_hour": finding.tokens_per_hour,
        "refresh_share": finding.refresh_share,
        "busiest_minute_requests": finding.busiest,
        "busiest_minute_s": finding.busiest_s,
        "most_in_a_second": finding.total.burst,
        "page": page and page_address(page, finding),
        "subject": letter.subject,
        "letter": letter.text,
    }
