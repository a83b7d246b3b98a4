"""Guard against guessed passwords and secrets: limits on failed authentications.

A guess is counted before it is checked, in the rows that all processes of a host share, and taken back if it was right.
So guesses that are checked at the same time cannot pass a limit together, and only failures are kept, sent and stored.

Failures are counted by a limiter of their own, in documents of their own. So nobody who fails uses up a quota of
tokens, and a flood of failures takes no memory from the keys of tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple

from oauth_ratelimit.config import PrivacySettings, Settings
from oauth_ratelimit.config.settings import OFF
from oauth_ratelimit.core.decision import Decision, LimitDenial
from oauth_ratelimit.core.failed_auth import (
    FAILURE_SCOPES,
    KIND_OF,
    NAMING_SCOPES,
    failure_policies,
    is_within,
)
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import tiers_of
from oauth_ratelimit.counters.guesses import CHECK_S
from oauth_ratelimit.counters.host_place import HostPlace
from oauth_ratelimit.counters.steps import OpenRequest
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.observe.metrics import Metrics
from oauth_ratelimit.observe.statistics import StatisticsRecorder
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.yielding import Waiters
from oauth_ratelimit.store.base import CounterStore

WAIT_S = 5.0  # longest time that an attempt waits for guesses that are being checked
BRIEF_WAIT_S = 0.5  # the same for one beyond the share of the server's threads that may wait so long
POLL_S = 0.05  # after which it looks again: other processes tell nobody of theirs
RETRY_S = 1.0  # seconds after which an attempt that may not wait is to be repeated


class Lockout(NamedTuple):
    """An attempt after too many failures. Of several keys it has the one that denies longest."""

    key: Key
    decision: Decision
    is_busy: bool = False  # True if only guesses that are being checked stand in the way


@dataclass(eq=False, slots=True)
class Guess:
    """A password, or a secret of a client, that is being checked.

    It counts against ``keys`` unless it turns out to be right: none after too many failures, in a dry run.
    """

    keys: Sequence[Key] = ()
    held: OpenRequest | None = None
    reported: Lockout | None = None  # that a dry run would deny it with
    begun_s: float = inf  # start of the check; it is counted before
    is_settled: bool = False


class Guard:
    """Limiter of guesses: denies attempts after too many failed authentications. Costs nothing while it is off.

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
        place = place and place.beside("-guard")  # the cycles of either would drop the other's rows
        self._limiter_of = partial(
            Limiter, store=store, clock=clock, denial_events=events, place=place, keeps_held=True
        )
        self._metrics = metrics
        self._statistics = statistics
        self.limiter: Limiter | None = None
        self._guesses: set[Guess] = set()  # that are being counted or checked
        self._settled = Waiters()  # guards the guesses; free while one is counted, which may wait for the file's lock
        self.reconfigure(settings)

    def is_watching(self, remote_addr: str) -> bool:
        """Return whether failures from an address are counted."""
        return self.is_on and not is_within(remote_addr, self._settings.guard.trusted_addresses)

    def reserve(self, keys: Sequence[Key], *, is_exempt: bool = False, waits: bool = True) -> Guess | Lockout:
        """Return a guess that may be checked, or the lockout that denies it.

        If only guesses that are being checked stand in the way, it waits until enough of them turn out to be right,
        unless it may not: briefly if a share of the server's threads waits already, because others need the rest. The
        answer does not depend on whether the user exists or the password is right, so a guesser learns nothing from it.

        A denial of an exempt attempt, of a trusted client that has proven itself, is reported as a dry run does.
        """
        guess = Guess(keys)
        lockout = self._wait_for_room(guess, is_exempt=is_exempt, wait_s=WAIT_S if waits and not is_exempt else 0.0)
        reported = lockout or guess.reported
        if reported is not None:
            self._report(reported)
        return lockout or guess

    def settle(self, guess: Guess, *, is_wrong: bool = False, is_failed: bool = False) -> None:
        """Release a guess, or count it if it was wrong. Only the first call has an effect.

        One whose check has failed is released, too; but a guesser may cause failures, so in a window only as many as
        the limits allow, and the others count.
        """
        with self._settled:
            if guess.is_settled:
                return
            guess.is_settled = True
        try:
            if self.limiter is not None and is_failed:
                is_wrong = not self.limiter.take_back(guess.held)
            if self.limiter is not None and (is_wrong or not is_failed):
                settle = self.limiter.confirm if is_wrong else self.limiter.release
                settle(guess.held)
        finally:
            with self._settled:
                self._guesses.discard(guess)
                self._settled.notify_all()
        if is_wrong and self.is_on and self._metrics is not None:
            for key in guess.keys:
                self._metrics.record_failure(KIND_OF[key.scope or ""].value)

    def reconfigure(self, settings: Settings) -> None:
        """Apply new limits and modes; counts stay."""
        policies = settings.policies
        self._settings = settings
        self.mode = mode = settings.guard_mode
        own = replace(
            settings,
            policies=failure_policies(settings.guard.limits, mode, ceiling=policies.ceiling),
            store=replace(settings.store, uri=None),
            privacy=PrivacySettings(),  # the names in the keys are pseudonyms already
            max_keys=settings.guard.max_keys,
            host=OFF,
        )
        if self.limiter is not None:
            self.limiter.reconfigure(own)
        elif mode is not Mode.OFF:
            self.limiter = self._limiter_of(own)
        self.is_on = mode is not Mode.OFF  # last, because a guard that is on counts

    def preload(self, count: int) -> None:
        """Read the keys that failed last. Blocks."""
        if self.limiter is not None:
            self.limiter.preload(count, scopes=FAILURE_SCOPES)

    def run(self, *, error: StoreError | None = None) -> None:
        if self.limiter is not None:
            expired_s = time.monotonic() - CHECK_S
            with self._settled:
                lost = [guess for guess in self._guesses if guess.begun_s < expired_s]
            for guess in lost:
                self.settle(guess, is_failed=True)
            self.limiter.sync(error=error, is_scheduled=True)

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush once more and release everything."""
        if self.limiter is not None:
            self.limiter.close(deadline)

    def _wait_for_room(self, guess: Guess, *, is_exempt: bool, wait_s: float) -> Lockout | None:
        """Hold a guess as soon as those that are being checked leave room for it, or return what denies it."""
        begun_s = time.monotonic()
        has_waited = has_place = False
        while True:
            left_s = begun_s + wait_s - time.monotonic()
            with self._settled:
                self._settled.note_thread()
                lockout = self._earlier(guess.keys, has_waited=has_waited) if left_s > 0 else None
                if lockout is None:
                    self._guesses.add(guess)
            lockout = lockout or self._count(guess, is_exempt=is_exempt)
            if lockout is None or not lockout.is_busy or left_s <= 0:
                return lockout
            with self._settled:
                has_place = has_place or self._settled.has_place_for(lockout.key)
                patience_s = left_s if has_place else begun_s + BRIEF_WAIT_S - time.monotonic()
                if patience_s > 0:
                    self._settled.wait_for_key(lockout.key, min(left_s, patience_s, POLL_S))
            if patience_s <= 0:
                return self._denial(guess.keys) or lockout
            has_waited = True

    def _earlier(self, keys: Sequence[Key], *, has_waited: bool) -> Lockout | None:
        """Return a lockout if a password of the same user is being checked, or is to be before this one.

        They wait for each other, so that other hosts know of a wrong one before the next is checked.
        """
        for key in keys:
            is_next = has_waited or not self._settled.waiting[key]
            if key.scope in NAMING_SCOPES and (not is_next or any(key in guess.keys for guess in self._guesses)):
                return self._busy(key)
        return None

    def _count(self, guess: Guess, *, is_exempt: bool) -> Lockout | None:
        """Count a guess from now on, or remove it and return what stands in its way."""
        try:
            lockout = self._hold(guess, is_exempt=is_exempt)
            if lockout is None:
                guess.begun_s = time.monotonic()
            return lockout
        finally:
            if guess.begun_s == inf:
                with self._settled:
                    self._guesses.discard(guess)

    def _hold(self, guess: Guess, *, is_exempt: bool) -> Lockout | None:
        """Hold a guess in the limiter, or return what stands in its way."""
        if self.limiter is None:
            guess.keys = ()
            return None
        keys = guess.keys
        decision, guess.held = self.limiter.hold_guess(keys)
        denial = decision.denial
        if denial is None:
            return None
        if is_exempt or not denial.is_enforced:
            reported = self._look(keys, ignores_held=True)
            guess.reported = reported and reported._replace(decision=reported.decision.as_dry_run())
            guess.keys = keys if guess.held else ()
            return None
        crowded = self._look(keys)
        first = [crowded.key] if crowded else []
        return self._denial(keys) or next(filter(None, map(self._busy, (*first, *keys))), None)

    def _denial(self, keys: Sequence[Key]) -> Lockout | None:
        """Return a lockout that wrong guesses alone enforce."""
        lockout = self._look(keys, ignores_held=True)
        return None if lockout is None or lockout.decision.allowed else lockout

    def _look(self, keys: Sequence[Key], *, ignores_held: bool = False) -> Lockout | None:
        """Return a lockout if an attempt comes after too many failures; those being checked are taken for some."""
        if self.limiter is None:
            return None
        found = [Lockout(key, self.limiter.peek_known(key, ignores_held=ignores_held)) for key in keys]
        return max(
            [lockout for lockout in found if lockout.decision.would_deny],
            key=lambda lockout: (not lockout.decision.allowed, lockout.decision.retry_after_s),
            default=None,
        )

    def _busy(self, key: Key) -> Lockout | None:
        """Return the denial of an attempt that would have to wait, None if no limit of its key is enforced."""
        if self.limiter is None:
            return None
        rules = self.limiter.settings.policies.matching(key.client_id, endpoint=key.scope or "")
        for policy in (tier.policy for tier in tiers_of(rules.limits.user, rules.mode) if tier.is_enforced):
            denial = LimitDenial(policy, Mode.ENFORCE, True, remaining=0, retry_after_s=RETRY_S, reset_after_s=RETRY_S)
            return Lockout(key, Decision(Mode.ENFORCE, denial=denial), is_busy=True)
        return None

    def _report(self, lockout: Lockout) -> None:
        (client_id, name, scope), decision = lockout.key, lockout.decision
        if self.limiter is not None:
            now_s = self.limiter.now_s()
            self.limiter.denial_events.report(
                client_id, name, scope=scope, grant_type=None, decision=decision, is_canary=False, now_s=now_s
            )
            if self._statistics is not None:
                self._statistics.count_guard_denial(decision, client_id, kind=KIND_OF[scope or ""].value, now_s=now_s)
        if self._metrics is not None:
            self._metrics.record_alarm(decision)
