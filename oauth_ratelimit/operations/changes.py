"""Overrides from operator input, validated."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.errors import Problems
from oauth_ratelimit.config.notation import DURATION_NOTATION, parse_rates, parse_typed_duration
from oauth_ratelimit.config.policies import CLIENT_ID, DEFAULT_LIMITS, find_clashes
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Origins, Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Limits, OnLimit, PolicySet
from oauth_ratelimit.errors import ConfigError, StoreRejected
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import (
    canary_text,
    counted,
    instance_text,
    listed,
    not_enforced,
    origin_text,
    quoted,
)
from oauth_ratelimit.operations.status import CANARY_PERCENTS, LATE_AFTER_S, is_late
from oauth_ratelimit.store.mongo.client import OVERRIDES
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat

MAX_DURATION_S = 3650 * 86_400.0
MAX_TEXT_LENGTH = 1000  # characters of an author or a reason
NO_LIMIT = "none"
UNCONFIGURED_CLIENT = "\0"  # no client id, so only the defaults apply to it
ADD_CANARY = "Add --canary {percent:g} to enforce for that percentage of the clients, or --canary 100 for all of them."
DOUBT = "Whether all instances obey is not known: "
NO_INSTANCE = f"{DOUBT}none has reported in the last 10 minutes."
GUESSES = "The guard denies nobody either, so passwords and secrets can be guessed."
STAYS_OFF = "The configuration has mode: off, which beats every override. Change it there first."


def checked_client_id(client_id: str) -> str:
    """Return a client id that can be stored; the message of a ``ValueError`` says what is allowed."""
    problems = Problems()
    CLIENT_ID.parse(client_id, "", problems)
    if problems:
        raise ValueError("a client id is text of 1 to 1024 characters")
    return client_id


def storable_text(text: str) -> str:
    """Return an author or a reason for the history, with invalid Unicode from a terminal replaced."""
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"allowed: up to {MAX_TEXT_LENGTH} characters, which the history keeps")
    return text.strip().encode("utf-8", "replace").decode()


def end_after(duration: str, *, now_s: float) -> float:
    """Return the end of a duration such as ``12h``, or of seconds, that begins now."""
    try:
        duration_s = parse_typed_duration(duration)
    except ValueError:
        raise ValueError(f"allowed: {DURATION_NOTATION}") from None
    if not 0 < duration_s <= MAX_DURATION_S:
        raise ValueError("allowed: more than 0 s, up to 10 years")
    return now_s + duration_s


def limit_override(
    policies: PolicySet, template: Override, texts: Sequence[str], *, on_limit: OnLimit | None = None
) -> Override:
    """Return the override that sets the limits of one kind, or raise a ``ConfigError`` with all problems at once.

    A limit is typed as a shorthand, a mapping in braces, or ``none``. The template has all but the limits.
    """
    kind = str(template.target.limit_kind)
    items = [] if list(texts) == [NO_LIMIT] else list(map(_item, texts))
    if on_limit is not None:
        items = [each for item in items for each in _with(on_limit, item)]
    problems = Problems()
    own = DEFAULT_LIMITS.parse({kind: items}, "limits", problems)
    if not problems:
        template = replace(template, policies=getattr(own, kind))
        find_clashes(apply_overrides(policies, [template]), problems)
    if problems:
        raise problems.error(source="limits")
    return template


def _item(text: str) -> Any:
    """Return a limit as a configuration file would hold it."""
    with suppress(ConfigError):  # the parser of limits says what is wrong
        return parse_yaml(text.encode("utf-8", "replace"), source="") if text.lstrip().startswith("{") else text
    return text


def _with(on_limit: OnLimit, item: Any) -> list[Any]:
    """Return the limits of a shorthand or a mapping, each with ``on_limit``."""
    if isinstance(item, Mapping):
        return [{**item, "on_limit": on_limit.value}]
    try:
        return [{"limit": limit, "window": span_s, "on_limit": on_limit.value} for limit, span_s in parse_rates(item)]
    except ValueError:
        return [item]  # the parser of limits says what is wrong


def enforce_refusal(context: OperatorContext, *, is_invalid: bool) -> str | None:
    """Return why nobody may enforce for everybody without naming a share of the clients; None if somebody may.

    ``is_invalid`` says that the configuration is not known.
    """
    policies = context.policies
    canary = policies.canary
    percent = canary.percent if canary and canary.percent and not canary.instances else CANARY_PERCENTS[0]
    if is_invalid:
        reason = "The configuration is invalid, so nobody knows whether it has a canary."
    elif canary is not None:
        reason = f"A canary is active: {canary_text(canary)}."
    elif policies.mode is Mode.ENFORCE and policies.ceiling is None:
        return None  # they are enforced already
    elif policies.mode is Mode.OFF or next(context.minutes(0.0, parts=()), None) is None:
        reason = "No dry run shows whom these limits deny."
    else:
        return None
    return f"{reason} {ADD_CANARY.format(percent=percent)}"


def notes_on_mode(settings: Settings, overrides: Sequence[Override], change: Override) -> list[str]:
    """Return sentences about an override of the mode: whose mode stays, and that of the guard."""
    policies, applied = settings.policies, (*(each for each in overrides if each.target != change.target), change)
    effective, client_id = apply_overrides(policies, applied), change.target.client_id
    if policies.mode is Mode.OFF and change.mode is not Mode.OFF:
        return [STAYS_OFF]
    if client_id is not None:
        client_mode = effective.matching(client_id).mode
        if client_mode is change.mode:
            return []
        origin = origin_text(Origins(policies, applied).of_mode(client_id))
        return [f"{quoted(client_id)} stays in mode {client_mode.value}, because this comes first: {origin}."]
    if change.mode is not Mode.ENFORCE:
        return [GUESSES] if settings.guard_mode is Mode.ENFORCE else []
    own = not_enforced(effective)
    sentences = [f"These have a mode of their own, which stays: {listed(own)}."] if own else []
    if effective.canary is not None:
        sentences.append(f"The canary has {canary_text(effective.canary)}; the others stay in a dry run.")
    return sentences


def check_obeyed(context: OperatorContext, collection: str = OVERRIDES) -> str | None:
    """Return a doubt whether all instances obey a change that was stored in a collection; None without one.

    Raises ``StoreRejected`` if some have reported that they cannot read it, or if none has reported lately.
    """
    try:
        beats = context.stores.heartbeats.read(context.now_s)
    except StoreRejected as exc:  # a user without the right to read them may still make changes
        return f"{DOUBT}{exc}"
    late = [beat.instance for beat in beats if is_late(beat, context.now_s)]
    unable = [beat.instance for beat in beats if _cannot_read(beat, collection) and beat.instance not in late]
    if unable:
        raise StoreRejected(f"stored, without effect on {_instances(unable)}: they lack the right to read {collection}")
    if not late:
        return None if beats else NO_INSTANCE
    silent = f"no report for {LATE_AFTER_S:g} s from {_instances(late)}"
    if len(late) == len(beats):
        raise StoreRejected(f"stored, but there was {silent}")
    return f"{DOUBT}{silent}."


def _cannot_read(beat: Heartbeat, collection: str) -> bool:
    refused = (beat.refused or "").split(", ")
    return any(each.startswith(("find on", "aggregate on")) and each.endswith(collection) for each in refused)


def _instances(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'instance')} ({listed(map(instance_text, names))})"


def limits_of(policies: PolicySet, client_id: str | None) -> Limits:
    """Return the limits that apply to a client at the token endpoint, or to everybody for None."""
    return policies.limits_at(UNCONFIGURED_CLIENT if client_id is None else client_id)[1]


def amount_overrides(
    policies: PolicySet,
    client_id: str | None,
    amounts: Mapping[LimitKind, Mapping[str, int]],
    template: Override,
    *,
    former: Sequence[Override] = (),
) -> list[Override]:
    """Return the overrides that give existing limits other amounts, or a former override of them another end.

    Only kinds with such a change are overridden.
    """
    others = (each.target for each in former if each.until_s != template.until_s)
    found, ended = list[Override](), {each.limit_kind for each in others if each.client_id == client_id}
    for kind, by_name in amounts.items():
        present = getattr(limits_of(policies, client_id), kind)
        changed = tuple(policy._replace(limit=by_name.get(policy.name, policy.limit)) for policy in present)
        if changed != present or kind in ended:
            found.append(replace(template, target=Target(OverrideKind.LIMIT, client_id, kind), policies=changed))
    return found
