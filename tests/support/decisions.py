"""Decisions of each outcome."""

from oauth_ratelimit.core.decision import Decision, LimitDenial
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.tier import Content, Tier
from oauth_ratelimit.core.window import Window

POLICY = Policy("client", 120, Window.of(60))


def an_admission(policy: Policy = POLICY, *, remaining: int = 50, mode: Mode = Mode.ENFORCE) -> Decision:
    """Return the decision about a request that a policy admits at the start of a frame."""
    return Decision(
        mode,
        0.0,
        (Tier(policy, mode),),
        (Content(policy.limit - remaining, policy.limit - remaining, (), float(policy.window.frame_s)),),
    )


def a_denial(
    policy: Policy = POLICY,
    *,
    retry_after_s: float = 2.5,
    reset_after_s: float = 66.0,
    mode: Mode = Mode.ENFORCE,
    decision_id: str | None = None,
) -> Decision:
    """Return the decision about a request that a policy denies, or would deny in a dry run."""
    denial = LimitDenial(policy, mode, mode is Mode.ENFORCE, 0, retry_after_s, reset_after_s, decision_id)
    tiers = (Tier(policy, mode),)
    return Decision(mode, 0.0, tiers, (Content(policy.limit, policy.limit, (), float(policy.window.frame_s)),), denial)


ALLOWED = an_admission()
DENIED = a_denial(decision_id="0123456789abcdef")
WOULD_DENY = a_denial(mode=Mode.DRY_RUN, retry_after_s=float("inf"))
TRUSTED = Decision(Mode.ENFORCE, trusted=True)
