"""One client: verdict, limits and present use, users, and its recorded day."""

from datetime import tzinfo

from oauth_ratelimit.admin.cache import Params, ReadCache, named_client
from oauth_ratelimit.admin.present import read_case, read_minutes
from oauth_ratelimit.admin.text import zone_of
from oauth_ratelimit.admin.verdict import judge, source_text
from oauth_ratelimit.core.denial_record import parse_decision_id
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import full_grant_type
from oauth_ratelimit.core.statistics import DAY_S, ENDPOINT, GUARD, ClientMinute, ClientSum, Source
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.client_hints import similar_client_ids
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.explain import LimitExplanation
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import Record, denial_data
from oauth_ratelimit.operations.status import nearest_to_limit
from oauth_ratelimit.traffic.report import find, letter_to, observations, period_text

CLIENT_TTL_S = 2.0
DAY_TTL_S = 30.0
USERS_TTL_S = 10.0
SUGGESTIONS_TTL_S = 10.0  # takes some thousand documents to read
MAX_READ = 5000  # documents of one client, about half a second
MAX_USERS = 50
MAX_WORST = 5
MIN_USED = 0.005  # share of a limit that is worth a row


def client(cache: ReadCache, params: Params) -> Record:
    """Return the verdict on a client, and the explanation of its next request: the kind that it sends most."""
    client_id = named_client(params)
    key = ("client", client_id, params.get("user"), params.get("grant"))
    return cache.read_cached(key, lambda context: _client(cache, context, client_id, params), ttl_s=CLIENT_TTL_S)


def _client(cache: ReadCache, context: OperatorContext, client_id: str, params: Params) -> Record:
    _, minutes, _ = read_minutes(cache, client_id)
    source = main_source(minutes)
    username = params.get("user") or None
    grant_type, endpoint = full_grant_type(params.get("grant", "")) or None, ""
    is_chosen = bool(username or grant_type)
    found = ClientSum.of(client_id, minutes).users.values()
    worst_users = sorted(found, key=lambda user: (-user.over, -user.offered, user.username))[:MAX_WORST]
    if not is_chosen and source is not None:
        endpoint = source.grant.removeprefix(ENDPOINT) if source.grant.startswith(ENDPOINT) else ""
        grant_type = None if endpoint else full_grant_type(source.grant)
        username = next((user.username for user in worst_users), None) if source.kind == "user" else None

    request = {"endpoint": endpoint} if endpoint else {}
    explanation = LimitExplanation(context, client_id, username=username, grant_type=grant_type, **request)
    suggestions = None
    if not minutes:
        key, ttl_s = ("suggestions", client_id), SUGGESTIONS_TTL_S
        suggestions = cache.read_cached(key, lambda context: similar_client_ids(context, client_id), ttl_s=ttl_s)
    usages = sorted(explanation.usages, key=lambda item: -item[0].used_ratio)
    nearest, forecast = None, explanation.forecast()
    if usages:
        usage = usages[0][0]
        hits = f"{usage.estimate:,.0f} hits; allowed: {policy_text(usage.policy)}"
        nearest = usage.used_ratio, f"{hits}. Next request: {forecast[1]}"
    verdict = judge(read_case(cache, client_id, is_unknown=suggestions is not None, nearest=nearest))
    return {
        "now_s": context.now_s,
        "client_id": client_id,
        "verdict": verdict,
        "suggestions": suggestions or [],
        "worst_users": [user for user in worst_users if user.over],
        "username": explanation.username,
        "is_chosen": is_chosen,
        "asked": source_text(source.grant) if endpoint and source else grant_type or "",
        "explanation": explanation,
        "usages": usages,
        "forecast": forecast,
        "plan": context.policies.rules_of(client_id)[0].plan,
    }


def main_source(minutes: list[ClientMinute]) -> Source | None:
    """Return the source of most requests over a limit, else of most requests; None without any."""
    found = ClientSum.of("", minutes).tallies.items()
    tallies = {source: tally for source, tally in found if tally.offered and not source.grant.startswith(GUARD)}
    return max(tallies, key=lambda source: (tallies[source].over, tallies[source].offered), default=None)


def users(cache: ReadCache, params: Params) -> Record:
    """Return the users of a client nearest to a limit."""
    client_id = named_client(params)

    def read(context: OperatorContext) -> tuple[float, list[LimitUsage], bool]:
        reader, documents = UsageReader(context.policies), context.stores.documents
        found = list(documents.of_client(storable_name(client_id), at_most=MAX_READ))
        per_key = (nearest_to_limit(reader.of(key, snapshot, context.now_s), 1) for key, snapshot in found)
        used = (usage for usages in per_key for usage in usages if usage.used_ratio >= MIN_USED)
        return context.now_s, nearest_to_limit(used, MAX_USERS), len(found) < MAX_READ

    now_s, rows, is_complete = cache.read_cached(("users", client_id), read, ttl_s=USERS_TTL_S)
    return {"now_s": now_s, "client_id": client_id, "rows": rows, "is_complete": is_complete}


def client_day(cache: ReadCache, params: Params) -> Record:
    """Return the recorded traffic of a client in the last day, and a letter to its owner with times in a zone."""
    client_id, zone = named_client(params), zone_of(params)
    return cache.read_cached(
        ("client-day", client_id, str(zone)), lambda context: _client_day(context, client_id, zone), ttl_s=DAY_TTL_S
    )


def _client_day(context: OperatorContext, client_id: str, zone: tzinfo) -> Record:
    settings = context.settings
    since_s, until_s = context.now_s - DAY_S, context.now_s
    minutes = list(context.minutes(since_s, client_id))
    total = ClientSum.of(client_id, minutes)
    finding = next(find(minutes, assumed_lifetime_s=settings.statistics.token_lifetime_s), None)
    letter = finding and letter_to(finding, period_text(since_s, until_s, zone), error_uri=settings.denial.error_uri)
    return {
        "now_s": context.now_s,
        "fresh_s": DAY_TTL_S,
        "client_id": client_id,
        "finding": finding,
        "total": total,
        "faults": observations(finding) if finding else [],
        "letter": letter if finding and finding.faults else None,
        "peaks": sorted(total.peaks.items(), key=lambda item: -item[1].share),
        "sources": sorted(total.tallies.items(), key=lambda item: -item[1].offered),
        "source_text": source_text,
        "users": sorted(total.users.values(), key=lambda user: -user.offered)[:MAX_WORST],
    }


def denial(cache: ReadCache, params: Params) -> Record:
    """Return the denial with a decision id, or None if it is not recorded."""
    decision_id = parse_decision_id(params.get("decision", ""))

    def query(context: OperatorContext) -> Record:
        record = context.stores.denials.find(decision_id)
        return {
            "now_s": context.now_s,
            "kept_s": context.settings.events.keep_denials_s,
            "denial": record and denial_data(record),
        }

    return cache.read(query)
