"""Settings that apply now: the configuration with overrides, both reloaded live."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from oauth_ratelimit.config import Settings, describe_changes
from oauth_ratelimit.core.overrides import Override, active, apply_overrides
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.summary import warnings_of
from oauth_ratelimit.process.throttled_log import ThrottledLog
from oauth_ratelimit.store.mongo.overrides import OverrideStore

log = structlog.get_logger(__name__)

REREAD_INTERVAL_S = 60.0  # a change by hand may leave the revision as it is
LOG_INTERVAL_S = 60.0
OVERRIDDEN = "an override sets the mode, so of the file only off has an effect; mode unset removes the override"


class OverrideCache:
    """The overrides as last read, kept while MongoDB is unreachable. The background thread alone uses it.

    Args:
        store: The stored overrides; None without shared counters.
        clock: Returns monotonic time in seconds.
    """

    def __init__(self, store: OverrideStore | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._overrides: tuple[Override, ...] = ()
        self._revision: str | None = None
        self._reread_at_s = -math.inf
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)

    def refresh(self) -> None:
        """Read the revision, and the overrides if it has changed. A failure is logged and keeps the overrides."""
        if self._store is None:
            return
        try:
            revision = self._store.revision()
            if revision != self._revision or self._clock() >= self._reread_at_s:
                self._overrides = self._store.read()
                self._revision, self._reread_at_s = revision, self._clock() + REREAD_INTERVAL_S
        except StoreError as exc:
            self._log.warning("overrides_unavailable", error=str(exc), known_count=len(self._overrides))

    def active(self, now_s: float) -> tuple[Override, ...]:
        """Return the overrides that have not ended."""
        return active(self._overrides, now_s)


class LiveSettings:
    """The current settings of one application. A forked child can go on using them.

    Args:
        settings: The configuration.
        poll: Returns a changed configuration, or None.

    Attributes:
        current: The configuration with overrides applied.
    """

    def __init__(self, settings: Settings, poll: Callable[[], Settings | None]) -> None:
        self.current = settings
        self._base = settings
        self._poll = poll
        self._applied_base = settings
        self._overrides: tuple[Override, ...] = ()

    @property
    def base(self) -> Settings:
        """The configuration without overrides."""
        return self._base

    @property
    def override_count(self) -> int:
        """The number of active overrides."""
        return len(self._overrides)

    def update(self, overrides: tuple[Override, ...]) -> bool:
        """Apply a changed configuration, if any, and these overrides. Logs the changes.

        Returns:
            Whether anything has changed.
        """
        self._base = self._poll() or self._base  # a change is polled once, so it is kept if the rest fails
        is_same_base = self._base is self._applied_base
        if is_same_base and overrides == self._overrides:
            return False
        old, new = self.current, replace(self._base, policies=apply_overrides(self._base.policies, overrides))
        mode, former_mode = self._base.policies.mode, self._applied_base.policies.mode
        self.current, self._applied_base, self._overrides = new, self._base, overrides
        log.info(
            "config_reloaded",
            origin="overrides" if is_same_base else "file",
            changes=describe_changes(old, new),
            restart_needed=(old.store, old.sync, old.privacy) != (new.store, new.sync, new.privacy),
        )
        for warning in set(warnings_of(new)) - set(warnings_of(old)):
            log.warning("counters_not_shared", hint=warning)
        if old.policies.mode is not new.policies.mode:
            log.warning("mode_changed", old=old.policies.mode.value, new=new.policies.mode.value)
        if mode is not former_mode and mode is not new.policies.mode:
            log.warning("mode_overridden", mode=new.policies.mode.value, file=mode.value, hint=OVERRIDDEN)
        return True
