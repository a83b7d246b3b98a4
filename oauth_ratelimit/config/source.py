"""Hot reload: new settings when the configuration file changes. A file that is not valid stops nothing."""

import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from oauth_ratelimit.config.loader import (
    Stamp,
    file_says_off,
    parse_file,
    permission_warning,
    read_file,
    stamp_of,
    valid_parts,
)
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.process.log import get_logger

MAX_LOGGED_PROBLEMS = 20
MAX_UNREAD_S = 1.5  # after which a file that changes all the time is read as it is
REPEAT_S = 60.0  # between two log entries about the same content
DIGEST_LENGTH = 12  # hexadecimal digits: enough to tell the files of a fleet apart

LIMITS_OFF = "limits are off; of this file only the sections store, privacy and guard apply, each as far as it is valid"
LAST_VALID = "the last valid file still applies"
SWITCHED_OFF = "limits are off, because this file has mode: off"
WAY_BACK = "repair the file; to switch all limits off meanwhile, replace it with the one line mode: off"

log = get_logger("oauth_ratelimit")


class Rejection(NamedTuple):
    """A file that is not valid."""

    problems: tuple[str, ...]  # one line each
    since_s: float  # when this process found the first invalid content, by ``uptime_s``
    effect: str  # what applies meanwhile


class ConfigFile:
    """A configuration file that may change at any time. One thread loads and polls; any may request a reload.

    A link is followed again on every poll. ``mode`` and ``uri`` replace those in the file. ``rejection`` is None while
    the file is valid. ``digest`` is the start of the SHA-256 of the content that was read last; empty if it cannot be
    read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: str | None = None,
        uri: str | None = None,
        clock: Callable[[], float] = uptime_s,
    ) -> None:
        self.path = os.fspath(path)
        self.rejection: Rejection | None = None
        self.digest = ""
        self._mode = mode
        self._uri = uri
        self._clock = clock
        self._settings: Settings | None = None  # that were returned last
        self._valid: Settings | None = None  # of the last valid content
        self._read_stamp: Stamp | None = None  # of the file that was read last
        self._seen_stamp: Stamp | None = None  # of the file at the last poll
        self._scanned_stamp: Stamp | None = None  # of the file in which ``mode: off`` was looked for last
        self._says_off = False  # whether it was there
        self._unread_since_s = math.inf  # when a poll first found that the file has changed since it was read
        self._next_report_s = 0.0
        self._is_reload_requested = False

    def load(self) -> Settings:
        """Return what applies now. Never raises: if the file is not valid, limits are off, and it is logged."""
        self._read(expected=None)
        self._seen_stamp = self._read_stamp
        self._report_if_due()
        return self.settings

    @property
    def settings(self) -> Settings:
        """Settings that apply now, by the content that was read last."""
        assert self._settings is not None
        return self._settings

    def catch_up(self) -> None:
        """Read the file at once if it has changed since it was read, such as in the parent of this process."""
        if self._stamp() != self._read_stamp:
            self._read(expected=None)

    def poll(self) -> Settings | None:
        """Return new settings if the file has changed what applies, else None. Costs one ``stat`` of the file.

        A change is read when two polls in a row find the same status, because a file that is being written may be
        valid and lack its end, such as the trusted clients; one that never holds still is read all the same. Never
        raises: for a file that is not valid the last valid settings stay, switched off if it has ``mode: off``. The
        next poll logs ``config_rejected``, and again each minute: a log that blocks must not keep a change from being
        applied.
        """
        self._report_if_due()
        if self._is_reload_requested:
            self._is_reload_requested = False
            log.info("reload_requested", path=self.path)
            return self._read(expected=None)
        stamp, now_s = self._stamp(), self._clock()
        settled, self._seen_stamp = stamp == self._seen_stamp, stamp
        if stamp == self._read_stamp:
            return None
        self._unread_since_s = min(self._unread_since_s, now_s)
        if settled:
            return self._read(expected=stamp)
        return self._read(expected=None) if now_s - self._unread_since_s >= MAX_UNREAD_S else None

    def look_for_off(self) -> bool:
        """Return whether a content that is still to be read says ``mode: off``, however long reading it takes.

        Costs one ``stat`` of the file, and some milliseconds if it has changed. Safe in any thread.
        """
        stamp = self._stamp()
        if self._mode or stamp == self._read_stamp:
            return False
        if stamp != self._scanned_stamp:
            try:
                self._says_off = file_says_off(self.path)
            except (OSError, ValueError):
                return False
            self._scanned_stamp = stamp
        return self._says_off

    def _stamp(self) -> Stamp | None:
        try:
            return stamp_of(Path(self.path).stat())
        except (OSError, ValueError):  # a path may hold a NUL
            return None

    def request_reload(self) -> None:
        """Have the next ``poll`` read the file even if it looks unchanged. Safe in a signal handler."""
        self._is_reload_requested = True

    def _read(self, *, expected: Stamp | None) -> Settings | None:
        """Return what applies if the file still has the expected stamp and changes anything.

        A file that could not be read is read again with the next poll: the cause may be gone, such as a lack of
        descriptors.
        """
        digest, was_valid, stamp = "", self.rejection is None, None
        self._unread_since_s = math.inf
        try:
            content, stamp = read_file(self.path)
            if expected is not None and stamp != expected:
                return None
            digest = hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
            settings = parse_file(content, source=self.path, mode=self._mode, uri=self._uri)
        except ConfigError as exc:
            settings = self._without(exc, is_news=was_valid or digest != self.digest)
        else:
            warning = permission_warning(self.path)
            if warning:
                log.warning("config_not_protected", path=self.path, hint=warning)
            self._valid, self.rejection = settings, None
        is_new = settings != self._settings or (self.rejection is None and not was_valid)
        self._settings, self.digest, self._read_stamp = settings, digest, stamp
        return settings if is_new else None

    def _without(self, error: ConfigError, *, is_news: bool) -> Settings:
        """Return what applies while a content is rejected, and report that."""
        parts = error.valid_parts
        if parts is None:  # the file is too large, or cannot be read
            sections = {"mode": "off"} if self.look_for_off() else {}
            parts = valid_parts(sections, mode=self._mode, uri=self._uri)
        is_off = not parts.is_rejected
        settings = self._valid or parts
        if is_off:
            settings = settings.switched_off()
        effect = SWITCHED_OFF if is_off else LIMITS_OFF if self._valid is None else LAST_VALID
        since_s = self.rejection.since_s if self.rejection else self._clock()
        self.rejection = Rejection(error.problems, since_s, effect)
        if is_news:
            self._next_report_s = -math.inf
        return settings

    def _report_if_due(self) -> None:
        rejection = self.rejection
        if rejection is None or self._clock() < self._next_report_s:
            return
        self._next_report_s = self._clock() + REPEAT_S
        log.error(
            "config_rejected",
            path=self.path,
            problems=list(rejection.problems[:MAX_LOGGED_PROBLEMS]),
            problem_count=len(rejection.problems),
            effect=rejection.effect,
            hint=WAY_BACK,
        )
