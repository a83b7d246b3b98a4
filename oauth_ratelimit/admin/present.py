"""The present: state of the whole, verdict on all clients and on one, instances, and the changes that led there."""

from oauth_ratelimit.admin.cache import Params, Reading, kept
from oauth_ratelimit.admin.verdict import KEEP, MOST, NOTHING, Case, Kind, Verdict, judge, when_text
from oauth_ratelimit.core.denial_record import DenialRecord, Where
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, MINUTE_S, OTHER_CLIENTS, WRITTEN_S, ClientTotal
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.denial_run import PAUSE_S, last_runs
from oauth_ratelimit.operations.denied import denial_minutes
from oauth_ratelimit.operations.explain import guesses_under
from oauth_ratelimit.operations.format import Record, counted, limits_by_kind, utc_time
from oauth_ratelimit.operations.marks import recorded_marks
from oauth_ratelimit.operations.status import Status
from oauth_ratelimit.store.mongo.denials import of_client
from oauth_ratelimit.store.mongo.rollups import Present

USUAL_DAYS = 7
MAX_MARKS = 20
MAX_HISTORY = 200
MAX_RECORDS = 50
MAX_USER_RECORDS = 500
MIN_ENTIRE = 10  # denials; below it a client that gets nothing may have asked only once
SOME = 0.05  # of the requests
RULE = (
    "Worst first: clients that get nothing, then those of whose requests most, some or few are denied, each by number; "
    "after them what a dry run would deny, then attempts that the guard denied, which anybody can make."
)


@kept
def read_status(context: OperatorContext) -> tuple[float, Status]:
    """Return mode, canary, instances and database, and their time."""
    return context.now_s, Status(context)


def state(reading: Reading, params: Params) -> Record:
    """Return the line at the head of every page. It can be shown without MongoDB, too."""
    now_s, status, error = reading.now_s, None, None
    try:
        now_s, status = read_status(reading)
    except StoreError as exc:
        error = exc
    error = error or reading.cache.failure
    outage = error and reading.cache.outage(error)
    live = reading.app_limiter.settings  # newer without MongoDB than what was read before
    policies = (live if outage or status is None else status).policies
    return {"now_s": now_s, "policies": policies, "status": status, "outage": outage}


def change_delay_s(reading: Reading) -> float:
    """Return the seconds until a change has effect on all instances."""
    return 2 * reading.app_limiter.settings.sync.interval_s


def read_present(reading: Reading) -> tuple[float, Present]:
    """Return the requests of the last full minute and who is over a limit, and their time."""
    delay_s, marks = change_delay_s(reading), read_marks(reading)

    def read(context: OperatorContext) -> tuple[float, Present]:
        since_s, end_s = context.now_s - MINUTE_S, context.now_s - WRITTEN_S  # of a later change nothing is known yet
        lately = [each for each in marks if each.is_change and since_s < each.at_s + delay_s <= end_s]
        changes = [(each.client_id and storable_name(each.client_id), each.at_s + delay_s) for each in lately]
        return context.now_s, context.stores.rollups.present(context.now_s, changes)

    return reading.read("present", read)


def verdict(reading: Reading, params: Params) -> Record:
    """Return what is denied now, or was last, the worst client and the verdict on it."""
    now_s, present = read_present(reading)
    ranks = [
        (each.client_id not in present.denied or is_guessed(each), severity(each), each.client_id)
        for each in present.over
    ]
    worst = min(ranks)[-1] if ranks else _last_denied(reading)
    on_worst = judge(read_case(reading, worst)) if worst else None
    is_past = on_worst is not None and on_worst.kind == "recovered"
    if not ranks and not is_past:
        worst = on_worst = None  # a denial that the numbers of the last minute do not have yet
    if worst is None and present.total.reused:
        worst = _most_reused(reading, present.since_s)
    runs = last_runs(read_minutes(reading, worst)[1]) if is_past else []
    together = _denied_in(reading, runs[0].first_s - PAUSE_S, runs[0].last_s + 1) if runs else ""
    found = last_read(reading, judge_all(present, on_worst, together=together), now_s)
    return {
        "now_s": now_s,
        "present": present,
        "verdict": found,
        "worst": worst,
        "is_cut_off": bool(reading.cache.failure),
    }


