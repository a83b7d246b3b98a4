"""Effect of an override before it is applied: limits, mode and trust of its client, and the keys counted now."""

from collections.abc import Iterator, Sequence

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.form import UNCONFIGURED_CLIENT
from oauth_ratelimit.admin.history import SpanTraffic
from oauth_ratelimit.admin.traffic import span_traffic
from oauth_ratelimit.admin.what_if import effect_in_span
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, Target, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.changes import STAYS_OFF
from oauth_ratelimit.operations.client_hints import unknown_client_hint
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted, policy_text
from oauth_ratelimit.operations.serialize import Record, override_data

MAX_READ = 1000  # documents, a fifth of a second
MAX_NAMED = 5  # clients in a note
CANARY_NOTE = "The canary stays active: outside of it this is a dry run, unless a client has a mode of its own."
MAX_TOP = 5  # clients
RECORDED = {"hour": "1h", "day": "1d"}
SPANS_S = {"hour": 3600, "day": 86_400}


def preview_of(cache: ReadCache, context: OperatorContext, overrides: Sequence[Override]) -> Record:
    """Return the effect of overrides now, and the one that they would have had on recorded traffic."""
    before, after = context.policies, _policies_with(context, overrides)
    client_id = overrides[0].target.client_id
    targets = {override.target for override in overrides}
    return {
        "overrides": list(map(override_data, overrides)),
        "replaces": [override_data(override) for override in context.overrides if override.target in targets],
        "changes": list(_changes(before, after, client_id or UNCONFIGURED_CLIENT)),
        "notes": list(_notes(context, before, overrides[0])),
        "keys": _keys(context, before, after, client_id=client_id),
        "dropped_tiers": list(_dropped_tiers(before, overrides)),
        "recorded": {
            name: _recorded_limits(context, overrides, SPANS_S[name])
            if overrides[0].policies
            else _recorded_mode(span_traffic(cache, span), before, after, client_id)
            for name, span in RECORDED.items()
        },
    }


def _dropped_tiers(before: PolicySet, overrides: Sequence[Override]) -> Iterator[Record]:
    """Yield the present limits with a window that the new limits of the same kind do not have."""
    for override in overrides:
        kind = override.target.limit_kind
        if kind is None or not override.policies:
            continue
        present = _present(before, override.target, kind)
        windows = {policy.window.window_s for policy in override.policies}
        for policy in present:
            if policy.window.window_s not in windows:
                yield {"kind": kind.value, "text": policy_text(policy)}


def _present(policies: PolicySet, target: Target, kind: LimitKind) -> tuple[Policy, ...]:
    """Return the limits of a kind that apply to a target, before overrides are changed."""
    found: tuple[Policy, ...] = getattr(policies.limits_at(target.client_id or UNCONFIGURED_CLIENT)[1], kind.value)
    return found


def _recorded_mode(found: SpanTraffic, before: PolicySet, after: PolicySet, client_id: str | None) -> Record:
    """Return the recorded requests over a limit, and those that would be denied after a change of modes or trust."""
    if client_id is None:
        totals = [total for name, total in found.clients.items() if name != OTHER_CLIENTS]
    else:
        totals = [total for name, total in found.clients.items() if name == storable_name(client_id)]
    changed = []
    for total in totals:
        name = total.client_id if client_id is None else client_id
        if total.tally.over and _denies(before, name) is not (denies := _denies(after, name)):
            changed.append((total, total.tally.over if denies else 0))
    changed.sort(key=lambda pair: -abs(pair[1] - pair[0].tally.denied))
    offered = sum(total.tally.offered for total in totals)
    was_denied = sum(total.tally.denied for total in totals)
    return {
        "is_complete": found.is_complete,
        "offered": offered,
        "denied_before": was_denied,
        "denied_after": was_denied + sum(denied - total.tally.denied for total, denied in changed),
        "client_count": len(changed),
        "top": [
            {
                "client_id": total.client_id,
                "username": None,
                "offered": total.tally.offered,
                "denied_before": total.tally.denied,
                "denied_after": denied,
            }
            for total, denied in changed[:MAX_TOP]
        ],
    }


def _denies(policies: PolicySet, client_id: str) -> bool:
    matched = policies.matching(client_id)
    return matched.mode is Mode.ENFORCE and not matched.trusted


def _recorded_limits(context: OperatorContext, overrides: Sequence[Override], span_s: int) -> Record:
    """Return the effect of each changed limit on recorded traffic, and the limits whose effect is not known."""
    found: list[Record] = []
    missing: list[Record] = []
    for override in overrides:
        kind = override.target.limit_kind
        if kind is None:
            continue
        present = _present(context.policies, override.target, kind)
        for policy in (policy for policy in override.policies if policy not in present):
            try:
                found.append(effect_in_span(context, kind, policy, client_id=override.target.client_id, span_s=span_s))
            except ValueError as exc:
                missing.append({"policy": policy.name, "reason": str(exc)})
    return {"limits": found, "missing": missing}


