"""Changes through the page: preview, apply and remove overrides, and what followed."""

import threading
from collections.abc import Callable, Iterator, Mapping

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.form import Body, read_overrides, read_target
from oauth_ratelimit.admin.params import Params, client_or_all, whole
from oauth_ratelimit.core.key import logged_name, storable_name, visible_name
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.operations.changes import unaffected_by_mode
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import duration, utc_time
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.replay.impact import impact_of

log = get_logger(__name__)

BUSY = "Another preview is being computed in this process. Try again in some seconds."
MAX_OUTCOME_S = 600.0
WRITTEN_S = 15.0  # instances write statistics every ten seconds

_computing = threading.Lock()  # held while one preview is computed
_applying = threading.Lock()  # held while a change is compared with those that apply, and applied

Change = Callable[..., object]


def preview(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Return what overrides change, and what that does if clients go on as lately."""

    def query(context: OperatorContext) -> Record:
        overrides = read_overrides(context, {"reason": "preview", **body}, operator=operator)
        if not _computing.acquire(blocking=False):
            raise ValueError(BUSY)
        try:
            impact = impact_of(context, overrides)
        finally:
            _computing.release()
        lines = [*impact.lines, *_notes(context, overrides[0])]
        return {"lines": list(map(visible_name, lines)), "proposal": impact.proposal}

    return cache.read(query)


def apply(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Apply overrides, once if the same form is sent again."""

    def change(context: OperatorContext) -> Record:
        with _applying:
            applied = read_overrides(context, body, operator=operator)
            for override in applied:
                if override not in context.overrides:
                    context.stores.overrides.put(override)
                    _log_change(override.target, "set", operator=operator)
        return {"since_s": int(applied[0].made_at_s)}

    return _changed(cache, change)


def remove(cache: ReadCache, body: Body, *, operator: str) -> object:
    """Remove an override."""
    target, reason = read_target(body)

    def change(context: OperatorContext) -> Record:
        is_removed = context.stores.overrides.remove(target, author=operator, reason=reason, at_s=context.now_s)
        if is_removed:
            _log_change(target, "unset", operator=operator)
        return {"is_removed": is_removed}

    return _changed(cache, change)


def _changed(cache: ReadCache, change: Callable[[OperatorContext], Record]) -> Record:
    answer = cache.read(change)
    cache.clear()
    return answer


CHANGES: Mapping[str, Change] = {"preview": preview, "apply": apply, "remove": remove}


def panel(cache: ReadCache, params: Params) -> Record:
    """Return the overrides of a client, or of everybody, and what followed a change that was made lately."""
    client_id, since_s = client_or_all(params), whole(params, "since", 0)

    def query(context: OperatorContext) -> Record:
        is_recent = since_s <= context.now_s < since_s + MAX_OUTCOME_S
        return {
            "now_s": context.now_s,
            "overrides": [each for each in context.overrides if each.target.client_id == client_id],
            **(_outcome(context, client_id, since_s) if is_recent else {}),
        }

    return cache.read(query)


def _outcome(context: OperatorContext, client_id: str | None, since_s: int) -> Record:
    """Return the measured minutes of a client since a change, and whether it is still denied."""
    delay_s = 2 * context.settings.sync.interval_s
    if client_id is None:
        return {"outcome": f"Applied. Takes effect on every instance within {duration(delay_s)}."}
    start_s = since_s // MINUTE_S * MINUTE_S
    stored = storable_name(client_id)
    minutes = list(context.stores.statistics.minutes(start_s, context.now_s, stored, parts=("by", "denials")))
    denials = [
        (each.last_s, policy) for minute in minutes for (policy, _), each in minute.denials.items() if each.denied
    ]
    last_s, policy = max(denials, default=(0, ""))
    if last_s > since_s + delay_s:
        text = f"Still denied: last at {utc_time(last_s)} by {policy}."
    elif context.now_s < since_s + delay_s + WRITTEN_S:
        text = "Applied. Did it work? Instances write their numbers every ten seconds."
    elif minutes:
        text = "It works: no request was denied since the change took effect."
    else:
        text = "No requests since the change."
    return {"outcome": text, "minutes": minutes}


def _log_change(target: Target, action: str, *, operator: str) -> None:
    log.info(
        "override_changed",
        operator=logged_name(operator),
        action=action,
        kind=target.kind.value,
        client_id=target.client_id and logged_name(target.client_id),
        limit_kind=target.limit_kind and target.limit_kind.value,
    )


def _notes(context: OperatorContext, override: Override) -> Iterator[str]:
    """Yield what an override does not change, and a doubt about the client."""
    client_id, policies = override.target.client_id, context.policies
    if override.mode is not None:
        yield from unaffected_by_mode(context.settings.policies, context.overrides, override)
    if client_id is None:
        if override.target.limit_kind is not None:
            yield "Clients with limits of their own keep them."
        return
    if hint := unknown_client_hint(context, client_id):
        yield hint
    if override.target.kind is not OverrideKind.TRUSTED and policies.trusts(client_id):
        yield "This client is trusted: limits and mode have no effect on it."
    grants = sorted({*policies.grants, *policies.rules_of(client_id)[1].grants})
    if grants and override.target.kind is OverrideKind.LIMIT:
        yield f"Grant types with limits of their own keep them: {', '.join(grants)}."
