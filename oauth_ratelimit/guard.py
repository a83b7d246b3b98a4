"""Guard against guessed passwords and secrets: limits on failed authentications.

Failures are counted by a limiter of their own, in documents of their own. So nobody who fails uses up a quota of
tokens, and a flood of failures takes no memory from the keys of tokens.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from oauth_ratelimit.config import PrivacySettings, Settings
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.failed_auth import AuthAttempt, FailureKey, failure_policies, is_within
from oauth_ratelimit.core.key import matches_any
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.base import CounterStore


@dataclass(frozen=True, slots=True)
class Alarm:
    """An attempt after too many failures.

    Attributes:
        key: The key whose limit is exceeded; of several, the one that denies longest.
        decision: Whether the attempt is denied, and for how long.
    """

    key: FailureKey
    decision: FullDecision


class Guard:
    """Counts failed authentications and finds attempts that come after too many. Costs nothing while it is off.

    Its owner calls ``run`` after each sync cycle of the token counters.

    Args:
        settings: The settings that apply.
        store: The shared counters of failures; None counts in this process only.
        clock: Returns the time in seconds since the epoch.
        events: Logs alarms, together with the denials of tokens; None creates one.
        metrics: Counts failures and alarms.
    """

    def __init__(
        self,
        settings: Settings,
        store: CounterStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
        events: DenialEvents | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._limiter: Limiter | None = None
        self.reconfigure(settings)

    @property
    def is_on(self) -> bool:
        """True if failures are counted."""
        return self._mode is not Mode.OFF

    def is_watching(self, address: str) -> bool:
        """Return whether failures from an address are counted."""
        return self.is_on and not is_within(address, self._settings.guard.trusted_addresses)

    def look(self, attempt: AuthAttempt) -> Alarm | None:
        """Return an alarm if an attempt comes after too many failures. Counts nothing.

        The answer does not depend on whether the user exists or the password is right, so a guesser learns nothing
        from it. Trusted clients are never denied; their alarms are a dry run.
        """
        limiter = self._limiter
        if limiter is None or not self.is_on:
            return None
        alarms = []
        for key in attempt.targets():
            decision = limiter.peek_if_known(key.client_id, key.name, endpoint=key.kind.scope)
            if decision is not None and decision.would_deny:
                alarms.append(Alarm(key, decision))
        if not alarms:
            return None
        alarm = max(alarms, key=lambda alarm: (not alarm.decision.allowed, alarm.decision.retry_after_s))
        if not alarm.decision.allowed and self._trusts(attempt.client_ids):
            alarm = replace(alarm, decision=replace(alarm.decision, allowed=True, mode=Mode.DRY_RUN))
        limiter.denial_events.report(
            alarm.key.client_id,
            alarm.key.name,
            scope=alarm.key.kind.scope,
            grant_type=None,
            decision=alarm.decision,
            is_canary=False,
            now_s=self._clock(),
        )
        if self._metrics is not None:
            self._metrics.record_alarm(alarm.decision)
        return alarm

    def count(self, keys: Iterable[FailureKey]) -> None:
        """Count a failure for each key."""
        if self._limiter is not None and self.is_on:
            for key in keys:
                self._limiter.count(key.client_id, key.name, endpoint=key.kind.scope)
                if self._metrics is not None:
                    self._metrics.record_failure(key.kind.value)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits and modes; counts stay."""
        policies = settings.policies
        self._settings = settings
        self._mode = Mode.OFF if policies.mode is Mode.OFF else settings.guard.mode
        own = replace(
            settings,
            policies=failure_policies(settings.guard.limits, self._mode, ceiling=policies.ceiling),
            store=replace(settings.store, uri=None),
            sync=replace(settings.sync, near_limit="flush"),
            privacy=PrivacySettings(),  # the names in the keys are pseudonyms already
            max_keys=settings.guard.max_keys,
        )
        if self._limiter is not None:
            self._limiter.reconfigure(own)
        elif self.is_on:
            self._limiter = Limiter(
                own,
                self._store,
                clock=self._clock,
                denial_events=self._events,
                follows_store_clock=self._clock is time.time,  # an injected clock is right by definition
            )

    def run(self) -> None:
        """Run one sync cycle."""
        if self._limiter is not None:
            self._limiter.sync()

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush once more and release everything. See ``Limiter.close``."""
        if self._limiter is not None:
            self._limiter.close(deadline)

    def _trusts(self, client_ids: tuple[str, ...]) -> bool:
        trusted = self._settings.policies.trusted
        return bool(client_ids) and all(matches_any(trusted, client_id) for client_id in client_ids)