def _policies_with(context: OperatorContext, overrides: Sequence[Override]) -> PolicySet:
    """Return the policies with overrides in place of the active ones of the same targets."""
    targets = {override.target for override in overrides}
    kept = [override for override in context.overrides if override.target not in targets]
    return apply_overrides(context.settings.policies, [*kept, *overrides])


def _changes(before: PolicySet, after: PolicySet, client_id: str) -> Iterator[Record]:
    """Yield what changes of trust, mode and limits of a client at the token endpoint, before and after."""
    old, new = before.matching(client_id), after.matching(client_id)
    old_limits, new_limits = before.limits_at(client_id)[1], after.limits_at(client_id)[1]
    rows = [
        ("trusted", _yes_or_no(old.trusted), _yes_or_no(new.trusted)),
        ("mode", old.mode.value, new.mode.value),
        *(
            (
                f"{kind.value} limit",
                _limits_text(getattr(old_limits, kind.value)),
                _limits_text(getattr(new_limits, kind.value)),
            )
            for kind in LimitKind
        ),
    ]
    for what, was, will_be in rows:
        if was != will_be:
            yield {"what": what, "before": was, "after": will_be}


def _notes(context: OperatorContext, before: PolicySet, override: Override) -> Iterator[str]:
    """Yield side effects and exceptions that an operator might not expect."""
    client_id = override.target.client_id
    if override.mode not in (None, Mode.OFF) and context.settings.policies.mode is Mode.OFF:
        yield STAYS_OFF
        return
    if client_id is not None:
        yield from _client_notes(context, before, override, client_id)
        return
    unaffected = sorted(name for name, rules in before.clients.items() if _is_own(override, rules.mode, rules.limits))
    if unaffected:
        names = f"{', '.join(unaffected[:MAX_NAMED])}{' …' * (len(unaffected) > MAX_NAMED)}"
        yield f"Not changed for {counted(len(unaffected), 'client')} with rules of their own: {names}"
    if override.mode is Mode.ENFORCE:
        if before.canary is not None:
            yield CANARY_NOTE
        yield "Requests over a limit will be denied."


def _client_notes(context: OperatorContext, before: PolicySet, override: Override, client_id: str) -> Iterator[str]:
    if hint := unknown_client_hint(context, client_id):
        yield hint
    if override.mode is Mode.ENFORCE and before.canary is not None:
        yield CANARY_NOTE
    if override.target.kind is OverrideKind.TRUSTED:
        return
    if before.matching(client_id).trusted:
        yield "This client is trusted: limits and mode have no effect on it."
    _, plan = before.rules_of(client_id)
    grants = sorted({*before.grants, *plan.grants})
    if grants and override.target.kind is OverrideKind.LIMIT:
        yield f"Not changed for grant types with limits of their own: {', '.join(grants)}"


def _is_own(override: Override, mode: Mode | None, limits: object) -> bool:
    """Return True if a client's own rules take precedence over an override for everybody."""
    kind = override.target.limit_kind
    if kind is not None:
        return limits is not None and getattr(limits, kind.value) is not None
    return override.mode is Mode.ENFORCE and mode is not None  # off and dry-run apply to everybody


def _keys(context: OperatorContext, before: PolicySet, after: PolicySet, *, client_id: str | None) -> Record:
    """Return the numbers of keys over a limit before and after, by the mode of that limit.

    A limit with another frame length starts at zero, so its keys are under the limit at first.
    """
    if client_id is None:
        documents = list(context.stores.documents.latest(context.now_s, MAX_READ))
    else:
        documents = list(context.stores.documents.of_client(storable_name(client_id), at_most=MAX_READ))
    over_before, over_after = (
        [usage for usage in UsageReader(policies).of_all(documents, context.now_s) if usage.retry_after_s > 0]
        for policies in (before, after)
    )
    return {
        "read_count": len(documents),
        "is_complete": len(documents) < MAX_READ,
        "denied_before_count": _count(over_before, Mode.ENFORCE),
        "denied_after_count": _count(over_after, Mode.ENFORCE),
        "would_deny_before_count": _count(over_before, Mode.DRY_RUN),
        "would_deny_after_count": _count(over_after, Mode.DRY_RUN),
    }


def _count(usages: Sequence[LimitUsage], mode: Mode) -> int:
    return len({usage.key for usage in usages if usage.mode is mode})


def _limits_text(policies: Sequence[Policy]) -> str:
    return ", ".join(map(policy_text, policies)) or "no limit"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
