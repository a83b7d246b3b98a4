"""One client: verdict, limits and present use, users, and its recorded day."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from itertools import chain
from operator import itemgetter

from oauth_ratelimit.admin.cache import Params, Reading, kept, named_client
from oauth_ratelimit.admin.present import last_read, read_case, read_minutes
from oauth_ratelimit.admin.verdict import FOR_ALL, NOTHING, Case, Verdict, before_enforcing, judge, named
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT, full_grant_type
from oauth_ratelimit.core.statistics import DAY_S, ENDPOINT, GUARD, ClientMinute, ClientSum, Peak, Source, Tally
from oauth_ratelimit.counters.rules import meaning_of
from oauth_ratelimit.counters.usage import LimitUsage, UsageReader
from oauth_ratelimit.operations.context import OperatorContext, similar_client_ids
from oauth_ratelimit.operations.denial_run import NO_GRANT, minute_of, source_text
from oauth_ratelimit.operations.denied import user_text
from oauth_ratelimit.operations.explain import LOCKED_OUT, LimitExplanation
from oauth_ratelimit.operations.format import Record, counted, denial_data, policy_text, short
from oauth_ratelimit.operations.status import nearest_to_limit
from oauth_ratelimit.traffic.report import find, letter_to, observations, period_text

DAY_FRESH_S = 30.0
USERS_FRESH_S = 10.0
MAX_READ = 5000  # documents of one client, about half a second
MANY = 500  # of them
MAX_USERS = 50
MAX_WORST = 5
MIN_USED = 0.005  # share of a limit that is worth a row


def client(reading: Reading, params: Params) -> Record:
    """Return the verdict on a client, and the explanation of its next request: the kind that it sends most."""
    client_id = named_client(params)
    key = ("client", client_id, params.get("user"), params.get("grant"))
    found = reading.read(key, lambda context: _client(reading, context, client_id, params))
    return {**found, "verdict": last_read(reading, found["verdict"], found["now_s"])}


def _client(reading: Reading, context: OperatorContext, client_id: str, params: Params) -> Record:
    _, minutes, _ = read_minutes(reading, client_id)
    case = read_case(reading, client_id)
    total = ClientSum.of(client_id, minutes)
    source = main_source(total)
    username = params.get("user") or None
    grant_type, endpoint = full_grant_type(params.get("grant", "")) or None, ""
    is_chosen = bool(username or grant_type)
    worst_users = sorted(total.users.values(), key=lambda user: (-user.over, -user.offered, user.username))[:MAX_WORST]
    if not is_chosen and source is not None:
        endpoint = source.grant.removeprefix(ENDPOINT) if source.grant.startswith(ENDPOINT) else ""
        grant_type = None if endpoint else full_grant_type(source.grant)
        names = [*(user.username for user in worst_users), *(each.denial.username for each in case.records)]
        if source.kind == "user" and not names:  # users are written when their minute is over
            names += [row.key.username for row in users(reading, client_id)["rows"]]
        username = next(filter(None, names), None) if source.kind == "user" else None

    request = {"endpoint": endpoint} if endpoint else {}
    explanation = LimitExplanation(context, client_id, username=username, grant_type=grant_type, **request)
    suggestions = None if minutes or client_id == ANYONE else read_suggestions(reading, client_id)
    usages = sorted(explanation.usages, key=lambda item: -item[0].used_ratio)
    uses = users(reading, client_id)["uses"] if (total.user_count or 0) <= MANY else ()
    uses = [*uses_now((usage for usage, _ in usages), context.now_s), *uses]
    nearest, forecast = None, explanation.forecast()
    if usages:
        usage = usages[0][0]
        hits = f"{counted(round(usage.estimate), 'hit')}; allowed: {policy_text(usage.policy)}"
        nearest = usage.used_ratio, f"{hits}. Next request: {forecast[1]}"
    case = replace(case, minutes=[*minutes, *uses], nearest=nearest, is_unknown=suggestions is not None)
    case = replace(case, is_dry_run=forecast[0] == "would-be-denied")
    is_of_user = is_chosen and explanation.username is not None and not case.is_unknown
    found = _of_user(case, explanation.username or "") if is_of_user else judge(case)
    if case.addresses and not case.is_unknown:
        where = LOCKED_OUT.format(addresses=named(case.addresses))
        action = "Nothing to do, unless they are users of yours: look at the client *."
        action = action if found.action == NOTHING else found.action
        found = found._replace(why=f"{found.why} {where}".strip(), action=action)
    return {
        "now_s": case.now_s,
        "client_id": client_id,
        "verdict": found,
        "suggestions": suggestions or [],
        "worst_users": [user for user in worst_users if user.over],
        "username": explanation.username,
        "is_chosen": is_chosen,
        "asked": source_text(source.grant) if endpoint and source else grant_type or "",
        "explanation": explanation,
        "usages": usages,
        "forecast": forecast,
        "plan": context.policies.sections(client_id)[f"clients.{client_id}"].plan,
    }


def _of_user(case: Case, username: str) -> Verdict:
    """Return the verdict on a user, by its denials and, of minutes in which it sent most, its requests.

    If only minutes know that the user was over a limit, they do not say by which, and when.
    """
    stored, of_client = storable_name(username), judge(replace(case, nearest=None))  # which is the user's
    of_all = "" if of_client.subject else f"All users of {short(case.client_id)} together: "
    together = f"{of_all}{of_client.lead}"
    records = [each for each in case.records if each.denial.username == stored]
    loads = [(minute.minute_s, user) for minute in case.minutes for user in minute.users if user.username == stored]
    is_active = of_client.kind in ("denied", "dry-run")
    is_over, text = user_text(case.minutes, stored, now_s=case.now_s, is_active=is_active)
    if is_over and not records:
        action = f"Look at this user first: {FOR_ALL}"
        action = before_enforcing(action) if of_client.kind == "dry-run" else action
        return Verdict(of_client.kind, text, action, details=[together])
    if text and not records and (not case.nearest or case.nearest[0] < 1):
        return Verdict("recovered", text, NOTHING, details=[together])
    grant, minutes = next((each.denial.grant_type or NO_GRANT for each in records), NO_GRANT), list[ClientMinute]()
    for at_s, user in loads:
        tally = Tally(user.offered - user.over, user.denied, user.would_deny)
        minutes.append(ClientMinute(case.client_id, at_s, {Source("user", grant): tally}))
    minutes += map(minute_of, records)
    minutes.sort(key=lambda minute: minute.minute_s)
    own = replace(case, username=username, minutes=minutes, is_beyond=False, usual=None, others_active=0, records=())
    found = judge(own)
    return found._replace(details=[*found.details, together])


def main_source(total: ClientSum) -> Source | None:
    """Return the source of most requests over a limit, else of most requests; None without any."""
    found = ((tally.over, tally.offered, source) for source, tally in total.tallies.items() if tally.offered)
    return max((each for each in found if not each[2].grant.startswith(GUARD)), default=(0, 0, None))[2]


read_suggestions = kept(similar_client_ids, ttl_s=10.0)  # from some thousand documents


@partial(kept, ttl_s=itemgetter("fresh_s"))
def users(context: OperatorContext, client_id: str) -> Record:
    """Return the users of a client nearest to a limit."""
    reader, documents = UsageReader(context.policies), context.stores.documents
    found = documents.of_client(storable_name(client_id), at_most=MAX_READ)
    per_key = [reader.of(key, snapshot, context.now_s) for key, snapshot in found]
    used = (usage for usages in per_key for usage in nearest_to_limit(usages, 1) if usage.used_ratio >= MIN_USED)
    return {
        "now_s": context.now_s,
        "fresh_s": USERS_FRESH_S if len(per_key) > MANY else 0.0,
        "client_id": client_id,
        "rows": nearest_to_limit(used, MAX_USERS),
        "uses": list(uses_now(chain.from_iterable(per_key), context.now_s)),
        "is_complete": len(per_key) < MAX_READ,
    }


def uses_now(usages: Iterable[LimitUsage], now_s: float) -> Iterator[ClientMinute]:
    """Yield the present use of limits as minutes do, which are written later."""
    for usage in usages:
        endpoint, policy = meaning_of(usage.key.scope).endpoint, usage.policy
        name = policy.name if endpoint == TOKEN_ENDPOINT else f"{endpoint}/{policy.name}"
        peak = Peak(usage.used_ratio, usage.estimate, policy.limit, policy.window.window_s)
        yield ClientMinute(usage.key.client_id, int(now_s), peaks={name: peak})


def client_day(reading: Reading, client_id: str, zone: tzinfo) -> Record:
    """Return the recorded traffic of a client in the last day, and a letter to its owner with times in a zone."""
    key = ("day", client_id, zone)
    return reading.read(key, lambda context: _day(reading, context, client_id, zone), ttl_s=itemgetter("fresh_s"))


def _day(reading: Reading, context: OperatorContext, client_id: str, zone: tzinfo) -> Record:
    settings = context.settings
    since_s = context.now_s - DAY_S
    minutes, period = list(context.minutes(since_s, client_id)), (context.recorded_since(since_s), context.now_s)
    total = ClientSum.of(client_id, chain(minutes, users(reading, client_id)["uses"]))
    finding = next(find(minutes, lambda: period, assumed_lifetime_s=settings.statistics.token_lifetime_s), None)
    letter = finding and letter_to(finding, period_text(*period, zone), error_uri=settings.denial.error_uri)
    return {
        "now_s": context.now_s,
        "fresh_s": DAY_FRESH_S,
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


@kept
def denial(context: OperatorContext, decision_id: str) -> Record:
    """Return the denial with a decision id, or None if it is not recorded."""
    found, kept_s = context.stores.denials.find(decision_id), context.settings.events.keep_denials_s
    return {"now_s": context.now_s, "kept_s": kept_s, "denial": found and denial_data(found)}
