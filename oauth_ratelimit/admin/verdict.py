"""Verdict on a client: who is denied and since when, the cause as far as it is known, what to do, and who else is.

The subject is the smallest group that explains what happens. Plain functions on plain values. Times in a text are those
of ``utc_time``; the page shows them in the operator's zone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.denial_record import DenialRecord
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import (
    ENDPOINT,
    GUARD,
    MINUTE_S,
    NO_REQUESTS,
    ClientMinute,
    ClientSum,
    Source,
    Tally,
    UserLoad,
    full_minute,
)
from oauth_ratelimit.operations.denial_run import PAUSE_S, Run, State, last_runs, state_of
from oauth_ratelimit.operations.denied import effect_text, reuse_text, users_over, whose_start
from oauth_ratelimit.operations.format import counted, listed, number, percent_text, short, typed_name, utc_time
from oauth_ratelimit.operations.marks import Mark, change_before, changes_text, outage_before
from oauth_ratelimit.traffic.minutes import OF_USERS

QUIET_S = 20  # after the last denial: longer than instances wait until they write
NEAR = 0.8  # share of a limit
UNUSUAL = 2.0  # times the usual requests
MIN_OTHERS = 3  # active clients; of fewer most being affected says nothing
MOST = 0.5  # of the requests
MAX_NAMED = 3  # users or addresses in a sentence

NOTHING = "Nothing to do."
KEEP = "Ask its owner to keep the token."
TRY = "Raise, Trust or Dry run on its page: the preview says what helps."
NO_GUESSES = (
    "Nothing to do, unless honest users or clients come from there: guard.trusted_addresses lets an address in, "
    "guard.mode: dry-run denies nobody. No limit of tokens changes it. denials {client} --where guard lists them."
)
TRIED_GUARD = "See whether honest users or clients come from there: guard.trusted_addresses lets an address in."
FOR_ALL = "Raise, Trust and Dry run would change it for all users of the client."
UNDO = "Look at that change first, and undo it if it was not meant."
WAIT = "Wait for one window of the limit, in which the requests of that time leave it."
MOST_CLIENTS = "Most clients are affected: look for the cause on our side."

Kind = Literal["denied", "changed", "dry-run", "recovered", "near", "ok", "idle", "trusted", "unknown"]


class Verdict(NamedTuple):
    """Judgement in sentences: what is so, why, what to do, and what else is known."""

    kind: Kind
    lead: str
    action: str
    why: str = ""
    details: Sequence[str] = ()
    since: str = ""  # the time from which the client is denied, or would be
    subject: str = ""  # who is denied if it is not the whole client: some of its users, or an address that guesses


@dataclass(frozen=True)
class Case:
    """Facts for a verdict on a client. Minutes and changes are in order of time."""

    now_s: float
    client_id: str
    username: str | None = None  # of the user whose requests the minutes have; None if they have all
    minutes: Sequence[ClientMinute] = ()  # of the last hour or day, and the present use of limits
    is_beyond: bool = False  # True if denials may have begun before them
    usual: float | None = None  # requests per minute at this hour; None if no earlier day is recorded
    others_active: int = 0  # other clients with requests lately
    others_over: int = 0  # those of them that are denied, or would be
    changes: Sequence[Mark] = ()
    outages: Sequence[Mark] = ()  # their ends
    delay_s: float = 0.0  # until a change has effect on all instances
    kinds: Mapping[str, LimitKind] = field(default_factory=dict)  # of the limits that apply to it, by name
    guesses: Sequence[str] = ()  # address, and name if there is one, of guesses that were denied lately
    records: Sequence[DenialRecord] = ()  # of its users at the token endpoint, in the last hour, the latest first
    addresses: Sequence[str] = ()  # at which the guard denies everybody now, under the id of any client
    nearest: tuple[float, str] | None = None  # the highest present use of a limit, and in words
    is_dry_run: bool = False  # True if its next request over a limit is not denied
    is_trusted: bool = False
    is_unknown: bool = False


def judge(case: Case) -> Verdict:
    if case.is_unknown:
        lead = "Unknown: no counters, statistics or configuration for this id."
        return Verdict("unknown", lead, "Check how it is spelt.")
    runs = last_runs(case.minutes, case.changes, delay_s=case.delay_s)
    state = state_of(runs, case.changes, now_s=case.now_s, delay_s=case.delay_s)
    if state and state.is_active:
        return _active(case, state.run, runs)
    if state and state.is_now:
        return Verdict("changed", state.change_text(), "Wait until then.", details=(_run_text(case, state.run),))
    return _recovered(case, state) if state and not case.is_trusted else _quiet(case)


def _active(case: Case, run: Run, runs: Sequence[Run]) -> Verdict:
    others = (each for each in runs if each is not run)
    before = next((each for each in others if run.first_s - PAUSE_S <= each.last_s <= run.first_s), None)
    begun_s = before.first_s if before and before.is_real else run.first_s  # no dry run is the cause of what it shows
    now = run.present
    lately = sum((each.tally() for each in case.minutes if each.minute_s + MINUTE_S > run.first_s), NO_REQUESTS)
    over = lately.denied + lately.would_deny
    spared = lately.would_reuse / over if over else 0.0
    spared_text = f"Reuse would have spared {percent_text(spared)} of these." if spared else ""
    action = f"{KEEP} {spared_text}" if spared >= MOST else TRY
    action = action if case.username is None else f"Look at this user first: {FOR_ALL}"
    found = (_guesses if now.is_guard else _users)(case, now) or Verdict("denied", "", action)
    why, action = _cause(case, now, begun_s, found)
    past, whose = _run_text(case, before) if before else "", short(case.client_id) if found.subject else ""
    details = [past, _share_text(case, now, whose), _others_text(case, run)]
    effect = effect_text(case.minutes, run, case.changes, now_s=case.now_s, delay_s=case.delay_s)
    more = (spared_text, changes_text(case.changes, begun_s, now.policies, is_real=run.is_real), effect)
    details += [text for text in more if text[1:] not in f"{why} {action}"]
    action = action if run.is_real else before_enforcing(action)
    kind: Kind = "denied" if run.is_real else "dry-run"
    first = whose_start(case.records, run, run.recent_s) if found.subject else ""
    lead = f"{found.subject} {_run_text(case, run, is_now=True, whose=first)}".strip()
    return Verdict(kind, lead, action, why, details, run.begun(is_beyond=case.is_beyond), found.subject)


def before_enforcing(action: str) -> str:
    """Return an action as one that can wait, without the dry run that there is."""
    action = action.replace(", Trust or Dry run", " or Trust").replace(", Trust and Dry run", " and Trust")
    first = action[0] if action.startswith("Raise") else action[0].lower()
    return f"Nothing to do now: a dry run denies nobody. Before you enforce: {first}{action[1:]}"


def _guesses(case: Case, run: Run) -> Verdict:
    client, verb, own = short(case.client_id), "are" if run.is_real else "would be", _total(_last_minute(case, run))
    found = listed(case.guesses, at_most=MAX_NAMED)
    subject = f"Guesses under {client} {verb} denied{f' ({found})' if found else ''}."
    why = "Somebody tries passwords or secrets under this id; it need not be this client."
    if case.client_id == ANYONE:
        subject = f"Everybody at {found or 'an address'} {verb.replace('are', 'is')} denied by the guard."
        why = f"Too many wrong passwords or secrets come from there. Honest users or clients there {verb} denied, too."
    if own.offered and not own.denied:
        why += f" None of its own {counted(own.offered, 'request')} in the last full minute was denied."
    action = NO_GUESSES.format(client=typed_name(case.client_id)) if run.is_real else TRIED_GUARD
    return Verdict("denied", "", action, why, subject=subject)


def _users(case: Case, run: Run) -> Verdict | None:
    """Return the verdict on the users that are denied, if limits per user deny some of them; None otherwise."""
    over = _denied_users(case, run)
    recent = [each for each in case.minutes if each.minute_s >= run.recent_s and each.users]
    total = ClientSum.of(case.client_id, recent or case.minutes)
    known = max(total.user_count or 0, len(total.users))  # none while the first minute is not over
    others = known - len(over)
    if not over or (others < 1 if known else len(over) > MAX_NAMED):
        return None
    names = named(user.username for user in over)
    verb = ("is" if len(over) == 1 else "are") if run.is_real else "would be"
    one_of = "other" if others == 1 else "others"
    rest = f"; {others:,} {one_of} {('is' if others == 1 else 'are') if run.is_real else 'would'} not"
    subject = f"{counted(len(over), 'user')} of {short(case.client_id)} {verb} denied ({names}){rest if known else ''}."
    denied, offered = sum(user.over for user in over), sum(user.offered for user in over)
    why = f"{names}: {counted(denied, 'request')} over the limit since {utc_time(run.recent_s)}."
    if offered > denied:
        until = utc_time(recent[-1].minute_s + MINUTE_S)
        sent = f"{counted(offered, 'request')} from {utc_time(run.recent_s)} to {until}"
        why = f"{names} sent {sent}, {denied:,} of them over the limit."
    action = f"Look at {'this user' if len(over) == 1 else 'these users'} first: {FOR_ALL}"
    return Verdict("denied", "", action, why, subject=subject)


def _denied_users(case: Case, run: Run) -> list[UserLoad]:
    """Return the users that limits per user deny, the worst first, by records until a minute is over and has users."""
    if any(case.kinds.get(policy) not in OF_USERS for policy, _ in run.denials):
        return []
    minutes = [each for each in case.minutes if each.minute_s >= run.recent_s]
    records = [each for each in case.records if run.is_real and each.last_at_s >= run.recent_s]
    return users_over(case.client_id, minutes, records, "denied" if run.is_real else "would_deny")


def _cause(case: Case, run: Run, begun_s: int, found: Verdict) -> tuple[str, str]:
    """Return the first of the causes that is so, on the operator's side or the client's, and what to do."""
    changed = change_before(case.changes, begun_s, run.policies, is_real=run.is_real)
    outage, full_s = outage_before(case.outages, begun_s), full_minute(case.now_s)
    minutes = [each for each in case.minutes if each.minute_s == full_s >= run.first_s // MINUTE_S * MINUTE_S]
    ratio = sum(each.tally().offered for each in minutes) / case.usual if case.usual else 0.0
    usual = f"{number(round(ratio, 1))} times its usual" if ratio >= 1.5 else "no more than usual" if ratio else ""
    sends = ", ".join(filter(None, (_of_limit(case, run, minutes), usual)))
    sends += " in the last full minute" if sends else ""
    is_most = MIN_OTHERS <= case.others_active < 2 * case.others_over
    is_alone = MIN_OTHERS <= case.others_active and not case.others_over
    meanwhile = "; to deny nobody meanwhile: Overrides, then Dry run" if run.is_real else ""
    causes = (
        (run.is_guard, found.why, found.action),
        (changed, f"The cause may be on our side: c{changed[1:]}", UNDO),
        (outage, outage, WAIT),
        (is_most, MOST_CLIENTS, f"Look at limits and instances first{meanwhile}."),
        (found.subject, found.why, found.action),
        (ratio >= UNUSUAL, f"The cause is the client's load: {sends}.", found.action),
        (ratio, f"It sent {sends}: the limit may be too low for it.", found.action),
        (is_alone, f"Look at this client first{f': it sent {sends}' if sends else ''}.", found.action),
        (True, f"It sent {sends}." if sends else "", found.action),
    )
    return next((why, action) for is_so, why, action in causes if is_so)


def _of_limit(case: Case, run: Run, minutes: Sequence[ClientMinute]) -> str:
    """Return how many times the limit the client requests in a minute; empty for limits per user and of the guard."""
    (policy, grant), denials = max(run.denials.items(), key=lambda item: (item[1].total, item[0]))
    kind = case.kinds.get(policy)

    def counts(source: Source) -> bool:
        if grant.startswith(ENDPOINT):
            return source.grant == grant
        is_own = kind is LimitKind.CLIENT and source.kind == "client"
        return source.is_token and (is_own or kind is LimitKind.CLIENT_TOTAL)

    lately = sum(tally.offered for source, tally in _sources(minutes) if counts(source))
    ratio = lately * denials.window_s / MINUTE_S / denials.limit if denials.limit else 0.0
    return f"{number(round(ratio, 1))} times the limit" if ratio >= 1.05 else ""


def _recovered(case: Case, state: State) -> Verdict:
    run, until = state.run, utc_time(state.run.last_s)
    denied = "denied" if run.is_real else "over a limit"
    names = {user.username for user in _denied_users(case, run)}
    later = _later(case, run, names)
    found = listed(case.guesses, at_most=MAX_NAMED) if run.is_guard else named(sorted(names))
    who = f" ({found})" if found else ""
    if run.is_guard:
        lead = f"The guard denied guesses until {until}{who}; it does not count those that it lets through."
    elif state.change:
        lead = state.change_text(who)
    elif later:
        lead = f"Not {denied} any more{who}: {counted(later, 'request')} since {until}, none over a limit."
    else:
        lead = f"Last {denied} at {until}{who}; no such request in a full minute since then: it may be waiting."
    changed = changes_text(case.changes, run.first_s, run.policies, is_real=run.is_real)
    details = (_run_text(case, run), "" if state.change else changed)
    return Verdict("recovered", lead, NOTHING, details=details, since=until)


def _later(case: Case, run: Run, users: Collection[str]) -> int:
    """Return the requests since a run of those who were denied in it: of these users, else of its grants."""
    later = [minute for minute in case.minutes if minute.minute_s > run.last_s]
    if users:
        return sum(user.offered for minute in later for user in minute.users if user.username in users)
    grants = {grant for _, grant in run.denials}
    return sum(tally.offered for source, tally in _sources(later) if source.grant in grants)


def _quiet(case: Case) -> Verdict:
    (share, text), total = case.nearest or (0.0, ""), _total(case.minutes)
    requests = f"{counted(total.offered, 'request')} in the last hour"
    if case.is_trusted:
        return Verdict("trusted", f"Trusted: never denied. {requests}.", NOTHING)
    is_reused, reused = reuse_text(case.minutes, case.now_s)
    if reused:
        return Verdict("near" if is_reused else "ok", reused, KEEP)
    if share >= 1:
        action = "Raise, Trust or Dry run if that is not meant; the preview says what helps."
        return Verdict("near", f"At its limit now: {text}.", before_enforcing(action) if case.is_dry_run else action)
    if case.username is not None:  # its requests are known only if there are many
        return Verdict("ok", f"Within its limits now: {text or 'none applies'}.", NOTHING)
    if not total.offered:
        return Verdict("idle", "No requests are recorded in the last hour.", NOTHING)
    peaks = [(peak.share, name, peak) for minute in case.minutes for name, peak in minute.peaks.items()]
    if not peaks:
        return Verdict("ok", f"Within its limits. {requests}.", NOTHING)
    share, name, peak = max(peaks)
    used = f"Highest use in the last hour: {percent_text(share)} of {name} ({rate_text(peak.limit, peak.window_s)})."
    limits = {name: each[2:] for _, name, each in peaks}  # the last ones, which apply
    is_near = any(share >= NEAR and limits[name] == each[2:] for share, name, each in peaks)
    lead = f"{'Near its limit' if is_near else 'Within its limits'}. {used}"
    return Verdict("near" if is_near else "ok", lead, NOTHING)


def named(names: Iterable[str]) -> str:
    return listed(map(short, names), at_most=MAX_NAMED)


def _run_text(case: Case, run: Run, *, is_now: bool = False, whose: str = "") -> str:
    text = run.text(is_now=is_now, is_beyond=case.is_beyond, whose=whose)
    return text if run.is_real else f"Requests {text[0].lower()}{text[1:]}"


def when_text(since_s: float, *, is_full: bool) -> str:
    return "In the last full minute" if is_full else f"Since {utc_time(since_s)}"


def _sources(minutes: Iterable[ClientMinute]) -> Iterator[tuple[Source, Tally]]:
    return chain.from_iterable(minute.tallies.items() for minute in minutes)


def _total(minutes: Iterable[ClientMinute], *, of_guard: bool = False) -> Tally:
    """Return the requests of a client, or the attempts under its id that the guard denied."""
    found = (tally for source, tally in _sources(minutes) if source.grant.startswith(GUARD) is of_guard)
    return sum(found, NO_REQUESTS)


def _last_minute(case: Case, run: Run) -> list[ClientMinute]:
    """Return the last full minute, or what came since if only then requests were denied, or would have been."""
    full_s = full_minute(case.now_s)
    full = [each for each in case.minutes if each.minute_s == full_s]
    since = [each for each in case.minutes if each.minute_s > full_s]
    is_over = [any(_over(tally, run) for _, tally in _sources(part)) for part in (full, since)]
    return since if is_over == [False, True] else full


def _over(tally: Tally, run: Run) -> int:
    return tally.denied if run.is_real else tally.would_deny


def _share_text(case: Case, run: Run, whose: str = "") -> str:
    minutes, full_s = _last_minute(case, run), full_minute(case.now_s)
    before = [each for each in case.minutes if each.minute_s == full_s - MINUTE_S]
    now, earlier = (_total(part, of_guard=run.is_guard) for part in (minutes, before))
    over, over_before = _over(now, run), _over(earlier, run)
    if not over:
        return ""
    is_full = minutes[0].minute_s == full_s
    requests = counted(now.offered, "attempt" if run.is_guard else "request")
    requests += f" of {whose}" if whose and not run.is_guard else ""
    found = f"all {requests}" if over == now.offered > 1 else f"{over:,} of {requests}"
    found = requests if run.is_guard else found  # those that it let through are not counted
    would = f"{'was' if over == 1 else 'were'} denied" if run.is_real else "would have been denied"
    reused = f", {now.reused:,} got their token again" if now.reused else ""
    trend = f", {f'{over_before:,}' if over_before else 'none'} in the minute before" if is_full else ""
    last = f"; the last at {utc_time(run.last_s)}" if case.now_s - run.last_s > QUIET_S else ""
    return f"{when_text(full_s + MINUTE_S, is_full=is_full)} {found} {would}{reused}{trend}{last}."


def _others_text(case: Case, run: Run) -> str:
    others = counted(case.others_active, "other client")
    if case.client_id == ANYONE or case.addresses or case.username is not None:
        return ""  # others are affected whom nobody counts
    if not case.others_active:
        return "No other client sends requests."
    if not case.others_over:
        return f"Nobody else is affected ({others} with requests)."
    verb, word = "is" if case.others_over == 1 else "are", "denied" if run.is_real else "over a limit"
    share = f"All {others}" if case.others_over == case.others_active > 1 else f"{case.others_over:,} of {others}"
    return f"{share} {verb} {word}, too."
