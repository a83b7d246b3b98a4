"""Since when a client is denied, and what was changed before: for commands and the admin page."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from oauth_ratelimit.core.denial_record import DenialRecord, Where
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    NO_REQUESTS,
    WRITTEN_S,
    ClientMinute,
    ClientSum,
    UserLoad,
    full_minute,
)
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.denial_run import ACTIVE_S, PAUSE_S, Run, last_runs, minute_of, state_of
from oauth_ratelimit.operations.explain import GUARD_SWITCH, guess_texts
from oauth_ratelimit.operations.format import MAX_NAMED, about, counted, listed, quoted, short, utc_time
from oauth_ratelimit.operations.marks import Mark, changes_of, changes_text, said_once

PARTS = ("by", "peaks", "denials")
DENY_NOBODY = "To deny nobody: mode set dry-run --reason TEXT. To spare one client: the same with its CLIENT."
THE_FIRST, OTHER_USERS = "the first", "other users"
SWITCHES = (DENY_NOBODY, GUARD_SWITCH)  # at the end of texts


def denial_minutes(context: OperatorContext, client_id: str) -> tuple[float, list[ClientMinute], bool]:
    """Return the last hour of a client, or its day if it was denied all the hour; True if denials began before that."""
    since_s = context.now_s - HOUR_S
    minutes = list(context.minutes(since_s, client_id, parts=(*PARTS, "users", "registers")))
    if _is_beyond(minutes, since_s):
        day_s, stored = context.now_s - DAY_S, storable_name(client_id)
        minutes[:0] = context.stores.statistics.minutes(day_s, minutes[0].minute_s, stored, parts=PARTS)
        since_s = day_s
    return context.now_s, minutes, _is_beyond(minutes, since_s)


def _is_beyond(minutes: Sequence[ClientMinute], since_s: float) -> bool:
    return any(run.first_s < since_s + 2 * MINUTE_S for run in last_runs(minutes))


def since_texts(
    context: OperatorContext,
    client_id: str,
    records: Sequence[DenialRecord] = (),
    *,
    username: str | None = None,
    is_over: bool = True,
) -> list[str]:
    """Return since when a client is denied, or until when it was, the last change before, and how to deny nobody.

    The records name its users. The list is empty if it was not denied. Of a user without records, as in a dry run, it
    begins with what minutes have; until one is over, which has users, only the counters say if it ``is_over`` a limit.
    """
    _, minutes, is_beyond = denial_minutes(context, client_id)
    is_active = any(context.now_s - run.last_s <= ACTIVE_S for run in last_runs(minutes))
    text = user_text(minutes, username, now_s=context.now_s, is_active=is_active)[1] if username is not None else ""
    if not text and not is_over:
        return []
    return [*filter(None, [text]), *_since_texts(context, minutes, {client_id}, is_beyond=is_beyond, records=records)]


def since_texts_of(context: OperatorContext, records: Sequence[DenialRecord], *, since_s: float) -> list[str]:
    """Return the same of recorded denials, which were read from a time on, after who was denied by which limits.

    While some are denied, it is about these, not about those that were denied before.
    """
    groups = defaultdict[frozenset[object], list[DenialRecord]](list)  # by the limits that deny
    begun = defaultdict[frozenset[object], list[int]](list)
    for own in _by_subject(records, context.now_s):
        run = last_runs(list(map(minute_of, own)))[0]
        denials = run.present.denials.items()
        limits: frozenset[object] = frozenset((key, each.limit, each.window_s) for key, each in denials)
        groups[limits] += own
        begun[limits].append(run.first_s)
    found = []
    for limits, group in groups.items():
        starts, clients = begun[limits], {each.denial.client_id for each in group}
        times = {"whose": THE_FIRST} if max(starts) - min(starts) > ACTIVE_S else {}
        is_beyond, is_one, minutes = min(starts) < since_s + MINUTE_S, len(groups) == 1, list(map(minute_of, group))
        found.append(
            _since_texts(context, minutes, clients, is_beyond=is_beyond, is_one=is_one, records=group, **times)
        )
    texts = [*(each[0] for each in found), *chain.from_iterable(each[1:] for each in found)]
    return sorted(said_once(texts), key=SWITCHES.__contains__)


def _by_subject(records: Iterable[DenialRecord], now_s: float) -> list[list[DenialRecord]]:
    """Return records by who was denied, most first; only of those that are denied now if there are any.

    That is a user, or all users of a client if many are; a client; or guesses under its id.
    """
    single, found = (defaultdict[tuple[object, ...], list[DenialRecord]](list) for _ in range(2))
    for each in records:
        is_guess = each.denial.where is Where.GUARD
        single[each.denial.client_id, is_guess, None if is_guess else each.denial.username].append(each)
    now = {key for key, own in single.items() if max(each.last_at_s for each in own) >= now_s - ACTIVE_S} or single
    counts = Counter(client_id for client_id, _, username in now if username is not None)
    for (client_id, *of_client), own in single.items():
        is_many = counts[client_id] > MAX_NAMED and of_client[1] is not None
        if is_many or (client_id, *of_client) in now:
            found[client_id, *(of_client[:1] if is_many else of_client)] += own
    return sorted(found.values(), key=lambda own: -sum(each.request_count for each in own))


def user_text(minutes: Sequence[ClientMinute], username: str, *, now_s: float, is_active: bool) -> tuple[bool, str]:
    """Return how many requests of a user were over a limit in the minutes that have it, and True if some are now.

    Users have no times of their own: some are if the last minute has them, and their client ``is_active``. The text is
    empty if no minute has such a request.
    """
    loads = [(each.minute_s, user) for each in minutes for user in each.users if user.username == username]
    over = [at_s for at_s, user in loads if user.over]
    if not over:
        return False, ""
    earlier = [-math.inf, *over]
    first_s = max(at_s for at_s, before_s in zip(over, earlier, strict=False) if at_s - before_s > PAUSE_S)
    found = [user for at_s, user in loads if first_s <= at_s <= over[-1]]
    is_now = is_active and over[-1] >= full_minute(now_s)
    dry = f"would {'be' if is_now else 'have been'} denied (dry run)"
    verb = f"{'is' if is_now else 'was'} denied" if found[-1].denied else dry
    share = f"{sum(each.over for each in found):,} of {counted(sum(each.offered for each in found), 'request')}"
    span = f"from {utc_time(first_s)} to {utc_time(over[-1] + MINUTE_S)}"
    return is_now, f"{short(username)} {verb}: {share} {span} were over a limit."


def _since_texts(
    context: OperatorContext,
    minutes: Sequence[ClientMinute],
    clients: Collection[str],
    *,
    is_beyond: bool,
    whose: str = "",
    is_one: bool = True,  # False if others are denied: what has changed is said once, with its time
    records: Sequence[DenialRecord] = (),
) -> list[str]:
    changes, delay_s = changes_of(context, *clients), 2 * context.settings.sync.interval_s
    state = state_of(last_runs(minutes, changes, delay_s=delay_s), changes, now_s=context.now_s, delay_s=delay_s)
    if state is None:
        return list(filter(None, [reuse_text(minutes, context.now_s)[1]]))
    run, is_active = state.run, state.is_active
    first_s = max(run.first_s, run.last_s - ACTIVE_S) if is_active else run.first_s
    who = _who([each for each in records if run.is_real and each.last_at_s >= first_s])
    whose = whose or whose_start(records, run, first_s)
    text = run.text(is_now=is_active, is_beyond=is_beyond, whose=whose)
    if not who and len(clients) == 1:  # a dry run has no records, and instances have not sent their records yet
        who = who_in(next(iter(clients)), minutes, run)
    if is_active and context.now_s - run.last_s > WRITTEN_S:
        text += f" The last {'denial' if run.is_real else 'such request'} at {utc_time(run.last_s)}."
    texts = [about(who, text)]
    known = [each for each in changes if is_active or each.at_s <= run.last_s + ACTIVE_S]  # later ones did not end it
    if state.change:
        texts.append(about("" if is_one else who, state.change_text()))
    elif known or not changes:
        texts.append(changes_text(known, run.first_s, run.policies, is_real=run.is_real, is_one=is_one))
    texts.append(effect_text(minutes, run, known, now_s=context.now_s, delay_s=delay_s))
    if run.is_real and is_active:
        texts.append(GUARD_SWITCH if run.is_guard else DENY_NOBODY)
    return list(filter(None, texts))


def whose_start(records: Sequence[DenialRecord], run: Run, since_s: float) -> str:
    """Return whose the start of a run is, if few users have been denied since a time, and these later than others."""
    of_users = [each for each in records if each.denial.username and each.denial.where is not Where.GUARD]
    now = {each.denial.username for each in of_users if each.last_at_s >= since_s}
    first_s = min((each.denial.at_s for each in of_users if each.denial.username in now), default=0.0)
    return OTHER_USERS if run.is_real and len(now) <= MAX_NAMED and first_s - run.first_s > ACTIVE_S else ""


def reuse_text(minutes: Sequence[ClientMinute], now_s: float) -> tuple[bool, str]:
    """Return how many requests got a token again, from when on to the minute, and True if some still do."""
    found: list[ClientMinute] = []
    for each in reversed(minutes):
        if each.tally().reused and (not found or found[0].minute_s - each.minute_s <= PAUSE_S):
            found.insert(0, each)
    if not found:
        return False, ""
    first_s, end_s = found[0].minute_s, found[-1].minute_s + MINUTE_S
    total = sum((each.tally() for each in minutes if first_s <= each.minute_s < end_s), NO_REQUESTS)
    is_now = now_s - end_s <= ACTIVE_S
    span = f"since {utc_time(first_s)}" if is_now else f"from {utc_time(first_s)} to {utc_time(end_s)}"
    requests = f"{total.reused:,} of {counted(total.offered, 'request')}"
    return is_now, f"Over a limit, and not denied: {span} {requests} got the token that the client had."


def users_over(
    client_id: str, minutes: Iterable[ClientMinute], records: Iterable[DenialRecord], outcome: str = "over"
) -> list[UserLoad]:
    """Return the users of a client over a limit, the worst first: of minutes that are over, else of records."""
    users = ClientSum.of(client_id, minutes).users
    found = {name: user for name, user in users.items() if getattr(user, outcome)}
    recorded = Counter[str]()
    for each in records:
        recorded[each.denial.username or ""] += each.request_count
    found |= {name: UserLoad(name, count, count) for name, count in recorded.items() if count and name not in found}
    return sorted(found.values(), key=lambda user: (-user.over, user.username))


def _who(records: Sequence[DenialRecord]) -> str:
    """Return who was denied, most first: clients, users with their client, and guesses."""
    found, users = Counter[str](), defaultdict[str, Counter[str]](Counter)
    guessers = defaultdict[str, Counter[str | None]](Counter)  # by client
    for each in records:
        denial, name = each.denial, quoted(each.denial.client_id)
        if denial.where is Where.GUARD:
            guessers[name][denial.username] += each.request_count
        elif denial.username is not None:
            users[name][denial.username] += each.request_count
        else:
            found[name] += each.request_count
    for name, guesses in guessers.items():
        whom = listed(guess_texts(guesses))
        found[f"everybody at {whom}" if name == quoted(ANYONE) else f"guesses under {name} ({whom})"] += guesses.total()
    for name, own in users.items():
        found[_users_text([user for user, _ in own.most_common()], name)] += own.total()
    return listed(name for name, _ in found.most_common())


def who_in(client_id: str, minutes: Sequence[ClientMinute], run: Run) -> str:
    """Return the same by statistics, which know users only when their minute is over."""
    outcome, name = "denied" if run.is_real else "would_deny", quoted(client_id)
    if run.is_guard:
        return f"guesses under {name}"
    recent = [each for each in minutes if each.minute_s >= run.recent_s]
    kinds = {source.kind for each in recent for source, tally in each.tallies.items() if getattr(tally, outcome)}
    users = [user.username for user in users_over(client_id, recent, (), outcome)]
    return name if kinds != {"user"} else _users_text(users, name) if users else f"users of {name}"


def _users_text(users: Sequence[str], client: str) -> str:
    names = " and ".join(map(quoted, users)) if len(users) <= MAX_NAMED else counted(len(users), "user")
    return f"{names} of {client}"


def effect_text(
    minutes: Sequence[ClientMinute], run: Run, changes: Sequence[Mark], *, now_s: float, delay_s: float
) -> str:
    """Return how many requests were over a limit in full minutes before and after the last change; empty without it."""
    at_s = max((each.at_s for each in changes if each.text), default=0.0)
    full = [each for each in minutes if run.first_s - MINUTE_S < each.minute_s <= full_minute(now_s)]
    before = sum((each.tally() for each in full if each.minute_s + MINUTE_S <= at_s), NO_REQUESTS)
    after = sum((each.tally() for each in full if each.minute_s >= at_s + delay_s), NO_REQUESTS)
    if not before.over or not after.offered:
        return ""
    requests = f"{before.over:,} of {counted(before.offered, 'request')}"
    return f"In full minutes {requests} were over a limit before it, {after.over:,} of {after.offered:,} since then."
