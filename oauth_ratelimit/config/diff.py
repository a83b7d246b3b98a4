"""Changes of a configuration in words."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace

from oauth_ratelimit.config.errors import dotted
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.policies import content_of
from oauth_ratelimit.config.settings import FILE, Settings
from oauth_ratelimit.core.mode import Canary
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Window

MAX_CHANGES = 50  # lines; a log event must not hold a whole file

# Keys of the file by the attribute that holds them.
_NAMES = {key.attribute: key.name for section in FILE.sections for key in section.keys.values() if key.attribute}
_NAMES["ceiling"] = "mode_at_most"  # of an override: the file has no such key
_SECRET = "store.uri"


def describe_changes(old: Settings, new: Settings) -> list[str]:
    """Return one line per value that differs: ``mode: dry-run -> enforce``. A URI is not shown."""
    return changes_between(dict(_flatten(old)), dict(_flatten(new)))


def values_of(settings: Settings) -> dict[str, str]:
    """Return the text of each value by its path, without the name of the instance. A URI is left out."""
    return {path: text for path, text in _flatten(settings) if path not in (_SECRET, "instance")}


def fixed_values(settings: Settings) -> dict[str, str]:
    """Return the text of each value that a process keeps until it ends, by its path. None has a space."""
    store, privacy = settings.store, settings.privacy
    return {
        "store.database": store.database or "none",
        "store.collection": store.collection,
        "store.namespace": store.namespace or "none",
        "host": settings.host,
        **dict(_flatten(settings.sync, "sync")),
        "privacy.user_names": privacy.user_names,
        "privacy.keys": ",".join(map(str, privacy.keys)) or "none",  # their labels
    }


def overridden_values(former: Settings, base: Settings, applied: Settings) -> list[str]:
    """Return the paths that have changed in the file and have another value in the settings that apply."""
    before, after, now = map(values_of, (former, base, replace(base, policies=applied.policies)))
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return [path for path in changed if after.get(path) != now.get(path)][:MAX_CHANGES]


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
    elif is_dataclass(value) or hasattr(value, "_fields"):  # or a named tuple
        for name in [each.name for each in fields(value)] if is_dataclass(value) else value._fields:
            if name not in ("warnings", "is_rejected"):  # logged apart
                below = path if name == "policies" else dotted(path, _NAMES.get(name, name))
                yield from _flatten(getattr(value, name), below)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield dotted(path, key), ""
            yield from _flatten(item, dotted(path, key))
    elif isinstance(value, tuple):
        if path.rpartition(".")[0].endswith("limits"):
            yield path, ""  # an empty list of limits differs from none
        for item in value:  # by name rather than by position, so that an item inserted at the front is one change
            name = item.name if isinstance(item, Policy) else str(item)
            yield f"{path}[{name}]", _policy_text(item) if isinstance(item, Policy) else ""
    elif value not in (None, ""):
        yield path, str(value)


def _policy_text(policy: Policy) -> str:
    window_s = policy.window.window_s
    usual = content_of(Policy(policy.name, policy.limit, Window.of(window_s)))
    options = [f" {name}={value}" for name, value in content_of(policy).items() if value != usual.get(name)]
    return rate_text(policy.limit, window_s) + "".join(options)
