"""Step of a rollout, what the last day says about the next one, and the commands for it and for going back."""

import enum
from collections import Counter

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.overrides import MAX_PERCENT
from oauth_ratelimit.core.policy import OnLimit, PolicySet
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, OTHER_CLIENTS, Tally
from oauth_ratelimit.operations.changes import CANARY_PERCENTS
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted, mode_text, percent_text, spared_text
from oauth_ratelimit.operations.serialize import Record, origin_data
from oauth_ratelimit.operations.status import Status, is_lagging

ENOUGH_S = 20 * HOUR_S  # of statistics in the last day
MAX_OVER_RATIO = 0.01  # of the requests; above it a limit hits more than a few clients that waste tokens
MAX_NAMED = 5
NOT_SHARED = (
    "Counters are not shared with other hosts, so several admit more than the limits say, and there are no statistics. "
    "Set store.uri."
)


class RolloutStep(enum.StrEnum):
    """Steps of a rollout, in their order."""

    OFF = "off"
    DRY_RUN = "dry run"
    CANARY = "canary"
    ENFORCE = "enforce"


class Rollout:
    """State of a rollout: its step, the last day, the instances, and the problems that are reasons to wait."""

    def __init__(self, context: OperatorContext) -> None:
        self._policies = policies = context.policies
        self.step = step_of(policies)
        self.canary_percent = None if policies.canary is None or policies.canary.instances else policies.canary.percent
        self.is_shared = context.is_shared
        self.status = Status(context)
        self.total = Tally()  # requests of the last day
        self.over: Counter[str] = Counter()  # those over a limit by client, denied or not
        self.first_s: int | None = None  # first recorded minute
        self.problems: list[str] = []
        if self.is_shared:
            for minute in context.minutes(context.now_s - DAY_S, parts=("by",)):
                tally = minute.tally()
                self.first_s = self.first_s or minute.minute_s
                self.total += tally
                if tally.over and minute.client_id != OTHER_CLIENTS:
                    self.over[minute.client_id] += tally.over
            self._judge_instances()
            self._judge_day(context.now_s)
        else:
            self.problems.append(NOT_SHARED)

    @property
    def next_commands(self) -> list[str]:
        """Commands for the next step; a line that begins with ``#`` is a change of the configuration file."""
        if self._is_held_back:
            return ['mode unset --reason "the incident is over"']
        if self.step is RolloutStep.OFF:
            return [self._set_mode(Mode.DRY_RUN, "first step")]
        if self.step is not RolloutStep.ENFORCE:
            present = (self.canary_percent or 0) if self.step is RolloutStep.CANARY else 0
            percent = next(each for each in CANARY_PERCENTS if each > present)
            reason = "for all clients" if percent == MAX_PERCENT else "canary"
            return [*self._reuse(), self._set_mode(Mode.ENFORCE, reason, percent=percent)]
        if self.status.mode_origin.override is None:
            return []
        if step_of(self.status.file_policies) is RolloutStep.ENFORCE:
            return ['mode unset --reason "the configuration enforces"']
        return [self._in_file(Mode.ENFORCE, MAX_PERCENT)]

    @property
    def back_commands(self) -> list[str]:
        """Commands for going back, none from the first step. From one that denies, nobody is denied any more."""
        if self._is_held_back:
            return []
        if self.step is RolloutStep.DRY_RUN:
            return [self._set_mode(Mode.OFF, "decide and count nothing")]
        return [] if self.step is RolloutStep.OFF else [self._set_mode(Mode.DRY_RUN, "too many complaints")]

    @property
    def _is_held_back(self) -> bool:
        """True if an override keeps a configuration that enforces from denying, as in an emergency."""
        denying = (RolloutStep.CANARY, RolloutStep.ENFORCE)
        is_override = self.status.mode_origin.override is not None
        return is_override and self.step not in denying and step_of(self.status.file_policies) in denying

    def _set_mode(self, mode: Mode, reason: str, *, percent: int | None = None) -> str:
        """Return what sets a mode: the file where there are no overrides, or where it has the mode that beats them."""
        if self.is_shared and self.status.file_policies.mode is not Mode.OFF:
            return f'mode set {mode.value}{f" --canary {percent}" if percent else ""} --reason "{reason}"'
        return self._in_file(mode, percent)

    def _reuse(self) -> list[str]:
        """Return the change that spares denials, if there are such and none of the clients has it."""
        limits = [policy for name in self.over for policy in self._policies.limits_at(name)[1].client]
        if not self.total.would_reuse or any(policy.on_limit is OnLimit.REUSE for policy in limits):
            return []
        change = "# in the configuration file: on_limit: reuse in limits of kind client"
        return [f"{change} (spares {spared_text(self.total.would_reuse, self.total.over)} of the denials)"]

    def _in_file(self, mode: Mode, percent: float | None) -> str:
        canary = f", canary: {{percent: {percent}}}" if percent else ""
        if percent == MAX_PERCENT:
            canary = ", without canary" if self.status.file_policies.canary else ""
        return f"# in the configuration file: mode: {mode.value}{canary}"

    def data(self) -> Record:
        return {
            "step": self.step.value,
            "canary_percent": self.canary_percent,
            "file_mode": mode_text(self.status.file_policies),
            "mode_origin": origin_data(self.status.mode_origin),
            "may_go_on": not self.problems,
            "problems": self.problems,
            "is_shared": self.is_shared,
            "instance_count": len(self.status.heartbeats),
            "last_day": self._day_data() if self.is_shared else None,
            "next": self.next_commands,
            "back": self.back_commands,
        }

    def _day_data(self) -> Record:
        return {
            **{name: getattr(self.total, name) for name in ("denied", "would_deny", "reused", "would_reuse")},
            "requests": self.total.offered,
            "client_count": len(self.over),
            "clients": [{"client_id": name, "over": count} for name, count in self.over.most_common(MAX_NAMED)],
        }

    def _judge_instances(self) -> None:
        status = self.status
        if not status.heartbeats:
            self.problems.append("No instance seen in the last 10 minutes.")
        lagging = sum(is_lagging(beat.lag_s, beat.interval_s) for beat in status.heartbeats)
        other = sum(beat.mode != status.policies.mode for beat in status.heartbeats)
        for count, problem in (
            (status.late_count, "late with the heartbeat"),
            (lagging, "behind with the synchronisation"),
            (other, f"not in mode {status.policies.mode.value}"),
        ):
            if count:
                self.problems.append(f"{counted(count, 'instance')} {problem}: see flask oauth-ratelimit status.")

    def _judge_day(self, now_s: float) -> None:
        if self.step is RolloutStep.OFF:
            return
        if self.first_s is None:
            self.problems.append("No statistics of the last day.")
        elif now_s - self.first_s < ENOUGH_S:
            self.problems.append("Less than a day of statistics: wait for the peaks that you know of.")
        if self.total.over_share > MAX_OVER_RATIO:
            share = percent_text(self.total.over_share)
            self.problems.append(f"{share} of the requests are over a limit. Are these clients the ones you mean?")


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
