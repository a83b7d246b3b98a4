"""What a change would do: before and after, for the client that it is about and for the keys that are counted now."""

from collections.abc import Iterator, Sequence

from oauth_ratelimit.admin.api import past_of
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import Override, OverrideKind, apply_overrides
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.counters.usage import UsageReader
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted, policy_text
from oauth_ratelimit.operations.serialize import Record, override_data, usage_data
from oauth_ratelimit.operations.status import nearest_to_limit
from oauth_ratelimit.operations.suggestions import unknown_client_hint

READ = 5000  # documents
SHOWN = 10
ANYBODY = "\0anybody"  # no client id: stands for all those of whom nothing is said


def preview_of(context: OperatorContext, overrides: Sequence[Override]) -> Record:
    """Return what overrides would do now."""
    before, after = context.policies, _with(context, overrides)
    client_id = overrides[0].target.client_id
    return {
        "overrides": list(map(override_data, overrides)),
        "replaces": [
            override_data(old) for old in context.overrides if old.target in {new.target for new in overrides}
        ],
        "changes": list(_changes(before, after, client_id or ANYBODY)),
        "notes": [*_strange(context, client_id), *_notes(before, overrides[0])],
        "keys": _keys(context, before, after, client_id=client_id),
        "past": [
            past
            for override in overrides
            for policy in override.policies
            if override.target.limit_kind
            and (past := past_of(context, override.target.limit_kind, policy, client_id=client_id))
        ],
    }


def _with(context: OperatorContext, overrides: Sequence[Override]) -> PolicySet:
    """Return the policies with overrides instead of those that their targets have."""
    targets = {override.target for override in overrides}
    kept = [override for override in context.overrides if override.target not in targets]
    return apply_overrides(context.settings.policies, [*kept, *overrides])


def _changes(before: PolicySet, after: PolicySet, client_id: str) -> Iterator[Record]:
    """Yield what is different for a client at the token endpoint."""
    old, new = before.matching(client_id), after.matching(client_id)
    old_limits, new_limits = before.limits_at(client_id)[1], after.limits_at(client_id)[1]
    rows = [
        ("trusted", _yes(old.trusted), _yes(new.trusted)),
        ("mode", old.mode.value, new.mode.value),
        *(
            (f"{kind.value} limit", _text(getattr(old_limits, kind.value)), _text(getattr(new_limits, kind.value)))
            for kind in LimitKind
        ),
    ]
    for what, was, will_be in rows:
        yield {"what": what, "before": was, "after": will_be, "is_changed": was != will_be}


def _strange(context: OperatorContext, client_id: str | None) -> Iterator[str]:
    if client_id is not None and (hint := unknown_client_hint(context, client_id)):
        yield hint


def _notes(before: PolicySet, override: Override) -> Iterator[str]:
    """Yield what somebody might not expect."""
    target = override.target
    if target.client_id is None:
        own = sorted(name for name, rules in before.clients.items() if _has_own(override, rules.mode, rules.limits))
        if own:
            names = f"{', '.join(own[:5])}{' …' * (len(own) > 5)}"
            yield f"{counted(len(own), 'client')} with rules of their own keep them: {names}"
    if override.mode is Mode.ENFORCE and before.canary is not None:
        yield "The canary stays: outside of it this is still a dry run, unless a client has a mode of its own."
    if override.mode is Mode.ENFORCE and target.client_id is None:
        yield "Requests over their limit are denied from now on."
    if target.client_id is not None and target.kind is not OverrideKind.TRUSTED:
        if before.matching(target.client_id).trusted:
            yield "This client is trusted: no limit and no mode matters to it."
        _, plan = before.rules_of(target.client_id)
        places = sorted({*before.grants, *plan.grants} if target.kind is OverrideKind.LIMIT else ())
        if places:
            yield f"Grant types with limits of their own keep them: {', '.join(places)}"


def _has_own(override: Override, mode: Mode | None, limits: object) -> bool:
    kind = override.target.limit_kind
    if kind is not None:
        return limits is not None and getattr(limits, kind.value) is not None
    # Off and dry run hold for everybody, whatever stands nearer.
    return override.mode is Mode.ENFORCE and mode is not None


def _keys(context: OperatorContext, before: PolicySet, after: PolicySet, *, client_id: str | None) -> Record:
    """Return what becomes of the keys that are counted now.

    A limit with another length of frames begins to count when it takes force, so nothing can be said of it.
    """
    if client_id is None:
        documents = list(context.stores.documents.latest(context.now_s, READ))
    else:
        documents = list(context.stores.documents.of_client(storable_name(client_id), at_most=READ))
    old, new = (list(UsageReader(each).of_all(documents, context.now_s)) for each in (before, after))
    over = [usage for usage in new if usage.retry_after_s > 0]
    return {
        "read_count": len(documents),
        "is_complete": len(documents) < READ,
        "denied_before_count": sum(each.retry_after_s > 0 and each.mode is Mode.ENFORCE for each in old),
        "denied_after_count": sum(each.mode is Mode.ENFORCE for each in over),
        "would_deny_before_count": sum(each.retry_after_s > 0 and each.mode is Mode.DRY_RUN for each in old),
        "would_deny_after_count": sum(each.mode is Mode.DRY_RUN for each in over),
        "rows": [usage_data(usage) for usage in nearest_to_limit((each for each in new if each.estimate), SHOWN)],
    }


def _text(policies: Sequence[Policy]) -> str:
    return ", ".join(map(policy_text, policies)) or "no limit"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
