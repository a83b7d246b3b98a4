"""Changes through the page: preview, apply and remove overrides."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.preview import preview_of
from oauth_ratelimit.core.key import logged_name
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


def preview(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Return the effect of an override without applying it."""
    return cache.read(lambda context: preview_of(context, _overrides(context, body, operator=operator)))


def apply(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Apply overrides."""

    def change(context: OperatorContext) -> object:
        applied = _overrides(context, body, operator=operator)
        for override in applied:
            context.stores.overrides.put(override)
            _log_change(override.target, "set", operator=operator)
        return {"overrides": list(map(override_data, applied)), "takes_effect_within_s": _delay_s(context)}

    answer = cache.read(change)
    cache.clear()
    return answer


def remove(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Remove an override."""
    target, reason = _target(body), _reason(body)

    def change(context: OperatorContext) -> object:
        is_removed = context.stores.overrides.remove(target, author=operator, reason=reason, at_s=context.now_s)
        if is_removed:
            _log_change(target, "unset", operator=operator)
        return {"is_removed": is_removed, "takes_effect_within_s": _delay_s(context)}

    answer = cache.read(change)
    cache.clear()
    return answer


CHANGES: Mapping[str, Change] = {"preview": preview, "apply": apply, "remove": remove}


def _delay_s(context: OperatorContext) -> float:
    return 2 * context.settings.sync.interval_s


def _overrides(context: OperatorContext, body: Body, *, operator: str) -> list[Override]:
    """Return the overrides that the form describes.

    Raises:
        ValueError: The form is not valid; a ``ConfigError`` for limits.
    """
    kind = _choice(body, "kind", OverrideKind)
    client_id = _client_id(body)
    mode = _choice(body, "mode", Mode) if kind is OverrideKind.MODE else None
    limits = _limits(body) if kind is OverrideKind.LIMIT else {}
    override = Override(
        target=Target(kind, client_id, next(iter(limits), None)),
        author=operator,
        reason=_reason(body),
        made_at_s=context.now_s,
        until_s=_end_s(body, now_s=context.now_s),
        mode=mode,
    )
    return limit_overrides(context.policies, client_id, limits, template=override) if limits else [override]


def _target(body: Body) -> Target:
    kind = _choice(body, "kind", OverrideKind)
    limit_kind = _choice(body, "limit_kind", LimitKind) if kind is OverrideKind.LIMIT else None
    return Target(kind, _client_id(body), limit_kind)


def _limits(body: Body) -> dict[LimitKind, list[str]]:
    given = body.get("limits")
    if not isinstance(given, dict) or not given:
        raise ValueError("limits: name at least one")
    limits = {}
    for name, texts in given.items():
        kind = _choice({"limits": name}, "limits", LimitKind)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"limits.{name}: expected a list of texts")
        if not 1 <= len(texts) <= MAX_LIMITS:
            raise ValueError(f"limits.{name}: got {len(texts)}, expected 1 to {MAX_LIMITS}; none lifts the limit")
        limits[kind] = texts
    return limits


def _client_id(body: Body) -> str | None:
    client_id = body.get("client_id")
    if client_id is None:
        return None
    if not isinstance(client_id, str):
        raise ValueError("client_id: expected a text, or null for everybody")
    return checked_client_id(client_id)


def _reason(body: Body) -> str:
    reason = body.get("reason")
    if not isinstance(reason, str) or not 1 <= len(reason.strip()) <= MAX_TEXT_LENGTH:
        raise ValueError(f"reason: expected 1 to {MAX_TEXT_LENGTH} characters, which the history keeps")
    return storable_text(reason.strip())


def _end_s(body: Body, *, now_s: float) -> float | None:
    for name, parse in (("for", end_after), ("until", end_at)):
        if text := body.get(name):
            try:
                return parse(str(text), now_s=now_s)
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from None
    return None


def _choice(body: Body, name: str, kinds: Any) -> Any:
    value = body.get(name)
    if value not in list(kinds):
        raise ValueError(f"{name}: expected one of {', '.join(kinds)}")
    return kinds(value)


def _log_change(target: Target, action: str, *, operator: str) -> None:
    log.info(
        "override_changed",
        operator=logged_name(operator),
        action=action,
        kind=target.kind.value,
        client_id=target.client_id and logged_name(target.client_id),
        limit_kind=target.limit_kind and target.limit_kind.value,
    )
