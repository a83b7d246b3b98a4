"""Too many failed authentications: counted apart from tokens, in documents of their own, by a limiter of their own.

So nobody who fails can use up a quota of tokens, and a flood of failures takes no room from the keys of tokens.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from oauth_ratelimit.config import PrivacySettings, Settings
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.failed_auth import AuthAttempt, FailureKey, failure_policies, is_within
from oauth_ratelimit.core.policy import Mode, matches_any
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.store.mongo.inspect import FAILURES


@dataclass(frozen=True, slots=True)
class Alarm:
    """An attempt that comes after too many failures.

    Attributes:
        key: Whose limit it is; of several the one that lasts longest.
        decision: What is done about it, and for how long.
    """

    key: FailureKey
    decision: FullDecision


class FailureCounts(Limiter):
    """A limiter that looks without leaving a trace, and counts without deciding: what fails has happened already."""

    def look(self, key: FailureKey) -> FullDecision | None:
        """
        Decide as ``peek`` does. None if no failure of the key is known here: then nothing is remembered of it either.
        """
        client = self._clients.find(key.client_id, endpoint=key.kind.scope)
        if client is None or client.exempt is not None:
            return None
        now_s = self._clock()
        with client.lock:
            state = client.keys.get(key.name)
            if state is None:
                if key.name not in client.former:
                    return None
                state = self._clients.add_key(client, key.name, now_s)
            return client.preview(state, now_s, cost=1)

    def count(self, key: FailureKey) -> None:
        """Count a failure, however many there are already."""
        now_s = self._clock()
        with self._clients.held(key.client_id, endpoint=key.kind.scope) as client:
            if client.exempt is None:
                state = client.keys.get(key.name) or self._clients.add_key(client, key.name, now_s)
                client.count(state, now_s)

    def give_up(self) -> None:
        """Release everything without a last flush."""
        self._cycle.log_undelivered()
        self._cycle.close()


class Guard:
    """Counts failures, and tells which attempts come after too many. Costs nothing while it is off.

    Synchronises when its owner calls ``run``, and always after the counters of tokens.

    Args:
        settings: What applies.
        clock: Tells the time, seconds since the epoch.
        events: Where alarms are logged, with the denials of tokens; None for events of its own.
        metrics: Where failures and alarms are counted, too.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        events: DenialEvents | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._counts: FailureCounts | None = None
        self.reconfigure(settings)

    @property
    def is_on(self) -> bool:
        """Whether anything is counted."""
        return self._mode is not Mode.OFF

    def is_watching(self, address: str) -> bool:
        """Whether failures from an address are counted."""
        return self.is_on and not is_within(address, self._settings.guard.trusted_addresses)

    def look(self, attempt: AuthAttempt) -> Alarm | None:
        """Tell whether an attempt comes after too many failures, before anything of it is checked. Counts nothing.

        It makes no difference whether what it claims exists, or whether its password is right: whoever guesses learns
        nothing from the answer. A trusted client is never denied; its alarms are a dry run.
        """
        counts = self._counts
        if counts is None or not self.is_on:
            return None
        alarms = []
        for key in attempt.targets():
            decision = counts.look(key)
            if decision is not None and decision.would_deny:
                alarms.append(Alarm(key, decision))
        if not alarms:
            return None
        alarm = max(alarms, key=lambda alarm: (not alarm.decision.allowed, alarm.decision.retry_after_s))
        if not alarm.decision.allowed and self._trusts(attempt.client_ids):
            alarm = replace(alarm, decision=replace(alarm.decision, allowed=True, mode=Mode.DRY_RUN))
        counts.denial_events.report(
            alarm.key.client_id,
            alarm.key.name,
            scope=alarm.key.kind.scope,
            grant_type=None,
            decision=alarm.decision,
            is_canary=False,
            now_s=self._clock(),
        )
        if self._metrics is not None:
            self._metrics.note_alarm(alarm.decision)
        return alarm

    def count(self, keys: Iterable[FailureKey]) -> None:
        """Count a failure against each of these."""
        if self._counts is not None and self.is_on:
            for key in keys:
                self._counts.count(key)
                if self._metrics is not None:
                    self._metrics.note_failure(key.kind.value)

    def reconfigure(self, settings: Settings) -> None:
        """Take over other limits and modes; counts stay."""
        policies = settings.policies
        self._settings = settings
        self._mode = Mode.OFF if policies.mode is Mode.OFF else settings.guard.mode
        own = replace(
            settings,
            policies=failure_policies(settings.guard.limits, self._mode, ceiling=policies.ceiling),
            store=replace(settings.store, collection=FAILURES),
            sync=replace(settings.sync, near_limit="flush"),
            privacy=PrivacySettings(),  # claimed names are pseudonyms before they come here
            max_keys=settings.guard.max_keys,
        )
        if self._counts is not None:
            self._counts.reconfigure(own)
        elif self.is_on:
            self._counts = FailureCounts(own, clock=self._clock, denial_events=self._events)

    def run(self) -> None:
        """Synchronise."""
        if self._counts is not None:
            self._counts.sync()
            if self._clock is time.time:  # an injected clock is right by definition
                self._counts.correct_clock(self._counts.clock_offset_s)

    def close(self, *, is_failing: bool) -> None:
        """Synchronise once more, and release everything.

        Args:
            is_failing: Whether MongoDB is out of reach, so that another try would only take time.
        """
        if self._counts is not None:
            if is_failing:
                self._counts.give_up()
            else:
                self._counts.close()

    def _trusts(self, client_ids: tuple[str, ...]) -> bool:
        trusted = self._settings.policies.trusted
        return bool(client_ids) and all(matches_any(trusted, client_id) for client_id in client_ids)