def last_read(reading: Reading, found: Verdict, now_s: float) -> Verdict:
    """Return a verdict with the time of what it rests on if MongoDB does not answer now."""
    return found._replace(lead=f"Last read at {utc_time(now_s)}: {found.lead}") if reading.cache.failure else found


@kept
def _most_reused(context: OperatorContext, since_s: int) -> str:
    found = context.stores.rollups.rows(since_s, context.now_s).clients
    return max(((each.all.reused, each.client_id) for each in found), default=(0, OTHER_CLIENTS))[1]


@kept
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


@kept
def _last_denied(context: OperatorContext) -> str | None:
    """Return the client that was denied last, other than by the guard, within an hour."""
    found = context.stores.denials.between(context.now_s - HOUR_S, context.now_s, at_most=MAX_RECORDS)
    own = (each for each in found if each.denial.where is not Where.GUARD and each.denial.mode == Mode.ENFORCE)
    last = max(own, key=lambda each: each.last_at_s, default=None)
    return last and last.denial.client_id


def _usual(context: OperatorContext, client_id: str) -> float | None:
    """Return the requests per minute of a client at this hour of the last days; None if no such day is recorded."""
    hour_s, stored, days = context.now_s // HOUR_S * HOUR_S, storable_name(client_id), []
    for back in range(1, USUAL_DAYS + 1):
        since_s = hour_s - back * DAY_S
        found = context.stores.statistics.minutes(since_s, since_s + HOUR_S, stored, parts=("by",))
        offered = [minute.tally().offered for minute in found]
        days += [sum(offered)] if offered else []
    return sum(days) * MINUTE_S / HOUR_S / len(days) if days else None


@kept
def _read_records(context: OperatorContext, client_id: str) -> list[DenialRecord]:
    span, is_client = (context.now_s - HOUR_S, context.now_s), of_client(client_id)
    found = context.stores.denials.between(*span, is_client, where=Where.TOKEN, at_most=MAX_USER_RECORDS)
    return [each for each in found if each.denial.username and each.denial.mode == Mode.ENFORCE]


read_guesses = kept(guesses_under)
read_minutes = kept(denial_minutes)
read_marks = kept(recorded_marks)
read_usual = kept(_usual, ttl_s=300.0)


def read_case(reading: Reading, client_id: str) -> Case:
    now_s, minutes, is_beyond = read_minutes(reading, client_id)
    _, present = read_present(reading)
    policies, stored, marks = read_status(reading)[1].policies, storable_name(client_id), read_marks(reading)
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
        usual=read_usual(reading, client_id),
        others_active=max(0, present.active_count - is_active),
        others_over=len(others),
        changes=[each for each in marks if each.is_change and each.client_id in (None, client_id)],
        outages=[each for each in marks if each.apart > 1],
        delay_s=change_delay_s(reading),
        kinds={policy.name: kind for kind, each in limits for policy in getattr(each, kind)},
        records=_read_records(reading, client_id) if last_runs(minutes) else (),
        guesses=read_guesses(reading, client_id),
        addresses=read_guesses(reading, ANYONE) if client_id != ANYONE and is_locked_out else (),
        is_trusted=matched[0].trusted,
    )


@kept
def overrides(context: OperatorContext) -> Record:
    """Return the active overrides and the history, newest first."""
    history = context.stores.overrides.history()
    shown = history[-MAX_HISTORY:][::-1]
    return {"now_s": context.now_s, "active": context.overrides, "history": shown, "history_count": len(history)}


def instances(reading: Reading, params: Params) -> Record:
    now_s, status = read_status(reading)
    return {
        "now_s": now_s,
        "status": status,
        "beats": status.data()["instances"],
        "limits": limits_by_kind(status.policies),
        "trusted": (*status.policies.trusted, *status.policies.trusted_ids),
        "interval_s": reading.app_limiter.settings.sync.interval_s,
        "marks": [mark for mark in reversed(read_marks(reading)) if mark.text][:MAX_MARKS],
    }


