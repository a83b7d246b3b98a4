"""Changes through the page: preview, apply and remove overrides, and what followed."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.form import Body, read_overrides, read_target
from oauth_ratelimit.config.errors import show
from oauth_ratelimit.core.key import logged_name, storable_name
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.operations.changes import checked_client_id, unaffected_by_mode
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import Record, override_data, tally_data
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
        return {
            "overrides": list(map(override_data, overrides)),
            "lines": [*impact.lines, *_notes(context, overrides[0])],
            "proposal": impact.proposal,
        }

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
        return {"overrides": list(map(override_data, applied)), "since_s": applied[0].made_at_s}

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
    answer = cache.read(
        lambda context: {**change(context), "takes_effect_within_s": 2 * context.settings.sync.interval_s}
    )
    cache.clear()
    return answer


CHANGES: Mapping[str, Change] = {"preview": preview, "apply": apply, "remove": remove}


def outcome(cache: ReadCache, params: Params) -> Record:
    """Return the measured minutes of a client since a change, and whether it is still denied."""
    client_id, since_text = checked_client_id(params.get("id", "")), params.get("since", "0")
    if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]+)?", since_text):
        raise ValueError(f"since: got {show(since_text)}, allowed: seconds since the epoch")
    since_s = float(since_text)

    def query(context: OperatorContext) -> Record:
        effect_s = since_s + 2 * context.settings.sync.interval_s
        start_s = max(since_s, context.now_s - MAX_OUTCOME_S)
        read = context.stores.statistics.minutes(
            start_s - start_s % MINUTE_S, context.now_s, storable_name(client_id), parts=("by", "denials")
        )
        minutes = list(read)
        denials = [
            (each.last_s, policy) for minute in minutes for (policy, _), each in minute.denials.items() if each.denied
        ]
        last_s, policy = max(denials, default=(None, None))
        return {
            "now_s": context.now_s,
            "is_written": context.now_s >= effect_s + WRITTEN_S,
            "is_denied": last_s is not None and last_s > effect_s,
            "last_s": last_s,
            "policy": policy,
            "minutes": [{"at_s": each.minute_s, **tally_data(each.tally())} for each in minutes],
        }

    return cache.read(query)


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
