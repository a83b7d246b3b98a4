"""Hits of one row of the host table: by series and frame, and how they are packed."""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.store.base import MAX_HORIZON_S, Hits

AHEAD_S = 5  # frames that start up to this much later count now: they come from an instance whose clock is ahead
MAX_HITS = 2**62  # of a frame: a row holds numbers of 64 bits
Frames = dict[int, int]
"""Hits by frame start in seconds since the epoch."""


class Counted(NamedTuple):
    """Hits that decisions use, and the horizons of their series: seconds for which a frame can matter."""

    hits: dict[Series, Frames]
    horizons: dict[Series, int]


def unpack(packed: bytes) -> Counted:
    numbers = struct.unpack(f"={len(packed) // 8}q", packed)
    hits: dict[Series, Frames] = {}
    horizons: dict[Series, int] = {}
    place = 0
    while place < len(numbers):
        frame_s, flags, horizon_s, count = numbers[place : place + 4]
        place, end = place + 4, place + 4 + 2 * count
        series = _series(frame_s, flags)
        hits[series] = dict(zip(numbers[place:end:2], numbers[place + 1 : end : 2], strict=True))
        horizons[series] = horizon_s
        place = end
    return Counted(hits, horizons)


def unpack_hits(packed: bytes | None) -> dict[Series, Frames]:
    """Return hits that were packed without horizons; none for None."""
    return unpack(packed).hits if packed else {}


def pack(hits: Hits, horizons: Mapping[Series, int] | None = None) -> bytes:
    numbers: list[int] = []
    for series, frames in hits.items():
        horizon_s = horizons.get(series, MAX_HORIZON_S) if horizons else 0
        numbers += (series.frame_s, series.count_denied + 2 * series.on_trial, horizon_s, len(frames))
        for frame in frames.items():
            numbers += frame
    return struct.pack(f"={len(numbers)}q", *numbers)


@lru_cache(maxsize=1000)
def unpack_horizons(packed: bytes) -> Mapping[Series, int]:
    """Return horizons that were packed without hits. Most rows have the same ones, so they share the result."""
    return unpack(packed).horizons


def pack_horizons(horizons: Mapping[Series, int]) -> bytes:
    return pack({series: {} for series in horizons}, horizons)


@lru_cache(maxsize=1000)
def _series(frame_s: int, flags: int) -> Series:
    return Series(frame_s, bool(flags & 1), bool(flags & 2))


def add_hits(hits: dict[Series, Frames], series: Series, start_s: int, count: int) -> None:
    frames = hits.setdefault(series, {})
    frames[start_s] = min(frames.get(start_s, 0) + count, MAX_HITS)


def merged(*sources: Hits) -> dict[Series, Frames]:
    """Return the sum of hits."""
    total: dict[Series, Frames] = {}
    for hits in sources:
        for series, frames in hits.items():
            for start_s, count in frames.items():
                add_hits(total, series, start_s, count)
    return total


def bring_back(hits: dict[Series, Frames], now_s: float) -> bool:
    """Count hits of frames that are far ahead in the present, and return whether there were any.

    This machine's clock was set back: a client must neither get its quota anew, nor wait until the time has come again.
    """
    is_changed = False
    for series, frames in hits.items():
        ahead_s = now_s + max(series.frame_s, AHEAD_S)
        if frames and max(frames) > ahead_s:
            ahead = [start_s for start_s in frames if start_s > ahead_s]
            add_hits(hits, series, int(now_s // series.frame_s) * series.frame_s, sum(map(frames.pop, ahead)))
            is_changed = True
    return is_changed


def drop_over(hits: dict[Series, Frames], horizons: Mapping[Series, int], now_s: float) -> None:
    """Drop the frames that no window reaches any more."""
    for series, frames in hits.items():
        oldest_s = now_s - horizons.get(series, MAX_HORIZON_S)
        if frames and min(frames) <= oldest_s:
            for start_s in [start_s for start_s in frames if start_s <= oldest_s]:
                del frames[start_s]
