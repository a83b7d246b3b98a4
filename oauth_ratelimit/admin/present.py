"""The present: state of the whole, verdict on all clients and on one, instances, and the changes that led there."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from oauth_ratelimit.admin.cache import Params, ReadCache
from oauth_ratelimit.admin.order import judge_all, severity
from oauth_ratelimit.admin.text import change_text
from oauth_ratelimit.admin.verdict import Case, Mark, judge, last_runs, when_text
from oauth_ratelimit.core.denial_record import Where
from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.statistics import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    OTHER_CLIENTS,
    WRITTEN_S,
    ClientMinute,
    ClientTotal,
)
from oauth_ratelimit.errors import StoreError, StoreUnreachable
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.explain import guesses_under
from oauth_ratelimit.operations.format import counted, instance_text
from oauth_ratelimit.operations.serialize import Record
from oauth_ratelimit.operations.status import Status
from oauth_ratelimit.operations.summary import limits_by_kind
from oauth_ratelimit.store.mongo.heartbeats import ConfigurationChange, InstanceEvent
from oauth_ratelimit.store.mongo.rollups import Present

NOW_TTL_S = 3.0
MINUTES_TTL_S = 3.0
STATUS_TTL_S = 4.0
USUAL_TTL_S = 300.0
USUAL_DAYS = 7
PARTS = ("by", "peaks", "denials")
OF_USERS = ("users", "registers")
MARKS_TTL_S = 5.0
MAX_MARKS = 20
MAX_HISTORY = 200
TOGETHER_S = 60  # instances that start so soon one after the other are one mark
CLIENTS = "clients."  # what the path of a client's own value begins with
MAX_RECORDS = 50


def read_status(cache: ReadCache) -> tuple[float, Status]:
    """Return mode, canary, instances and database, and their time."""
    return cache.read_cached("status", lambda context: (context.now_s, Status(context)), ttl_s=STATUS_TTL_S)


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
        word = "unreachable" if isinstance(error, StoreUnreachable) else "does not answer"
        outage = {"text": text, "word": word, "since_s": since_s}
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

    return cache.read_cached("present", read, ttl_s=NOW_TTL_S)


def verdict(cache: ReadCache, params: Params) -> Record:
    """Return what is denied now, or was last, the worst client and the verdict on it."""
    now_s, present = read_present(cache)
    guessed = [each for each in present.over if is_guessed(each)]
    denied_guessed = sum(each.client_id in present.denied for each in guessed)
    ranks = [
        (each.client_id not in present.denied or each in guessed, severity(each), each.client_id)
        for each in present.over
    ]
    worst = min(ranks)[-1] if ranks else cache.read_cached("last-denied", _last_denied, ttl_s=NOW_TTL_S)
    on_worst = judge(read_case(cache, worst)) if worst else None
    if not ranks and on_worst and on_worst.kind != "recovered":
        worst = on_worst = None  # a denial that the numbers of the last minute do not have yet
    found = judge_all(
        present.active_count,
        present.denied_count - denied_guessed,
        present.over_count - len(guessed),
        on_worst,
        guessed_count=len(guessed),
        total=present.total - present.guard,
        when=when_text(present.since_s, is_full=present.is_full),
        together=_denied_together(cache, worst) if worst and on_worst and on_worst.kind == "recovered" else "",
    )
    return {"now_s": now_s, "present": present, "verdict": found, "worst": worst}


def is_guessed(total: ClientTotal) -> bool:
    """Return True if only the guard has denied anything under the id of a client."""
    return total.guard.over > 0 and not total.own.over


def _denied_together(cache: ReadCache, client_id: str) -> str:
    """Return how many clients were denied while this one was; empty if it was the only one."""
    _, minutes, _ = read_minutes(cache, client_id)
    runs = last_runs(minutes)

    def read(context: OperatorContext) -> str:
        if not runs:
            return ""
        clients = [
            each
            for each in context.stores.rollups.rows(runs[0].first_s, runs[0].last_s + 1).clients
            if each.client_id != OTHER_CLIENTS and each.all.offered
        ]
        count = sum(each.own.denied > 0 for each in clients)
        of_all = f"{'all ' if count == len(clients) else f'{count:,} of '}{len(clients):,} clients"
        return of_all if count > 1 else ""

    return cache.read_cached(("together", client_id), read, ttl_s=NOW_TTL_S)


def _last_denied(context: OperatorContext) -> str | None:
    """Return the client that was denied last, other than by the guard, within an hour."""
    found = context.stores.denials.between(context.now_s - HOUR_S, context.now_s, at_most=MAX_RECORDS)
    denials = (each.denial for each in found if each.denial.where is not Where.GUARD)
    return next((each.client_id for each in denials if each.mode == Mode.ENFORCE), None)


def read_minutes(cache: ReadCache, client_id: str) -> tuple[float, list[ClientMinute], bool]:
    """Return the last hour of a client, or its day if it was denied all the hour; True if denials began before that."""

    def read(context: OperatorContext) -> tuple[float, list[ClientMinute], bool]:
        since_s = context.now_s - HOUR_S
        minutes = list(context.minutes(since_s, client_id, parts=(*PARTS, *OF_USERS)))
        if _is_beyond(minutes, since_s):
            day_s, stored = context.now_s - DAY_S, storable_name(client_id)
            minutes[:0] = context.stores.statistics.minutes(day_s, minutes[0].minute_s, stored, parts=PARTS)
            since_s = day_s
        return context.now_s, minutes, _is_beyond(minutes, since_s)

    return cache.read_cached(("minutes", client_id), read, ttl_s=MINUTES_TTL_S)


def _is_beyond(minutes: Sequence[ClientMinute], since_s: float) -> bool:
    return any(run.first_s < since_s + 2 * MINUTE_S for run in last_runs(minutes))


def read_usual(cache: ReadCache, client_id: str) -> float | None:
    """Return the requests per minute of a client at this hour of the last days; None if no such day is recorded."""

    def read(context: OperatorContext) -> float | None:
        hour_s, stored = context.now_s // HOUR_S * HOUR_S, storable_name(client_id)
        days = []
        for back in range(1, USUAL_DAYS + 1):
            since_s = hour_s - back * DAY_S
            found = context.stores.statistics.minutes(since_s, since_s + HOUR_S, stored, parts=("by",))
            offered = [minute.tally().offered for minute in found]
            days += [sum(offered)] if offered else []
        return sum(days) * MINUTE_S / HOUR_S / len(days) if days else None

    return cache.read_cached(("usual", client_id), read, ttl_s=USUAL_TTL_S)


def read_case(cache: ReadCache, client_id: str, **more: object) -> Case:
    now_s, minutes, is_beyond = read_minutes(cache, client_id)
    _, present = read_present(cache)
    _, status = read_status(cache)
    matched = [status.policies.matching(client_id)]
    matched += [status.policies.matching(client_id, grant_type=grant) for grant in status.policies.grants_of(client_id)]
    stored = storable_name(client_id)
    is_active = any(minute.minute_s >= now_s - 2 * MINUTE_S for minute in minutes)
    marks = read_marks(cache)
    changes = [each for each in marks if each.is_change and each.client_id in (None, client_id)]
    others = [
        each
        for each in present.over
        if not is_guessed(each) and (each.client_id in present.denied or stored not in present.denied)
    ]
    return Case(
        now_s=now_s,
        client_id=client_id,
        minutes=minutes,
        is_beyond=is_beyond,
        usual=read_usual(cache, client_id),
        others_active=max(0, present.active_count - is_active),
        others_over=sum(each.client_id != stored for each in others),
        changes=[each._replace(at_s=int(each.at_s)) for each in changes],
        outages=[each._replace(at_s=int(each.at_s)) for each in marks if each.apart > 1],
        delay_s=change_delay_s(cache),
        totals=frozenset(policy.name for each in matched for policy in each.limits.client_total),
        owns=frozenset(policy.name for each in matched for policy in each.limits.client),
        of_users=frozenset(policy.name for each in matched for policy in (*each.limits.user, *each.limits.user_total)),
        guesses=cache.read_cached(
            ("guesses", client_id), lambda context: guesses_under(context, client_id), ttl_s=NOW_TTL_S
        ),
        is_trusted=matched[0].trusted,
        **more,  # type: ignore[arg-type]  # the fields that the caller knows
    )


def read_marks(cache: ReadCache) -> list[Mark]:
    """Return all recorded changes, the oldest first."""
    return cache.read_cached(
        "marks", lambda context: sorted(_marks(context), key=lambda mark: mark.at_s), ttl_s=MARKS_TTL_S
    )


def _marks(context: OperatorContext) -> Iterator[Mark]:
    yield from _of_operators(context)
    for index, change in enumerate(context.stores.heartbeats.configurations()):
        is_first = not index and not change.changes
        yield Mark(change.at_s, "") if is_first else _of_configuration(change)
    events = context.stores.heartbeats.events()
    is_cut_off = any(each.kind == "reconnected" for each in events)
    beats = context.stores.heartbeats.read(context.now_s) if is_cut_off else []
    yield from _of_instances(events, {each.instance: each.host for each in beats})


def _of_operators(context: OperatorContext) -> Iterator[Mark]:
    entries = context.stores.overrides.history()
    for index, entry in enumerate(entries):
        target, text = entry.target, change_text(entry)
        yield Mark(entry.at_s, f"{text} ({visible_name(entry.author)})", target.client_id)
        end_s = None if entry.override is None else entry.override.until_s
        if end_s is not None and end_s <= context.now_s:
            is_replaced = any(later.target == target and later.at_s <= end_s for later in entries[index + 1 :])
            if not is_replaced:
                yield Mark(end_s, f"override ended: {text}", target.client_id)


def _of_configuration(change: ConfigurationChange) -> Mark:
    lines = [visible_name(line).replace(" -> ", " → ") for line in change.changes]
    more = f" and {counted(len(lines) - 1, 'other change')}" if len(lines) > 1 else ""
    text = f"configuration: {lines[0]}{more}" if lines else "another configuration"
    names = {line.removeprefix(CLIENTS).partition(".limits")[0].partition(".mode")[0] for line in change.changes}
    is_of_one = len(names) == 1 and all(line.startswith(CLIENTS) for line in change.changes)
    return Mark(change.at_s, f"{text} ({instance_text(change.instance)})", names.pop() if is_of_one else None)


def _of_instances(events: Sequence[InstanceEvent], hosts: Mapping[str, str | None]) -> Iterator[Mark]:
    """Yield what happened to instances, to several at once together. The first one of another version is a change."""
    versions: set[str] = set()
    for (kind, version, _), group in groupby(
        sorted(events, key=lambda each: (each.at_s // TOGETHER_S, each.kind)),
        key=lambda each: (each.kind, each.version, each.at_s // TOGETHER_S),
    ):
        found = list(group)
        is_new = kind == "started" and bool(versions) and version not in versions
        versions.add(version)
        who = instance_text(found[0].instance) if len(found) == 1 else counted(len(found), "instance")
        apart = 0
        label = f", version {visible_name(version)}" if kind == "started" else ""
        if kind == "reconnected":
            apart = len({hosts.get(each.instance) or each.instance for each in found})
            label = f" to MongoDB: until then they counted apart, so up to {apart:,} times a limit was admitted"
            label = label if apart > 1 else " to MongoDB"
        yield Mark(found[0].at_s, f"{who} {kind}{label}", is_change=is_new, apart=apart)


def overrides(cache: ReadCache, params: Params) -> Record:
    """Return the active overrides and the history, newest first."""

    def query(context: OperatorContext) -> Record:
        history = context.stores.overrides.history()
        shown = history[-MAX_HISTORY:][::-1]
        return {"now_s": context.now_s, "active": context.overrides, "history": shown, "history_count": len(history)}

    return cache.read_cached("overrides", query, ttl_s=0)


def instances(cache: ReadCache, params: Params) -> Record:
    now_s, status = read_status(cache)
    policies = status.policies
    return {
        "now_s": now_s,
        "status": status,
        "beats": status.data()["instances"],
        "limits": limits_by_kind(policies),
        "trusted": (*policies.trusted, *policies.trusted_ids),
        "interval_s": cache.app_limiter.settings.sync.interval_s,
        "marks": [mark for mark in reversed(read_marks(cache)) if mark.text][:MAX_MARKS],
    }
