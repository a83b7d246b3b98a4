"""What the page changes: overrides, looked at before they are made."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.preview import preview_of
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.operations.changes import (
    MAX_TEXT_LENGTH,
    checked_client_id,
    end_after,
    end_at,
    limit_overrides,
    storable_text,
)
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import override_data

log = structlog.get_logger(__name__)

MAX_LIMITS = 20  # of one kind

Body = Mapping[str, Any]
Change = Callable[..., object]


def preview(readings: ReadCache, body: Body, *, operator: str) -> object:
    """Return what a change would do, without making it."""
    return readings.read(lambda context: preview_of(context, _overrides(context, body, operator=operator)))


def put(readings: ReadCache, body: Body, *, operator: str) -> object:
    """Put overrides in force."""

    def make(context: OperatorContext) -> object:
        made = _overrides(context, body, operator=operator)
        for override in made:
            context.stores.overrides.put(override)
            _note(override.target, "set", operator=operator)
        return {"overrides": list(map(override_data, made)), "arrives_within_s": 2 * context.settings.sync.interval_s}

    made = readings.read(make)
    readings.forget()
    return made


def remove(readings: ReadCache, body: Body, *, operator: str) -> object:
    """Take an override back."""
    target, reason = _target(body), _reason(body)

    def take_back(context: OperatorContext) -> object:
        is_removed = context.stores.overrides.remove(target, author=operator, reason=reason, at_s=context.now_s)
        if is_removed:
            _note(target, "unset", operator=operator)
        return {"is_removed": is_removed, "arrives_within_s": 2 * context.settings.sync.interval_s}

    removed = readings.read(take_back)
    readings.forget()
    return removed


CHANGES: Mapping[str, Change] = {"preview": preview, "put": put, "remove": remove}


def _overrides(context: OperatorContext, body: Body, *, operator: str) -> list[Override]:
    """Return the overrides that the form describes.

    Raises:
        ValueError: It cannot be made; a ``ConfigError`` for limits.
    """
    kind = _choice(body, "kind", OverrideKind)
    client_id = _client_id(body)
    mode = _choice(body, "mode", Mode) if kind is OverrideKind.MODE else None
    named = _limits(body) if kind is OverrideKind.LIMIT else {}
    first = Override(
        target=Target(kind, client_id, next(iter(named), None)),
        author=operator,
        reason=_reason(body),
        made_at_s=context.now_s,
        until_s=_end(body, now_s=context.now_s),
        mode=mode,
    )
    return limit_overrides(context.policies, client_id, named, template=first) if named else [first]


def _target(body: Body) -> Target:
    kind = _choice(body, "kind", OverrideKind)
    limit_kind = _choice(body, "limit_kind", LimitKind) if kind is OverrideKind.LIMIT else None
    return Target(kind, _client_id(body), limit_kind)


def _limits(body: Body) -> dict[LimitKind, list[str]]:
    given = body.get("limits")
    if not isinstance(given, dict) or not given:
        raise ValueError("limits: name at least one")
    named = {}
    for name, texts in given.items():
        kind = _choice({"limits": name}, "limits", LimitKind)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"limits.{name}: a list of texts")
        if not 1 <= len(texts) <= MAX_LIMITS:
            raise ValueError(f"limits.{name}: 1 to {MAX_LIMITS}, got {len(texts)}; none lifts the limit")
        named[kind] = texts
    return named


def _client_id(body: Body) -> str | None:
    client_id = body.get("client_id")
    if client_id is None:
        return None
    if not isinstance(client_id, str):
        raise ValueError("client_id: a text, or null for everybody")
    return checked_client_id(client_id)


def _reason(body: Body) -> str:
    reason = body.get("reason")
    if not isinstance(reason, str) or not 1 <= len(reason.strip()) <= MAX_TEXT_LENGTH:
        raise ValueError(f"reason: 1 to {MAX_TEXT_LENGTH} characters; it is kept on record")
    return storable_text(reason.strip())


def _end(body: Body, *, now_s: float) -> float | None:
    length, end = body.get("for"), body.get("until")
    for name, text, moment in (("for", length, end_after), ("until", end, end_at)):
        if text:
            try:
                return moment(str(text), now_s=now_s)
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from None
    return None


def _choice(body: Body, name: str, kinds: Any) -> Any:
    value = body.get(name)
    if value not in list(kinds):
        raise ValueError(f"{name}: one of {', '.join(kinds)}")
    return kinds(value)


def _note(target: Target, action: str, *, operator: str) -> None:
    log.info(
        "override_changed",
        operator=operator,
        action=action,
        kind=target.kind.value,
        client_id=target.client_id,
        limit_kind=target.limit_kind and target.limit_kind.value,
    )
