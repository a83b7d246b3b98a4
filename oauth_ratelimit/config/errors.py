"""Problems of a configuration, one line each: path, value, what is allowed, an example. Never a secret."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from oauth_ratelimit.errors import ConfigError

MAX_SHOWN = 60  # characters of a bad value; enough to find it

# A value here may be an address with a slip in it and a password, or a key in place of its path.
SECRET_PATHS = {
    "store",
    "store.uri",
    "OAUTH_RATELIMIT_MONGO_URI",
    "privacy",
    "privacy.keys",
    "privacy.keys[]",
    "privacy.keys[].env",
    "privacy.keys[].file",
}

# Keys of former versions by their path, and what replaces them.
REMOVED_KEYS = {
    "gc_interval": "Python decides when to collect; "
    "see gc.freeze() in docs/operations for processes with very many keys",
    "digest": "use `flask oauth-ratelimit report --format json` from cron",
    "privacy.read_plain": "counts start anew when user_names changes; `erase` always looks for plain names, too",
}

# What overrides a key from outside of the file, because nothing in the file is interpolated.
OVERRIDING = {"store.uri": "OAUTH_RATELIMIT_MONGO_URI", "mode": "OAUTH_RATELIMIT_MODE"}

# Examples to paste, by the name of the key, where the default is none. Tests load each of them.
EXAMPLES = {
    "canary": "{percent: 10}",
    "client": '["100/minute"]',
    "client_total": '["1000/minute"]',
    "clients": "{partner-app: {mode: enforce}}",
    "endpoints": '{revocation: {limits: {client: ["600/minute"]}}}',
    "env": "RATELIMIT_NAMES_KEY",
    "error_uri": "https://example.com/docs/token-reuse",
    "file": "/run/secrets/ratelimit-names-key",
    "frames": "10",
    "grants": "{refresh_token: {mode: enforce}}",
    "guard": "{mode: dry-run}",
    "instance": "node-1",
    "instances": '["node-1*"]',
    "keys": "[{env: RATELIMIT_NAMES_KEY}]",
    "limit": "100",
    "limits": '{user: ["100/minute"]}',
    "method": '["POST"]',
    "mode": "dry-run",
    "name": "burst",
    "namespace": "blue",
    "path": '["/oauth/revoke*"]',
    "percent": "10",
    "plan": "gold",
    "plans": '{gold: {limits: {user: ["100/minute"]}}}',
    "privacy": "{user_names: plain}",
    "salt": '"2026"',
    "store": '{uri: "mongodb://localhost:27017/oauth"}',
    "sync": "{interval: 1s}",
    "denial": "{error: temporarily_unavailable}",
    "events": "{per_minute: 300}",
    "statistics": "{keep: 30d}",
    "trusted_addresses": '["10.0.0.0/8"]',
    "trusted_clients": "[our-own-app]",
    "uri": '"mongodb://localhost:27017/oauth"',
    "user": '["10/second"]',
    "passed_on": '["10 per 10 minutes"]',
    "address": '["100 per 10 minutes"]',
    "window": "60s",
}

_INDEX = re.compile(r"\[[0-9]+\]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,60})\}|^\$([A-Z_][A-Z0-9_]{2,60})$")


@dataclass(slots=True)
class Problem:
    """Problem with one value.

    Attributes:
        at: Path of the key, empty for the whole.
        reason: The value found, and what is allowed.
        example: What could be there instead, as it is written in the file; empty for none.
        wants_example: True if an example of the key helps.
    """

    at: str
    reason: str
    example: str = ""
    wants_example: bool = False

    def text(self, line: int | None = None) -> str:
        """Return the problem on one line, with its line in the file."""
        example = f"; for example {self.example}" if self.example else ""
        where = f" (line {line})" if line else ""
        return f"{self.at}: {self.reason}{example}{where}" if self.at else f"{self.reason}{example}{where}"


class Problems:
    """The problems found so far, in the order of the keys."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, at: str, reason: str) -> None:
        """Report that the value at a path cannot be used."""
        self._found.append(Problem(at, reason))

    def bad_value(self, at: str, value: object, allowed: str, *, example: str = "") -> None:
        """Report a value that is not allowed, and what is."""
        path = _INDEX.sub("[]", at)
        variable = _VARIABLE.search(value) if isinstance(value, str) else None
        if variable is not None:
            self.add(at, _not_interpolated(path, variable[1] or variable[2]))
            return
        is_secret = isinstance(value, str) and path in SECRET_PATHS
        reason = f"got {'another text' if is_secret else show(value)}, allowed: {allowed}"
        self._found.append(Problem(at, reason, example, wants_example=True))

    def missing(self, at: str) -> None:
        """Report a required key that is not there."""
        self._found.append(Problem(at, "missing", wants_example=True))

    def give_example(self, name: str, example: str, *, since: int) -> None:
        """Add an example of a key to the problems of its value that have none."""
        for problem in self._found[since:]:
            if problem.wants_example and not problem.example:
                problem.example = f"{name}: {example}"

    def unknown_key(self, at: str, name: str, allowed: Iterable[str]) -> None:
        """Report a key that does not exist. Its value is not shown: a misspelt ``uri`` may hold a password."""
        removed = REMOVED_KEYS.get(at)
        names = list(allowed)
        unknown = f"unknown key, allowed: {', '.join(names)}{did_you_mean(name, names)}"
        self.add(at, f"was removed; {removed}" if removed else unknown)

    def error(self, *, source: str, line_of: Callable[[str], int | None] = lambda _: None) -> ConfigError:
        """Return all problems as one error.

        Args:
            source: Name of the file.
            line_of: Returns the line of a path in it, None if there is none.
        """
        return ConfigError([problem.text(line_of(problem.at)) for problem in self._found], source=source)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` with the known name that is most alike, empty if none is."""
    close = difflib.get_close_matches(name[: 4 * MAX_SHOWN], list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _not_interpolated(path: str, variable: str) -> str:
    reason = f"got ${{{variable}}}, but nothing is interpolated in this file"
    key = OVERRIDING.get(path)
    if key is None:
        return reason
    return f'{reason}; leave the key out and set app.config["{key}"] = os.environ["{variable}"]'


def dotted(at: str, *keys: object) -> str:
    """Return the path of a key below ``at``, such as ``clients.partner-app.mode``; an unusual key is quoted."""
    for key in map(str, keys):
        name = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key[: 4 * MAX_SHOWN])
        at = f"{at}.{name}" if at else name
    return at


def show(value: object) -> str:
    """Return a bad value for people: short, on one line, without what an address may carry."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() < 4 * MAX_SHOWN else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _show_text(value)
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a {type(value).__name__}"


def _show_text(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator:
        text = f"{scheme[-20:]}{separator}…"
    elif len(text) > MAX_SHOWN:
        text = text[:MAX_SHOWN] + "…"
    return json.dumps(text, ensure_ascii=not text.isprintable())
