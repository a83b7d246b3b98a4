"""Step of a rollout, what the last day says about the next one, and the commands for it and for going back."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted
from oauth_ratelimit.operations.serialize import LATE_AFTER_S, Record
from oauth_ratelimit.operations.status import Status

DAY_S = 86_400.0
ENOUGH_S = 20 * 3600.0  # of statistics in the last day
MAX_OVER_RATIO = 0.01  # of the requests; above it a limit hits more than a few clients that waste tokens
RISING_RATIO = 2.0  # times the day before
MAX_LAG_INTERVALS = 3  # sync intervals
MAX_NAMED = 5
CANARY_PERCENTS = (5, 20, 50)


class Step(enum.StrEnum):
    """Steps of a rollout, in their order."""

    OFF = "off"
    DRY_RUN = "dry run"
    CANARY = "canary"
    SOME = "enforce for some clients"
    ENFORCE = "enforce"


@dataclass(slots=True)
class Day:
    """Requests of one day.

    Attributes:
        offered: All requests.
        denied: Denied requests.
        would_deny: Requests over a limit that were admitted.
        over: Both by client.
        first_s: First recorded minute, seconds since the epoch; None without requests.
    """

    offered: int = 0
    denied: int = 0
    would_deny: int = 0
    over: dict[str, int] = field(default_factory=dict)
    first_s: int | None = None

    @property
    def over_count(self) -> int:
        """Number of requests over a limit, denied or not."""
        return self.denied + self.would_deny

    def add(self, minute: ClientMinute) -> None:
        """Add a minute of a client."""
        tally = minute.tally()
        if self.first_s is None:
            self.first_s = minute.minute_s
        self.offered += tally.offered
        self.denied += tally.denied
        self.would_deny += tally.would_deny
        if tally.over and minute.client_id != OTHER_CLIENTS:
            self.over[minute.client_id] = self.over.get(minute.client_id, 0) + tally.over

    def worst(self, count: int) -> list[tuple[str, int]]:
        """Return the clients with most requests over a limit."""
        return sorted(self.over.items(), key=lambda item: (-item[1], item[0]))[:count]


class Rollout:
    """State of a rollout.

    Args:
        context: Configuration and stores.

    Attributes:
        step: The present step.
        canary_percent: Share of clients that the canary enforces limits for; None without a canary by share.
        is_shared: True if counters are shared through MongoDB.
        instance_count: Number of instances seen lately.
        day: The last 24 hours.
        day_before: The 24 hours before.
        problems: Reasons to wait.
    """

    def __init__(self, context: OperatorContext) -> None:
        policies = context.policies
        self.step = step_of(policies)
        self.canary_percent = None if policies.canary is None or policies.canary.instances else policies.canary.percent
        self.is_shared = context.is_shared
        self._is_off_in_file = context.settings.policies.mode is Mode.OFF
        self.day, self.day_before = Day(), Day()
        self.instance_count = 0
        self.problems: list[str] = []
        if self.is_shared:
            minutes = context.stores.statistics.minutes(context.now_s - 2 * DAY_S, context.now_s, parts=("by",))
            self._add(minutes, context.now_s)
            self._judge_instances(Status(context))
            self._judge_day(context.now_s)
        else:
            self.problems.append(
                "Counters are not shared: each process counts alone, so the limits are higher than they look, and "
                "there are no statistics. Set store.uri."
            )

    @property
    def may_go_on(self) -> bool:
        """True if nothing speaks against the next step."""
        return not self.problems

    @property
    def next_commands(self) -> list[str]:
        """Commands for the next step; lines that begin with ``#`` are changes of the configuration file."""
        match self.step:
            case Step.OFF:
                return [self._set_mode(Mode.DRY_RUN, "first step")]
            case Step.DRY_RUN:
                return [
                    f"# in the configuration file: canary: {{percent: {CANARY_PERCENTS[0]}}}",
                    self._set_mode(Mode.ENFORCE, "canary"),
                ]
            case Step.CANARY:
                return [_next_canary(self.canary_percent)]
            case Step.SOME:
                return [self._set_mode(Mode.ENFORCE, "for all clients")]
        return []

    @property
    def back_commands(self) -> list[str]:
        """Commands for going back. From a step that denies, nobody is denied any more."""
        if self.step in (Step.OFF, Step.DRY_RUN):
            return [self._set_mode(Mode.OFF, "decide and count nothing")]
        return [self._set_mode(Mode.DRY_RUN, "too many complaints")]

    def _set_mode(self, mode: Mode, reason: str) -> str:
        """Return what sets a mode: the file where there are no overrides, or where it has the mode that beats them."""
        if not self.is_shared or self._is_off_in_file:
            return f"# in the configuration file: mode: {mode.value}"
        return f'mode set {mode.value} --reason "{reason}"'

    def data(self) -> Record:
        """Return the state as a record."""
        return {
            "step": self.step.value,
            "canary_percent": self.canary_percent,
            "may_go_on": self.may_go_on,
            "problems": self.problems,
            "is_shared": self.is_shared,
            "instance_count": self.instance_count,
            "last_day": _day_data(self.day) if self.is_shared else None,
            "day_before": _day_data(self.day_before) if self.is_shared else None,
            "next": self.next_commands,
            "back": self.back_commands,
        }

    def _add(self, minutes: Iterable[ClientMinute], now_s: float) -> None:
        for minute in minutes:
            (self.day if minute.minute_s >= now_s - DAY_S else self.day_before).add(minute)

    def _judge_instances(self, status: Status) -> None:
        self.instance_count = len(status.heartbeats)
        clock_s = status.facts.clock_s if status.facts else 0.0
        if not status.heartbeats:
            self.problems.append("No instance seen in the last 10 minutes.")
        late = sum(clock_s - beat.beat_at_s > LATE_AFTER_S for beat in status.heartbeats)
        lagging = sum(beat.lag_s > MAX_LAG_INTERVALS * beat.interval_s for beat in status.heartbeats)
        other = sum(beat.mode != status.policies.mode for beat in status.heartbeats)
        for count, problem in (
            (late, "late with the heartbeat"),
            (lagging, "behind with the synchronisation"),
            (other, f"not in mode {status.policies.mode.value}"),
        ):
            if count:
                self.problems.append(f"{counted(count, 'instance')} {problem}: see flask oauth-ratelimit status.")

    def _judge_day(self, now_s: float) -> None:
        day, before = self.day, self.day_before
        first_s = before.first_s or day.first_s
        if self.step is Step.OFF:
            return
        if first_s is None:
            self.problems.append("No statistics of the last day.")
        elif now_s - first_s < ENOUGH_S:
            self.problems.append("Less than a day of statistics: wait for the peaks that you know of.")
        if day.offered and day.over_count > MAX_OVER_RATIO * day.offered:
            share = f"{day.over_count / day.offered:.1%}"
            self.problems.append(f"{share} of the requests are over a limit. Are these clients the ones you mean?")
        if before.over_count and day.over_count > RISING_RATIO * before.over_count:
            rise = f"{day.over_count:,} requests over a limit, {before.over_count:,} the day before"
            self.problems.append(f"{rise}: find out why before you go on.")


