"""Changes of a configuration in words."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.settings import FILE, Settings
from oauth_ratelimit.core.mode import Canary
from oauth_ratelimit.core.policy import OnLimit, Policy
from oauth_ratelimit.core.window import Estimator, default_frame_count

MAX_CHANGES = 50  # lines; a log event must not hold a whole file

# Keys of the file by the attribute that holds them.
_NAMES = {key.attribute: key.name for section in FILE.sections for key in section.keys.values() if key.attribute}
_NAMES["ceiling"] = "strictest_mode"  # of an override: the file has no such key
_SECRET = "store.uri"


def describe_changes(old: Settings, new: Settings) -> list[str]:
    """Return one line per value that differs: ``mode: dry-run -> enforce``. A URI is not shown."""
    return changes_between(dict(_flatten(old)), dict(_flatten(new)))


def values_of(settings: Settings) -> dict[str, str]:
    """Return the text of each value by its path, without the name of the instance. A URI is left out."""
    return {path: text for path, text in _flatten(settings) if path not in (_SECRET, "instance")}


def changes_between(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return one line per value that differs, of texts by path."""
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    lines = [_line(path, before.get(path), after.get(path)) for path in changed]
    if len(lines) > MAX_CHANGES:
        return [*lines[:MAX_CHANGES], f"and {len(lines) - MAX_CHANGES} more"]
    return lines


def _line(path: str, old: str | None, new: str | None) -> str:
    if path == _SECRET:
        return f"{path}: changed"
    if old is not None and new is not None:
        return f"{path}: {old} -> {new}"
    return f"{path}: {'added' if old is None else 'removed'} {new or old or ''}".rstrip()


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each value under ``path``; without those that are not set."""
    if isinstance(value, Canary) and value.instances:
        yield from _flatten(value.instances, f"{path}.instances")  # the percentage has no effect
    elif is_dataclass(value):
        for part in fields(value):
            if part.name == "warnings":  # logged apart
                continue
            below = path if part.name == "policies" else _join(path, _NAMES.get(part.name, part.name))
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
    if policy.on_limit is not OnLimit.DENY:
        text += f" on_limit={policy.on_limit}"
    return text if policy.mode is None else f"{text} mode={policy.mode}"
