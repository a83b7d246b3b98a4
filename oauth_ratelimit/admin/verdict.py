"""Verdict on a client: who denies it and since when, how unusual that is, whom else it concerns, what was changed.

Plain functions on plain values. Times in a text are those of ``utc_time``; the page shows them in the operator's zone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from oauth_ratelimit.admin.marks import Mark
from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.statistics import ENDPOINT, GUARD, MINUTE_S, ClientMinute, ClientTotal, Denials, Source, Tally
from oauth_ratelimit.operations.format import counted, duration, percent_text, utc_time

ACTIVE_S = 60  # after the last denial, as long as "now" is
QUIET_S = 20  # after the last denial: longer than instances wait until they write
PAUSE_S = 600  # between denials that belong together
CAUSE_S = 600  # a change so long before the first denial may be its cause
NEAR = 0.8  # share of a limit
UNUSUAL = 2.0  # times the usual requests
MIN_OTHERS = 3  # active clients; of fewer most being affected says nothing
NOTED_SHARE = 0.05  # of the denials; a limit with fewer is not named
MIN_ENTIRE = 10  # denials; below it a client that gets nothing may have asked only once
MOST, SOME = 0.5, 0.05  # shares of the requests

RULE = (
    "Worst first: clients that get nothing, then those of whose requests most, some or few are denied, each by number; "
    "after them what a dry run would deny, then attempts that the guard denied, which anybody can make."
)

Outcome = Literal["denied", "would_deny"]
Kind = Literal["denied", "dry-run", "recovered", "near", "ok", "idle", "trusted", "unknown"]


class Verdict(NamedTuple):
    """Judgement in sentences, the most important one first."""

    kind: Kind
    sentences: tuple[str, ...]


class Run(NamedTuple):
    """Denials of a client, each less than ten minutes after the one before, by policy and ``Source.grant``."""

    denials: Mapping[tuple[str, str], Denials]
    first_s: int
    last_s: int
    outcome: Outcome

    @property
    def is_real(self) -> bool:
        """False if a dry run would have denied."""
        return self.outcome == "denied"


@dataclass(frozen=True)
class Case:
    """Facts for a verdict on a client. Minutes and changes are in order of time."""

    now_s: float
    minutes: Sequence[ClientMinute] = ()  # of the last hour or day
    is_beyond: bool = False  # True if denials may have begun before them
    usual: float | None = None  # requests per minute at this hour; None if no earlier day is recorded
    others_active: int = 0  # other clients with requests lately
    others_over: int = 0  # those of them that are denied, or would be
    changes: Sequence[Mark] = ()
    totals: frozenset[str] = frozenset()  # names of the policies that count all its requests together
    owns: frozenset[str] = frozenset()  # and of those that count its requests without a user
    nearest: tuple[float, str] | None = None  # the highest present use of a limit, and in words
    is_trusted: bool = False
    is_unknown: bool = False
    is_alone: bool = True  # False where the other clients are counted elsewhere


def judge(case: Case) -> Verdict:
    if case.is_unknown:
        return Verdict("unknown", ("Unknown: no counters, statistics or configuration for this id.",))
    runs = last_runs(case.minutes, case.changes)
    for run in runs:
        if case.now_s - run.last_s <= ACTIVE_S:
            return _active(case, run)
    if case.is_trusted:
        return Verdict("trusted", (f"Trusted: never denied. {_requests_text(case)}",))
    return _recovered(case, runs[0]) if runs else _quiet(case)


def last_runs(minutes: Sequence[ClientMinute], changes: Sequence[Mark] = ()) -> list[Run]:
    """Return the latest denials that belong together, real ones before those of a dry run, as far as there are any."""
    outcomes: tuple[Outcome, ...] = ("denied", "would_deny")
    runs = [run for outcome in outcomes if (run := _last_run(minutes, outcome))]
    start_s, end_s = max((run.first_s for run in runs), default=0), min((run.last_s for run in runs), default=0)
    turns = [each.at_s for each in changes if start_s < each.at_s <= end_s < start_s + MINUTE_S]
    if turns and runs[0].first_s > runs[-1].first_s:  # a minute holds both, and this tells when the dry run ended
        runs[0] = runs[0]._replace(first_s=int(turns[-1]) + 1)
    return runs


def _last_run(minutes: Sequence[ClientMinute], outcome: Outcome) -> Run | None:
    run: Run | None = None
    for minute in reversed(minutes):
        found = {key: each for key, each in minute.denials.items() if getattr(each, outcome)}
        if not found:
            continue
        first_s, last_s = min(each.first_s for each in found.values()), max(each.last_s for each in found.values())
        if run and run.first_s - last_s > PAUSE_S:
            break
        run = run or Run({}, first_s, last_s, outcome)
        merged = {key: _merged(each, run.denials.get(key)) for key, each in found.items()}
        run = Run({**run.denials, **merged}, min(first_s, run.first_s), max(last_s, run.last_s), outcome)
    return run


def _merged(older: Denials, newer: Denials | None) -> Denials:
    """Return the sum, with the limit that applied last."""
    if newer is None:
        return older
    denied, would_deny = older.denied + newer.denied, older.would_deny + newer.would_deny
    return newer._replace(denied=denied, would_deny=would_deny, first_s=min(older.first_s, newer.first_s))


def _active(case: Case, run: Run) -> Verdict:
    word = "Denied" if run.is_real else "Would be denied (dry run)"
    compared = ", ".join(filter(None, (_of_limit(case, run), _of_usual(case))))
    lead = f"{word} since {_begun(case, run)} by {_limits_text(run)}{': ' if compared else ''}{compared}."
    found = [text(case, run) for text in (_share_text, _reuse_text, _others_text, _changes_text, _conclusion)]
    return Verdict("denied" if run.is_real else "dry-run", (lead, *filter(None, found)))


def _begun(case: Case, run: Run) -> str:
    return f"before {utc_time(run.first_s)}" if case.is_beyond else utc_time(run.first_s)


def _sum(minutes: Iterable[ClientMinute]) -> Tally:
    return sum((tally for minute in minutes for tally in minute.tallies.values()), Tally())


def _recovered(case: Case, run: Run) -> Verdict:
    later = _sum(minute for minute in case.minutes if minute.minute_s > run.last_s)
    until = utc_time(run.last_s)
    word = "Denied" if run.is_real else "Would have been denied (dry run)"
    if later.offered:
        first = f"Not denied any more: {counted(later.offered, 'request')} since {until}, none over a limit."
    else:
        first = f"Last denied at {until}; no request in a full minute since then: it may be waiting."
    past = f"{word} from {_begun(case, run)} to {until} by {_limits_text(run)}."
    return Verdict("recovered", (first, past, _changes_text(case, run)))


def _quiet(case: Case) -> Verdict:
    share, text = case.nearest or (0.0, "")
    if share >= 1:
        return Verdict("near", (f"At its limit now: {text}. The next request over it is denied.",))
    total = _sum(case.minutes)
    if not total.offered:
        return Verdict("idle", ("No requests are recorded in the last hour.",))
    if total.reused:
        of = f"{total.reused:,} of {counted(total.offered, 'request')} in the last hour were"
        return Verdict("near", (f"Over its limit, and not denied: {of} answered with the token it already had.",))
    peaks = [(peak.share, name, peak) for minute in case.minutes for name, peak in minute.peaks.items()]
    if not peaks:
        return Verdict("ok", (f"Within its limits. {_requests_text(case)}",))
    share, name, peak = max(peaks)
    used = f"Highest use in the last hour: {percent_text(share)} of {name} ({rate_text(peak.limit, peak.window_s)})."
    is_near = share >= NEAR
    return Verdict("near" if is_near else "ok", (f"{'Near its limit' if is_near else 'Within its limits'}. {used}",))


def _requests_text(case: Case) -> str:
    return f"{counted(sum(minute.tally().offered for minute in case.minutes), 'request')} in the last hour."


def _limits_text(run: Run) -> str:
    """Return the limits with most denials, each with its grant types or endpoint."""
    policies: dict[tuple[str, int, int], dict[str, int]] = {}
    for (policy, grant), each in run.denials.items():
        policies.setdefault((policy, each.limit, each.window_s), {})[grant] = getattr(each, run.outcome)
    total = sum(sum(grants.values()) for grants in policies.values())
    ordered = sorted(policies.items(), key=lambda item: -sum(item[1].values()))
    named = [item for item in ordered if sum(item[1].values()) >= NOTED_SHARE * total]
    texts = []
    for (policy, limit, window_s), grants in named:
        rate = f" ({rate_text(limit, window_s)})" if limit and window_s else ""
        texts.append(f"{policy.removeprefix('guard/')}{rate}, {' and '.join(map(source_text, grants))}")
    return " and by ".join(texts)


def source_text(grant: str) -> str:
    """Return a ``Source.grant`` in words."""
    if grant.startswith(ENDPOINT):
        return f"at {grant.removeprefix(ENDPOINT)}"
    return f"the guard against guessing ({grant.removeprefix(GUARD)})" if grant.startswith(GUARD) else grant


def _lately(case: Case, *, counts: Callable[[Source], bool] = lambda source: True, outcome: str = "offered") -> float:
    """Return requests in the last sixty seconds: the present minute, and the part of the last one that is within."""
    start_s = case.now_s // MINUTE_S * MINUTE_S
    weights = {start_s: 1.0, start_s - MINUTE_S: 1 - (case.now_s - start_s) / MINUTE_S}
    found: float = sum(
        weights.get(minute.minute_s, 0.0) * getattr(tally, outcome)
        for minute in case.minutes
        for source, tally in minute.tallies.items()
        if counts(source)
    )
    return found


def _of_limit(case: Case, run: Run) -> str:
    """Return how many times the limit the client requests; empty for limits per user and of the guard."""
    (policy, grant), denials = max(run.denials.items(), key=lambda item: (getattr(item[1], run.outcome), item[0]))

    def counts(source: Source) -> bool:
        if grant.startswith(ENDPOINT):
            return source.grant == grant
        is_own = policy in case.owns and source.kind == "client"
        return source.is_token and (policy in case.totals or is_own) and not grant.startswith(GUARD)

    ratio = _lately(case, counts=counts) * denials.window_s / MINUTE_S / denials.limit if denials.limit else 0.0
    return f"{_times(ratio)} the limit" if ratio >= 1.05 else ""


def _of_usual(case: Case) -> str:
    ratio = _unusual(case)
    return "" if ratio is None else f"{_times(ratio)} its usual" if ratio >= 1.5 else "no more than usual"


def _unusual(case: Case) -> float | None:
    """Return the present requests, in times of the usual ones; None if those are not known."""
    now = _lately(case, counts=lambda source: source.is_token)
    return now / case.usual if case.usual and now else None


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 9.95 else f"{ratio:.1f} times".replace(".0 ", " ")


def _share_text(case: Case, run: Run) -> str:
    offered, over = round(_lately(case)), round(_lately(case, outcome=run.outcome))
    would = "were denied" if run.is_real else "would have been denied"
    if not over:
        return "Its last denial is less than a minute ago."
    found = f"all {counted(over, 'request')}" if over >= offered else f"{over:,} of {counted(offered, 'request')}"
    last = f", the last at {utc_time(run.last_s)}" if case.now_s - run.last_s > QUIET_S else ""
    return f"In the last minute {found} {would}{last}."


def _reuse_text(case: Case, run: Run) -> str:
    total = _sum(minute for minute in case.minutes if minute.minute_s + MINUTE_S > run.first_s)
    if not total.would_reuse:
        return ""
    return f"Reuse would have spared {percent_text(total.would_reuse / (total.denied + total.would_deny))} of these."


def _others_text(case: Case, run: Run) -> str:
    if not case.is_alone:
        return ""
    if not case.others_active:
        return "No other client sends requests."
    others = counted(case.others_active, "other client")
    word = "denied" if run.is_real else "over a limit"
    if not case.others_over:
        return f"Nobody else is affected ({others} with requests)."
    return f"{case.others_over:,} of {others} {'is' if case.others_over == 1 else 'are'} {word}, too."


def _changes_text(case: Case, run: Run) -> str:
    """Return the last change, and whether it may be the cause or the remedy."""
    before = next((each for each in reversed(case.changes) if each.at_s <= run.first_s), None)
    after = [each for each in case.changes if each.at_s > run.first_s and each.text]
    if after:
        return f"Changed since it began, at {utc_time(after[-1].at_s)}: {after[-1].text}."
    if before is None:
        return "No change of the configuration is recorded."
    if before.text and run.first_s - before.at_s <= CAUSE_S:
        return f"Changed {duration(run.first_s - before.at_s)} before it began: {before.text}."
    return f"The configuration has not changed since {utc_time(before.at_s)}."


def _conclusion(case: Case, run: Run) -> str:
    """Return whether the cause is on the operator's side or the client's, as far as the numbers say so."""
    last = max((each.at_s for each in case.changes if each.text and each.at_s <= run.first_s), default=None)
    ratio = _unusual(case)
    if all(grant.startswith(GUARD) for _, grant in run.denials):
        return "Somebody tries passwords or secrets under this id; it need not be this client."
    if last is not None and run.first_s - last <= CAUSE_S:
        return "The cause may be on our side: look at that change first."
    if case.others_active >= MIN_OTHERS and case.others_over > case.others_active / 2:
        return "Most clients are affected: look for the cause on our side."
    if ratio is not None and ratio >= UNUSUAL:
        return "The cause is the client's load."
    if ratio is None:
        return "Look at this client first." if MIN_OTHERS <= case.others_active and not case.others_over else ""
    return "The client sends what it usually does: the limit may be too low for it."


def judge_all(active_count: int, denied_count: int, over_count: int) -> Verdict:
    """Return the verdict on the clients with requests in the last minute: how many of them are over a limit."""
    clients = counted(active_count, "client")
    would = over_count - denied_count
    if not active_count:
        return Verdict("idle", ("No requests are recorded in the last minute.",))
    if denied_count:
        who = f"All {clients}" if denied_count == active_count > 1 else f"{denied_count:,} of {clients}"
        more = f" {would:,} more would be, in a dry run." if would else ""
        return Verdict("denied", (f"{who} {'is' if denied_count == 1 else 'are'} denied now.{more}",))
    if would:
        return Verdict("dry-run", (f"Nobody is denied. {would:,} of {clients} would be, in a dry run.",))
    return Verdict("ok", (f"Nobody is denied, of {clients} with requests in the last minute.",))


def severity(total: ClientTotal) -> tuple[int, int, int]:
    """Return the key by which clients are sorted, the worst first; ``RULE`` says it in words."""
    denied = total.tally.denied + total.elsewhere.denied
    would_deny = total.tally.would_deny + total.elsewhere.would_deny
    offered = total.tally.offered + total.elsewhere.offered
    rank, count = (0, denied) if denied else (4, would_deny)
    if not count:
        return (9 if total.guard.denied else 10 if total.guard.over else 11, -total.guard.over, -offered)
    share = count / offered
    is_entire = count == offered and count >= MIN_ENTIRE
    return (rank + (0 if is_entire else 1 if share >= MOST else 2 if share >= SOME else 3), -count, -offered)
