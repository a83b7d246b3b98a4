"""Hits of one row of the host table, and how they are packed.

Those that decisions use are counts of consecutive frames. Those that are to be sent are frames with their counts: after
an outage they may be far apart.
"""

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from oauth_ratelimit.core.tier import FLAG_BITS, Content, Series, Tier, number_of, series_of
from oauth_ratelimit.core.window import MAX_FRAMES
from oauth_ratelimit.store.base import MAX_HORIZON_S, Hits

AHEAD_S = 5  # frames that start up to this much later count now: ``far_ahead_s``
MAX_HITS = 2**62  # of a frame: a row holds numbers of 64 bits
MAX_COUNTS = MAX_FRAMES + 1 + AHEAD_S  # frames that any window reaches, from one that starts later on
Frames = dict[int, int]
"""Hits by frame start in seconds since the epoch."""

_HORIZON, _NEWEST, _COUNT, _COUNTS = 1, 2, 3, 4  # places of what belongs to a series, after its number
_CELL = 3  # numbers of a cell: that of the series, the start of the frame, and the hits
_NO_HITS = array("q", [0])


class Counted(NamedTuple):
    """Hits that decisions use, and the horizons of their series: seconds for which a frame can matter."""

    hits: dict[Series, Frames]
    horizons: dict[Series, int]


