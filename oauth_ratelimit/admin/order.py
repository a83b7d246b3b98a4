"""Verdict on all clients together, and their order: the worst first."""

from oauth_ratelimit.admin.verdict import KEEP, MOST, NOTHING, Kind, Verdict, when_text
from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.statistics import ClientTotal
from oauth_ratelimit.operations.format import counted, utc_time
from oauth_ratelimit.store.mongo.rollups import Present

MIN_ENTIRE = 10  # denials; below it a client that gets nothing may have asked only once
SOME = 0.05  # of the requests
RULE = (
    "Worst first: clients that get nothing, then those of whose requests most, some or few are denied, each by number; "
    "after them what a dry run would deny, then attempts that the guard denied, which anybody can make."
)


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
        "near": f"No client is denied. {guard}",
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
            lead = f"Since {worst.since} {worst.subject[0].lower()}{worst.subject[1:-1]}"
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
