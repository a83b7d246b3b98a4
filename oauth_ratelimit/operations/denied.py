"""Since when a client is denied, and what was changed before: for commands and the admin page."""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from oauth_ratelimit.operations.explain import GUARD_SWITCH, guess_text
from oauth_ratelimit.operations.format import MAX_NAMED, counted, listed, short, utc_time
from oauth_ratelimit.operations.marks import Mark, changes_of, changes_text

NO_GRANT = "no grant type"
ACTIVE_S = 60  # after the last denial, as long as "now" is
NOTED_SHARE = 0.05  # of the denials; a limit with fewer is not named
PAUSE_S = 600  # between denials that belong together
PARTS = ("by", "peaks", "denials")
OF_USERS = ("users", "registers")
DENY_NOBODY = "To deny nobody: mode set dry-run. To spare one client: mode set dry-run CLIENT."


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

    def text(self, *, is_now: bool, is_beyond: bool) -> str:
        """Return since when somebody is denied, or from when to when, and by which limits."""
        word = "Denied" if self.is_real else f"Would {'be' if is_now else 'have been'} denied (dry run)"
        begun, found = self.begun(is_beyond=is_beyond), self.present if is_now else self
        span = f"since {begun}" if is_now else f"from {begun} to {utc_time(self.last_s)}"
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

    @property
    def is_active(self) -> bool:
        return self.is_now and self.change is None

    def change_text(self, who: str = "") -> str:
        """Return the change as the end of the denials, or as one whose effect is not known yet; empty without one."""
        if self.change is None:
            return ""
        at, said = utc_time(self.change.at_s), self.change.said(self.run.policies)
        if self.is_now:
            return f"Changed at {at}: {said}. What it does shows at {utc_time(self.known_s)}."
        return f"Not {'denied' if self.run.is_real else 'over a limit'}{who} since the change at {at}: {said}."


def state_of(runs: Sequence[Run], changes: Sequence[Mark], *, now_s: float, delay_s: float) -> State | None:
    """Return the state of denials, if there are any; a change has effect on all instances after a delay."""
    found = []
    for run in runs:
        within = (each for each in changes if each.text and run.first_s < each.at_s <= run.last_s + ACTIVE_S)
        change = next((each for each in within if run.last_s <= each.at_s + delay_s), None)
        known_s = change.at_s + delay_s + WRITTEN_S if change else math.inf
        found.append(State(run, change, known_s, now_s - run.last_s <= ACTIVE_S and now_s < known_s))
    return next((each for each in found if each.is_now), found[0] if found else None)


def recent_minutes(context: OperatorContext, client_id: str) -> tuple[float, list[ClientMinute], bool]:
    """Return the last hour of a client, or its day if it was denied all the hour; True if denials began before that."""
    since_s = context.now_s - HOUR_S
    minutes = list(context.minutes(since_s, client_id, parts=(*PARTS, *OF_USERS)))
    if _is_beyond(minutes, since_s):
        day_s, stored = context.now_s - DAY_S, storable_name(client_id)
        minutes[:0] = context.stores.statistics.minutes(day_s, minutes[0].minute_s, stored, parts=PARTS)
        since_s = day_s
    return context.now_s, minutes, _is_beyond(minutes, since_s)


def _is_beyond(minutes: Sequence[ClientMinute], since_s: float) -> bool:
    return any(run.first_s < since_s + 2 * MINUTE_S for run in last_runs(minutes))


def last_runs(minutes: Sequence[ClientMinute], changes: Sequence[Mark] = ()) -> list[Run]:
    """Return the latest denials that belong together, real ones before those of a dry run, as far as there are any."""
    return [run for is_real in (True, False) if (run := _last_run(minutes, changes, is_real=is_real))]


def _last_run(minutes: Sequence[ClientMinute], changes: Sequence[Mark], *, is_real: bool) -> Run | None:
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
        if found and (is_over or first_s - each.last_s > PAUSE_S):
            break  # it ended there, or the mode was another one in between
        known = found.get(limit, each._replace(total=0))  # with the limit that applied last
        first_s, last_s = min(first_s, each.first_s), max(last_s, each.last_s)
        found[limit] = known._replace(total=known.total + each.total, first_s=min(known.first_s, each.first_s))
        latest[limit] = each
    return Run(found, first_s, last_s, is_real, latest) if found else None


def since_texts(context: OperatorContext, client_id: str, records: Sequence[DenialRecord] = ()) -> list[str]:
    """Return since when a client is denied, or until when it was, the last change before, and how to deny nobody.

    The records name its users. The list is empty if it was not denied.
    """
    _, minutes, is_beyond = recent_minutes(context, client_id)
    return _since_texts(context, minutes, {client_id}, is_beyond=is_beyond, records=records)


def since_texts_of(context: OperatorContext, records: Sequence[DenialRecord], *, since_s: float) -> list[str]:
    """Return the same of recorded denials, which were read from a time on, after who was denied.

    While some are denied, it is about these, not about clients that were denied before.
    """
    now = {_subject(each) for each in records if each.last_at_s >= context.now_s - ACTIVE_S}
    records = [each for each in records if not now or _subject(each) in now]
    minutes = [minute_of(each) for each in records]
    is_beyond = any(run.first_s < since_s + MINUTE_S for run in last_runs(minutes))
    clients = {each.denial.client_id for each in records}
    return _since_texts(context, minutes, clients, is_beyond=is_beyond, records=records)


def _subject(record: DenialRecord) -> tuple[str, bool]:
    return record.denial.client_id, record.denial.where is Where.GUARD


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


def _since_texts(
    context: OperatorContext,
    minutes: Sequence[ClientMinute],
    clients: Collection[str],
    *,
    is_beyond: bool,
    records: Sequence[DenialRecord] = (),
) -> list[str]:
    changes = changes_of(context, *clients)
    delay_s = 2 * context.settings.sync.interval_s
    state = state_of(last_runs(minutes, changes), changes, now_s=context.now_s, delay_s=delay_s)
    if state is None:
        return list(filter(None, [reuse_text(minutes, context.now_s)[1]]))
    run, is_active = state.run, state.is_active
    first_s = max(run.first_s, run.last_s - ACTIVE_S) if is_active else run.first_s
    who = _who([each for each in records if each.last_at_s >= first_s])
    text = run.text(is_now=is_active, is_beyond=is_beyond)
    texts = [f"{who}: {text[0].lower()}{text[1:]}" if who else text]
    known = [each for each in changes if is_active or each.at_s <= run.last_s + ACTIVE_S]  # later ones did not end it
    if state.change:
        texts.append(state.change_text())
    elif known or not changes:
        texts.append(changes_text(known, run.first_s, run.policies))
    texts.append(effect_text(minutes, run, known, now_s=context.now_s, delay_s=delay_s))
    if run.is_real and is_active:
        texts.append(GUARD_SWITCH if run.is_guard else DENY_NOBODY)
    return list(filter(None, texts))


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
    """Return who was denied, most first: users if they are few of one client, else clients, and guesses."""
    clients, users = Counter[str](), Counter[str]()
    for each in records:
        denial, name, user = each.denial, short(each.denial.client_id), short(each.denial.username or "")
        if denial.where is Where.GUARD:
            claim, user = short(guess_text(denial.username)), ""
            name = f"everybody at {claim}" if denial.client_id == ANYONE else f"guesses under {name} ({claim})"
        clients[name] += each.request_count
        users[f"{user} of {name}" if user else name] += each.request_count
    found = users if len(clients) == 1 and len(users) <= MAX_NAMED else clients
    return listed(name for name, _ in found.most_common())


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
