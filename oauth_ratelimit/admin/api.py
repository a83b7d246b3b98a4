"""Queries of the page, answered with plain data."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.client_day import client_day
from oauth_ratelimit.admin.client_use import client_use, verdict_on_client
from oauth_ratelimit.admin.form import current, current_values
from oauth_ratelimit.admin.traffic import clients, span_traffic, traffic
from oauth_ratelimit.admin.verdict import verdict
from oauth_ratelimit.admin.what_if import suggest_limits, what_if
from oauth_ratelimit.config.policies import full_grant_type
from oauth_ratelimit.core.denial_record import parse_decision_id
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.policy import LimitKind, Limits
from oauth_ratelimit.counters.client_state import CLIENT_TOTAL
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.changes import checked_client_id
from oauth_ratelimit.operations.client_hints import known_client_ids, similar_client_ids
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.explain import LimitExplanation
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import (
    Record,
    denial_data,
    entry_data,
    origin_data,
    override_data,
    usage_data,
)
from oauth_ratelimit.operations.status import Status, nearest_to_limit
from oauth_ratelimit.store.base import Snapshot

STATUS_TTL_S = 2.0
KNOWN_IDS_TTL_S = 60.0  # takes some thousand documents to read
TOP_TTL_S = 5.0
USERS_TTL_S = 10.0
MAX_READ = 5000  # documents of one client, about half a second
MAX_TOP_READ = 200
MAX_BUSY_USERS = 5
MAX_TOP = 20
MAX_USERS = 50
MAX_HISTORY = 200
BUSY_S = 180


def status(cache: ReadCache, params: Params) -> object:
    """Return mode, canary, default limits, database and instances."""
    return cache.read_cached("status", _status, ttl_s=STATUS_TTL_S)


def _status(context: OperatorContext) -> Record:
    policies = context.policies
    return {
        "now_s": context.now_s,
        **Status(context).data(),
        "trusted": (*policies.trusted, *policies.trusted_ids),
        "configured_client_count": len(policies.clients),
        "limits": _limits_data(policies.limits),
        "sync_interval_s": context.settings.sync.interval_s,
    }


def _limits_data(limits: Limits) -> Record:
    return {kind.value: [policy_text(policy) for policy in getattr(limits, kind.value)] for kind in LimitKind}


def top(cache: ReadCache, params: Params) -> object:
    """Return the keys nearest to a limit: of all keys if there are few, else of the busiest and of the longest windows.

    Reading a key takes 0.1 ms of processor time.
    """

    def query(context: OperatorContext) -> Record:
        snapshots = dict(context.stores.documents.latest(context.now_s, MAX_TOP_READ))
        read_count = len(snapshots)
        if read_count == MAX_TOP_READ:
            missing = [key for key in _busy_keys(cache, context) if key not in snapshots]
            snapshots |= context.stores.documents.of_keys(missing)
        return {
            "rows": list(map(usage_data, _nearest_keys(context, snapshots.items(), MAX_TOP))),
            "read_count": read_count,
            "is_complete": read_count < MAX_TOP_READ,
        }

    return cache.read_cached("top", query, ttl_s=TOP_TTL_S)


def _busy_keys(cache: ReadCache, context: OperatorContext) -> Iterator[Key]:
    """Yield the clients with the highest use of a limit in the last minutes, and their heaviest users."""
    since_s = context.now_s - BUSY_S
    for client_id in span_traffic(cache, "15m").highest_use(since_s, MAX_TOP):
        yield Key(client_id, None)
        yield Key(client_id, None, CLIENT_TOTAL)
        users: set[str] = set()
        for minute in context.stores.statistics.minutes(since_s, context.now_s, client_id, parts=("users",)):
            users.update(user.username for user in minute.users[:MAX_BUSY_USERS])
        yield from (Key(client_id, username) for username in users)


def _nearest_keys(context: OperatorContext, documents: Iterable[tuple[Key, Snapshot]], count: int) -> list[LimitUsage]:
    """Return the highest use of a limit by each key, of the keys nearest to one."""
    reader = UsageReader(context.policies)
    per_key = (nearest_to_limit(reader.of(key, snapshot, context.now_s), 1) for key, snapshot in documents)
    used = (usage for usages in per_key for usage in usages if usage.estimate > 0)
    return nearest_to_limit(used, count)


def client(cache: ReadCache, params: Params) -> object:
    """Return the explanation of a client's next request, and its users nearest to a limit."""
    client_id = checked_client_id(params.get("id", ""))

    def known_ids() -> set[str]:
        return cache.read_cached("known-ids", known_client_ids, ttl_s=KNOWN_IDS_TTL_S)

    def read_users(context: OperatorContext) -> tuple[list[LimitUsage], bool]:
        documents = list(context.stores.documents.of_client(storable_name(client_id), at_most=MAX_READ))
        return _nearest_keys(context, documents, MAX_USERS), len(documents) < MAX_READ

    users, are_users_complete = cache.read_cached(("users", client_id), read_users, ttl_s=USERS_TTL_S)
    use = client_use(cache, client_id)
    source = use.main_source
    username = params.get("user") or None
    grant_type = full_grant_type(params.get("grant", "")) or None
    is_chosen = bool(username or grant_type)
    if not is_chosen and source is not None:  # explain what the client really does
        username, grant_type = use.worst_user(), full_grant_type(source.grant)

    def query(context: OperatorContext) -> Record:
        explanation = LimitExplanation(context, client_id, username=username, grant_type=grant_type)
        suggestions = similar_client_ids(context, client_id, known_ids=known_ids)
        rules, plan = context.policies.rules_of(client_id)
        return {
            **explanation.data(),
            "verdict": verdict_on_client(
                use, explanation.matched, nearest=next(iter(users), None), suggestions=suggestions
            ),
            "grant_type": grant_type,
            "is_chosen": is_chosen,
            "current": current_values(context, client_id),
            "canary": explanation.canary,
            "plan": rules.plan,
            "grants": sorted({*context.policies.grants, *plan.grants, *rules.grants}),
            "limit_origins": {
                kind.value: origin_data(context.origins.of_limits(client_id, kind)) for kind in LimitKind
            },
            "limits_now": _limits_data(context.policies.limits_at(client_id)[1]),
            "users": list(map(usage_data, users)),
            "are_users_complete": are_users_complete,
            "overrides": [override_data(each) for each in context.overrides if each.target.client_id == client_id],
        }

    return cache.read(query)


def overrides(cache: ReadCache, params: Params) -> object:
    """Return the active overrides and the history, newest first."""

    def query(context: OperatorContext) -> Record:
        history = context.stores.overrides.history()
        return {
            "overrides": list(map(override_data, context.overrides)),
            "history": list(map(entry_data, reversed(history[-MAX_HISTORY:]))),
            "history_count": len(history),
        }

    return cache.read(query)


def denial(cache: ReadCache, params: Params) -> object:
    """Return the denial with a decision id, or None if it is not recorded."""
    number = parse_decision_id(params.get("decision", "").strip().lower())

    def query(context: OperatorContext) -> Record:
        record = context.stores.denials.find(number)
        return {
            "kept_s": context.settings.events.keep_denials_s,
            "denial": record and denial_data(record, number - record.denial.first_id),
        }

    return cache.read(query)


Query = Callable[[ReadCache, Params], object]

QUERIES: Mapping[str, Query] = {
    "status": status,
    "top": top,
    "client": client,
    "overrides": overrides,
    "denial": denial,
    "traffic": traffic,
    "clients": clients,
    "verdict": verdict,
    "current": current,
    "suggest": suggest_limits,
    "client-day": client_day,
    "what-if": what_if,
}