class Totals:
    """Hits of a row that decisions use: for each series the counts of consecutive frames.

    They stay numbers in one list, as they are packed, so that a request reads and changes few of them. A series has one
    count at least.
    """

    __slots__ = ("_now_s", "_numbers", "_places", "has_new_frame", "is_moved")

    def __init__(self, packed: bytes, now_s: float) -> None:
        self.has_new_frame = False  # a frame began with a hit since
        self.is_moved = False  # hits of frames that are far ahead were brought back
        self._now_s = now_s
        self._numbers = numbers = array("q", packed)
        places: dict[int, int] = {}  # where each series begins, by its number
        self._places = places
        place, end, soon_s = 0, len(numbers), now_s + AHEAD_S
        while place < end:
            places[numbers[place]] = place
            if numbers[place] < 1 << FLAG_BITS or numbers[place + _COUNT] < 1:
                raise ValueError("series without frames")
            if numbers[place + _NEWEST] > soon_s:
                self.is_moved = True
            place += _COUNTS + numbers[place + _COUNT]
        if place != end:
            raise ValueError("counts are missing")
        if self.is_moved:
            hits, horizons = unpack(packed)
            is_moved = bring_back(hits, now_s)
            Totals.__init__(self, pack(hits, horizons), math.inf)
            self.is_moved = is_moved

    def horizons(self) -> dict[Series, int]:
        """Return the longest horizon of each series that was ever named."""
        return {series_of(number): self._numbers[place + _HORIZON] for number, place in self._places.items()}

    def contents(self, tiers: Iterable[Tier], now_s: float) -> list[Content]:
        """Return the content of the window of each tier."""
        contents, numbers, places = [], self._numbers, self._places
        for tier in tiers:
            place = places.get(tier.series_number)
            if place is None:
                contents.append(tier.content_of(0, (0,), now_s))
            else:
                first = place + _COUNTS
                counts = numbers[first : first + numbers[place + _COUNT]]
                contents.append(tier.content_of(numbers[place + _NEWEST], counts, now_s))
        return contents

    def add(self, series_number: int, start_s: int, count: int, horizon_s: int) -> None:
        """Add hits to a frame."""
        numbers, place = self._numbers, self._places.get(series_number)
        if place is None:
            place = self._places[series_number] = len(numbers)
            numbers.extend((series_number, horizon_s, start_s, 1, 0))
            self.has_new_frame = True
        if numbers[place + _HORIZON] < horizon_s:
            numbers[place + _HORIZON] = horizon_s
        at = place + _COUNTS
        if numbers[place + _NEWEST] != start_s:
            frame_s = series_number >> FLAG_BITS
            if start_s > far_ahead_s(frame_s, self._now_s):  # it would drive out all others
                start_s = int(self._now_s // frame_s) * frame_s
            counts = numbers[at : at + numbers[place + _COUNT]]
            later = (numbers[place + _NEWEST] - start_s) // frame_s
            if later < 0:
                self.has_new_frame = True
                counts = (_NO_HITS * min(-later, MAX_COUNTS) + counts)[:MAX_COUNTS]
                while len(counts) > 1 and not counts[-1]:
                    counts.pop()
                numbers[place + _NEWEST] = start_s
            elif later < MAX_COUNTS:
                counts += _NO_HITS * (later + 1 - len(counts))
                at += later
            else:
                return  # no window reaches it
            self._replace(place, counts)
        numbers[at] = min(numbers[at] + count, MAX_HITS)

    def _replace(self, place: int, counts: "array[int]") -> None:
        """Replace the counts of the series that begins at a place."""
        numbers, first = self._numbers, place + _COUNTS
        more = len(counts) - numbers[place + _COUNT]
        numbers[first : first + numbers[place + _COUNT]] = counts
        numbers[place + _COUNT] += more
        for number, other in self._places.items():
            if other > place:
                self._places[number] = other + more

    def remove(self, series_number: int, start_s: int, count: int) -> None:
        """Remove hits of a frame, as many as there are."""
        place = self._places.get(series_number)
        if place is not None:
            later = (self._numbers[place + _NEWEST] - start_s) // (series_number >> FLAG_BITS)
            if 0 <= later < self._numbers[place + _COUNT]:
                at = place + _COUNTS + later
                self._numbers[at] = max(0, self._numbers[at] - count)

    def drop_expired(self, horizons: Mapping[int, int], now_s: float, *, counted: Collection[int] = ()) -> None:
        """Drop the frames that no window reaches any more, by the longest horizon of each series that was ever named.

        ``horizons`` are those of the present limits, by number of the series, and ``counted`` the series that a hit of
        now was added to.
        """
        if len(counted) == len(self._places) and not self.has_new_frame and not self.is_moved:
            return  # nothing else is over while their newest frames last
        numbers = self._numbers
        for number, place in self._places.items():
            numbers[place + _HORIZON] = horizon_s = max(numbers[place + _HORIZON], horizons.get(number, 0))
            kept = max(0, -int((now_s - horizon_s - numbers[place + _NEWEST]) // (number >> FLAG_BITS)))
            if kept < numbers[place + _COUNT]:
                self._replace(place, numbers[place + _COUNTS : place + _COUNTS + kept] or _NO_HITS)

    def packed(self) -> bytes:
        return self._numbers.tobytes()


class Cells:
    """Hits of single frames, as they are packed: those of a row that are to be sent, or whose response is not known.

    Raises ``ValueError`` or ``TypeError`` for what was never packed.
    """

    __slots__ = ("_numbers",)

    def __init__(self, packed: bytes | None) -> None:
        self._numbers = array("q", packed or b"")
        if len(self._numbers) % _CELL:
            raise ValueError("numbers of a cell are missing")

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield the number of the series, the start of the frame, and the hits, of each frame."""
        numbers = iter(self._numbers)
        return zip(numbers, numbers, numbers, strict=True)

    def _find(self, series_number: int, start_s: int) -> int | None:
        """Return the place of a frame, None if it has no hits. The newest ones are looked at first."""
        numbers = self._numbers
        for place in range(len(numbers) - _CELL, -1, -_CELL):
            if numbers[place + 1] == start_s and numbers[place] == series_number:
                return place
        return None

    def add(self, series_number: int, start_s: int, count: int) -> None:
        """Add hits to a frame."""
        place = self._find(series_number, start_s)
        if place is None:
            self._numbers.extend((series_number, start_s, count))
        else:
            self._numbers[place + 2] = min(self._numbers[place + 2] + count, MAX_HITS)

    def remove_hit(self, series_number: int, start_s: int) -> bool:
        """Remove a hit of a frame, and return whether there was one."""
        place = self._find(series_number, start_s)
        if place is None:
            return False
        self._numbers[place + 2] -= 1
        if self._numbers[place + 2] < 1:
            del self._numbers[place : place + _CELL]
        return True

    def drop_expired(self, horizons: Mapping[int, int], now_s: float) -> None:
        """Drop the frames that no window reaches any more."""
        numbers = self._numbers
        for place in range(len(numbers) - _CELL, -1, -_CELL):
            if numbers[place + 1] <= now_s - horizons.get(numbers[place], MAX_HORIZON_S):
                del numbers[place : place + _CELL]

    def count_of(self, series_number: int) -> int:
        """Return the hits of a series."""
        return sum([count for number, _, count in self if number == series_number])

    def packed(self) -> bytes | None:
        """Return the packed hits, None if there are none."""
        return self._numbers.tobytes() or None


def unpack(packed: bytes) -> Counted:
    """Return the hits and horizons of packed totals."""
    numbers = array("q", packed)
    found = Counted({}, {})
    place = 0
    while place < len(numbers):
        number, horizon_s, newest_s, count = numbers[place : place + _COUNTS]
        place += _COUNTS
        series = series_of(number)
        counts = enumerate(numbers[place : place + count])
        found.hits[series] = {newest_s - index * series.frame_s: hits for index, hits in counts if hits}
        found.horizons[series] = horizon_s
        place += count
    return found


def pack(hits: Hits, horizons: Mapping[Series, int]) -> bytes:
    """Return packed totals, without hits that no window reaches any more."""
    numbers: list[int] = []
    for series, frames in hits.items():
        newest = max(frames, default=0) // series.frame_s
        counts = [0] * min(newest - min(frames, default=0) // series.frame_s + 1, MAX_COUNTS)
        for start_s, count in frames.items():
            index = newest - start_s // series.frame_s
            if index < len(counts):
                counts[index] = min(counts[index] + count, MAX_HITS)
        horizon_s = horizons.get(series, MAX_HORIZON_S)
        numbers += (number_of(series), horizon_s, newest * series.frame_s, len(counts), *counts)
    return array("q", numbers).tobytes()


def unpack_hits(packed: bytes | None) -> dict[Series, Frames]:
    """Return hits that are to be sent; none for None."""
    hits: dict[Series, Frames] = {}
    for number, start_s, count in Cells(packed):
        hits.setdefault(series_of(number), {})[start_s] = count
    return hits


def pack_hits(hits: Hits) -> bytes | None:
    """Return packed hits, None if there are none."""
    cells = [(number_of(series), *frame) for series, frames in hits.items() for frame in frames.items()]
    return array("q", chain.from_iterable(cells)).tobytes() or None


@lru_cache(maxsize=1000)  # most rows have the same ones, so they share the result
def unpack_horizons(packed: bytes) -> Mapping[Series, int]:
    numbers = array("q", packed)
    return dict(zip(map(series_of, numbers[::2]), numbers[1::2], strict=True))


def pack_horizons(horizons: Mapping[Series, int]) -> bytes:
    return _pack_horizons(tuple(horizons.items()))


@lru_cache(maxsize=1000)
def _pack_horizons(horizons: tuple[tuple[Series, int], ...]) -> bytes:
    """Return the numbers of series, each followed by its horizon."""
    return array("q", [number for series, horizon_s in horizons for number in (number_of(series), horizon_s)]).tobytes()


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


def far_ahead_s(frame_s: int, now_s: float) -> float:
    """Return up to when a later frame may start and count now: it comes from an instance whose clock is ahead."""
    return now_s + max(frame_s, AHEAD_S)


def bring_back(hits: dict[Series, Frames], now_s: float) -> bool:
    """Count hits of frames that are far ahead in the present, and return whether there were any.

    This machine's clock was set back: a client must neither get its quota anew, nor wait until the time has come again.
    """
    is_changed = False
    for series, frames in hits.items():
        ahead_s = far_ahead_s(series.frame_s, now_s)
        if frames and max(frames) > ahead_s:
            ahead = [start_s for start_s in frames if start_s > ahead_s]
            add_hits(hits, series, int(now_s // series.frame_s) * series.frame_s, sum(map(frames.pop, ahead)))
            is_changed = True
    return is_changed


def drop_expired(hits: dict[Series, Frames], horizons: Mapping[Series, int], now_s: float) -> None:
    """Drop the frames that no window reaches any more."""
    for series, frames in hits.items():
        oldest_s = now_s - horizons.get(series, MAX_HORIZON_S)
        if frames and min(frames) <= oldest_s:
            for start_s in [start_s for start_s in frames if start_s <= oldest_s]:
                del frames[start_s]
