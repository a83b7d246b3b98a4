"""Loading: from a path or a mapping to settings, and anew when the file changes. An invalid file stops nothing."""

import errno
import hashlib
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from oauth_ratelimit.config.errors import Problems, without_address
from oauth_ratelimit.config.policies import INSTANCE, MODE, build_policies, find_clashes
from oauth_ratelimit.config.settings import FILE, MONGO_URI, GuardSettings, PrivacySettings, Settings, StoreSettings
from oauth_ratelimit.config.types import keys_of, or_null
from oauth_ratelimit.core.key import MIN_SECRET_BYTES, PseudonymKey
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import OwnLimits
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.process.deadline import uptime_s
from oauth_ratelimit.process.log import get_logger

MAX_FILE_BYTES = 1_000_000  # some ten thousand clients; YAML takes seconds to parse beyond that
CHUNK_BYTES = 1_000_000
MAX_CHUNKS = 100  # of a file that is too large, in which ``mode: off`` is looked for
MAX_LINE_BYTES = 200  # of the line ``mode: off`` with its comment, if two chunks share it

ABSOLUTE = "an absolute one such as /etc/myauth/ratelimit.yaml works from everywhere"

MAX_LOGGED_PROBLEMS = 20
MAX_UNREAD_S = 1.5  # after which a file that changes all the time is read as it is
REPEAT_S = 60.0  # between two log entries about the same content
DIGEST_LENGTH = 12  # hexadecimal digits: enough to tell the files of a fleet apart
INSTANCE_LINE = re.compile(rb"^instance:.*", re.MULTILINE)  # differs from file to file on purpose

LIMITS_OFF = "limits are off; of this file only the sections store, privacy and guard apply, each as far as it is valid"
LAST_VALID = "the last valid file still applies"
SWITCHED_OFF = "limits are off, because the mode is off"
WAY_BACK = r"repair the file; to switch all limits off meanwhile: printf '\nmode: off\n' >> FILE"
OFF_WAY_BACK = "repair the file; mode: off keeps all limits off"
MODE_GIVEN = "repair the file; a mode: off in it has no effect, because app.config has OAUTH_RATELIMIT_MODE"

log = get_logger("oauth_ratelimit")

Stamp = tuple[int, ...]
"""What the status of a file says. It differs if the file has changed."""

_SWITCH = re.compile(rb"[\r\n][\xef\xbb\xbf\xfe\xff]*[\"']?(mode|enabled)[\"']? *:([^\r\n]*)")
# What was appended to a last line that did not end: to a word, or behind one, where a key such as guard_mode is none
_GLUED = re.compile(rb"[^\s#_.-](mode: *off|enabled: *false)\s*$")
_BEHIND = re.compile(rb"(?:^|[\r\n])[^#\r\n]*[^\s#,{:_.-][ \t]+(mode: *off|enabled: *false)\s*$")

_SECTIONS = {key.name: key.kind for key in keys_of(Settings)}


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any], *, mode: str | None = None, uri: str | None = None
) -> Settings:
    """Return the settings that a YAML file or a mapping holds.

    Args:
        source: Path of the file, or what the file would hold. ``{}`` is nothing but defaults.
        mode: Instead of the global mode in ``source``; ``off`` is the emergency switch.
        uri: Instead of ``store.uri`` in ``source``.

    Raises:
        ConfigError: With every problem at once, each with the path of its key, the value and what is allowed.
    """
    if isinstance(source, Mapping):
        return parse_settings(source, source="configuration", mode=mode, uri=uri)
    content, _ = read_file(source)
    return parse_file(content, source=os.fspath(source), mode=mode, uri=uri)


def parse_file(content: bytes, *, source: str, mode: str | None = None, uri: str | None = None) -> Settings:
    """Return the settings in the content of a file.

    Raises ``ConfigError`` as ``load_config`` does: each problem with its line, and with the parts that are valid.
    """
    from oauth_ratelimit.config.document import line_numbers, parse_yaml, readable_sections

    values: Mapping[str, object] | None = None
    try:
        values = parse_yaml(content, source=source)
        if _GLUED.search(_end_of(content)):  # YAML takes it for a part of a comment or of a list's last item
            values = {**values, "mode": "off"}
        return parse_settings(values, source=source, mode=mode, uri=uri, line_of=line_numbers(content))
    except ConfigError as exc:
        problems = exc.problems
    if values is None:
        values = {**readable_sections(content), **({"mode": "off"} if says_off([content]) else {})}
    elif _BEHIND.search(_end_of(content)):
        values = {**values, "mode": "off"}
    raise ConfigError(problems, source=source, valid_parts=valid_parts(values, mode=mode, uri=uri))


