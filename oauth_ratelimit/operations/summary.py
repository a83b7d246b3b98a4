"""Summary of a configuration: what applies to whom, for the log at start and for check-config."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from oauth_ratelimit.config import Settings, StoreSettings
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.config.settings import AUTO, OFF
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind, OnLimit, Policy, PolicySet, Rules
from oauth_ratelimit.operations.format import canary_text
from oauth_ratelimit.store.mongo.client import servers_of

NO_LIMIT = "no limit"
NOT_SHARED = "none: nothing is shared with other hosts"
NO_FILE = "none: this process shares no file"
HOST_TEXTS = {
    AUTO: "auto: the workers of a server on one machine count together",
    OFF: "off: each process counts alone",
}
NOT_SHARED_WARNING = (
    "limits are enforced with host: off and without store.uri: each process counts alone, so N processes admit N times "
    "the limit"
)
NO_CEILING_WARNING = (
    "guard.limits.passed_on_total: got none, so whoever stole a client's secret can guess passwords of its users "
    'without end; give it a limit, such as ["1000 per 10 minute"]'
)
EVERYBODY_TRUSTED = 'trusted_clients: got "*", so every client is trusted: no request is limited, counted or reported'
MAX_NAMES = 20  # in the log line; check-config shows all


def limits_by_kind(policies: PolicySet) -> dict[str, str]:
    """Return the default limits of the token endpoint by kind, such as ``{"user": "10/second, 50/10s"}``."""
    limits = policies.limits
    return {kind.value: ", ".join(map(_limit_text, getattr(limits, kind.value))) or NO_LIMIT for kind in LimitKind}


def _limit_text(policy: Policy) -> str:
    mode = f" ({policy.mode.value})" if policy.mode else ""
    reuse = " (on_limit: reuse)" if policy.on_limit is OnLimit.REUSE else ""
    return f"{rate_text(policy.limit, policy.window.window_s)}{mode}{reuse}"


def store_text(store: StoreSettings) -> str:
    """Return servers, database and collection of the store, without user, password and options."""
    if store.uri is None:
        return NOT_SHARED
    collection = f"{store.namespace}_{store.collection}" if store.namespace else store.collection
    servers = servers_of(store.uri)
    place = f"{servers}/{store.database}" if servers else "an address that is not shown"
    return f"{place}, collection {collection}"


def names_text(names: Sequence[str], *, at_most: int = MAX_NAMES) -> list[str]:
    """Return names for a log line: the first ones, and how many more there are."""
    more = len(names) - at_most
    return [*names[:at_most], f"and {more} more"] if more > 0 else list(names)


def warnings_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what an operator should know about a valid configuration: the event that logs it, and a sentence."""
    if settings.store.uri is None and settings.host == OFF and enforces(settings.policies):
        yield "counters_not_shared", NOT_SHARED_WARNING
    if "*" in settings.policies.trusted:
        yield "everybody_trusted", EVERYBODY_TRUSTED
    if settings.is_guarded and not settings.guard.limits.passed_on_total:
        yield "guard_without_ceiling", NO_CEILING_WARNING
    for text in settings.warnings:
        yield "config_key_ignored", text


def enforces(policies: PolicySet) -> bool:
    if policies.mode is Mode.OFF or policies.ceiling is not None:
        return False
    sections = (policies.clients, policies.plans, policies.grants, policies.endpoints)
    rules = list(_nested(chain.from_iterable(section.values() for section in sections)))
    limits = (policies.limits, *(each.limits for each in rules if each.limits))
    own = (getattr(each, kind.value) or () for each in limits for kind in LimitKind)
    modes = {policies.mode, *(each.mode for each in rules), *(policy.mode for policy in chain.from_iterable(own))}
    return Mode.ENFORCE in modes


def _nested(sections: Iterable[Rules]) -> Iterator[Rules]:
    for rules in sections:
        yield rules
        yield from _nested((*rules.grants.values(), *rules.endpoints.values()))


def summary_data(settings: Settings) -> dict[str, object]:
    policies, privacy = settings.policies, settings.privacy
    return {
        "mode": policies.mode.value,
        "canary": canary_text(policies.canary),
        "limits": limits_by_kind(policies),
        "store": store_text(settings.store),
        "host": HOST_TEXTS.get(settings.host, settings.host),
        "trusted_clients": [*policies.trusted, *policies.trusted_ids],
        "clients": list(policies.clients),
        "grants": policies.named_grants,
        "endpoints": list(policies.endpoints),
        "guard": settings.guard.mode.value,
        "user_names": "plain" if privacy.key is None else f"hashed under {privacy.key}",
        "former_keys": list(map(str, privacy.former_keys)),
    }
