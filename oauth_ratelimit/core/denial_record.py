"""What is kept of denials, so that each can be explained long after it happened."""

import re
from dataclasses import dataclass
from typing import NamedTuple

_DECISION_ID = re.compile(r"[0-9a-f]{16}")


class Trace(NamedTuple):
    """What leads from a request to the records of other systems.

    Attributes:
        trace_id: The trace that the request belongs to, None if there is none.
        request_id: What a proxy or the application calls the request, None if nothing.
    """

    trace_id: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """A denial that is recorded: the first of a key in a minute.

    Args:
        first_id: The number that is its id. Those of the same key that followed it have the numbers after it.
        at_s: When it was, seconds since the epoch.
        client_id: Who asked.
        username: For whom, None for grants without a user.
        scope: Where it was counted, None for the plain token counter.
        grant_type: How, None if that is not known.
        policy: The name of the policy that denied.
        limit: Its hits per window.
        window_s: Its window.
        mode: What was done with the decision.
        is_canary: Whether a canary enforced it.
        retry_after_s: How long the client was told to wait; infinity if for ever.
        trace: The request in other systems.
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
    """A denial with those that followed it.

    Args:
        denial: The first one.
        instance: The process that denied.
        last_at_s: When the last one was, to about ten seconds.
        suppressed_count: How many followed.
    """

    denial: Denial
    instance: str
    last_at_s: float
    suppressed_count: int


def parse_decision_id(text: str) -> int:
    """Return the number that a decision id stands for.

    Raises:
        ValueError: It is not 16 hexadecimal digits.
    """
    if not _DECISION_ID.fullmatch(text):
        raise ValueError("a decision id is 16 hexadecimal digits")
    return int(text, 16)


def decision_id_of(number: int) -> str:
    """Return a decision id."""
    return f"{number % 2**64:016x}"