def says_off(chunks: Iterable[bytes]) -> bool:
    """Return whether the last ``mode`` or ``enabled`` at the start of a line switches everything off.

    Takes milliseconds where YAML takes seconds, and reads what YAML rejects, such as half of a UTF-16 file.
    """
    found: dict[bytes, bool] = {}
    rest = b"\n"
    for chunk in chunks:
        text = rest + chunk.replace(b"\0", b"")  # as ASCII in UTF-16 has
        for name, value in _SWITCH.findall(text):
            found[name] = value.partition(b" #")[0].strip(b" \t\"'").lower() in (b"off", b"false")
        rest = text[-MAX_LINE_BYTES:]
    return any(found.values()) or _GLUED.search(rest) is not None or _BEHIND.search(rest) is not None


def _end_of(content: bytes) -> bytes:
    """Return the end of a file, as ASCII."""
    return content[-2 * MAX_LINE_BYTES :].replace(b"\0", b"")


def file_says_off(path: str | os.PathLike[str]) -> bool:
    """Return whether a file of any size says ``mode: off``. Raises ``OSError`` or ``ValueError``."""
    with _opened(path) as (file, _):
        return says_off(islice(iter(partial(file.read, CHUNK_BYTES), b""), MAX_CHUNKS))


def valid_parts(sections: Mapping[str, object], *, mode: str | None = None, uri: str | None = None) -> Settings:
    """Return what applies of the sections of a file that is not valid: limits are off.

    ``instance``, ``store`` and ``privacy`` apply as far as they are valid alone. So does ``guard``; if it is named and
    not valid, it runs with its default limits, as a dry run if its mode cannot be read either. With ``mode: off`` it is
    off, too.
    """
    unknown_key = PseudonymKey.of(secrets.token_bytes(MIN_SECRET_BYTES))
    instance = INSTANCE.parse(sections.get("instance"), "instance", Problems())
    is_off = f"{mode or (sections.get('enabled') is not False and sections.get('mode'))}".lower() in ("off", "false")
    return Settings(
        build_policies(limits=OwnLimits(), mode=Mode.OFF, instance=instance),
        store=_valid_store(sections.get("store"), uri),
        privacy=_valid("privacy", sections.get("privacy")) or PrivacySettings("hashed", (unknown_key,)),
        guard=GuardSettings(mode=Mode.OFF) if is_off else _valid_guard(sections.get("guard")),
        is_rejected=not is_off,
    )


def _valid_store(section: object, uri: str | None) -> StoreSettings:
    """Return the settings of a store without those that are not valid."""
    given = {**_mapping(section), **({"uri": uri} if uri else {})}
    parsed = {
        key.attribute: key.kind.parse(given.get(key.name), key.name, Problems()) for key in keys_of(StoreSettings)
    }
    return StoreSettings(**{name: value for name, value in parsed.items() if value is not None})


def _valid_guard(section: object) -> GuardSettings:
    mode = MODE.parse(_mapping(section).get("mode"), "guard.mode", Problems())
    return _valid("guard", section) or replace(GuardSettings(), mode=mode or Mode.DRY_RUN)


def _valid(name: str, section: object) -> Any:
    return _SECTIONS[name].parse(section or {}, name, Problems())


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def parse_settings(
    values: Mapping[str, Any],
    *,
    source: str,
    mode: str | None = None,
    uri: str | None = None,
    line_of: Callable[[str], int | None] = lambda _: None,
) -> Settings:
    """Return the settings in plain values, with ``mode`` and ``uri`` on top.

    ``source`` names where the values come from, ``line_of`` the line of a key. Raises ``ConfigError``.
    """
    problems = Problems(values)
    settings: Settings | None = FILE.parse(values, "", problems)
    own_mode = or_null(MODE).parse(mode, "OAUTH_RATELIMIT_MODE", problems)
    own_uri = or_null(MONGO_URI).parse(uri, "OAUTH_RATELIMIT_MONGO_URI", problems)
    if settings:
        find_clashes(settings.policies, problems)
    if problems or settings is None:
        raise problems.error(source=source, line_of=line_of)
    return replace(
        settings,
        policies=settings.policies._replace(mode=own_mode or settings.policies.mode),
        store=replace(settings.store, uri=own_uri or settings.store.uri),
        warnings=tuple(key.text(line_of(key.at)) for key in problems.ignored),
    )


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev


