"""Summary of a configuration: what applies to whom, for the log at start and for check-config."""

from collections.abc import Iterable, Iterator, Sequence

from oauth_ratelimit.config import Settings, StoreSettings
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind, OwnLimits, Policy, PolicySet, Rules
from oauth_ratelimit.operations.format import canary_text
from oauth_ratelimit.store.mongo.client import location_of

NO_LIMIT = "no limit"
NOT_SHARED = "none: each process counts alone"
NOT_SHARED_WARNING = (
    "limits are enforced without store.uri: each process counts alone, so N processes admit N times the limit"
)
NO_CEILING_WARNING = (
    "guard.limits.passed_on_total: got none, so whoever stole a client's secret can guess passwords of its users "
    'without end; give it a limit, such as ["1000 per 10 minute"]'
)
MAX_NAMES = 20  # in the log line; check-config shows all


def limits_by_kind(policies: PolicySet) -> dict[str, str]:
    """Return the default limits of the token endpoint by kind, such as ``{"user": "10/second, 50/10s"}``."""
    return {kind.value: _limits_text(getattr(policies.limits, kind.value)) for kind in LimitKind}


def _limits_text(policies: Sequence[Policy]) -> str:
    return ", ".join(map(_limit_text, policies)) or NO_LIMIT


def _limit_text(policy: Policy) -> str:
    mode = f" ({policy.mode.value})" if policy.mode else ""
    return f"{rate_text(policy.limit, policy.window.window_s)}{mode}"


def store_text(store: StoreSettings) -> str:
    """Return servers, database and collection of the store, without user, password and options."""
    if store.uri is None:
        return NOT_SHARED
    collection = f"{store.namespace}_{store.collection}" if store.namespace else store.collection
    return f"{location_of(store.uri)}, collection {collection}"


def names_text(names: Sequence[str], *, at_most: int = MAX_NAMES) -> list[str]:
    """Return names for a log line: the first ones, and how many more there are."""
    more = len(names) - at_most
    return [*names[:at_most], f"and {more} more"] if more > 0 else list(names)


def warnings_of(settings: Settings) -> list[str]:
    """Return what an operator should know about a valid configuration."""
    return [NOT_SHARED_WARNING] if settings.store.uri is None and enforces(settings.policies) else []


def guard_warnings_of(settings: Settings) -> list[str]:
    """Return what an operator should know about the limits of a valid guard."""
    return [NO_CEILING_WARNING] if settings.is_guarded and not settings.guard.limits.passed_on_total else []


def enforces(policies: PolicySet) -> bool:
    """Return True if some request may be denied."""
    return policies.mode is not Mode.OFF and policies.ceiling is None and Mode.ENFORCE in _modes(policies)


def _modes(policies: PolicySet) -> Iterator[Mode | None]:
    yield policies.mode
    yield from _modes_of_limits(policies.limits.client, policies.limits.user, policies.limits.client_total)
    for sections in (policies.clients, policies.plans, policies.grants, policies.endpoints):
        yield from _modes_of_rules(sections.values())


def _modes_of_rules(sections: Iterable[Rules]) -> Iterator[Mode | None]:
    for rules in sections:
        own = rules.limits or OwnLimits()
        yield rules.mode
        yield from _modes_of_limits(own.client, own.user, own.client_total)
        yield from _modes_of_rules((*rules.grants.values(), *rules.endpoints.values()))


def _modes_of_limits(*kinds: Sequence[Policy] | None) -> Iterator[Mode | None]:
    return (policy.mode for policies in kinds for policy in policies or ())


def summary_data(settings: Settings) -> dict[str, object]:
    """Return the summary as a record."""
    policies, privacy = settings.policies, settings.privacy
    return {
        "mode": policies.mode.value,
        "canary": canary_text(policies.canary),
        "limits": limits_by_kind(policies),
        "store": store_text(settings.store),
        "trusted_clients": [*policies.trusted, *policies.trusted_ids],
        "clients": list(policies.clients),
        "grants": list(policies.grants),
        "endpoints": list(policies.endpoints),
        "guard": settings.guard.mode.value,
        "user_names": "plain" if privacy.key is None else f"hashed under {privacy.key}",
        "former_keys": list(map(str, privacy.former_keys)),
    }
