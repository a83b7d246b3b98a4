"""The present: state of the whole, verdict on all clients and on one, instances, and the changes that led there."""

from oauth_ratelimit.admin.cache import Params, ReadCache, kept
from oauth_ratelimit.admin.order import is_guessed, judge_all, severity
from oauth_ratelimit.admin.verdict import Case, Verdict, judge
from oauth_ratelimit.core.denial_record import DenialRecord, Where
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    OTHER_CLIENTS,
    WRITTEN_S,
)
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.denied import PAUSE_S, last_runs, recent_minutes
from oauth_ratelimit.operations.explain import guesses_under
from oauth_ratelimit.operations.format import Record, limits_by_kind, utc_time
from oauth_ratelimit.operations.marks import recorded_marks
from oauth_ratelimit.operations.status import Status
from oauth_ratelimit.store.mongo.denials import of_client
from oauth_ratelimit.store.mongo.rollups import Present

PRESENT_TTL_S = 3.0
USUAL_DAYS = 7
MAX_MARKS = 20
MAX_HISTORY = 200
MAX_RECORDS = 50
MAX_USER_RECORDS = 500


@kept(4.0)
def read_status(context: OperatorContext) -> tuple[float, Status]:
    """Return mode, canary, instances and database, and their time."""
    return context.now_s, Status(context)


def state(cache: ReadCache, params: Params) -> Record:
    """Return the line at the head of every page. It can be shown without MongoDB, too."""
    now_s, status = cache.app_limiter.now_s(), None
    error: StoreError | None = None
    try:
        now_s, status = read_status(cache)
    except StoreError as exc:
        error = exc
    outage = None
    if error := error or cache.failure:
        text, since_s = cache.outage(error)
        outage = {"text": text, "since_s": since_s}
    policies = (status or cache.app_limiter.settings).policies
    return {"now_s": now_s, "policies": policies, "status": status, "outage": outage}


def change_delay_s(cache: ReadCache) -> float:
    """Return the seconds until a change has effect on all instances."""
    return 2 * cache.app_limiter.settings.sync.interval_s


def read_present(cache: ReadCache) -> tuple[float, Present]:
    """Return the requests of the last full minute and who is over a limit, and their time."""
    delay_s, marks = change_delay_s(cache), read_marks(cache)

    def read(context: OperatorContext) -> tuple[float, Present]:
        since_s, end_s = context.now_s - MINUTE_S, context.now_s - WRITTEN_S  # of a later change nothing is known yet
        lately = [each for each in marks if each.is_change and since_s < each.at_s + delay_s <= end_s]
        changes = [(each.client_id and storable_name(each.client_id), each.at_s + delay_s) for each in lately]
        return context.now_s, context.stores.rollups.present(context.now_s, changes)

    return cache.read_cached("present", read, ttl_s=PRESENT_TTL_S)


def verdict(cache: ReadCache, params: Params) -> Record:
    """Return what is denied now, or was last, the worst client and the verdict on it."""
    now_s, present = read_present(cache)
    ranks = [
        (each.client_id not in present.denied or is_guessed(each), severity(each), each.client_id)
        for each in present.over
    ]
    worst = min(ranks)[-1] if ranks else _last_denied(cache)
    on_worst = judge(read_case(cache, worst)) if worst else None
    is_past = on_worst is not None and on_worst.kind == "recovered"
    if not ranks and not is_past:
        worst = on_worst = None  # a denial that the numbers of the last minute do not have yet
    if worst is None and present.total.reused:
        worst = _most_reused(cache, present.since_s)
    runs = last_runs(read_minutes(cache, worst)[1]) if is_past else []
    together = _denied_in(cache, runs[0].first_s - PAUSE_S, runs[0].last_s + 1) if runs else ""
    found = last_read(cache, judge_all(present, on_worst, together=together), now_s)
    return {"now_s": now_s, "present": present, "verdict": found, "worst": worst, "is_cut_off": bool(cache.failure)}


def last_read(cache: ReadCache, found: Verdict, now_s: float) -> Verdict:
    """Return a verdict with the time of what it rests on if MongoDB does not answer now."""
    return found._replace(lead=f"Last read at {utc_time(now_s)}: {found.lead}") if cache.failure else found


@kept(PRESENT_TTL_S)
def _most_reused(context: OperatorContext, since_s: int) -> str:
    found = context.stores.rollups.rows(since_s, context.now_s).clients
    return max(((each.all.reused, each.client_id) for each in found), default=(0, OTHER_CLIENTS))[1]


