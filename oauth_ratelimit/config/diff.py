"""Changes of a reload in words, for the log."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.config.types import keys_of
from oauth_ratelimit.core.mode import Canary
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator, default_frame_count

MAX_CHANGES = 50  # lines; a log event must not hold a whole file

# Keys of the file by the attribute of a policy set that holds them.
_KEYS = {
    "trusted": "trusted_clients",
    "paths": "path",
    "methods": "method",
    "ceiling": "strictest_mode",  # of an override: the file has no such key
}
_SECRET = "store.uri"


def describe_changes(old: Settings, new: Settings) -> list[str]:
    """Return one line per value that differs: ``mode: dry-run -> enforce``. A URI is not shown."""
    before, after = dict(_flatten(old)), dict(_flatten(new))
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    lines = [_line(path, before.get(path), after.get(path)) for path in changed]
    if len(lines) > MAX_CHANGES:
        return [*lines[:MAX_CHANGES], f"and {len(lines) - MAX_CHANGES} more"]
    return lines


def _line(path: str, old: str | None, new: str | None) -> str:
    if path == _SECRET:
        return f"{path}: changed"
    if old is None:
        return f"{path}: added {new}" if new else f"{path}: added"
    if new is None:
        return f"{path}: removed {old}" if old else f"{path}: removed"
    return f"{path}: {old} -> {new}"


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each value under ``path``; without those that are not set."""
    if isinstance(value, Canary) and value.instances:
        yield from _flatten(value.instances, f"{path}.instances")  # the percentage has no effect
    elif is_dataclass(value):
        names = {key.attribute: key.name for key in keys_of(type(value))}
        for part in fields(value):
            name = names.get(part.name, _KEYS.get(part.name, part.name))
            below = path if name == "policies" else _join(path, name)
            yield from _flatten(getattr(value, part.name), below)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield _join(path, key), ""
            yield from _flatten(item, _join(path, key))
    elif isinstance(value, tuple):
        yield from _flatten_list(value, path)
    elif value not in (None, ""):
        yield path, str(value)


def _flatten_list(items: tuple[object, ...], path: str) -> Iterator[tuple[str, str]]:
    """Yield the items by name rather than by position, so that an item inserted at the front is one change."""
    if path.rpartition(".")[0].endswith("limits"):
        yield path, ""  # an empty list of limits differs from none
    for item in items:
        name = item.name if isinstance(item, Policy) else str(item)
        yield f"{path}[{name}]", _policy_text(item) if isinstance(item, Policy) else ""


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _policy_text(policy: Policy) -> str:
    """Return a limit in one line: the amount, the window, and what is not the default."""
    window = policy.window
    text = rate_text(policy.limit, window.window_s)
    if window.frame_count != default_frame_count(window.window_s):
        text += f" frames={window.frame_count}"
    if policy.estimator is not Estimator.SLIDING:
        text += f" estimator={policy.estimator}"
    if policy.count_denied:
        text += " count_denied"
    return text if policy.mode is None else f"{text} mode={policy.mode}"
