"""Decisions about requests: which limits deny one, in which it counts, and what its client learns."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from math import ceil, floor, inf, isinf
from typing import Literal, final

from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import MAX_LIMIT, Policy
from oauth_ratelimit.core.tier import Content, Tier

NEAR_LIMIT_SHARE = 5  # less than a fifth of the quota is left

Outcome = Literal["allowed", "denied", "would_deny", "trusted", "reused", "would_reuse"]
"""Outcome of a request in metrics, traces and statistics. ``would_deny`` is over a limit in a dry run.

``reused`` got the token that its client already had. ``would_reuse`` would have got it without the dry run.
"""

Action = Literal["allow", "deny", "reuse"]


class Answer(enum.StrEnum):
    """Answer to a request over a limit that is not what the limits alone say."""

    REUSED = "reused"
    ISSUED = "issued"
    """A new token, because none was kept that fits."""

    REUSABLE = "reusable"
    """That of the limits, although a token was issued before that fits."""


@dataclass(slots=True, eq=False)
class LimitDenial:
    """Denial by a limit."""

    policy: Policy  # the one that admits the request last
    mode: Mode  # of the policy
    is_enforced: bool  # False if all policies that deny are in a dry run
    remaining: int  # the smallest number of hits left in the policies that deny
    retry_after_s: float  # seconds until a request like this is admitted; infinity if its cost is above the limit
    reset_after_s: float  # seconds until the whole quota is back
    decision_id: str | None = None  # in the response and in the log; None in a dry run, or if it is not recorded
    reuses: bool = False  # True if all policies that deny, and are enforced if any is, have ``on_limit: reuse``


@final
@dataclass(slots=True, eq=False)
class Decision:
    """Decision about one request. It describes the policy that denies, else the one with least left."""

    client_mode: Mode  #: holds where no policy applies
    now_s: float = 0.0  #: time of the request, seconds since the epoch
    tiers: tuple[Tier, ...] = ()  #: the policies that were checked, with their modes
    contents: Sequence[Content] = ()  #: content of the window of each, before the request
    denial: LimitDenial | None = None  #: None if the request is within all limits
    counts: Sequence[bool] = ()  #: whether the request counts in each; nowhere if there are none
    cost: int = 1  #: hits that the request consumes
    is_early: bool = False  #: True if it came before the time in the ``Retry-After`` of an earlier denial was over
    trusted: bool = False  #: True if the client is trusted, so that no limit was checked or counted
    can_reuse: bool = False  #: True if grant and user allow that the client gets a token again
    answer: Answer | None = None  #: the answer if it is not what the limits alone say
    _counted: Sequence[Content] | None = field(default=None, init=False)  # once it was looked at
    _tightest: tuple[Tier, Content] | None = field(default=None, init=False)  # likewise

    @property
    def counted(self) -> Sequence[Content]:
        """Content of the window of each policy, this request included if it was counted."""
        if self._counted is None:
            self._counted = self.contents
            if self.counts:
                checked = zip(self.tiers, self.contents, self.counts, strict=True)
                self._counted = [
                    tier.after_hits(content, self.cost) if is_counted else content
                    for tier, content, is_counted in checked
                ]
        return self._counted

    @property
    def allowed(self) -> bool:
        """True if the request is allowed."""
        return self.denial is None or not self.denial.is_enforced

    @property
    def action(self) -> Action:
        """Action to take; ``reuse`` is to deny it if the client cannot get a token that it has.

        A bare limiter keeps no tokens and logs no such denial: ``Limiter.report_denial`` does.
        """
        if self.denial is None or not self.denial.is_enforced:
            return "allow"
        return "reuse" if self.can_reuse and self.denial.reuses else "deny"

    @property
    def would_deny(self) -> bool:
        """True if the request is over a limit. In a dry run it is ``allowed`` all the same."""
        return self.denial is not None

    def described(self) -> tuple[Policy | None, Mode, int, bool]:
        """Return the policy that the decision describes, its mode, and the hits left; no policy if none applies.

        The last is True if the request was admitted with less than a fifth of its quota left.
        """
        if self.denial is not None:
            return self.denial.policy, self.denial.mode, self.denial.remaining, False
        if not self.tiers:
            return None, self.client_mode, 0, False
        tier, content = self.tightest()
        remaining = int(tier.limit - content.estimate)
        return tier.policy, tier.mode, remaining, remaining * NEAR_LIMIT_SHARE < tier.limit

    def tightest(self) -> tuple[Tier, Content]:
        """Return the tier with least left, and the content of its window. There is a tier, and no denial.

        Computed at the first look: many decisions are never looked at.
        """
        if self._tightest is None:
            self._tightest = self.tiers[0], self.counted[0]
            if len(self.tiers) > 1:
                checked = zip(self.tiers, self.counted, strict=True)
                self._tightest = min(checked, key=lambda each: each[0].limit - each[1].estimate)
        return self._tightest

    @property
    def mode(self) -> Mode:
        """Mode that the decision was made under."""
        return self.described()[1]

    @property
    def policy(self) -> str | None:
        """Name of the policy, None if no policy applies."""
        policy = self.described()[0]
        return None if policy is None else policy.name

    @property
    def limit(self) -> int | None:
        """Hits per window, None if no policy applies."""
        policy = self.described()[0]
        return None if policy is None else policy.limit

    @property
    def window_s(self) -> int | None:
        """Length of the window in seconds, None if no policy applies."""
        policy = self.described()[0]
        return None if policy is None else policy.window.window_s

    @property
    def remaining(self) -> int:
        """Hits left in the policy's window, after this request if it was counted.

        After a denial, the smallest number left in the policies that deny.
        """
        return self.described()[2]

    @property
    def reset_after_s(self) -> float:
        """Seconds until the whole quota is back if nothing else happens."""
        if self.denial is not None:
            return self.denial.reset_after_s
        if not self.tiers:
            return 0.0
        tier, content = self.tightest()
        return tier.reset_after_s(content)

    @property
    def retry_after_s(self) -> float:
        """Seconds until the request would be admitted if nothing else happens, 0.0 if it is.

        Infinity if its cost is above the limit.
        """
        return 0.0 if self.denial is None else self.denial.retry_after_s

    @property
    def decision_id(self) -> str | None:
        """Id of a denial in the response and in the log, None for any other decision."""
        return None if self.denial is None else self.denial.decision_id

    @decision_id.setter
    def decision_id(self, decision_id: str | None) -> None:
        if self.denial is not None:
            self.denial.decision_id = decision_id

    def enforced_quota(self) -> tuple[Policy, bool, int, float, float] | None:
        """Return the enforced policy that denies, else the one with least left, and its quota.

        The quota is whether all users of the client share it, the hits left, the seconds until one more is left if
        nothing else happens, and those until all of it is back; after a denial both are ``retry_after_s``. None if no
        policy is enforced for this request: a dry run shows clients nothing.
        """
        denial, tiers = self.denial, self.tiers
        if denial is not None and denial.is_enforced:
            is_total = any(tier.is_total for tier in tiers if tier.policy is denial.policy)
            return denial.policy, is_total, denial.remaining, self.retry_after_s, self.retry_after_s
        if not tiers:
            return None
        if denial is None:
            tier, content = self.tightest()
            if tier.is_enforced:
                left = int(tier.limit - content.estimate)
                return tier.policy, tier.is_total, left, tier.more_after_s(content), tier.reset_after_s(content)
        enforced = [each.is_enforced for each in tiers]
        own = tuple(compress(tiers, enforced)), tuple(compress(self.counted, enforced))
        return Decision(self.client_mode, self.now_s, *own).enforced_quota()

    def as_dry_run(self) -> "Decision":
        """Return the decision that a dry run makes about the same request."""
        denial = self.denial and replace(self.denial, mode=Mode.DRY_RUN, is_enforced=False)
        return Decision(Mode.DRY_RUN, self.now_s, self.tiers, self.counted, denial)

    def __repr__(self) -> str:
        return (
            f"<Decision allowed={self.allowed} would_deny={self.would_deny} mode={self.mode.value}"
            f" policy={self.policy!r} remaining={self.remaining} retry_after_s={self.retry_after_s}>"
        )


@dataclass(slots=True, eq=False)
class DecidedRequest:
    """Request with its decision, for metrics and statistics."""

    decision: Decision
    client_id: str
    username: str | None
    grant: str  # name of the grant type, of which there is a bounded number
    endpoint: str
    now_s: float  # time of the request
    duration_s: float  # time that the decision took


def outcome_of(decision: Decision) -> Outcome:
    denial, answer = decision.denial, decision.answer
    if denial is None or answer is Answer.ISSUED:
        return "trusted" if decision.trusted else "allowed"
    if answer is Answer.REUSED:
        return "reused"
    if answer is Answer.REUSABLE and denial.reuses and decision.allowed:
        return "would_reuse"
    return "would_deny" if decision.allowed else "denied"


def whole_seconds(seconds: float, at_least: int = 0) -> int:
    """Return a delay for a header, rounded up, because a client that comes early is denied again."""
    return ceil(seconds) if at_least < seconds < inf else at_least


def check_cost(cost: int) -> None:
    """Check the cost of a request.

    Raises:
        ValueError: The cost is not a whole number from 1 to 2^53.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or not 1 <= cost <= MAX_LIMIT:
        raise ValueError(f"cost must be a whole number from 1 to 2^53, got {cost!r}")


