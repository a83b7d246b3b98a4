"""Guard against guessed passwords and secrets: limits on failed authentications.

A guess is reserved before it is checked, and counted or released afterwards. So guesses that are checked at the same
time cannot pass a limit together, and only failures are kept, sent and stored.

Failures are counted by a limiter of their own, in documents of their own. So nobody who fails uses up a quota of
tokens, and a flood of failures takes no memory from the keys of tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from oauth_ratelimit.config import PrivacySettings, Settings
from oauth_ratelimit.config.settings import OFF
from oauth_ratelimit.core.decision import Decision, LimitDenial
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
from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.core.tier import tiers_of
from oauth_ratelimit.counters.host_place import HostPlace
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.waiters import Waiters
from oauth_ratelimit.store.base import CounterStore

WAIT_S = 5.0  # longest time that an attempt waits for guesses that are being checked
RETRY_S = 1.0  # seconds after which an attempt that may not wait is to be repeated
CHECK_S = 60.0  # longest time that a guess is expected to be checked; one that is lost is forgotten after it


class Lockout(NamedTuple):
    """An attempt after too many failures. Of several keys it has the one that denies longest."""

    key: FailureKey
    decision: Decision


@dataclass(eq=False, slots=True)
class Guess:
    """A password, or a secret of a client, that is being checked.

    It counts against ``keys`` if it is wrong: none after too many failures, in a dry run.
    """

    keys: Sequence[FailureKey]
    begun_s: float = field(default_factory=time.monotonic)


class Guard:
    """Counts failed authentications and denies attempts that come after too many. Costs nothing while it is off.

    Its owner calls ``run`` after each sync cycle of the token counters. It counts beside ``place``; without a store and
    a place in this process only.
    ``is_on`` is True if failures are counted. ``limiter`` counts them; it is None until the guard is on for the first
    time.
    """

    def __init__(
        self,
        settings: Settings,
        store: CounterStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
        events: DenialEvents | None = None,
        metrics: Metrics | None = None,
        statistics: StatisticsRecorder | None = None,
        place: HostPlace | None = None,
    ) -> None:
        self._store = store
        self._place = place and place.beside("-guard")  # the cycles of either would drop the other's rows
        self._clock = clock
        self._metrics = metrics
        self._statistics = statistics
        self._events = events
        self.limiter: Limiter | None = None
        self._guesses: dict[FailureKey, set[Guess]] = {}
        self._settled = Waiters()  # guards the guesses; held while one is reserved or counted
        self.reconfigure(settings)

    def is_watching(self, remote_addr: str) -> bool:
        """Return whether failures from an address are counted."""
        return self.is_on and not is_within(remote_addr, self._settings.guard.trusted_addresses)

    def reserve(self, keys: Sequence[FailureKey], *, is_exempt: bool = False, waits: bool = True) -> Guess | Lockout:
        """Return a guess that may be checked, or the lockout that denies it.

        If only guesses that are being checked stand in the way, it waits until enough of them turn out to be right,
        unless it may not, or a share of the server's threads waits already: others need the rest. The answer does not
        depend on whether the user exists or the password is right, so a guesser learns nothing from it.

        A denial of an exempt attempt, of a trusted client that has proven itself, is reported as a dry run does.
        """
        with self._settled:
            self._settled.note_thread()
            lockout = self._look(keys)
            if not is_exempt:
                lockout = self._wait_for_room(keys, lockout, wait_s=WAIT_S if waits else 0.0)
            if lockout is None:
                return self._register(keys)
            if lockout.decision.allowed and any(key.scope in self._enforced for key in keys):
                guess = self._register(keys)
            else:
                guess = Guess(())  # as if it were denied, so it does not count
        if is_exempt:
            lockout = lockout._replace(decision=lockout.decision.as_dry_run())
        self._report(lockout)
        return guess if lockout.decision.allowed else lockout

    def settle(self, guess: Guess, *, is_wrong: bool = False) -> None:
        """Release a guess, and count it if it was wrong. Only the first call has an effect."""
        with self._settled:
            for key in guess.keys:
                self._release(key, guess)
                if is_wrong:
                    self._count(key)
            if guess.keys:
                guess.keys = ()
                self._settled.notify_all()

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits and modes; counts stay."""
        policies = settings.policies
        self._settings = settings
        mode = settings.guard.mode if settings.is_guarded else Mode.OFF
        own = replace(
            settings,
            policies=failure_policies(settings.guard.limits, mode, ceiling=policies.ceiling),
            store=replace(settings.store, uri=None),
            privacy=PrivacySettings(),  # the names in the keys are pseudonyms already
            max_keys=settings.guard.max_keys,
            host=OFF,
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
                place=self._place,
            )
        self.is_on = mode is not Mode.OFF  # last, because a guard that is on counts

    def preload(self, count: int) -> None:
        """Read the keys that failed last. Blocks."""
        if self.limiter is not None:
            self.limiter.preload(count, scopes=FAILURE_SCOPES)

    def run(self, *, error: StoreError | None = None) -> None:
        if self.limiter is not None:
            self.limiter.sync(error=error, is_scheduled=True)

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush once more and release everything."""
        if self.limiter is not None:
            self.limiter.close(deadline)

    def _look(self, keys: Sequence[FailureKey]) -> Lockout | None:
        """Return a lockout if an attempt comes after too many failures. Counts nothing."""
        decisions = [(key, self._peek(key, 1)) for key in keys]
        lockouts = [Lockout(key, decision) for key, decision in decisions if decision and decision.would_deny]
        return max(
            lockouts, key=lambda lockout: (not lockout.decision.allowed, lockout.decision.retry_after_s), default=None
        )

    def _wait_for_room(self, keys: Sequence[FailureKey], lockout: Lockout | None, *, wait_s: float) -> Lockout | None:
        """Return the lockout once guesses that are being checked do not matter any more. The condition is held.

        Passwords of one user wait for each other, so that all processes know of a wrong one before the next is checked.
        """
        deadline_s = time.monotonic() + wait_s
        has_waited = False
        while lockout is None or lockout.decision.allowed:
            left_s = deadline_s - time.monotonic()
            crowded = self._crowded(keys, one_at_a_time=left_s > 0, has_waited=has_waited)
            if crowded is None or left_s <= 0:
                return crowded or lockout
            if not has_waited and not self._settled.has_place_for(crowded.key):
                return crowded
            self._settled.wait_for_key(crowded.key, left_s)
            has_waited = True
            lockout = self._look(keys)
        return lockout

    def _crowded(self, keys: Sequence[FailureKey], *, one_at_a_time: bool, has_waited: bool) -> Lockout | None:
        """Return a lockout if a key would be over its limit if all guesses that are being checked were wrong.

        ``one_at_a_time`` returns one also if a password of the same user is being checked, or is to be before this one.
        """
        for key in keys:
            policy, guesses = self._enforced.get(key.scope), self._guesses.get(key, set())
            is_alone = one_at_a_time and key.scope in NAMING_SCOPES
            if policy is not None and is_alone and not has_waited and self._settled.waiting[key]:
                return _busy(key, policy)
            if policy is None or not guesses or self._forget_lost(key, guesses):
                continue
            total = 1 + len(guesses)
            if total > policy.limit or is_alone:
                return _busy(key, policy)
            decision = self._peek(key, total)
            if decision is not None and not decision.allowed:
                return _busy(key, policy)
        return None

    def _peek(self, key: FailureKey, cost: int) -> Decision | None:
        if self.limiter is None or not self.is_on:
            return None
        return self.limiter.peek_if_known(key.client_id, key.name, endpoint=key.scope, cost=cost)

    def _forget_lost(self, key: FailureKey, guesses: set[Guess]) -> bool:
        expired_s = time.monotonic() - CHECK_S
        for lost in [guess for guess in guesses if guess.begun_s < expired_s]:
            self._release(key, lost)
        return not guesses

    def _register(self, keys: Sequence[FailureKey]) -> Guess:
        guess = Guess(tuple(keys))
        for key in keys:
            self._guesses.setdefault(key, set()).add(guess)
        return guess

    def _release(self, key: FailureKey, guess: Guess) -> None:
        guesses = self._guesses.get(key, set())
        guesses.discard(guess)
        if not guesses:
            self._guesses.pop(key, None)

    def _count(self, key: FailureKey) -> None:
        if self.limiter is None or not self.is_on:
            return
        self.limiter.count(key.client_id, key.name, endpoint=key.scope)
        if self._metrics is not None:
            self._metrics.record_failure(key.kind.value)

    def _report(self, lockout: Lockout) -> None:
        if self.limiter is not None:
            self.limiter.denial_events.report(
                lockout.key.client_id,
                lockout.key.name,
                scope=lockout.key.scope,
                grant_type=None,
                decision=lockout.decision,
                is_canary=False,
                now_s=self.limiter.now_s(),
            )
            if self._statistics is not None:
                client_id = OTHER_CLIENTS if lockout.key.client_id == ANYONE else lockout.key.client_id
                self._statistics.count_guard_denial(
                    lockout.decision, client_id, kind=lockout.key.kind.value, now_s=self.limiter.now_s()
                )
        if self._metrics is not None:
            self._metrics.record_alarm(lockout.decision)


def _busy(key: FailureKey, policy: Policy) -> Lockout:
    """Return the denial of an attempt that waited too long for others."""
    denial = LimitDenial(
        policy=policy,
        mode=Mode.ENFORCE,
        is_enforced=True,
        remaining=0,
        retry_after_s=RETRY_S,
        reset_after_s=RETRY_S,
    )
    return Lockout(key, Decision(Mode.ENFORCE, denial=denial))


def _lowest_enforced(policies: PolicySet) -> dict[str, Policy]:
    lowest = {}
    for scope in FAILURE_SCOPES:
        found = policies.matching(ANYONE, endpoint=scope)
        enforced = [tier.policy for tier in tiers_of(found.limits.user, found.mode) if tier.is_enforced]
        if enforced:
            lowest[scope] = min(enforced, key=lambda policy: policy.limit)
    return lowest
