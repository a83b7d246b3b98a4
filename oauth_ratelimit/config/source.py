"""Hot reload: new settings when the configuration file changes, unless it is broken."""

import hashlib
import os
from pathlib import Path

import structlog

from oauth_ratelimit.config.document import Stamp, read_file
from oauth_ratelimit.config.loader import parse_file
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.errors import ConfigError

MAX_LOGGED_PROBLEMS = 20

log = structlog.get_logger()


class ConfigSource:
    """A configuration file that may change at any time. Not thread-safe: one thread loads and polls.

    Args:
        path: The file. A link is followed again on every poll.
        mode: Instead of the global mode in the file.
        uri: Instead of ``store.uri`` in the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, mode: str | None = None, uri: str | None = None) -> None:
        self.path = os.fspath(path)
        self._mode = mode
        self._uri = uri
        self._settings: Settings | None = None
        self._read_stamp: Stamp | None = None  # of the file that was read last
        self._seen_stamp: Stamp | None = None  # of the file at the last poll
        self._good: bytes | None = None  # digest of the content that applies
        self._rejected: bytes | None = None  # digest of the content that was reported last

    def load(self) -> Settings:
        """Return the file's settings now, and make them the last good ones.

        Raises:
            ConfigError: The file cannot be read or is not valid.
        """
        content, stamp = read_file(self.path)
        self._read_stamp = self._seen_stamp = stamp
        self._settings = self._parse(content)
        self._good, self._rejected = _digest(content), None
        return self._settings

    def poll(self) -> Settings | None:
        """Return new settings if the file has changed and is valid, else None. Costs one ``stat`` of the file.

        A change is read when two polls in a row find the same status, because a file that is being written may be
        valid and lack its end, such as the trusted clients. Never raises: a file that is broken or gone is logged
        once per content, as ``config_rejected``, and the last good settings stay.
        """
        try:
            stamp = Stamp.of(Path(self.path).stat())
        except OSError:
            stamp = None
        settled, self._seen_stamp = stamp == self._seen_stamp, stamp
        return self._read(expected=stamp) if settled and stamp != self._read_stamp else None

    def reload(self) -> Settings | None:
        """Do what ``poll`` does at once, even if the file looks unchanged: an operator asked for it."""
        return self._read(expected=None)

    def _read(self, *, expected: Stamp | None) -> Settings | None:
        """Return the settings of the file if they are new and the file still has the expected stamp."""
        content = None
        self._read_stamp = expected
        try:
            content, stamp = read_file(self.path)
            if expected is not None and stamp != expected:
                return None
            self._read_stamp = stamp
            if _digest(content) == self._good and self._rejected is None:
                return None
            settings = self._parse(content)
        except ConfigError as exc:
            self._report(exc, identity=b"" if content is None else _digest(content))
            return None
        is_new = settings != self._settings or self._rejected is not None
        self._settings, self._good, self._rejected = settings, _digest(content), None
        return settings if is_new else None

    def _parse(self, content: bytes) -> Settings:
        return parse_file(content, source=self.path, mode=self._mode, uri=self._uri)

    def _report(self, error: ConfigError, *, identity: bytes) -> None:
        if identity != self._rejected:
            log.error(
                "config_rejected",
                path=self.path,
                problems=list(error.problems[:MAX_LOGGED_PROBLEMS]),
                problem_count=len(error.problems),
            )
        self._rejected = identity


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
