"""Moments at which configurations changed, and instances began or ended."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import HistoryEntry, OverrideKind, Target
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import change_text, counted, duration, instance_text, utc_time
from oauth_ratelimit.store.mongo.heartbeats import ConfigurationChange, InstanceEvent

EFFECT_S = 10  # at least; longer than denials go on after a change that ends them
CHANGED = "Changed "  # what the sentences about a change begin with
UNCHANGED = "The configuration has not changed since "
NO_CHANGE = "No change of the configuration is recorded."
CAUSE_S = 600  # a change so long before the first denial may be its cause
TOGETHER_S = 60  # instances that start so soon one after the other are one mark
# What the path of a client's own value begins with. A quoted name that may be cut is left to concern all.
OF_CLIENT = re.compile(r'clients\.([A-Za-z0-9_-]+|"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-f]{4}){1,239}")(?=[.:])')
OF_MODE = re.compile(r"(.*\.)?mode: |canary")
# Not of the whole: with mode: off clients that enforce denied nobody either, and in a dry run they do.
SPARES = re.compile(r"(?!mode: off )(.*\.)?mode: (added |\S+ -> )(dry-run|off)$")


class Mark(NamedTuple):
    """A moment at which requests may begin to be decided otherwise, or instances began or ended."""

    at_s: float
    text: str  # what changed; empty for the first configuration that is known
    client_id: str | None = None  # the only client that it concerns; None for all
    is_change: bool = True  # False if nothing of the configuration has changed
    apart: int = 0  # hosts that counted apart until then, without MongoDB
    lines: Sequence[str] = ()  # of a configuration that has changed; the text has the first
    is_mode: bool = False  # True if nothing but modes or a canary has changed
    limits: Collection[str] | None = None  # the only ones by which it can have denied anybody; None for all

    @property
    def mode_text(self) -> str:
        """The text, with the first line about a mode or the canary; empty if it changes neither."""
        lines = (line for line in self.lines if OF_MODE.match(line))
        return next((self.text.replace(self.lines[0], line, 1) for line in lines), self.text if self.is_mode else "")

    def said(self, policies: Collection[str]) -> str:
        """Return the text, with the line of one of these policies if there is one."""
        lines = (line for line in self.lines if any(f"[{policy}]" in line for policy in policies))
        return next((self.text.replace(self.lines[0], line, 1) for line in lines), self.text)


def change_before(changes: Sequence[Mark], begun_s: float, policies: Collection[str], *, is_real: bool) -> str:
    """Return the last change so long before the first denial by these limits that it may be the cause.

    Without ``is_real`` it is one of a dry run, which no mode causes: a mode sends no requests.
    """
    last = next(iter(_causes(changes, begun_s, policies, is_real=is_real)), None)
    return f"{CHANGED}{duration(begun_s - last.at_s)} before it began: {last.said(policies)}." if last else ""


def _causes(changes: Sequence[Mark], begun_s: float, policies: Collection[str], *, is_real: bool) -> list[Mark]:
    """Return the changes so long before the first denial by these limits that they may be the cause, the last first."""
    names = {*policies, *(policy.partition("/")[2] for policy in policies)}  # with and without the endpoint
    before = (each for each in reversed(changes) if each.text and 0 <= begun_s - each.at_s <= CAUSE_S)
    able = (each for each in before if is_real or not each.is_mode)
    return [each for each in able if each.limits is None or names & {*each.limits}]


def outage_before(outages: Sequence[Mark], begun_s: float) -> str:
    """Return the end of the last outage so long before the first denial that it may be the cause."""
    ends = [each for each in outages if 0 <= begun_s - each.at_s <= CAUSE_S][-1:]
    text = "The cause may be an outage of MongoDB until {}: {} hosts counted apart, and what they admitted now counts."
    return "".join(text.format(utc_time(each.at_s), each.apart) for each in ends)


def changes_text(
    changes: Sequence[Mark], begun_s: float, policies: Collection[str], *, is_real: bool, is_one: bool = True
) -> str:
    """Return the last change, and whether it may be the cause or the remedy, if there ``is_one`` denial to explain."""
    after = [each for each in changes if each.at_s > begun_s and each.text]
    if not is_one and (last := [*_causes(changes, begun_s, policies, is_real=is_real)[:1], *after][-1:]):
        return f"{CHANGED}at {utc_time(last[0].at_s)}: {last[0].said(policies)}."
    if after:
        return f"{CHANGED}since it began, at {utc_time(after[-1].at_s)}: {after[-1].said(policies)}."
    if not changes:
        return NO_CHANGE
    unchanged = f"{UNCHANGED}{utc_time(changes[-1].at_s)}."
    return change_before(changes, begun_s, policies, is_real=is_real) or unchanged


def said_once(texts: Iterable[str]) -> list[str]:
    """Return sentences about several denials, each once; that nothing has changed only if that is so for all."""
    different = list(dict.fromkeys(texts))
    has_changed = any(each.startswith(CHANGED) for each in different)
    return [each for each in different if not (has_changed and each.startswith((UNCHANGED, NO_CHANGE)))]


def was_changed_back(changes: Sequence[Mark], last_s: float, first_s: float, *, delay_s: float) -> bool:
    """Return True if one change may have ended denials, the last of them at a time, and a later one begun new ones.

    A change has effect on all instances after a delay.
    """
    effect_s = max(EFFECT_S, delay_s)
    times = [each.at_s for each in changes if each.text and last_s - effect_s <= each.at_s <= first_s]
    return first_s - last_s > effect_s and len(times) > 1 and times[-1] > last_s


def last_change_text(context: OperatorContext, *, of_mode: bool = False) -> str:
    """Return the last recorded change, or the last one of a mode."""
    pairs = (
        (each.at_s, each.mode_text if of_mode else each.text) for each in recorded_marks(context) if each.is_change
    )
    found = [f"{utc_time(at_s)}: {text}" for at_s, text in pairs if text]
    return found[-1] if found else "none is recorded"


def changes_of(context: OperatorContext, *client_ids: str | None) -> list[Mark]:
    """Return the recorded changes that concern clients, the oldest first; the text of the first may be empty."""
    return [each for each in recorded_marks(context) if each.is_change and each.client_id in (None, *client_ids)]


def last_change_s(context: OperatorContext, client_id: str | None) -> float:
    """Return the time of the last recorded change that concerns a client; minus infinity without one."""
    return max((mark.at_s for mark in changes_of(context, client_id) if mark.text), default=-math.inf)


def recorded_marks(context: OperatorContext) -> list[Mark]:
    """Return all recorded changes, in whole seconds, the oldest first."""
    return sorted((mark._replace(at_s=int(mark.at_s)) for mark in _marks(context)), key=lambda mark: mark.at_s)


def _marks(context: OperatorContext) -> Iterator[Mark]:
    yield from _of_operators(context)
    for index, change in enumerate(context.stores.heartbeats.configurations()):
        is_first = not index and not change.changes
        yield Mark(change.at_s, "") if is_first else _of_configuration(change)
    events = context.stores.heartbeats.events()
    is_cut_off = any(each.kind == "reconnected" for each in events)
    beats = context.stores.heartbeats.read(context.now_s) if is_cut_off else []
    yield from _of_instances(events, {each.instance: each.host for each in beats})


def _of_operators(context: OperatorContext) -> Iterator[Mark]:
    entries = context.stores.overrides.history()
    for index, entry in enumerate(entries):
        target, text = entry.target, change_text(entry)
        is_mode = isinstance(target, Target) and target.kind is OverrideKind.MODE
        said, limits = f"{text} ({visible_name(entry.author)})", _limits_of(entry)
        yield Mark(entry.at_s, said, target.client_id, is_mode=is_mode, limits=limits)
        end_s = (entry.override and entry.override.until_s) or context.now_s + 1
        is_replaced = any(later.target == target and later.at_s <= end_s for later in entries[index + 1 :])
        if end_s <= context.now_s and not is_replaced:
            yield Mark(end_s, f"override ended: {text}", target.client_id, is_mode=is_mode)


def _limits_of(entry: HistoryEntry) -> Collection[str] | None:
    """Return the limits by which a change can deny, none of a reset, trust, a dry run or off; None for all."""
    override = entry.override
    if override is None:
        return () if entry.action == "reset" else None
    return None if override.mode is Mode.ENFORCE else [policy.name for policy in override.policies]


def _of_configuration(change: ConfigurationChange) -> Mark:
    lines = [visible_name(line).replace(" -> ", " → ") for line in change.changes]
    more = f" and {counted(len(lines) - 1, 'other change')}" if len(lines) > 1 else ""
    text = f"configuration: {lines[0]}{more}" if lines else "another configuration"
    names = {found and found[1] for found in map(OF_CLIENT.match, change.changes)}
    name = names.pop() if len(names) == 1 else None
    seen = f"first seen by {instance_text(change.instance)}"
    is_mode = bool(lines) and all(map(OF_MODE.match, lines))
    limits = () if lines and all(map(SPARES.match, change.changes)) else None
    client_id = json.loads(name) if name and name.startswith('"') else name
    return Mark(change.at_s, f"{text} ({seen})", client_id, lines=lines, is_mode=is_mode, limits=limits)


def _of_instances(events: Sequence[InstanceEvent], hosts: Mapping[str, str | None]) -> Iterator[Mark]:
    """Yield what happened to instances, to several at once together. The first one of another version is a change."""
    versions: set[str] = set()
    groups: defaultdict[tuple[float, str, str], list[InstanceEvent]] = defaultdict(list)
    for event in sorted(events, key=lambda each: each.at_s):
        groups[event.at_s // TOGETHER_S, event.kind, event.version].append(event)
    for (_, kind, version), found in groups.items():
        is_new = kind == "started" and bool(versions) and version not in versions
        versions.add(version)
        who = instance_text(found[0].instance) if len(found) == 1 else counted(len(found), "instance")
        label, apart = f", version {visible_name(version)}" if kind == "started" else "", 0
        if kind == "reconnected":
            label, apart = " to MongoDB", len({hosts.get(each.instance) or each.instance for each in found})
        if apart > 1:
            label += f": until then they counted apart, so up to {apart:,} times a limit was admitted"
        yield Mark(found[0].at_s, f"{who} {kind}{label}", is_change=is_new, apart=apart)
