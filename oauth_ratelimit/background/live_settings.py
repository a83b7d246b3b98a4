"""Settings that apply now: the configuration with overrides, both reloaded live."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from oauth_ratelimit.config import Settings, describe_changes
from oauth_ratelimit.config.diff import changes_between, fixed_values, overridden_values
from oauth_ratelimit.config.loader import ConfigFile
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, apply_overrides
from oauth_ratelimit.errors import StoreError, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.store.mongo.overrides import LEFT_OUT, OverrideStore, with_dry_run

log = get_logger(__name__)

REREAD_INTERVAL_S = 60.0  # a change by hand may leave the revision as it is
SLOW_S = 0.5  # a read of overrides that fails after it ...
RETRY_INTERVAL_S = 10.0  # ... is tried again after this time, because each try delays a sync cycle
MAX_AWAITED_S = 15.0  # for which the first read is waited for
GRACE_S = 0.25  # from the start on; a MongoDB that has not answered by then is slow
FRESH_S = 60.0  # since another process of the host has read overrides, by which a new one may deny
LOG_INTERVAL_S = 60.0
REPAIRED = "file: invalid -> valid"
RESTART_NEEDED = "this process goes on with the former values; check-config --running says what a restart loses"
HIDDEN = "an override comes before these values of the file; overrides lists it, limit unset removes it"
OVERRIDDEN = "an override sets the mode, so of the file only off has an effect; mode unset removes the override"


class OverrideCache:
    """The overrides as last read, kept while MongoDB is unreachable.

    The background thread alone refreshes it. ``overrides`` has also those that have ended since they were read.
    """

    def __init__(self, store: OverrideStore | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self.overrides: tuple[Override, ...] = ()
        self._late_from_s = clock() + GRACE_S
        self._awaited_until_s = -math.inf if store is None else clock() + MAX_AWAITED_S
        self._revision: str | None = None
        self._reread_at_s = -math.inf
        self._retry_at_s = -math.inf
        self._log = ThrottledLog(log, LOG_INTERVAL_S, clock)

    @property
    def is_awaited(self) -> bool:
        """True until overrides are known for the first time, unless MongoDB takes too long."""
        return self._clock() < self._awaited_until_s

    @property
    def is_late(self) -> bool:
        """True while they are awaited from a slow MongoDB. They may say that nobody is denied."""
        return self.is_awaited and self._clock() >= self._late_from_s

    def adopt(self, overrides: tuple[Override, ...], *, age_s: float) -> None:
        """Start with the overrides that another process of the host has read some time ago."""
        self.overrides = overrides
        if age_s <= FRESH_S:
            self._awaited_until_s = -math.inf

    def refresh(self) -> bool:
        """Read the revision, and the overrides if it has changed: those for everybody first, because they are few.

        A failure keeps the overrides. Returns whether all are the present ones. Raises ``StoreUnavailable`` if MongoDB
        did not answer.
        """
        if self._store is None:
            return False
        everybody: tuple[Override, ...] | None = None
        try:
            revision = self._store.revision()
            if revision == self._revision and self._clock() < self._reread_at_s:
                return True
            everybody = self._store.read_for_everybody()
            begun_s = self._clock()
            if begun_s >= self._retry_at_s:
                try:
                    self.overrides = self._store.read()
                except StoreError:
                    if self._clock() - begun_s >= SLOW_S:
                        self._retry_at_s = self._clock() + RETRY_INTERVAL_S
                    raise
                self._revision, self._reread_at_s = revision, self._clock() + REREAD_INTERVAL_S
                self._awaited_until_s = -math.inf
                return True
        except StoreError as exc:
            if isinstance(exc, StoreUnreachable) or not isinstance(exc, StoreUnavailable):
                self._awaited_until_s = -math.inf
            self._log.warning("overrides_unavailable", error=str(exc), known_count=len(self.overrides))
            if everybody is None and isinstance(exc, StoreUnavailable):
                raise
        if everybody is not None:  # the others take too long to read
            others = (each for each in self.overrides if each.target.client_id is not None)
            found = {each.target: each for each in (*others, *everybody)}
            self.overrides = tuple((with_dry_run(found) if LEFT_OUT in self.overrides else found).values())
        return False


class SettingsChange(NamedTuple):
    """A change of settings that is still to be logged."""

    old: Settings
    new: Settings
    shown_before: Settings  # as the log has them
    shown: Settings
    repair: Sequence[str]  # says that the file, which was rejected, is valid
    origin: str
    fixed_changes: Sequence[str]  # those that need a restart
    overridden: Mode | None  # new mode of the file that an override hides
    former_base: Settings  # the file's
    base: Settings


class LiveSettings:
    """The current settings of one application. A forked child can go on using them.

    ``current`` is the configuration with ``overrides`` applied, ``base`` the one without. ``poll`` returns a changed
    configuration, or None. ``warn`` logs what an operator should know about new settings and not about the former ones.
    One thread calls ``poll``, and one at a time ``look_for_off``, and ``update``.
    """

    def __init__(
        self,
        settings: Settings,
        poll: Callable[[], Settings | None],
        *,
        file: ConfigFile | None = None,
        warn: Callable[[Settings, Settings], None] = lambda new, former: None,
    ) -> None:
        self.current = settings
        self.file = file
        self.base = settings
        self.overrides: tuple[Override, ...] = ()
        self._warn = warn
        self._poll = poll
        self._applied_base = settings
        self._is_reading = False  # while ``poll`` runs
        self._says_off = self._applied_off = False  # whether the file says so, before it is read
        self._unlogged: deque[SettingsChange] = deque()
        self.use()

    def use(self) -> Settings:
        """Return the settings for a worker that starts. It may be in a child of the process that has read the file."""
        if self.file is not None:
            self.file.catch_up()
            self.base = self._applied_base = self.file.settings
            self._applied_off = False
        # The worker keeps the collections, sync and privacy that the file names now.
        policies = apply_overrides(self.base.policies, self.overrides)
        self._used = self.current = self._shown = replace(self.base, policies=policies)
        self._is_off_unread, self._repair = False, list[str]()
        self._may_have_counts = self.base.policies.mode is not Mode.OFF
        return self.current

    def poll(self) -> None:
        """Read the file; ``update`` applies what has changed."""
        was_rejected = self._is_rejected
        self._is_reading = True
        try:
            self.base = self._poll() or self.base
        finally:
            self._is_reading = False
        if was_rejected and not self._is_rejected:
            self._repair = [REPAIRED]

    @property
    def _is_rejected(self) -> bool:
        return self.file is not None and self.file.rejection is not None

    def look_for_off(self) -> None:
        """Look for ``mode: off`` in a file that is still to be read; ``update`` applies it."""
        says_off = self.file is not None and self.file.look_for_off()
        if says_off or not self._is_reading:  # else it may be read by now, and ``base`` still be the former one
            self._says_off = says_off

    def update(self, overrides: tuple[Override, ...]) -> bool:
        """Apply a changed configuration, if any, and these overrides. ``log_changes`` logs what has changed.

        Returns True if the worker has to give way to another one, because what needs a restart has changed. It may: it
        was off all the time, as one that starts with ``mode: off`` or a file that cannot be read, so it has no counts.
        """
        is_off, base = self._says_off, self.base  # in this order: a base that is read later only says more
        is_same_base = base is self._applied_base and is_off is self._applied_off
        if is_same_base and overrides == self.overrides:
            return False
        applied = base.switched_off() if is_off else base
        old, new = self.current, replace(applied, policies=apply_overrides(applied.policies, overrides))
        mode, former_mode = applied.policies.mode, self._applied_base.policies.mode
        used, former_base = self._used, self._applied_base
        fixed_changes = changes_between(fixed_values(used), fixed_values(new))
        gives_way = bool(fixed_changes) and not self._may_have_counts
        self._may_have_counts |= mode is not Mode.OFF
        if fixed_changes and not gives_way:
            store = new.store if new.store.has_same_collections(old.store) else old.store
            new = replace(new, store=store, sync=used.sync, privacy=used.privacy, host=used.host)
        # Off ends all limits, so it changes none of them. The next change shows what the file says of them.
        switches_off = new.policies.mode is Mode.OFF and (old.policies.mode is not Mode.OFF or self._is_off_unread)
        self._is_off_unread = switches_off and is_off
        shown = replace(new, policies=self._shown.policies._replace(mode=Mode.OFF)) if switches_off else new
        self.current, self._applied_base, self._applied_off, self.overrides = new, base, is_off, overrides
        is_overridden = mode is not former_mode and mode is not new.policies.mode
        # The one line that switches limits off needs no restart.
        needs = fixed_changes if not gives_way and mode is not Mode.OFF else []
        origin = "overrides" if is_same_base else "file"
        overridden = mode if is_overridden else None
        repair, self._repair = self._repair, []
        change = SettingsChange(old, new, self._shown, shown, repair, origin, needs, overridden, former_base, applied)
        self._unlogged.append(change)
        self._shown = shown
        return gives_way

    def log_changes(self) -> None:
        """Log what ``update`` has changed. Called after it took effect: a log that blocks must not delay it."""
        with suppress(IndexError):  # two threads may log
            while True:
                self._log_change(self._unlogged.popleft())

    def _log_change(self, change: SettingsChange) -> None:
        old, new, mode = change.old, change.new, change.new.policies.mode.value
        changes = [*change.repair, *describe_changes(change.shown_before, change.shown)]
        if changes or change.fixed_changes:
            restart_needed = bool(change.fixed_changes)
            log.info("config_reloaded", origin=change.origin, changes=changes, restart_needed=restart_needed)
        if change.fixed_changes:
            log.warning("restart_needed", changes=change.fixed_changes, hint=RESTART_NEEDED)
        self._warn(new, old)
        if old.policies.mode is not new.policies.mode:
            log.warning("mode_changed", old=old.policies.mode.value, new=mode)
        hidden = overridden_values(change.former_base, change.base, new) if mode != Mode.OFF else []
        if limits := [path for path in hidden if path != "mode"]:
            log.warning("limits_overridden", values=limits, hint=HIDDEN)
        if change.overridden is not None:
            log.warning("mode_overridden", mode=mode, file=change.overridden.value, hint=OVERRIDDEN)
