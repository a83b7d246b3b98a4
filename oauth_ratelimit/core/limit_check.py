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
                later_s, last, is_final = admitted_s, each, len(checked) == 1 or math.isinf(admitted_s)
        retry_after_s = later_s
    tier, content = last
    return LimitDenial(
        policy=tier.policy,
        mode=tier.mode,
        is_enforced=is_enforced,
        remaining=max(0, math.floor(min([tier.limit - content.estimate for tier, content in checked]))),
        retry_after_s=retry_after_s,
        reset_after_s=tier.reset_after_s(content),
        reuses=reuses,
    )
