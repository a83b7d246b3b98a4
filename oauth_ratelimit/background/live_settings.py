"""
What applies now: the configuration, and over it the overrides that a process knows of. They are read in the background,
and kept while MongoDB is out of reach.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from oauth_ratelimit.config import Settings, describe_changes
from oauth_ratelimit.core.overrides import Override, active, apply_overrides
from oauth_ratelimit.errors import StoreError

log = structlog.get_logger(__name__)

REREAD_S = 60.0  # so often everything is read although the revision is the same: somebody may have edited by hand


class OverrideReader(Protocol):
    """Where overrides come from: ``store.overrides.OverrideStore``."""

    def revision(self) -> str | None: ...

    def read(self) -> tuple[Override, ...]: ...


class OverrideCache:
    """What lies over the configuration. Used by the background thread alone.

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
        """Look for changes. One small read, and one more if there are any. Without an answer, what is known stays."""
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

    def active(self, now_s: float) -> tuple[Override, ...]:
        """Return the overrides that hold now."""
        return active(self._known, now_s)


class LiveSettings:
    """The settings of one application, as they are now. Outlives forks: whatever changes them runs in one thread.

    Args:
        settings: The configuration, until ``poll`` says otherwise.
        poll: Returns a changed configuration, or None.

    Attributes:
        current: What applies: the configuration with the overrides of operators on top.
    """

    def __init__(self, settings: Settings, poll: Callable[[], Settings | None]) -> None:
        self.current = settings
        self._base = settings
        self._poll = poll
        self._applied_base = settings
        self._overrides: tuple[Override, ...] = ()

    @property
    def base(self) -> Settings:
        """The configuration, without overrides."""
        return self._base

    @property
    def override_count(self) -> int:
        """How many overrides are in force."""
        return len(self._overrides)

    def update(self, overrides: tuple[Override, ...]) -> bool:
        """Take over a changed configuration, if there is one, and these overrides. Logs what is different then.

        Returns:
            Whether anything is.
        """
        self._base = self._poll() or self._base  # a change is polled once, so it is kept if the rest fails
        is_same_base = self._base is self._applied_base
        if is_same_base and overrides == self._overrides:
            return False
        old, new = self.current, replace(self._base, policies=apply_overrides(self._base.policies, overrides))
        self.current, self._applied_base, self._overrides = new, self._base, overrides
        log.info(
            "config_reloaded",
            origin="overrides" if is_same_base else "file",
            changes=describe_changes(old, new),
            restart_needed=(old.store, old.sync, old.privacy) != (new.store, new.sync, new.privacy),
        )
        if old.policies.mode is not new.policies.mode:
            log.warning("mode_changed", old=old.policies.mode.value, new=new.policies.mode.value)
        return True