def judge_all(present: Present, worst: Verdict | None = None, *, together: str = "") -> Verdict:
    """Return the verdict on the clients with requests lately: how many are over a limit, or guessed at.

    The name of the worst one follows the lead, or of the one that was denied last. ``together`` says how many were, and
    when.
    """
    guessed = [each.client_id for each in present.over if is_guessed(each)]
    active_count, total = present.active_count, present.total - present.guard
    denied_count = present.denied_count - sum(name in present.denied for name in guessed)
    would = max(0, present.over_count - len(guessed) - denied_count)
    kind: Kind = "denied" if denied_count else "dry-run" if would else "near" if guessed else "ok"
    kind = kind if active_count or kind != "ok" else "idle"
    clients, when = counted(active_count, "client"), when_text(present.since_s, is_full=present.is_full)
    who = f"All {clients}" if denied_count == active_count > 1 else f"{denied_count:,} of {clients}"
    reused = f"; {counted(total.reused, 'request')} over a limit got their token again" if total.reused else ""
    under = len(guessed) - (ANYONE in guessed)
    whom = [f"guesses under {counted(under, 'client')}"] * bool(under)
    whom += ["everybody at an address that guesses"] * (ANYONE in guessed)
    guard = f"The guard {'would deny' if worst and worst.kind == 'dry-run' else 'denies'} {' and '.join(whom)}"
    lead = {
        "denied": f"{who} {'is' if denied_count == 1 else 'are'} denied now",
        "dry-run": f"Nobody is denied. {would:,} of {clients} would be, in a dry run",
        "near": f"No limit of tokens denies anybody. {guard}",
        "ok": f"Nobody is denied now among {clients} with requests since {utc_time(present.since_s)}{reused}",
        "idle": f"No requests are recorded since {utc_time(present.since_s)}",
    }[kind]
    if worst is None:
        return Verdict("near", f"{lead}, most:", KEEP) if reused else Verdict(kind, f"{lead}.", NOTHING)
    if worst.kind == "changed":
        return worst._replace(lead=f"{worst.lead} Over a limit until now:")
    count, of_worst = denied_count or would or len(guessed), worst.lead
    if worst.kind == "recovered":
        lead += f". {together}, the last one" if together else f". Last denied, until {worst.since}"
    elif worst.since:  # else its minutes were read before it was denied
        lead = f"{lead}, {'the worst ' if count > 1 else ''}since {worst.since}"
        if worst.subject and count == 1:
            nobody = "Nobody is denied. " if kind == "dry-run" else ""
            lead = f"{nobody}Since {worst.since} {worst.subject[0].lower()}{worst.subject[1:-1]}"
            of_worst = of_worst.removeprefix(worst.subject).lstrip()
    details = [
        f"{when} {total.denied:,} of all {total.offered:,} requests were denied." if denied_count > 1 else "",
        f"{counted(would, 'more client')} would be, in a dry run." if denied_count and would else "",
        f"{guard}." if guessed and kind != "near" else "",
        f"The {'last one' if together else 'worst'}: {of_worst}" if count > 1 or together else of_worst,
    ]
    return Verdict(kind, f"{lead}:", worst.action, worst.why, [*details, *worst.details])


def is_guessed(total: ClientTotal) -> bool:
    """Return True if only the guard has denied anything under the id of a client."""
    return total.guard.over > 0 and not total.own.over


def severity(total: ClientTotal) -> tuple[int, int, int]:
    """Return the key by which clients are sorted, the worst first; ``RULE`` says it in words."""
    denied, would_deny, offered = total.own.denied, total.own.would_deny, total.own.offered
    rank, count = (0, denied) if denied else (4, would_deny)
    if not count:
        return (9 if total.guard.denied else 10 if total.guard.over else 11, -total.guard.over, -offered)
    share = count / offered
    is_entire = count == offered and count >= MIN_ENTIRE
    return (rank + (0 if is_entire else 1 if share >= MOST else 2 if share >= SOME else 3), -count, -offered)
