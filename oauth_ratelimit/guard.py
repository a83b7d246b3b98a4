"""Guard against guessed passwords and secrets: limits on failed authentications.

A guess is reserved before it is checked, and counted or released afterwards. So guesses that are checked at the same
time cannot pass a limit together, and only failures are kept, sent and stored.

Failures are counted by a limiter of their own, in documents of their own. So nobody who fails uses up a quota of
tokens, and a flood of failures takes no memory from the keys of tokens.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from oauth_ratelimit.config import PrivacySettings, Settings
from oauth_ratelimit.core.decision import FullDecision
from oauth_ratelimit.core.failed_auth import (
    ANYONE,
    FAILURE_SCOPES,
    NAMING_SCOPES,
    FailureKey,
    failure_policies,
    is_within,
)
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy, PolicySet
from oauth_ratelimit.core.tier import tiers_of
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.base import CounterStore

WAIT_S = 5.0  # longest time that an attempt waits for guesses that are being checked
CHECK_S = 60.0  # longest time that a guess is expected to be checked; one that is lost is forgotten after it


@dataclass(frozen=True, slots=True)
class Alarm:
    """An attempt after too many failures.

    Attributes:
        key: The key whose limit is exceeded; of several, the one that denies longest.
        decision: Whether the attempt is denied, and for how long.
    """

    key: FailureKey
    decision: FullDecision


@dataclass(eq=False, slots=True)
class Guess:
    """A password, or one or more secrets of a client, that are being checked.

    Attributes:
        keys: Keys that it counts against if it is wrong; none after too many failures, in a dry run.
        cost: Failures that it counts as.
        begun_s: Time at which it was reserved, by the monotonic clock.
    """

    keys: Sequence[FailureKey]
    cost: int = 1
    begun_s: float = field(default_factory=time.monotonic)


class Guard:
    """Counts failed authentications and denies attempts that come after too many. Costs nothing while it is off.

    Its owner calls ``run`` after each sync cycle of the token counters.

    Args:
        settings: The settings that apply.
        store: The shared counters of failures; None counts in this process only.
        clock: Returns the time in seconds since the epoch.
        events: Logs alarms, together with the denials of tokens; None creates one.
        metrics: Counts failures and alarms.

    Attributes:
        limiter: Counts the failures; None until the guard is on for the first time.
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
        self.limiter: Limiter | None = None
        self._guesses: dict[FailureKey, set[Guess]] = {}
        self._settled = threading.Condition()  # guards _guesses; held while a guess is reserved or counted
        self.reconfigure(settings)

    @property
    def is_on(self) -> bool:
        """True if failures are counted."""
        return self._mode is not Mode.OFF

    def is_watching(self, remote_addr: str) -> bool:
        """Return whether failures from an address are counted."""
        return self.is_on and not is_within(remote_addr, self._settings.guard.trusted_addresses)

    def trusts(self, client_id: str) -> bool:
        """Return whether a client is trusted, if it has proven that it is this client."""
        return self._settings.policies.trusts(client_id)

    def reserve(self, keys: Sequence[FailureKey], *, cost: int = 1, is_exempt: bool = False) -> Guess | Alarm:
        """Return a guess that may be checked, or the alarm that denies it.

        If only guesses that are being checked stand in the way, it waits until enough of them turn out to be right.
        The answer does not depend on whether the user exists or the password is right, so a guesser learns nothing
        from it.

        Args:
            keys: Keys that the guess counts against if it is wrong.
            cost: Failures that it counts as: the number of secrets that may be tried.
            is_exempt: True to report a denial as a dry run does, for a trusted client that has proven itself.
        """
        with self._settled:
            alarm = self._look(keys, cost)
            if not is_exempt:
                alarm = self._wait_for_room(keys, cost, alarm)
            if alarm is None:
                return self._begin(keys, cost)
            if alarm.decision.allowed and any(key.scope in self._enforced for key in keys):
                guess = self._begin(keys, cost)
            else:
                guess = Guess(())  # as if it were denied, so it does not count
        if is_exempt:
            alarm = replace(alarm, decision=replace(alarm.decision, allowed=True, mode=Mode.DRY_RUN))
        self._report(alarm)
        return guess if alarm.decision.allowed else alarm

    def settle(self, guess: Guess, *, failed: Collection[FailureKey] = ()) -> None:
        """Count a guess against the keys for which it was wrong, and release it for the others."""
        with self._settled:
            for key in guess.keys:
                self._release(key, guess)
                if key in failed:
                    self._count(key, guess.cost)
            if guess.keys:
                guess.keys = ()
                self._settled.notify_all()

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits and modes; counts stay."""
        policies = settings.policies
        self._settings = settings
        mode = Mode.OFF if policies.mode is Mode.OFF else settings.guard.mode
        own = replace(
            settings,
            policies=failure_policies(settings.guard.limits, mode, ceiling=policies.ceiling),
            store=replace(settings.store, uri=None),
            sync=replace(settings.sync, near_limit="flush"),
            privacy=PrivacySettings(),  # the names in the keys are pseudonyms already
            max_keys=settings.guard.max_keys,
        )
        self._enforced = _lowest_enforced(own.policies)
        if self.limiter is not None:
            self.limiter.reconfigure(own)
        elif mode is not Mode.OFF:
            self.limiter = Limiter(
                own,
                self._store,
                clock=self._clock,
                denial_events=self._events,
                follows_store_clock=self._clock is time.time,  # an injected clock is right by definition
            )
        self._mode = mode  # last, because a guard that is on counts

    def preload(self, count: int) -> None:
        """Read the keys that failed last. Blocks."""
        if self.limiter is not None:
            self.limiter.preload(count, scopes=FAILURE_SCOPES)

    def run(self, *, is_reachable: bool = True) -> None:
        """Run one sync cycle. See ``Limiter.sync``."""
        if self.limiter is not None:
            self.limiter.sync(is_reachable=is_reachable, is_scheduled=True)

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush once more and release everything. See ``Limiter.close``."""
        if self.limiter is not None:
            self.limiter.close(deadline)

    def _look(self, keys: Sequence[FailureKey], cost: int) -> Alarm | None:
        """Return an alarm if an attempt comes after too many failures. Counts nothing."""
        limiter = self.limiter
        if limiter is None or not self.is_on:
            return None
        alarms = []
        for key in keys:
            policy = self._enforced.get(key.scope)
            if policy is not None and cost > policy.limit:
                alarms.append(_busy(key, policy))
            decision = limiter.peek_if_known(key.client_id, key.name, endpoint=key.scope, cost=cost)
            if decision is not None and decision.would_deny:
                alarms.append(Alarm(key, decision))
        return max(alarms, key=lambda alarm: (not alarm.decision.allowed, alarm.decision.retry_after_s), default=None)

    def _wait_for_room(self, keys: Sequence[FailureKey], cost: int, alarm: Alarm | None) -> Alarm | None:
        """Return the alarm once guesses that are being checked do not matter any more. The condition is held.

        Passwords of one user wait for each other, so that all processes know of a wrong one before the next is checked.
        """
        deadline_s = time.monotonic() + WAIT_S
        while alarm is None or alarm.decision.allowed:
            left_s = deadline_s - time.monotonic()
            crowded = self._crowded(keys, cost, one_at_a_time=left_s > 0)
            if crowded is None or left_s <= 0:
                return crowded or alarm
            self._settled.wait(left_s)
            alarm = self._look(keys, cost)
        return alarm

    def _crowded(self, keys: Sequence[FailureKey], cost: int, *, one_at_a_time: bool) -> Alarm | None:
        """Return an alarm if a key would be over its limit if all guesses that are being checked were wrong.

        Args:
            keys: Keys of a guess.
            cost: Failures that it counts as.
            one_at_a_time: True to return one also if a password of the same user is being checked.
        """
        limiter = self.limiter
        for key in keys:
            policy, guesses = self._enforced.get(key.scope), self._guesses.get(key)
            if limiter is None or policy is None or not guesses or self._forget_lost(key, guesses):
                continue
            total = cost + sum(guess.cost for guess in guesses)
            if total > policy.limit or (one_at_a_time and key.scope in NAMING_SCOPES):
                return _busy(key, policy)
            decision = limiter.peek_if_known(key.client_id, key.name, endpoint=key.scope, cost=total)
            if decision is not None and not decision.allowed:
                return _busy(key, policy)
        return None

    def _forget_lost(self, key: FailureKey, guesses: set[Guess]) -> bool:
        """Release the guesses that were lost, and return whether none is left."""
        expired_s = time.monotonic() - CHECK_S
        for lost in [guess for guess in guesses if guess.begun_s < expired_s]:
            self._release(key, lost)
        return not guesses

    def _begin(self, keys: Sequence[FailureKey], cost: int) -> Guess:
        guess = Guess(tuple(keys), cost)
        for key in keys:
            self._guesses.setdefault(key, set()).add(guess)
        return guess

    def _release(self, key: FailureKey, guess: Guess) -> None:
        guesses = self._guesses.get(key, set())
        guesses.discard(guess)
        if not guesses:
            self._guesses.pop(key, None)

    def _count(self, key: FailureKey, count: int) -> None:
        if self.limiter is None or not self.is_on:
            return
        for _ in range(count):
            self.limiter.count(key.client_id, key.name, endpoint=key.scope)
            if self._metrics is not None:
                self._metrics.record_failure(key.kind.value)

    def _report(self, alarm: Alarm) -> None:
        if self.limiter is not None:
            self.limiter.denial_events.report(
                alarm.key.client_id,
                alarm.key.name,
                scope=alarm.key.scope,
                grant_type=None,
                decision=alarm.decision,
                is_canary=False,
                now_s=self._clock(),
            )
        if self._metrics is not None:
            self._metrics.record_alarm(alarm.decision)


def _busy(key: FailureKey, policy: Policy) -> Alarm:
    """Return the denial of an attempt that waited too long for others, or that has more secrets than the limit."""
    decision = FullDecision(
        allowed=False,
        would_deny=True,
        mode=Mode.ENFORCE,
        rule=policy,
        remaining=0,
        reset_after_s=WAIT_S,
        retry_after_s=WAIT_S,
    )
    return Alarm(key, decision)


def _lowest_enforced(policies: PolicySet) -> dict[str, Policy]:
    """Return the lowest enforced limit of each scope that has one."""
    lowest = {}
    for scope in FAILURE_SCOPES:
        found = policies.matching(ANYONE, endpoint=scope)
        enforced = [tier.policy for tier in tiers_of(found.limits.user, found.mode) if tier.is_enforced]
        if enforced:
            lowest[scope] = min(enforced, key=lambda policy: policy.limit)
    return lowest