def step_of(policies: PolicySet) -> Step:
    """Return the step that a configuration with its overrides is at."""
    if policies.mode is Mode.OFF:
        return Step.OFF
    if policies.ceiling is Mode.DRY_RUN:  # an operator's dry run denies nothing, whatever modes the file names
        return Step.DRY_RUN
    if policies.mode is Mode.ENFORCE:
        canary = policies.canary
        is_for_all = canary is None or (canary.percent >= 100 and not canary.instances)
        return Step.ENFORCE if is_for_all else Step.CANARY
    sections = (*policies.clients.values(), *policies.plans.values(), *policies.grants.values())
    return Step.SOME if any(each.mode is Mode.ENFORCE for each in sections) else Step.DRY_RUN


def _next_canary(percent: float | None) -> str:
    larger = next((each for each in CANARY_PERCENTS if percent is not None and each > percent), None)
    if larger is None:
        return "# in the configuration file: remove canary"
    return f"# in the configuration file: canary: {{percent: {larger}}}"


def _day_data(day: Day) -> Record:
    return {
        "requests": day.offered,
        "denied": day.denied,
        "would_deny": day.would_deny,
        "client_count": len(day.over),
        "clients": [{"client_id": client_id, "over": count} for client_id, count in day.worst(MAX_NAMED)],
    }
