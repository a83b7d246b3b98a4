"""
What a request may cost.
"""

from oauth_ratelimit.core.policy import MAX_LIMIT


def refuse_bad_cost(cost: int) -> None:
    """
    Refuse what no limit could ever be compared with.

    Raises:
        ValueError: The cost is not a whole number from 1 to 2^53.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or not 1 <= cost <= MAX_LIMIT:
        raise ValueError(f"cost must be a whole number from 1 to 2^53, got {cost!r}")
