"""
What the owner of a client is told of a day on which it was over its limits.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from oauth_ratelimit.core.enforcement import Mode
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.statistics import ClientSum, Peak

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
        day: Such as ``2026-11-20``, in UTC.

        client: What it did.

        mode: What is done about it now.

        error_uri: Address of a page that explains how to do better, None for none.
    """

    day: str
    client: ClientSum
    mode: Mode
    error_uri: str | None = None

    @property
    def key(self) -> str:
        """
        The same for every attempt to deliver this digest, and for no other.
        """
        return f"oauth_ratelimit-{self.day}-{hashlib.sha256(self.client.client_id.encode()).hexdigest()[:32]}"

    def payload(self) -> Mapping[str, object]:
        """
        Return what is sent. No user is named.
        """
        total = self.client.tally()
        return {
            "type": "oauth_ratelimit.digest",
            "version": 1,
            "day": self.day,
            "client_id": self.client.client_id,
            "mode": self.mode.value,
            "requests": {
                "offered": total.offered,
                "allowed": total.allowed,
                "denied": total.denied,
                "would_deny": total.would_deny,
                "retries_while_denied": total.retries,
            },
            "user_count": round(self.client.user_count),
            "busiest_minute_requests": self.client.busiest[0],
            "limits": [
                {"policy": name, "limit": peak.limit, "window_s": peak.window_s, "most_used": round(peak.used, 1)}
                for name, peak in sorted(self.client.peaks.items())
            ],
            "subject": f"{visible_name(self.client.client_id)} asks for too many access tokens",
            "text": self.text(),
        }

    def text(self) -> str:
        """
        Return a message to the owner of the client, to be forwarded as it is.
        """
        total = self.client.tally()
        parts = [
            f"On {self.day} (UTC) your client {visible_name(self.client.client_id)} asked for {total.offered} access "
            f"tokens; {total.over} of these requests were over its limits. {self._consequence()}",
            *map(_used, [item for item in sorted(self.client.peaks.items()) if item[1].share > 1]),
            "What helps: keep each access token and use it until it expires, share it between the threads and "
            "processes of your application, and after an answer 429 wait for the seconds in Retry-After.",
        ]
        if self.error_uri:
            parts.append(f"More about it: {self.error_uri}")
        return "\n\n".join(parts)

    def _consequence(self) -> str:
        total = self.client.tally()
        if self.mode is not Mode.ENFORCE:
            return (
                "They got their tokens, because the limits are not enforced yet. Once they are, such requests are "
                "answered with the status 429."
            )
        denied = f"{total.denied} of them were answered with the status 429."
        return denied if not total.would_deny else f"{denied} From now on all of them are."


def _used(item: tuple[str, Peak]) -> str:
    name, peak = item
    return f"The limit {name} is {peak.limit} in {peak.window_s} s; up to {peak.used:.0f} were asked for."
