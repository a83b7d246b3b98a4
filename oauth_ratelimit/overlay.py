"""
The overrides that a process knows of: read in the background, kept while MongoDB is out of reach.
"""

import math
import time
from typing import Protocol

import structlog

from oauth_ratelimit.core.overrides import Override, in_force
from oauth_ratelimit.errors import StoreError

log = structlog.get_logger(__name__)

REREAD_S = 60.0  # so often everything is read although the revision is the same: somebody may have edited by hand


class OverrideReader(Protocol):
    """
    Where overrides come from: ``store.overrides.OverrideStore``.
    """

    def revision(self) -> str | None: ...

    def read(self) -> tuple[Override, ...]: ...


class Overlay:
    """
    What lies over the configuration. Used by the background thread alone.

    Args:
        store: Where overrides come from; None if there are none, because counters are not shared.
    """

    def __init__(self, store: OverrideReader | None) -> None:
        self._store = store
        self._known: tuple[Override, ...] = ()
        self._revision: str | None = None
        self._reread_at_s = -math.inf  # monotonic
        self._is_failing = False

    def refresh(self) -> None:
        """
        Look for changes. One small read, and one more if there are any. Without an answer, what is known stays.
        """
        if self._store is None:
            return
        try:
            revision = self._store.revision()
            if revision != self._revision or time.monotonic() >= self._reread_at_s:
                self._known = self._store.read()
                self._revision, self._reread_at_s = revision, time.monotonic() + REREAD_S
        except StoreError as exc:
            if not self._is_failing:
                log.warning("overrides_unavailable", error=str(exc), known_count=len(self._known))
            self._is_failing = True
        else:
            self._is_failing = False

    def in_force(self, now_s: float) -> tuple[Override, ...]:
        """
        Return the overrides that hold now.
        """
        return in_force(self._known, now_s)
