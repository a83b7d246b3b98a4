"""Denials that belong together: when they began, by which limits, and which change ended them."""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oauth_ratelimit.config.notation import rate_text
from oauth_ratelimit.core.denial_record import DenialRecord, Where
from oauth_ratelimit.core.statistics import ENDPOINT, GUARD, MINUTE_S, WRITTEN_S, ClientMinute, Denials
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.operations.marks import CHANGED, Mark, was_changed_back

NO_GRANT = "no grant type"
ACTIVE_S = 60  # after the last denial, as long as "now" is
NOTED_SHARE = 0.05  # of the denials; a limit with fewer is not named
PAUSE_S = 600  # between denials that belong together


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
