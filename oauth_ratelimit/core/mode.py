"""Modes, and the canary that enforces limits for a share of the clients first."""

import enum
import hashlib
from typing import NamedTuple

from oauth_ratelimit.core.key import matches_any


class Mode(enum.StrEnum):
    """Effect of a decision."""

    OFF = "off"
    """Admit without counting."""

    DRY_RUN = "dry-run"
    """Decide, count and report, never deny."""

    ENFORCE = "enforce"
    """Deny what is over the limit."""

    __hash__ = str.__hash__  # metrics hash a mode for each request, and Enum does so in Python


class Canary(NamedTuple):
    """Stable share of clients, or some instances, that enforce limits. The others make a dry run."""

    percent: float = 100.0  # Share of clients, 0 to 100. Raising it only adds clients.
    salt: str = ""  # text that changes which clients come first
    instances: tuple[str, ...] = ()  # Name patterns (``node-1*``). If there are any, they alone decide.

    def has_client(self, client_id: str, *, instance: str | None) -> bool:
        """Return True if an instance enforces limits for a client; None is any one of those that enforce."""
        if self.instances:
            return instance is None or matches_any(self.instances, instance)
        # ``hash()`` would differ from process to process.
        digest = hashlib.sha256(f"{self.salt}\0{client_id}".encode("utf-8", "surrogatepass")).digest()
        position = (int.from_bytes(digest[:8], "big") >> 11) / 2**53 * 100  # 53 bits: never rounded up to 100
        return position < self.percent
