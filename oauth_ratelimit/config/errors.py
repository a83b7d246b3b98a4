"""Problems of a configuration, one line each: the path, the value found, what is allowed. Never a secret."""

import json
import re
from collections.abc import Iterable, Mapping

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

_INDEX = re.compile(r"\[[0-9]+\]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Problems:
    """The problems found so far, in the order of the keys."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, at: str, reason: str) -> None:
        """Report that the value at a path cannot be used."""
        self.lines.append(f"{at}: {reason}" if at else reason)

    def bad_value(self, at: str, value: object, allowed: str) -> None:
        """Report a value that is not allowed, and what is."""
        is_secret = isinstance(value, str) and _INDEX.sub("[]", at) in SECRET_PATHS
        self.add(at, f"got {'another text' if is_secret else show(value)}, allowed: {allowed}")

    def unknown_key(self, at: str, allowed: Iterable[str]) -> None:
        """Report a key that does not exist. Its value is not shown: a misspelt ``uri`` may hold a password."""
        removed = REMOVED_KEYS.get(at)
        self.add(at, f"was removed; {removed}" if removed else f"unknown key, allowed: {', '.join(allowed)}")

    def error(self, *, source: str) -> ConfigError:
        """Return all problems as one error."""
        return ConfigError(self.lines, source=source)


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
