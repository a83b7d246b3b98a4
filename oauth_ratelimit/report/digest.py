"""
What the owner of a client is told of a day on which it was over its limits.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.report.findings import ClientFinding
from oauth_ratelimit.report.letter import Span, letter_to

DAY_S = 86_400
SETTLING_S = 300  # what a day has counted is in MongoDB by then


def due_day_s(now_s: float, *, hour: int) -> int:
    """
    Return when the day began that is to be told of, seconds since the epoch: the last one whose hour has come.

    Args:
        now_s: The time, seconds since the epoch.

        hour: The hour, in UTC, from which the day before is told of.
    """
    return (int(now_s - hour * 3600 - SETTLING_S) // DAY_S - 1) * DAY_S


def name_of_day(day_s: int) -> str:
    """
    Return what a day is called, such as ``2026-11-20``.
    """
    return datetime.fromtimestamp(day_s, UTC).date().isoformat()


@dataclass(frozen=True, slots=True)
class Digest:
    """
    One client's day.

    Args:
        day_s: When the day began, seconds since the epoch.

        finding: What the client did.

        mode: What is done about it now.

        token_lifetime_s: How long a token can be used.

        namespace: Which of several issuers this is, None if there is one.

        error_uri: Address of a page that explains how to do better, None for none.
    """

    day_s: int
    finding: ClientFinding
    mode: Mode
    token_lifetime_s: float
    namespace: str | None = None
    error_uri: str | None = None

    @property
    def key(self) -> str:
        """
        The same for every attempt to deliver this digest, and for no other.
        """
        client = hashlib.sha256(f"{self.namespace or ''}/{self.finding.client_id}".encode()).hexdigest()
        return f"oauth_ratelimit-{name_of_day(self.day_s)}-{client[:32]}"

    def payload(self) -> Mapping[str, object]:
        """
        Return what is sent. No user is named.
        """
        finding = self.finding
        tally = finding.total.tally()
        span = Span(self.day_s, self.day_s + DAY_S, self.token_lifetime_s)
        letter = letter_to(finding, span, error_uri=self.error_uri)
        return {
            "type": "oauth_ratelimit.digest",
            "version": 1,
            "namespace": self.namespace,
            "day": name_of_day(self.day_s),
            "client_id": finding.client_id,
            "mode": self.mode.value,
            "requests": {
                "offered": tally.offered,
                "allowed": tally.allowed,
                "denied": tally.denied,
                "would_deny": tally.would_deny,
                "retries_while_denied": tally.retries,
                "needless": finding.needless,
            },
            "user_count": round(finding.total.user_count),
            "busiest_minute_requests": finding.total.busiest[0],
            "limits": [
                {"policy": name, "limit": peak.limit, "window_s": peak.window_s, "most_used": round(peak.used, 1)}
                for name, peak in sorted(finding.total.peaks.items())
            ],
            "faults": [fault.value for fault in finding.faults],
            "subject": letter.subject,
            "text": letter.text,
        }
