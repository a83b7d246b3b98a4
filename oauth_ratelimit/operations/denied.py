"""Since when a client is denied, and what was changed before: for commands and the admin page."""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.denial_record import DenialRecord, Where
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import (
    DAY_S,
    ENDPOINT,
    GUARD,
    HOUR_S,
    MINUTE_S,
    NO_REQUESTS,
    WRITTEN_S,
    ClientMinute,
    ClientSum,
    Denials,
    UserLoad,
    full_minute,
)
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.explain import GUARD_SWITCH, guess_texts
from oauth_ratelimit.operations.format import MAX_NAMED, about, counted, listed, quoted, short, utc_time
from oauth_ratelimit.operations.marks import CHANGED, Mark, changes_of, changes_text, said_once, was_changed_back

NO_GRANT = "no grant type"
ACTIVE_S = 60  # after the last denial, as long as "now" is
NOTED_SHARE = 0.05  # of the denials; a limit with fewer is not named
PAUSE_S = 600  # between denials that belong together
PARTS = ("by", "peaks", "denials")
DENY_NOBODY = "To deny nobody: mode set dry-run --reason TEXT. To spare one client: the same with its CLIENT."
THE_FIRST, OTHER_USERS = "the first", "other users"
SWITCHES = (DENY_NOBODY, GUARD_SWITCH)  # at the end of texts


class Run(NamedTuple):
    """Denials of a client, each less than ten minutes after the one before, by policy and ``Source.grant``."""

    denials: Mapping[tuple[str, str], Denials]
    first_s: int
    last_s: int
    is_real: bool  # False if a dry run would have denied
    earliest: Mapping[tuple[str, str], Denials]  # of each limit

    @property
    def policies(self) -> set[str]:
        return {policy for policy, _ in self.denials}

    @property
    def recent_s(self) -> int:
        """Start of the minutes in which it is looked who was denied."""
        return max(self.first_s, self.last_s - PAUSE_S) // MINUTE_S * MINUTE_S

    @property
    def present(self) -> "Run":
        """The same without the limits that have not denied anything in its last minute."""
        return self._replace(
            denials={k: each for k, each in self.denials.items() if each.last_s >= self.last_s - ACTIVE_S}
        )

    def begun(self, *, is_beyond: bool) -> str:
        return f"{'before ' if is_beyond else ''}{utc_time(self.first_s)}"

    def text(self, *, is_now: bool, is_beyond: bool, whose: str = "") -> str:
        """Return since when somebody is denied, or from when to when, and by which limits.

        ``whose`` is that time, if it is not that of all who are denied now.
        """
        word = "Denied" if self.is_real else f"Would {'be' if is_now else 'have been'} denied (dry run)"
        begun, found = self.begun(is_beyond=is_beyond), self.present if is_now else self
        ended = f"from {begun} to {utc_time(self.last_s)}"
        span = f"{f'now, {whose} ' if whose else ''}since {begun}" if is_now else ended
        return f"{word} {span} by {_limits_text(found, is_now=is_now)}."

    @property
    def is_guard(self) -> bool:
        """True if only guesses of passwords or secrets are denied."""
        return all(grant.startswith(GUARD) for _, grant in self.denials)


class State(NamedTuple):
    """The latest denials as they are now."""

    run: Run
    change: Mark | None  # that may have ended it: the first one without a later denial, if it was made in it
    known_s: float  # the time from which it is known what the change has done
    is_now: bool  # False if the denials are over
    later: Mark | None = None  # the last change after that one

    @property
    def is_active(self) -> bool:
        return self.is_now and self.change is None

    def _said(self, change: Mark) -> str:
        return f"at {utc_time(change.at_s)}: {change.said(self.run.policies)}."

    def change_text(self, who: str = "") -> str:
        """Return the change as the end of the denials, or as one whose effect is not known yet; empty without one."""
        if self.change is None:
            return ""
        said, again = self._said(self.change), f" Changed again {self._said(self.later)}" if self.later else ""
        if self.is_now:
            return f"{CHANGED}{said} Its effect shows from {utc_time(self.known_s)} on.{again}"
        return f"Not {'denied' if self.run.is_real else 'over a limit'}{who} since the change {said}{again}"


