"""What a reload has changed, in words for the log."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.core.mode import Canary
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator, default_frame_count

MAX_CHANGES = 50  # lines; a log event is no place for a whole file

_KEYS = {
    "trusted": "trusted_clients",
    "paths": "path",
    "methods": "method",
    "ceiling": "strictest_mode",  # of an override: the file has no such key
}
_SECRET = "store.uri"


def describe_changes(old: Settings, new: Settings) -> list[str]:
    """Return one line per value that differs: ``mode: dry-run -> enforce``. Of a URI only that it has changed."""
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
    """Yield the path and the text of each value under ``path``; what is not set is left out."""
    if is_dataclass(value):
        for part in fields(value):
            if isinstance(value, Canary) and value.instances and part.name != "instances":
                continue  # a canary by instances has a percentage, but no say in it
            yield from _flatten(getattr(value, part.name), _join(path, part.name))
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
        yield path, ""  # no limit of a kind is not the same as nothing said about it
    for item in items:
        name = item.name if isinstance(item, Policy) else str(item)
        yield f"{path}[{name}]", _policy_text(item) if isinstance(item, Policy) else ""


def _join(path: str, name: str) -> str:
    if name == "policies" and not path:
        return ""
    name = _KEYS.get(name, name.removesuffix("_s"))
    return f"{path}.{name}" if path else name


def _policy_text(policy: Policy) -> str:
    """Return a limit in one line: the amount, the window, and what is not the default."""
    window = policy.window
    text = f"{policy.limit}/{window.window_s}s"
    if window.frame_count != default_frame_count(window.window_s):
        text += f" frames={window.frame_count}"
    if policy.estimator is not Estimator.SLIDING:
        text += f" estimator={policy.estimator}"
    if policy.count_denied:
        text += " count_denied"
    return text if policy.mode is None else f"{text} mode={policy.mode}"
