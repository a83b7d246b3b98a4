"""Changes over time: by operators, of configuration files, modes and versions, and starts and ends of instances."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.params import Params
from oauth_ratelimit.admin.text import change_text
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.store.mongo.heartbeats import ConfigurationChange, InstanceEvent

TTL_S = 5.0
MAX_HISTORY = 200
TOGETHER_S = 60  # instances that start so soon one after the other are one mark
CLIENTS = "clients."  # what the path of a client's own value begins with


class Mark(NamedTuple):
    """A moment at which requests may begin to be decided otherwise, or instances began or ended."""

    at_s: float
    text: str  # what changed; empty for the first configuration that is known
    client_id: str | None = None  # the only client that it concerns; None for all
    is_change: bool = True  # False if nothing of the configuration has changed


def read_marks(cache: ReadCache) -> list[Mark]:
    """Return all recorded changes, the oldest first."""
    return cache.read_cached("marks", lambda context: sorted(_marks(context), key=lambda mark: mark.at_s), ttl_s=TTL_S)


def _marks(context: OperatorContext) -> Iterator[Mark]:
    yield from _of_operators(context)
    for index, change in enumerate(context.stores.heartbeats.configurations()):
        is_first = not index and not change.changes
        yield Mark(change.at_s, "") if is_first else _of_configuration(change)
    yield from _of_instances(context.stores.heartbeats.events())


def _of_operators(context: OperatorContext) -> Iterator[Mark]:
    entries = context.stores.overrides.history()
    for index, entry in enumerate(entries):
        target, text = entry.target, change_text(entry)
        yield Mark(entry.at_s, f"{text} ({visible_name(entry.author)})", target.client_id)
        end_s = None if entry.override is None else entry.override.until_s
        if end_s is not None and end_s <= context.now_s:
            is_replaced = any(later.target == target and later.at_s <= end_s for later in entries[index + 1 :])
            if not is_replaced:
                yield Mark(end_s, f"override ended: {text}", target.client_id)


def _of_configuration(change: ConfigurationChange) -> Mark:
    lines = [visible_name(line).replace(" -> ", " → ") for line in change.changes]
    more = f" and {counted(len(lines) - 1, 'other change')}" if len(lines) > 1 else ""
    text = f"configuration: {lines[0]}{more}" if lines else "another configuration"
    names = {line.removeprefix(CLIENTS).partition(".limits")[0].partition(".mode")[0] for line in change.changes}
    is_of_one = len(names) == 1 and all(line.startswith(CLIENTS) for line in change.changes)
    return Mark(change.at_s, f"{text} ({visible_name(change.instance)})", names.pop() if is_of_one else None)


def _of_instances(events: Sequence[InstanceEvent]) -> Iterator[Mark]:
    """Yield starts and ends of instances, those of a restart together. The first one of another version is a change."""
    versions: set[str] = set()
    for (kind, version, _), group in groupby(
        events, key=lambda each: (each.kind, each.version, each.at_s // TOGETHER_S)
    ):
        found = list(group)
        is_new = kind == "started" and bool(versions) and version not in versions
        versions.add(version)
        who = visible_name(found[0].instance) if len(found) == 1 else counted(len(found), "instance")
        label = f", version {visible_name(version)}" if kind == "started" else ""
        yield Mark(found[0].at_s, f"{who} {kind}{label}", is_change=is_new)


def overrides(cache: ReadCache, params: Params) -> Record:
    """Return the active overrides and the history, newest first."""

    def query(context: OperatorContext) -> Record:
        history = context.stores.overrides.history()
        shown = history[-MAX_HISTORY:][::-1]
        return {"now_s": context.now_s, "active": context.overrides, "history": shown, "history_count": len(history)}

    return cache.read(query)