def state_of(runs: Sequence[Run], changes: Sequence[Mark], *, now_s: float, delay_s: float) -> State | None:
    """Return the state of denials, if there are any; a change has effect on all instances after a delay."""
    found = []
    for run in runs:
        within = (each for each in changes if each.text and run.first_s < each.at_s <= run.last_s + ACTIVE_S)
        change = next((each for each in within if run.last_s <= each.at_s + delay_s), None)
        known_s = change.at_s + delay_s + WRITTEN_S if change else math.inf
        later = next((each for each in reversed(changes) if each.text and change and each.at_s > change.at_s), None)
        found.append(State(run, change, known_s, now_s - run.last_s <= ACTIVE_S and now_s < known_s, later))
    return next((each for each in found if each.is_now), found[0] if found else None)


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


def last_runs(minutes: Sequence[ClientMinute], changes: Sequence[Mark] = (), *, delay_s: float = 0.0) -> list[Run]:
    """Return the latest denials that belong together, real ones before those of a dry run, as far as there are any."""
    return [run for is_real in (True, False) if (run := _last_run(minutes, changes, delay_s, is_real=is_real))]


def _last_run(minutes: Sequence[ClientMinute], changes: Sequence[Mark], delay_s: float, *, is_real: bool) -> Run | None:
    found: dict[tuple[str, str], Denials] = {}
    latest: dict[tuple[str, str], Denials] = {}  # as the loop goes back in time: in the end the earliest
    others: dict[tuple[str, str], list[Denials]] = {}  # of the other outcome, since the latest one
    first_s, last_s = sys.maxsize, 0
    entries = [(key[:2], key[2] == "denied", each) for minute in minutes for key, each in minute.denials.items()]
    for limit, is_denied, each in sorted(entries, key=lambda entry: -entry[2].last_s):
        if is_denied != is_real:
            later = latest.get(limit, each)
            if later.first_s < each.first_s and sum(later.first_s < mark.at_s < later.last_s for mark in changes) > 1:
                first_s = each.last_s  # the mode was changed within a minute and back
                break
            others.setdefault(limit, []).append(each)
            continue
        is_over = any(each.last_s <= other.first_s and other.last_s <= first_s for other in others.pop(limit, ()))
        is_paused = first_s - each.last_s > PAUSE_S
        if found and (is_over or is_paused or was_changed_back(changes, each.last_s, first_s, delay_s=delay_s)):
            break  # it ended there, or the mode or limit was another one in between
        known = found.get(limit, each._replace(total=0))  # with the limit that applied last
        first_s, last_s = min(first_s, each.first_s), max(last_s, each.last_s)
        found[limit] = known._replace(total=known.total + each.total, first_s=min(known.first_s, each.first_s))
        latest[limit] = each
    return Run(found, first_s, last_s, is_real, latest) if found else None


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


def minute_of(record: DenialRecord) -> ClientMinute:
    """Return a recorded denial as the minute that it would be counted in."""
    denial, grant = record.denial, record.denial.grant_type or NO_GRANT
    if denial.where is not Where.TOKEN:
        is_guard = denial.where is Where.GUARD
        grant = f"{GUARD}{(denial.scope or '').partition(':')[2]}" if is_guard else f"{ENDPOINT}{denial.scope}"
    key = (denial.policy or "", grant, "denied")
    span = (int(denial.at_s), int(record.last_at_s))
    found = Denials(record.request_count, *span, denial.limit or 0, denial.window_s or 0)
    return ClientMinute(denial.client_id, span[0] // MINUTE_S * MINUTE_S, denials={key: found})


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


def _limits_text(run: Run, *, is_now: bool) -> str:
    """Return the limits with most denials: each with its grant types or endpoint, and its first and last amount."""
    policies: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, each in run.denials.items():
        first, last = (rate_text(one.limit, one.window_s) for one in (run.earliest.get(key, each), each))
        rate = last if first == last else f"{first}, {'now' if is_now else 'then'} {last}"
        shown = f" ({rate})" if each.limit and each.window_s else ""
        policies[key[0].removeprefix("guard/"), shown][key[1]] = each.total
    noted = NOTED_SHARE * sum(grants.total() for grants in policies.values())
    ordered = sorted(policies.items(), key=lambda item: -item[1].total())
    named = ((name, rate, grants) for (name, rate), grants in ordered if grants.total() >= noted)
    return " and by ".join(
        f"the limit {name}{rate}, {' and '.join(map(source_text, grants))}" for name, rate, grants in named
    )


def source_text(grant: str) -> str:
    """Return a ``Source.grant`` in words."""
    if grant.startswith(ENDPOINT):
        return f"at {grant.removeprefix(ENDPOINT)}"
    return f"the guard against guessing ({grant.removeprefix(GUARD)})" if grant.startswith(GUARD) else grant
