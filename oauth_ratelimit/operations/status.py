"""State of the whole: mode, overrides, database, instances, the keys nearest to a limit, and the step of a rollout."""

import enum
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.diff import changes_between, fixed_values
from oauth_ratelimit.core.mode import Canary, Mode
from oauth_ratelimit.core.overrides import MAX_PERCENT
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.statistics import DAY_S, GUARD, HOUR_S, OTHER_CLIENTS, Tally
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import (
    MAX_NAMED,
    Record,
    counted,
    enforces,
    mode_text,
    origin_data,
    percent_text,
    spared_text,
)
from oauth_ratelimit.store.mongo.heartbeats import MAX_INSTANCES, Heartbeat

LATE_AFTER_S = 30.0  # three heartbeats
MAX_LAG_INTERVALS = 3
MAX_CHANGES = 20
MAX_HOSTS = 5
LOST = {
    "store.": "Every limit begins anew then: counts, overrides and statistics stay in the former place. ",
    "privacy.": "If user_names or the first key changes, limits of users begin anew then. ",
}
LEFT_OUT = f"there are more than {MAX_INSTANCES:,} heartbeats, so instances may be missing here; some may be planted"
NOTHING_LOST = "A process that ends still sends what it has counted, to the former place"


def is_late(beat: Heartbeat, now_s: float) -> bool:
    return now_s - beat.beat_at_s > LATE_AFTER_S


def is_lagging(lag_s: float, interval_s: float) -> bool:
    """Return True if sync cycles are so far apart that limits are less accurate."""
    return lag_s > MAX_LAG_INTERVALS * interval_s


def heartbeat_data(beat: Heartbeat, now_s: float, canary: Canary | None = None) -> Record:
    is_outside = canary and canary.instances and not canary.has_client("", instance=beat.instance.rsplit(":", 2)[0])
    return {
        **beat._asdict(),
        "effective_mode": Mode.DRY_RUN.value if is_outside and beat.mode == Mode.ENFORCE else beat.mode,
        "seen_s": max(0.0, now_s - beat.beat_at_s),
        "is_late": is_late(beat, now_s),
        "is_lagging": is_lagging(beat.lag_s, beat.interval_s),
        "up_s": beat.beat_at_s - beat.started_at_s,
        "host_text": f"{beat.host}{', synchronises' if beat.synchronises else ''}" if beat.host else "alone",
    }


def restart_text(settings: Settings, heartbeats: Sequence[Heartbeat]) -> str | None:
    """Return what of a configuration instances apply with a restart only, and what that loses; None if nothing is.

    With ``mode: off`` nothing is: it applies at once, whatever else the file says.
    """
    wanted = fixed_values(settings)
    found = [
        changes_between(dict(pair.partition("=")[::2] for pair in beat.fixed_values.split()), wanted)
        for beat in heartbeats
        if beat.fixed_values is not None and settings.policies.mode is not Mode.OFF
    ]
    needed = list(filter(None, found))
    if not needed:
        return None
    changes = ", ".join(list(dict.fromkeys(chain.from_iterable(needed)))[:MAX_CHANGES])
    lost = "".join(text for section, text in LOST.items() if section in changes)
    return f"restart needed on {len(needed)} of {counted(len(heartbeats), 'instance')}: {changes}. {lost}{NOTHING_LOST}"


class Status:
    """Mode, overrides, database and instances at one moment; without a database no facts and no heartbeats."""

    def __init__(self, context: OperatorContext) -> None:
        self.policies = context.policies
        self.mode_origin = context.origins.of_mode("")
        self.file_policies = context.settings.policies
        self.override_count = len(context.overrides)
        self.facts = context.stores.documents.facts() if context.is_shared else None
        self.heartbeats = context.stores.heartbeats.read(self.facts.clock_s) if self.facts else []
        self.is_complete = not context.is_shared or context.stores.heartbeats.is_complete

    def counted_by(self, name: str) -> list[tuple[str, int]]:
        """Return the values of a field of heartbeats, such as a problem, with the number of instances, most first."""
        values = (getattr(beat, name) for beat in self.heartbeats)
        return Counter(value for value in values if value is not None).most_common()

    @property
    def hosts_text(self) -> str:
        """Number of hosts whose instances count as one, and of instances that count alone."""
        sizes = sorted(Counter(beat.host for beat in self.heartbeats if beat.host).values(), reverse=True)
        alone_count = len(self.heartbeats) - sum(sizes)
        largest = ", ".join(map(str, sizes[:MAX_HOSTS])) + (", …" if len(sizes) > MAX_HOSTS else "")
        noun = "instance" if sizes == [1] else "instances"
        hosts = [f"{counted(len(sizes), 'host')} with {largest} {noun}"] if sizes else []
        nobody = "none seen" if self.facts else "unknown: instances report to MongoDB"
        return ", ".join([*hosts, *([f"{alone_count} alone"] if alone_count else [])]) or nobody

    def data(self) -> Record:
        canary, facts = self.policies.canary, self.facts
        return {
            "mode": self.policies.mode.value,
            "mode_origin": origin_data(self.mode_origin),
            "file_mode": mode_text(self.file_policies),
            "canary": canary and {"percent": canary.percent, "instances": canary.instances},
            "override_count": self.override_count,
            "mongodb": facts and {"version": facts.version, "document_count": facts.document_count},
            "instances": [heartbeat_data(beat, facts.clock_s, canary) for beat in self.heartbeats] if facts else [],
        }


