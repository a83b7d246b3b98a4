"""The decision about one request: which of its limits deny it, and in which it counts."""

import math
from collections.abc import Sequence

from oauth_ratelimit.core.decision import Decision, LimitDenial
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import Content, Tier


def check_limits(
    mode: Mode,
    tiers: tuple[Tier, ...],
    contents: Sequence[Content],
    now_s: float,
    cost: int = 1,
    *,
    can_reuse: bool = False,
    is_counted: bool = True,
) -> tuple[Decision, Sequence[bool]]:
    """Decide about a request by the content of the window of each tier, and return in which tiers it counts.

    It counts in all tiers if all admit it. A dry run beside enforced policies denies nothing, so a request that only a
    dry run denies counts in the enforced ones. One that is denied counts where denied ones do. Reuse counts nowhere,
    nor does anything without ``is_counted``.
    """
    over, counted = [], []
    for tier, content in zip(tiers, contents, strict=True):
        if content.estimate > tier.limit - cost:
            over.append(tier)
        counted.append(tier.after_hits(content, cost) if is_counted else content)
    if not over:
        return Decision(mode, now_s, tiers, tuple(counted), can_reuse=can_reuse), (is_counted,) * len(tiers)
    is_enforced = any(tier.is_enforced for tier in over)
    admits = [tier.is_enforced and not is_enforced and is_counted for tier in tiers]
    counts_nowhere = not is_counted or (can_reuse and _reuses(over))
    counts_denied = [
        tier.count_denied and not (is_admitted or counts_nowhere)
        for tier, is_admitted in zip(tiers, admits, strict=True)
    ]
    contents = _after_hits(tiers, contents, counts_denied, cost)
    denial = _describe(list(zip(tiers, contents, strict=True)), over, cost=cost)
    contents = _after_hits(tiers, contents, admits, cost)  # afterwards, or it would describe that of the next request
    decision = Decision(mode, now_s, tiers, contents, denial, can_reuse=can_reuse)
    return decision, [a or b for a, b in zip(admits, counts_denied, strict=True)]


def counts_of_admitted(tiers: Sequence[Tier], contents: Sequence[Content]) -> Sequence[bool]:
    """Return for each tier whether a request counts in it that was admitted before.

    If a dry run denies it, other dry runs do not count it, either.
    """
    checked = zip(tiers, contents, strict=True)
    is_over = any(content.estimate > tier.limit - 1 for tier, content in checked if not tier.is_enforced)
    return [not is_over or tier.is_enforced or tier.count_denied for tier in tiers]


def _after_hits(
    tiers: Sequence[Tier], contents: Sequence[Content], counts: Sequence[bool], cost: int
) -> tuple[Content, ...]:
    counted = zip(tiers, contents, counts, strict=True)
    return tuple([tier.after_hits(content, cost) if is_counted else content for tier, content, is_counted in counted])


def _reuses(over: Sequence[Tier]) -> bool:
    """Return True if all tiers that deny a request have ``on_limit: reuse``; of enforced ones, if there are any."""
    return all(tier.reuses for tier in [tier for tier in over if tier.is_enforced] or over)


def _describe(checked: Sequence[tuple[Tier, Content]], over: Sequence[Tier], *, cost: int) -> LimitDenial:
    """Describe a denial by the limit that admits the request last. If an enforced one denies, only those matter."""
    is_enforced = any(tier.is_enforced for tier in over)
    concerned = [(tier, content) for tier, content in checked if tier.is_enforced or not is_enforced]
    retry_after_s, last = 0.0, concerned[0]
    is_final = False
    while not is_final:  # until all of them admit the request at the same moment
        later_s, is_final = retry_after_s, True
        for each in concerned:
            admitted_s = each[0].retry_after_s(each[1], cost=cost, later_s=retry_after_s)
            if admitted_s > later_s:
                later_s, last, is_final = admitted_s, each, len(concerned) == 1 or math.isinf(admitted_s)
        retry_after_s = later_s
    tier, content = last
    return LimitDenial(
        policy=tier.policy,
        mode=tier.mode,
        is_enforced=is_enforced,
        remaining=max(0, math.floor(min(tier.limit - content.estimate for tier, content in concerned))),
        retry_after_s=retry_after_s,
        reset_after_s=tier.reset_after_s(content),
        reuses=_reuses(over),
    )