def check_limits(
    mode: Mode,
    tiers: tuple[Tier, ...],
    contents: Sequence[Content],
    now_s: float,
    cost: int = 1,
    *,
    can_reuse: bool = False,
    is_counted: bool = True,
) -> Decision:
    """Decide about a request by the content of the window of each tier.

    It counts in all tiers if all admit it. A dry run beside enforced policies denies nothing, so a request that only a
    dry run denies counts in the enforced ones. One that is denied counts where denied ones do. Reuse counts nowhere,
    nor does anything without ``is_counted``.
    """
    over = []
    for tier, content in zip(tiers, contents, strict=True):
        if content.estimate > tier.limit - cost:
            over.append(tier)
    if not over:
        counts = (is_counted,) * len(tiers)
        return Decision(mode, now_s, tiers, contents, None, counts, cost, can_reuse=can_reuse)
    enforced = [tier for tier in over if tier.is_enforced]
    is_enforced, reuses = bool(enforced), all(tier.reuses for tier in enforced or over)
    counts_denied = is_counted and not (can_reuse and reuses)
    described, counted_in = [], []
    for tier, content in zip(tiers, contents, strict=True):
        is_admitted = tier.is_enforced and not is_enforced and is_counted
        is_denied = counts_denied and tier.count_denied and not is_admitted
        counted_in.append(is_admitted or is_denied)
        if tier.is_enforced or not is_enforced:
            # Without the hit of an admitted one, or it would describe that of the next request.
            described.append((tier, tier.after_hits(content, cost) if is_denied else content))
    denial = _describe(described, cost=cost, is_enforced=is_enforced, reuses=reuses)
    return Decision(mode, now_s, tiers, contents, denial, counted_in, cost, can_reuse=can_reuse)


def _describe(checked: Sequence[tuple[Tier, Content]], *, cost: int, is_enforced: bool, reuses: bool) -> LimitDenial:
    """Describe a denial by the limit that admits the request last, of those that matter."""
    retry_after_s, last = 0.0, checked[0]
    is_final = False
    while not is_final:  # until all of them admit the request at the same moment
        later_s, is_final = retry_after_s, True
        for each in checked:
            admitted_s = each[0].retry_after_s(each[1], cost=cost, later_s=retry_after_s)
            if admitted_s > later_s:
                later_s, last, is_final = admitted_s, each, len(checked) == 1 or isinf(admitted_s)
        retry_after_s = later_s
    tier, content = last
    return LimitDenial(
        policy=tier.policy,
        mode=tier.mode,
        is_enforced=is_enforced,
        remaining=max(0, floor(min([tier.limit - content.estimate for tier, content in checked]))),
        retry_after_s=retry_after_s,
        reset_after_s=tier.reset_after_s(content),
        reuses=reuses,
    )
