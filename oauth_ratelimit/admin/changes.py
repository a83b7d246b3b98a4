"""Changes through the page: preview, apply and remove overrides."""

from collections.abc import Callable, Mapping

import structlog

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.form import Body, read_overrides, read_target
from oauth_ratelimit.admin.preview import preview_of
from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.core.overrides import Target
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import override_data

log = structlog.get_logger(__name__)

Change = Callable[..., object]


def preview(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Return the effect of an override without applying it."""
    return cache.read(lambda context: preview_of(cache, context, read_overrides(context, body, operator=operator)))


def apply(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Apply overrides."""

    def change(context: OperatorContext) -> object:
        applied = read_overrides(context, body, operator=operator)
        for override in applied:
            context.stores.overrides.put(override)
            _log_change(override.target, "set", operator=operator)
        return {"overrides": list(map(override_data, applied)), "takes_effect_within_s": _delay_s(context)}

    answer = cache.read(change)
    cache.clear()
    return answer


def remove(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Remove an override."""
    target, reason = read_target(body)

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


def _log_change(target: Target, action: str, *, operator: str) -> None:
    log.info(
        "override_changed",
        operator=logged_name(operator),
        action=action,
        kind=target.kind.value,
        client_id=target.client_id and logged_name(target.client_id),
        limit_kind=target.limit_kind and target.limit_kind.value,
    )