def nearest_to_limit(usages: Iterable[LimitUsage], count: int) -> list[LimitUsage]:
    """Return the usages with the largest share of their limit, largest first."""
    return heapq.nlargest(count, usages, key=attrgetter("used_ratio"))


CANARY_PERCENTS = (5, 20, 50, 100)  # steps of a rollout
ENOUGH_S = 20 * HOUR_S  # of statistics in the last day
MAX_OVER_RATIO = 0.01  # of the requests; above it a limit hits more than a few clients that waste tokens
NOT_SHARED = (
    "Nothing is shared with other hosts, and there are no statistics of a dry run. With several hosts, or to see whom "
    "enforcing would hit, set store.uri; replay shows it from an access log."
)


class RolloutStep(enum.StrEnum):
    """Steps of a rollout, in their order."""

    OFF = "off"
    DRY_RUN = "dry run"
    CANARY = "canary"
    ENFORCE = "enforce"


DENYING = (RolloutStep.CANARY, RolloutStep.ENFORCE)
IN_FILE = "# in the configuration file:"


class Rollout:
    """State of a rollout: its step, the last day, the instances, and the problems that are reasons to wait."""

    def __init__(self, context: OperatorContext) -> None:
        self.policies, self.status = context.policies, Status(context)
        self.step, self.file_step = step_of(self.policies), step_of(self.status.file_policies)
        self.is_shared = context.is_shared
        self.total = Tally()  # requests of the last day at the token endpoint
        self.by_guard = Tally()  # those at the guard, which has a mode of its own
        self.guard_mode = replace(context.settings, policies=self.policies).guard_mode
        self.over: Counter[str] = Counter()  # those over a limit by client, denied or not
        first_s: int | None = None  # first recorded minute
        for minute in context.minutes(context.now_s - DAY_S, parts=("by",)) if self.is_shared else ():
            tally = minute.tally()
            first_s = first_s or minute.minute_s
            self.total += tally
            guarded = (each for source, each in minute.tallies.items() if source.grant.startswith(GUARD))
            self.by_guard = sum(guarded, self.by_guard)
            if tally.over and minute.client_id != OTHER_CLIENTS:
                self.over[minute.client_id] += tally.over
        day = self._problems_of_day(None if first_s is None else context.now_s - first_s)
        self.problems = [*self._problems_of_instances(), *day] if self.is_shared else [NOT_SHARED]
        self._limits_by_override = {
            each.target.limit_kind: each.policies
            for each in context.overrides
            if each.target.limit_kind is not None and each.target.client_id is None
        }
        self.next_commands, self.back_commands = self._commands()

    @property
    def canary_percent(self) -> float | None:
        canary = self.policies.canary
        return None if canary is None or canary.instances else canary.percent

    def _commands(self) -> tuple[list[str], list[str]]:
        """Return the commands for the next step, and those for going back, after which nobody is denied.

        A line that begins with ``#`` is a change of the configuration file.
        """
        is_override = self.status.mode_origin.override is not None
        if is_override and self.step not in DENYING and self.file_step in DENYING:  # as in an emergency
            return ['mode unset --reason "the incident is over"'], []
        if self.step is RolloutStep.OFF:
            return [self._set_mode(Mode.DRY_RUN, "first step")], []
        if self.step is RolloutStep.DRY_RUN:
            back = self._set_mode(Mode.OFF, "decide and count nothing")
        elif is_override and not enforces(self.status.file_policies):
            back = 'mode unset --reason "too many complaints"'
        else:
            back = self._set_mode(Mode.DRY_RUN, "too many complaints")
        if self.step is not RolloutStep.ENFORCE:
            present = (self.canary_percent or 0) if self.step is RolloutStep.CANARY else 0
            percent = next(each for each in CANARY_PERCENTS if each > present)
            reason = "for all clients" if percent == MAX_PERCENT else "canary"
            return [*self._reuse(), self._set_mode(Mode.ENFORCE, reason, percent=percent)], [back]
        in_file = self._in_file(Mode.ENFORCE, MAX_PERCENT)
        if self.file_step is RolloutStep.ENFORCE:
            in_file = 'mode unset --reason "the configuration enforces"'
        return [*([in_file] if is_override else []), *self._limits()], [back]

    def _limits(self) -> Iterator[str]:
        """Yield what makes the limits of overrides for everybody those of the file."""
        of_file = self.status.file_policies.limits
        for kind, policies in self._limits_by_override.items():
            if getattr(of_file, kind.value) == policies:
                yield f'limit unset --everybody --kind {kind.value} --reason "the configuration has it"'
            else:
                yield f"{IN_FILE} limits of kind {kind.value}, now those of an override: see limit list"

    def _set_mode(self, mode: Mode, reason: str, *, percent: int | None = None) -> str:
        """Return what sets a mode: the file where there are no overrides, or where it has the mode that beats them."""
        if self.is_shared and self.file_step is not RolloutStep.OFF:
            return f'mode set {mode.value}{f" --canary {percent}" if percent else ""} --reason "{reason}"'
        return self._in_file(mode, percent)

    def _in_file(self, mode: Mode, percent: float | None) -> str:
        canary = f", canary: {{percent: {percent}}}" if percent else ""
        if percent == MAX_PERCENT:
            canary = ", without canary" if self.status.file_policies.canary else ""
        return f"{IN_FILE} mode: {mode.value}{canary}"

    def _reuse(self) -> list[str]:
        """Return the change that spares denials, if there are such and none of the clients has it."""
        spared, has_reuse = self.total.would_reuse, any(map(self.policies.may_reuse, self.over))
        share = f"spares {spared_text(spared, self.total.over)} of those over a limit"
        return [f"{IN_FILE} on_limit: reuse in limits of kind client ({share})"] if spared and not has_reuse else []

    def data(self) -> Record:
        day = {
            **{name: getattr(self.total, name) for name in ("denied", "would_deny", "reused", "would_reuse")},
            "guard": {"mode": self.guard_mode, "denied": self.by_guard.denied, "would_deny": self.by_guard.would_deny},
            "requests": self.total.offered,
            "client_count": len(self.over),
            "clients": [{"client_id": name, "over": count} for name, count in self.over.most_common(MAX_NAMED)],
        }
        return {
            "step": self.step.value,
            "canary_percent": self.canary_percent,
            "file_mode": mode_text(self.status.file_policies),
            "mode_origin": origin_data(self.status.mode_origin),
            "may_go_on": not self.problems,
            "problems": self.problems,
            "is_shared": self.is_shared,
            "instance_count": len(self.status.heartbeats),
            "last_day": day if self.is_shared else None,
            "next": self.next_commands,
            "back": self.back_commands,
        }

    def _problems_of_instances(self) -> Iterator[str]:
        beats, now_s = self.status.heartbeats, self.status.facts.clock_s if self.status.facts else 0.0
        if not beats:
            yield "No instance seen in the last 10 minutes."
        for count, problem in (
            (sum(is_late(beat, now_s) for beat in beats), "late with the heartbeat"),
            (sum(is_lagging(beat.lag_s, beat.interval_s) for beat in beats), "behind with the synchronisation"),
            (sum(beat.mode != self.policies.mode for beat in beats), f"not in mode {self.policies.mode.value}"),
        ):
            if count:
                yield f"{counted(count, 'instance')} {problem}: see flask oauth-ratelimit status."

    def _problems_of_day(self, recorded_s: float | None) -> Iterator[str]:
        if self.step is RolloutStep.OFF and self.file_step not in DENYING:
            return
        if recorded_s is None:
            yield "No statistics of the last day."
        elif recorded_s < ENOUGH_S:
            yield "Less than a day of statistics: wait for the peaks that you know of."
        if self.total.over_share > MAX_OVER_RATIO:
            share = percent_text(self.total.over_share)
            yield f"{share} of the requests are over a limit. Are these clients the ones you mean?"


def step_of(policies: PolicySet) -> RolloutStep:
    """Return the step that a configuration with its overrides is at."""
    if policies.mode is Mode.OFF:
        return RolloutStep.OFF
    if policies.ceiling is Mode.DRY_RUN:  # an operator's dry run denies nothing, whatever modes the file names
        return RolloutStep.DRY_RUN
    if policies.mode is Mode.ENFORCE:
        canary = policies.canary
        is_for_all = canary is None or (canary.percent >= 100 and not canary.instances)
        return RolloutStep.ENFORCE if is_for_all else RolloutStep.CANARY
    return RolloutStep.DRY_RUN
