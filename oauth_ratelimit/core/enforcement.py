"""
What is done with a decision: trusted clients, dry run, canary.

None of this changes how a decision is made, so a dry run predicts what enforcing will do.
"""

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


class Mode(enum.StrEnum):
    """
    What is done with a decision.
    """

    OFF = "off"
    """Admit without counting."""

    DRY_RUN = "dry-run"
    """Decide, count and report, never deny."""

    ENFORCE = "enforce"
    """Deny what is over the limit."""


OFF = Mode.OFF  # for what every request asks: Python 3.11 takes seven times as long to find a member in its class


@dataclass(frozen=True, slots=True)
class Canary:
    """
    Where enforcing starts: a stable share of clients, or some instances; dry run for the rest.

    Args:
        percent: Share of clients, 0 to 100. Raising it only adds clients.

        salt: Changes which clients come first.

        instances: Name patterns (``node-1*``); when given, they alone decide.
    """

    percent: float = 100.0
    salt: str = ""
    instances: tuple[str, ...] = ()

    def has_client(self, client_id: str, *, instance: str) -> bool:
        """
        Return whether a client is enforced on this instance.
        """
        if self.instances:
            return matches_any(self.instances, instance)
        return _position(self.salt, client_id) < self.percent


def _position(salt: str, client_id: str) -> float:
    """
    Return a client's stable place in 0..100. Not ``hash()``, which differs from process to process.
    """
    digest = hashlib.sha256(f"{salt}\0{client_id}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53 * 100  # 53 bits: never rounded up to 100


def matches_any(patterns: Sequence[str], name: str) -> bool:
    """
    Return whether a name is one of the patterns or matches one in shell style, case included.

    Equality comes first, because a name itself may hold ``[``, ``*`` or ``?``.
    """
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
