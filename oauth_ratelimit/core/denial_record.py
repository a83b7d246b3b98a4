"""Records of denials, with which each can be explained long after it happened."""

import re
from dataclasses import dataclass
from typing import NamedTuple

_DECISION_ID = re.compile(r"[0-9a-f]{16}")


class Trace(NamedTuple):
    """Ids of a request in other systems.

    Attributes:
        trace_id: Id of the trace that the request belongs to, None if there is none.
        request_id: Id that a proxy or the application gave the request, None if there is none.
    """

    trace_id: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """Denial that is logged or recorded: the first of a key in a minute.

    Args:
        first_id: Number that is its decision id. Denials of the same key that follow are numbered on from it.
        at_s: Time of the request, seconds since the epoch.
        client_id: Client that was denied.
        username: Pseudonym of the user, None for grants without a user.
        scope: Counter of the request, None for the plain token counter.
        grant_type: Grant type of the request, None if it is not known.
        policy: Name of the policy that denied.
        limit: Hits per window of that policy.
        window_s: Length of its window in seconds.
        mode: Mode that the decision was made under.
        is_canary: True if the canary enforced the denial.
        retry_after_s: Seconds until the client may retry, infinity if its request never fits.
        trace: Ids of the request in other systems.
    """

    first_id: int
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


@dataclass(frozen=True, slots=True)
class DenialRecord:
    """Denial with the number of those that followed it.

    Args:
        denial: The first denial.
        instance: Name of the process that denied.
        last_at_s: Time of the last of these denials.
        suppressed_count: Number of denials that followed.
    """

    denial: Denial
    instance: str
    last_at_s: float
    suppressed_count: int


def parse_decision_id(text: str) -> int:
    """Return the number of a decision id.

    Raises:
        ValueError: It is not 16 hexadecimal digits.
    """
    if not _DECISION_ID.fullmatch(text):
        raise ValueError("a decision id is 16 hexadecimal digits")
    return int(text, 16)


def decision_id_of(number: int) -> str:
    """Return the decision id of a number."""
    return f"{number % 2**64:016x}"
