"""Records of denials, with which each can be explained long after it happened."""

import enum
import re
from typing import NamedTuple

from oauth_ratelimit.core.failed_auth import FAILURE_SCOPES
from oauth_ratelimit.core.policy import GRANT_SCOPE
from oauth_ratelimit.core.window import Window

_DECISION_ID = re.compile(r"[0-9a-f]{16}")


class Where(enum.StrEnum):
    """Place of a denial: a limit of the token endpoint, one of another endpoint, or the guard."""

    TOKEN = "token"
    ENDPOINT = "endpoint"
    GUARD = "guard"


class Trace(NamedTuple):
    """Ids of a request in other systems: of its trace, and the one that a proxy or the application gave it."""

    trace_id: str | None = None
    request_id: str | None = None


class Denial(NamedTuple):
    """Denial that is logged or recorded: the first of a key in a minute.

    Its id is in the answer, the log and the record, also of its repeats within the minute. It is None in a dry run, and
    without room for a record. The scope is None for the plain token counter.
    """

    decision_id: str | None
    at_s: float
    client_id: str
    username: str | None
    scope: str | None
    grant_type: str | None
    policy: str | None
    limit: int | None
    window_s: int | None
    mode: str
    is_canary: bool
    retry_after_s: float
    trace: Trace

    def kept_s(self, longest_s: float) -> float:
        """Return how long a record is kept. One by the guard names an address: it goes with the failures."""
        if self.where is not Where.GUARD or self.window_s is None:
            return longest_s
        return min(longest_s, self.window_s + Window.of(self.window_s).frame_s)

    @property
    def where(self) -> Where:
        if self.scope in FAILURE_SCOPES:
            return Where.GUARD
        return Where.TOKEN if self.scope is None or self.scope.startswith(GRANT_SCOPE) else Where.ENDPOINT


class DenialRecord(NamedTuple):
    """Denial by a process, with the number of its repeats and the time of the last."""

    denial: Denial
    instance: str
    last_at_s: float
    suppressed_count: int

    @property
    def request_count(self) -> int:
        return self.suppressed_count + 1


def parse_decision_id(text: str) -> str:
    """Return the decision id that a user has typed. Raises ``ValueError`` if it is not 16 hexadecimal digits."""
    decision_id = text.strip().lower()
    if not _DECISION_ID.fullmatch(decision_id):
        raise ValueError("a decision id is 16 hexadecimal digits")
    return decision_id
