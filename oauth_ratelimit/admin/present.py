"""The present: state of the whole, verdict on all clients and on one, instances."""

from oauth_ratelimit.admin.cache import ReadCache
from oauth_ratelimit.admin.marks import read_marks
from oauth_ratelimit.admin.params import Params
from oauth_ratelimit.admin.verdict import RULE, Case, judge, judge_all, last_runs, severity
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import MINUTE_S, ClientMinute
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import policy_text
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.operations.status import Status
from oauth_ratelimit.store.mongo.rollups import Present

NOW_TTL_S = 3.0
MINUTES_TTL_S = 3.0
STATUS_TTL_S = 4.0
USUAL_TTL_S = 300.0
HOUR_S, DAY_S = 3600, 86_400
USUAL_DAYS = 7
PARTS = ("by", "peaks", "denials")
MAX_MARKS = 20


def read_status(cache: ReadCache) -> tuple[float, Status]:
    """Return mode, canary, instances and database, and their time."""
    return cache.read_cached("status", lambda context: (context.now_s, Status(context)), ttl_s=STATUS_TTL_S)


def state(cache: ReadCache, params: Params) -> Record:
    """Return the line at the head of every page. It can be shown without MongoDB, too."""
    try:
        now_s, status = read_status(cache)
    except StoreError as exc:
        text, since_s = cache.outage(exc)
        policies = cache.app_limiter.settings.policies
        outage = {"text": text, "since_s": since_s}
        return {"now_s": cache.app_limiter.clock(), "policies": policies, "status": None, "outage": outage}
    return {"now_s": now_s, "policies": status.policies, "status": status, "outage": None}


def read_present(cache: ReadCache) -> tuple[float, Present]:
    """Return the requests of the last minute, and their time."""
    return cache.read_cached(
        "present", lambda context: (context.now_s, context.stores.rollups.present(context.now_s)), ttl_s=NOW_TTL_S
    )


def verdict(cache: ReadCache, params: Params) -> Record:
    """Return what is denied now, the worst client and the verdict on it."""
    now_s, present = read_present(cache)
    worst = min(present.over, key=lambda each: (severity(each), each.client_id), default=None)
    return {
        "now_s": now_s,
        "total": present.total,
        "verdict": judge_all(present.active_count, present.denied_count, present.over_count),
        "worst": worst,
        "on_worst": worst and judge(read_case(cache, worst.client_id, is_alone=False)),
        "rule": RULE,
    }


def read_minutes(cache: ReadCache, client_id: str) -> tuple[float, list[ClientMinute], bool]:
    """Return the last hour of a client, or its day if it was denied all the hour; True if denials began before that."""

    def read(context: OperatorContext) -> tuple[float, list[ClientMinute], bool]:
        stored = storable_name(client_id)
        minutes: list[ClientMinute] = []
        for span_s in (HOUR_S, DAY_S):
            since_s = context.now_s - span_s
            minutes = list(context.stores.statistics.minutes(since_s, context.now_s, stored, parts=PARTS))
            is_beyond = any(run.first_s < since_s + 2 * MINUTE_S for run in last_runs(minutes))
            if not is_beyond:
                break
        return context.now_s, minutes, is_beyond

    return cache.read_cached(("minutes", client_id), read, ttl_s=MINUTES_TTL_S)


def read_usual(cache: ReadCache, client_id: str) -> float | None:
    """Return the requests per minute of a client at this hour of the last days; None if no such day is recorded."""

    def read(context: OperatorContext) -> float | None:
        hour_s = context.now_s // HOUR_S * HOUR_S
        days = []
        for back in range(1, USUAL_DAYS + 1):
            since_s = hour_s - back * DAY_S
            found = context.stores.statistics.minutes(
                since_s, since_s + HOUR_S, storable_name(client_id), parts=("by",)
            )
            offered = [minute.tally().offered for minute in found]
            days += [sum(offered)] if offered else []
        return sum(days) * MINUTE_S / HOUR_S / len(days) if days else None

    return cache.read_cached(("usual", client_id), read, ttl_s=USUAL_TTL_S)


def read_case(cache: ReadCache, client_id: str, *, is_alone: bool = True, **more: object) -> Case:
    now_s, minutes, is_beyond = read_minutes(cache, client_id)
    _, present = read_present(cache)
    _, status = read_status(cache)
    matched = [status.policies.matching(client_id)]
    matched += [status.policies.matching(client_id, grant_type=grant) for grant in status.policies.grants]
    stored = storable_name(client_id)
    is_active = any(minute.minute_s >= now_s - 2 * MINUTE_S for minute in minutes)
    is_real = any(run.is_real for run in last_runs(minutes))
    others = [each for each in present.over if each.client_id != stored and (each.all.denied or not is_real)]
    return Case(
        now_s=now_s,
        minutes=minutes,
        is_beyond=is_beyond,
        usual=read_usual(cache, client_id),
        others_active=max(0, present.active_count - is_active),
        others_over=len(others),
        changes=[each for each in read_marks(cache) if each.is_change and each.client_id in (None, client_id)],
        totals=frozenset(policy.name for each in matched for policy in each.limits.client_total),
        owns=frozenset(policy.name for each in matched for policy in each.limits.client),
        is_trusted=matched[0].trusted,
        is_alone=is_alone,
        **more,  # type: ignore[arg-type]  # the fields that the caller knows
    )


def instances(cache: ReadCache, params: Params) -> Record:
    now_s, status = read_status(cache)
    settings = cache.app_limiter.settings
    policies = status.policies
    limits = {kind.value: list(map(policy_text, getattr(policies.limits, kind.value))) for kind in LimitKind}
    return {
        "now_s": now_s,
        "status": status,
        "beats": status.data()["instances"],
        "limits": limits,
        "trusted": (*policies.trusted, *policies.trusted_ids),
        "interval_s": settings.sync.interval_s,
        "marks": [mark for mark in reversed(read_marks(cache)) if mark.text][:MAX_MARKS],
    }
