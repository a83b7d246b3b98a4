"""What is wrong with a configuration, in words: where, what was found, what is allowed. Never a secret."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

MAX_SHOWN = 60  # characters of a bad value; enough to find it

KEY_MARK = "[key]"  # pydantic puts it behind a key that is itself not allowed

# What stands here may be an address with a slip in it and a password, or a key in the place of its path.
_SECRET_PATHS = (
    "store",
    "store.uri",
    "OAUTH_RATELIMIT_MONGO_URI",
    "privacy",
    "privacy.keys",
    "privacy.keys[]",
    "privacy.keys[].env",
    "privacy.keys[].file",
)

# Keys of former versions by their path, and what to do without them.
REMOVED_KEYS = {
    "gc_interval": "Python decides when to collect; "
    "see gc.freeze() in docs/operations for processes with very many keys",
    "digest": "use `flask oauth-ratelimit report --format json` from cron",
    "privacy.read_plain": "counts start anew when user_names changes; `erase` always looks for plain names, too",
}

_INDEX = re.compile(r"\[[0-9]+\]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")

_ALLOWED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "too_short": "a list with at least one item",
    "bool_type": "true or false",
    "string_type": "text; put it in quotes",
    "invalid_key": "text; put it in quotes",
}


def expects(allowed: str) -> WrapValidator:
    """Return a validator that says what is allowed instead of what one of several checks has found."""

    def validate(value: object, handler: Any) -> Any:
        try:
            return handler(value)
        except ValueError:
            pass
        raise not_allowed(allowed)

    return WrapValidator(validate)


def not_allowed(allowed: str) -> PydanticCustomError:
    """Return the error for a value that cannot be used: ``path: got value, allowed: ...``."""
    return PydanticCustomError("not_allowed", "{text}", {"text": allowed})


def refused(reason: str) -> PydanticCustomError:
    """Return the error for values that do not fit together: ``path: reason``."""
    return PydanticCustomError("refused", "{text}", {"text": reason})


def unknown_key(allowed: Iterable[str]) -> PydanticCustomError:
    """
    Return the error for a key that does not exist. Its value is not shown: a misspelt ``uri`` may hold a password.
    """
    return PydanticCustomError("unknown_key", "{text}", {"text": f"unknown key, allowed: {', '.join(allowed)}"})


def describe(error: ValidationError, *, at: Sequence[str] = ()) -> list[str]:
    """Return one line per problem that a validation has found; ``at`` is where the validated value stands."""
    lines = []
    for details in error.errors(include_url=False):
        mark = [KEY_MARK] if details["type"] == "invalid_key" else []
        lines.append(_line(dotted([*at, *details["loc"], *mark]), details))
    return lines


def _line(path: str, details: Mapping[str, Any]) -> str:
    kind, value, text = details["type"], details["input"], details["msg"]
    if kind == "missing":
        return f"{path}: missing"
    if kind == "unknown_key" and path in REMOVED_KEYS:
        return f"{path}: was removed; {REMOVED_KEYS[path]}"
    if kind in ("refused", "unknown_key"):
        return f"{path}: {text}"
    found = "another text" if _INDEX.sub("[]", path) in _SECRET_PATHS and isinstance(value, str) else show(value)
    return f"{path}: got {found}, allowed: {_ALLOWED.get(kind, text)}"


def dotted(location: Sequence[str | int]) -> str:
    """Return a path such as ``clients.partner-app.limits.user[0].window``; an unusual key stands in quotes."""
    path = ""
    for part, following in zip(location, [*location[1:], None], strict=True):
        if part == KEY_MARK:
            continue
        if isinstance(part, int) and following != KEY_MARK:
            path += f"[{part}]"
        else:
            key = str(part)
            path += "." + (key if _PLAIN_KEY.fullmatch(key) else json.dumps(key[: 4 * MAX_SHOWN]))
    return path.lstrip(".")


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