def read_file(path: str | os.PathLike[str]) -> tuple[bytes, Stamp]:
    """Return a file's content and its stamp.

    Raises ``ConfigError`` if it cannot be read, is no regular file or is too large.
    """
    try:
        with _opened(path) as (file, stamp):
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES} bytes")
        return content, stamp
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
    name = without_address(os.fspath(path))  # an address may be given in place of a path
    where = "" if Path(name).is_absolute() else f"; the path is relative to {Path.cwd()}, {ABSOLUTE}"
    raise ConfigError([f"cannot be read: {reason}{where}"], source=name)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, Stamp]]:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield file, stamp_of(status)


def permission_warning(path: str | os.PathLike[str]) -> str | None:
    """Return a warning if every user of the machine may change a file's content, else None."""
    try:
        is_open = Path(path).stat().st_mode & stat.S_IWOTH
    except (OSError, ValueError):
        return None
    return "any user of this machine may change this file, and so all limits; chmod o-w" if is_open else None


class Rejection(NamedTuple):
    """A file that is not valid."""

    problems: tuple[str, ...]  # one line each
    since_s: float  # when this process found the first invalid content, by ``uptime_s``
    effect: str  # what applies meanwhile


class ConfigFile:
    """A configuration file that may change at any time. One thread loads and polls; any may request a reload.

    A link is followed again on every poll. ``mode`` and ``uri`` replace those in the file. ``rejection`` is None while
    the file is valid. ``digest`` is the start of the SHA-256 of the content that was read last, without the name of the
    instance; empty if it cannot be read.
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
        self._mode, self._way_back = mode, MODE_GIVEN if mode else WAY_BACK
        self._uri = uri
        self._clock = clock
        self._settings: Settings | None = None  # that were returned last
        self._valid: Settings | None = None  # of the last valid content
        self._read_stamp: Stamp | None = None  # of the file that was read last
        self._seen_stamp: Stamp | None = None  # of the file at the last poll
        # Stamp of the file in which ``mode: off`` was looked for last, and whether it was there
        self._scanned: tuple[Stamp | None, bool] = (None, False)
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
        scanned_stamp, says_off = self._scanned
        if stamp != scanned_stamp:
            try:
                says_off = file_says_off(self.path)
            except (OSError, ValueError):
                return False
            self._scanned = stamp, says_off
        return says_off

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
        digest, former, stamp = "", self.rejection, None
        try:
            content, stamp = read_file(self.path)
            if expected is not None and stamp != expected:
                return None
            digest = hashlib.sha256(INSTANCE_LINE.sub(b"", content)).hexdigest()[:DIGEST_LENGTH]
            settings = parse_file(content, source=self.path, mode=self._mode, uri=self._uri)
        except ConfigError as exc:
            is_known = former is not None and (former.problems, self.digest) == (exc.problems, digest)
            settings = self._reject(exc, is_news=not is_known)
        else:
            warning = permission_warning(self.path)
            if warning:
                log.warning("config_not_protected", path=self.path, hint=warning)
            self._valid, self.rejection = settings, None
        is_new = settings != self._settings or (self.rejection is None and former is not None)
        self._settings, self.digest, self._read_stamp = settings, digest, stamp
        if expected is not None or self.rejection is None:  # else the next poll tries again: it was being written
            self._unread_since_s = math.inf
        return settings if is_new else None

    def _reject(self, error: ConfigError, *, is_news: bool) -> Settings:
        """Note that a content is rejected, and return what applies meanwhile."""
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
            hint=OFF_WAY_BACK if rejection.effect == SWITCHED_OFF else self._way_back,
        )
