"""Sums and differences of hits. Nothing is changed in place, because a write may be under way with the same hits."""

from oauth_ratelimit.store.base import Hits


def added(one: Hits, other: Hits) -> Hits:
    """Return the hits of both."""
    total = {series: dict(frames) for series, frames in one.items()}
    for series, frames in other.items():
        counts = total.setdefault(series, {})
        for start_s, hits in frames.items():
            counts[start_s] = counts.get(start_s, 0) + hits
    return total


def taken_off(one: Hits, other: Hits) -> Hits:
    """Return ``one`` minus ``other``, without frames that ``one`` does not have."""
    left = {
        series: {start_s: hits - other.get(series, {}).get(start_s, 0) for start_s, hits in frames.items()}
        for series, frames in one.items()
    }
    return _without_zeros(left)


def total(one: Hits) -> int:
    """Return the number of hits."""
    return sum(sum(frames.values()) for frames in one.values())


def _without_zeros(hits: Hits) -> Hits:
    left = {
        series: {start_s: count for start_s, count in frames.items() if count > 0} for series, frames in hits.items()
    }
    return {series: frames for series, frames in left.items() if frames}
