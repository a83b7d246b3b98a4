"""The limiter in its simplest form: each request sums up all frames, in fractions."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Estimator, Window

ROUNDING_S = Fraction(3, 10**6)  # by this much a delay may be too long
MOMENT = Fraction(1, 10**7)


@dataclass(frozen=True)
class Expected:
    allowed: bool
    would_deny: bool
    # Hits left of each policy that the decision may describe, several if they are equally near, with the exact delay,
    # which is infinite if the request never fits. There are several answers if the request fits for a shorter time than
    # the delay is rounded up by.
    answers: Sequence[tuple[Mapping[Policy | None, int], Fraction | float]]

    def agrees(self, decision: Decision) -> bool:
        return (decision.allowed, decision.would_deny) == (self.allowed, self.would_deny) and any(
            (decision.policy, decision.remaining)
            in {(policy and policy.name, left) for policy, left in remaining.items()}
            and _is_rounded(decision.retry_after_s, delay_s)
            for remaining, delay_s in self.answers
        )


def _is_rounded(delay_s: float, exact_s: Fraction | float) -> bool:
    return delay_s == exact_s or -1e-6 <= delay_s - float(exact_s) <= ROUNDING_S


def exact_estimate(
    frames: Mapping[int, int], window: Window, *, now_s: Fraction | int, estimator: Estimator
) -> Fraction:
    """Return the hits in a window, from the hits of frames by their start, as the documentation states the formulas."""
    frame_s = window.frame_s
    start_s = math.floor(now_s / frame_s) * frame_s
    passed = Fraction(now_s - start_s) / frame_s
    current, oldest = frames.get(start_s, 0), frames.get(start_s - window.window_s, 0)
    between = sum(frames.get(start_s - back * frame_s, 0) for back in range(1, window.frame_count))
    match estimator:
        case Estimator.SLIDING:
            return between + current + oldest * (1 - passed)
        case Estimator.PROPORTIONAL:
            return between + current * passed + oldest * (1 - passed)
        case Estimator.STRICT:
            return Fraction(between + current + oldest)


class _Series:
    def __init__(self, policy: Policy, *, is_enforced: bool) -> None:
        self.policy = policy
        self.is_enforced = is_enforced
        self.frames: Counter[int] = Counter()

    def estimate(self, now_s: Fraction) -> Fraction:
        return exact_estimate(self.frames, self.policy.window, now_s=now_s, estimator=self.policy.estimator)

    def add(self, now_s: Fraction, cost: int) -> None:
        frame_s = self.policy.window.frame_s
        self.frames[math.floor(now_s / frame_s) * frame_s] += cost

    def is_over(self, now_s: Fraction, cost: int) -> bool:
        return self.estimate(now_s) + cost > self.policy.limit

    def turning_points(self, now_s: Fraction, cost: int) -> Iterator[Fraction]:
        """Yield the times at which a request could begin to be admitted: in a frame an estimate is a straight line."""
        frame_s = self.policy.window.frame_s
        first = math.floor(now_s / frame_s)
        edges = [Fraction((first + n) * frame_s) for n in range(1, self.policy.window.frame_count + 3)]
        room = self.policy.limit - cost
        for start_s, end_s in zip([now_s, *edges], edges, strict=False):
            yield start_s
            before = self.estimate(start_s)
            after = 2 * self.estimate((start_s + end_s) / 2) - before  # just before the frame ends: it may jump there
            if before > room >= after:
                yield start_s + (end_s - start_s) * (before - room) / (before - after)


class ReferenceLimiter:
    """Decides and counts as ``Limiter.check`` must, for the token endpoint."""

    def __init__(self, settings: Settings) -> None:
        self._policies = settings.policies
        self._series: dict[tuple[str, str | None, str], tuple[_Series, ...]] = defaultdict(tuple)

    def check(self, client_id: str, username: str | None, *, now_s: float, cost: int = 1) -> Expected:
        policies = self._policies.matching(client_id)
        limits, now = policies.limits, Fraction(now_s)
        own = self._of((client_id, username, "own"), limits.client if username is None else limits.user, policies.mode)
        total = self._of((client_id, None, "total"), limits.client_total, policies.mode)
        through_all = self._of(
            ("*", username, "user_total"), () if username is None else limits.user_total, policies.mode
        )
        series = () if policies.trusted else (*own, *total, *through_all)
        over = [one for one in series if one.is_over(now, cost)]
        denied = any(one.is_enforced for one in over)
        admitting = [] if over and denied else [one for one in series if one.is_enforced]
        for one in series:
            if not over or (one.policy.count_denied and one not in admitting):
                one.add(now, cost)
        if over:
            concerned = [one for one in series if one.is_enforced] if denied else series
            expected = _denial(concerned, now, cost, allowed=not denied)
            for one in admitting:
                one.add(now, cost)
            return expected
        rooms = {one.policy: one.policy.limit - one.estimate(now) for one in series}
        least = min(rooms.values(), default=Fraction(0))
        remaining: dict[Policy | None, int] = {rule: math.floor(room) for rule, room in rooms.items() if room == least}
        return Expected(True, False, [(remaining or {None: 0}, Fraction(0))])

    def _of(self, key: tuple[str, str | None, str], policies: Iterable[Policy], mode: Mode) -> tuple[_Series, ...]:
        if key not in self._series:
            self._series[key] = tuple(
                _Series(policy, is_enforced=(policy.mode or mode) is Mode.ENFORCE) for policy in policies
            )
        return self._series[key]


def _denial(concerned: Sequence[_Series], now: Fraction, cost: int, *, allowed: bool) -> Expected:
    def over_at(moment: Fraction) -> list[_Series]:
        return [one for one in concerned if one.is_over(moment, cost)]

    left = max(0, math.floor(min(one.policy.limit - one.estimate(now) for one in concerned)))
    hopeless = [one for one in concerned if cost > one.policy.limit]
    if hopeless:
        return Expected(allowed, True, [({one.policy: left for one in hopeless}, math.inf)])
    answers: list[tuple[Mapping[Policy | None, int], Fraction]] = []
    for point in sorted({point for one in concerned for point in one.turning_points(now, cost)}):
        if not over_at(point):
            last = over_at(max(now, point - MOMENT))
            answers.append(({one.policy: left for one in last}, point - now))
            if not over_at(point + ROUNDING_S):
                break
    return Expected(allowed, True, answers)