@kept(PRESENT_TTL_S)
def _denied_in(context: OperatorContext, since_s: int, until_s: int) -> str:
    """Return how many clients were denied in a period, from when to when; empty if it was one."""
    found = context.stores.rollups.rows(since_s, until_s).clients
    clients = [each for each in found if each.client_id != OTHER_CLIENTS and each.own.offered]
    spans = [(each.denied_from_s, each.denied_until_s) for each in clients if each.own.denied]
    if len(spans) < 2:
        return ""
    first, last = (list(filter(None, times)) for times in zip(*spans, strict=True))
    count = f"{'All ' if len(spans) == len(clients) else f'{len(spans):,} of '}{len(clients):,} clients"
    until = utc_time(max(last, default=until_s - 1))
    return f"{count} were denied from {utc_time(min(first, default=since_s))} to {until}"


@kept(PRESENT_TTL_S)
def _last_denied(context: OperatorContext) -> str | None:
    """Return the client that was denied last, other than by the guard, within an hour."""
    found = context.stores.denials.between(context.now_s - HOUR_S, context.now_s, at_most=MAX_RECORDS)
    own = (each for each in found if each.denial.where is not Where.GUARD and each.denial.mode == Mode.ENFORCE)
    last = max(own, key=lambda each: each.last_at_s, default=None)
    return last and last.denial.client_id


@kept(300.0)
def read_usual(context: OperatorContext, client_id: str) -> float | None:
    """Return the requests per minute of a client at this hour of the last days; None if no such day is recorded."""
    hour_s, stored, days = context.now_s // HOUR_S * HOUR_S, storable_name(client_id), []
    for back in range(1, USUAL_DAYS + 1):
        since_s = hour_s - back * DAY_S
        found = context.stores.statistics.minutes(since_s, since_s + HOUR_S, stored, parts=("by",))
        offered = [minute.tally().offered for minute in found]
        days += [sum(offered)] if offered else []
    return sum(days) * MINUTE_S / HOUR_S / len(days) if days else None


@kept(PRESENT_TTL_S)
def _read_records(context: OperatorContext, client_id: str) -> list[DenialRecord]:
    span, is_client = (context.now_s - HOUR_S, context.now_s), of_client(client_id)
    found = context.stores.denials.between(*span, is_client, where=Where.TOKEN, at_most=MAX_USER_RECORDS)
    return [each for each in found if each.denial.username and each.denial.mode == Mode.ENFORCE]


read_guesses = kept(PRESENT_TTL_S)(guesses_under)
read_minutes = kept(PRESENT_TTL_S)(recent_minutes)
read_marks = kept(5.0)(recorded_marks)


def read_case(cache: ReadCache, client_id: str) -> Case:
    now_s, minutes, is_beyond = read_minutes(cache, client_id)
    _, present = read_present(cache)
    policies, stored, marks = read_status(cache)[1].policies, storable_name(client_id), read_marks(cache)
    grants = (None, *policies.grants_of(client_id))
    matched = [policies.matching(client_id, grant_type=grant) for grant in grants]
    limits = [(kind, each.limits) for each in matched for kind in LimitKind]
    is_active = client_id != ANYONE and any(minute.minute_s >= now_s - 2 * MINUTE_S for minute in minutes)
    is_locked_out = any(each.client_id == ANYONE for each in present.over)
    others = [each for each in present.over if each.client_id != stored and not is_guessed(each)]
    if stored in present.denied:
        others = [each for each in others if each.client_id in present.denied]
    return Case(
        now_s=now_s,
        client_id=client_id,
        minutes=minutes,
        is_beyond=is_beyond,
        usual=read_usual(cache, client_id),
        others_active=max(0, present.active_count - is_active),
        others_over=len(others),
        changes=[each for each in marks if each.is_change and each.client_id in (None, client_id)],
        outages=[each for each in marks if each.apart > 1],
        delay_s=change_delay_s(cache),
        kinds={policy.name: kind for kind, each in limits for policy in getattr(each, kind)},
        records=_read_records(cache, client_id) if last_runs(minutes) else (),
        guesses=read_guesses(cache, client_id),
        addresses=read_guesses(cache, ANYONE) if client_id != ANYONE and is_locked_out else (),
        is_trusted=matched[0].trusted,
    )


@kept(0.0)
def overrides(context: OperatorContext) -> Record:
    """Return the active overrides and the history, newest first."""
    history = context.stores.overrides.history()
    shown = history[-MAX_HISTORY:][::-1]
    return {"now_s": context.now_s, "active": context.overrides, "history": shown, "history_count": len(history)}


def instances(cache: ReadCache, params: Params) -> Record:
    now_s, status = read_status(cache)
    return {
        "now_s": now_s,
        "status": status,
        "beats": status.data()["instances"],
        "limits": limits_by_kind(status.policies),
        "trusted": (*status.policies.trusted, *status.policies.trusted_ids),
        "interval_s": cache.app_limiter.settings.sync.interval_s,
        "marks": [mark for mark in reversed(read_marks(cache)) if mark.text][:MAX_MARKS],
    }
