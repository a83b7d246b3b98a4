"""Problems of a configuration, one line each: path, value, what is allowed, an example. Never a secret."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

from oauth_ratelimit.errors import ConfigError

MAX_PROBLEMS = 1000  # of one configuration; what follows is only counted
MAX_SHOWN = 60  # characters of a bad value; enough to find it

# A value here may be an address with a slip in it and a password, or a key in place of its path.
_SECRET_PATH = (
    r"store|store\.uri|OAUTH_RATELIMIT_MONGO_URI|privacy|privacy\.keys"
    r"|(privacy\.keys\[[0-9]+\]|denial\.partition_key)(\.env|\.file)?"
)
# A key of user names in place of the name ``env`` or ``file``; it is longer than any name.
_SECRET_NAME = r"(privacy|privacy\.keys\[[0-9]+\]|denial|denial\.partition_key)\.[^.\[\]]{24,}"

# Keys of former versions by their path, and what replaces them. They are ignored, so that an upgrade stops nothing.
REMOVED_KEYS = {
    "gc_interval": "Python decides when to collect; "
    "see gc.freeze() in docs/operations for processes with very many keys",
    "digest": "use `flask oauth-ratelimit report --format json` from cron",
    "sync.near_limit": "keys near a limit are synchronised at once; "
    "a limit that must hold to the request needs an exact log in Redis",
    "sync.deadline": "no request waits for MongoDB",
    "privacy.read_plain": "counts start anew when user_names changes; `erase` always looks for plain names, too",
}

# What overrides a key from outside of the file, because nothing in the file is interpolated.
OVERRIDING = {"store.uri": "OAUTH_RATELIMIT_MONGO_URI", "mode": "OAUTH_RATELIMIT_MODE"}

# Examples to paste, by the name of the key, where the default is none. Tests load each of them.
EXAMPLES = {
    "clients": "{partner-app: {mode: enforce}}",
    "endpoints": '{revocation: {limits: {client: ["600/minute"]}}}',
    "env": "RATELIMIT_NAMES_KEY",
    "error_uri": "https://example.com/docs/token-reuse",
    "file": "/run/secrets/ratelimit-names-key",
    "frames": "10",
    "grants": "{refresh_token: {mode: enforce}}",
    "instance": "node-1",
    "instances": '["node-1*"]',
    "limit": "100",
    "method": '["POST"]',
    "mode": "dry-run",
    "name": "burst",
    "namespace": "blue",
    "path": '["/oauth/revoke*"]',
    "percent": "10",
    "plan": "gold",
    "plans": '{gold: {limits: {user: ["100/minute"]}}}',
    "trusted_addresses": '["10.0.0.0/8"]',
    "trusted_clients": "[our-own-app]",
    "uri": '"mongodb://localhost:27017/oauth"',
    "window": "60s",
}

_is_plain = re.compile("[A-Za-z0-9_-]+").fullmatch

# Compiled where a value is bad, not at each start.
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,19}$"
_CREDENTIALS = r"(?s):.*@"
_VARIABLE = r"\$\{([A-Za-z_][A-Za-z0-9_]{0,60})\}|^\$([A-Z_][A-Z0-9_]{2,60})$"


@dataclass(slots=True, eq=False)
class ConfigProblem:
    """Problem with one value."""

    at: str  # path of the key, empty for the whole
    reason: str
    example: str | None = None  # what could be there instead, as it is written in the file; None if that would not help

    def text(self, line: int | None = None) -> str:
        """Return the problem on one line, with its line in the file."""
        example = f"; for example {self.example}" if self.example else ""
        where = f" (line {line})" if line else ""
        at = re.sub(_QUOTED, lambda key: json.dumps(without_address(json.loads(key[0]))), self.at)
        return f"{at}: {self.reason}{example}{where}" if at else f"{self.reason}{example}{where}"


class Problems:
    """The problems found so far, in the order of the keys, and removed keys, which are no problem: ``ignored``.

    ``document`` is the whole configuration as it is written, for keys that name others.
    """

    def __init__(self, document: Mapping[str, object] | None = None) -> None:
        self.document = document or {}
        self._found: list[ConfigProblem] = []
        self._left_out = 0
        self.ignored: list[ConfigProblem] = []

    def __len__(self) -> int:
        return len(self._found) + self._left_out

    def add(self, at: str, reason: str, *, example: str | None = None) -> None:
        """Report that the value at a path cannot be used. An empty example is replaced by one of the key."""
        if not self._is_full():
            self._found.append(ConfigProblem(at, reason, example))

    def _is_full(self) -> bool:
        """Count a problem that is left out, and return True, if there are so many that nobody reads further ones."""
        is_full = len(self._found) >= MAX_PROBLEMS
        self._left_out += is_full
        return is_full

    def bad_value(self, at: str, value: object, allowed: str, *, example: str = "") -> None:
        """Report a value that is not allowed, and what is."""
        if self._is_full():
            return
        variable = re.search(_VARIABLE, value) if isinstance(value, str) else None
        if variable is not None:
            self.add(at, _not_interpolated(at, variable[1] or variable[2]))
            return
        is_secret = isinstance(value, str) and re.fullmatch(_SECRET_PATH, at)
        reason = f"got {'text not shown here' if is_secret else show(value)}, allowed: {allowed}"
        self.add(at, reason, example=example)

    def give_example(self, name: str, example: str, *, since: int) -> None:
        for problem in self._found[since:]:
            if problem.example == "":
                problem.example = f"{name}: {example}"

    def unknown_key(self, at: str, name: str, allowed: Iterable[str]) -> None:
        """Report a key that does not exist. Its value is not shown: a misspelt ``uri`` may hold a password.

        Nor is its name where it may be a secret.
        """
        removed = REMOVED_KEYS.get(at)
        if removed:
            self.ignored.append(ConfigProblem(at, f"was removed and is ignored; {removed}"))
            return
        if self._is_full():
            return
        names = list(allowed)
        if secret := re.fullmatch(_SECRET_NAME, at):
            at = f"{secret[1]}.…"
        self.add(at, f"unknown key, allowed: {', '.join(names)}{did_you_mean(name, names)}")

    def error(self, *, source: str, line_of: Callable[[str], int | None] = lambda _: None) -> ConfigError:
        """Return all problems as one error, with the lines of their paths in the source."""
        texts = [problem.text(line_of(problem.at)) for problem in self._found]
        return ConfigError([*texts, f"and {self._left_out} more"] if self._left_out else texts, source=source)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` with the known name that is most alike, empty if none is."""
    close = difflib.get_close_matches(name[: 4 * MAX_SHOWN], list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _not_interpolated(at: str, variable: str) -> str:
    reason = f"got ${{{variable}}}, but nothing is interpolated in this file"
    key = OVERRIDING.get(at)
    if key is None:
        return reason
    return f'{reason}; leave the key out and set app.config["{key}"] = os.environ["{variable}"]'


def dotted(at: str, *keys: object) -> str:
    """Return the path of a key below ``at``, such as ``clients.partner-app.mode``; an unusual key is quoted."""
    for key in map(str, keys):
        name = key if _is_plain(key) else json.dumps(key[: 4 * MAX_SHOWN])
        at = f"{at}.{name}" if at else name
    return at


def without_address(text: str) -> str:
    """Return a text, of an address only the scheme: a user, a password or a token may follow."""
    before, separator, _ = text.partition("://")
    if separator:
        scheme = re.search(_SCHEME, before)
        return f"{scheme[0] if scheme else ''}{separator}…"
    return "…" if re.search(_CREDENTIALS, text) else text


def without_parts_of(uri: str, text: str) -> str:
    """Return a text without any part of a connection string: a misplaced sign can make a host of a password."""
    parts = {part for part in re.split(r"[:/@?&=,]+", uri) if len(part) > 2}
    for part in sorted(parts | set(map(unquote_plus, parts)), key=len, reverse=True):
        text = text.replace(part, "…")
    return text


def show(value: object) -> str:
    """Return a bad value for people: short, on one line, without what an address may carry."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() < 4 * MAX_SHOWN else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        shown = without_address(value)
        if len(shown) > MAX_SHOWN:
            shown = shown[:MAX_SHOWN] + "…"
        return json.dumps(shown, ensure_ascii=not shown.isprintable())
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a {type(value).__name__}"
