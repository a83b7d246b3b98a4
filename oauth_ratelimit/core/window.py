"""Sliding window counter: frames, estimators, retry and reset, as plain arithmetic.

Time is cut into frames aligned to the epoch. The content of a window is two numbers:

- ``full``: hits that count in full until the current frame ends;
- ``edge``: hits that fade out over the current frame. Negative if more hits fade in.

The estimate is ``full + edge * (share of the current frame that is still to come)``. An estimator is the formula of
``full`` and ``edge``. Both numbers are whole. A hit of the current frame adds 1 to ``full`` and always the same number,
``edge_per_hit``, to ``edge``, whatever else is there.

Sources: the articles of Allegro and of Criteo on distributed rate limiting; Cloudflare, "How we built rate limiting".
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

MAX_WINDOW_S = 366 * 86_400
MAX_FRAMES = 60  # that a configuration may have; a document holds them all
MAX_DEFAULT_FRAMES = 10  # more frames gain little accuracy and make documents larger


class Estimator(enum.StrEnum):
    """Formula that weighs the frames of a window.

    Attributes:
        fades: True if the oldest frame fades out.
        edge_per_hit: Number that a hit in the current frame adds to ``edge``. To ``full`` it adds 1.
    """

    fades: bool
    edge_per_hit: int

    def __new__(cls, name: str, fades: bool, edge_per_hit: int) -> "Estimator":
        estimator = str.__new__(cls, name)
        estimator._value_, estimator.fades, estimator.edge_per_hit = name, fades, edge_per_hit
        return estimator

    SLIDING = "sliding", True, 0
    """Frames wholly inside the window count in full, the oldest by the share of it still inside (Criteo)."""

    PROPORTIONAL = "proportional", True, -1
    """Every frame counts by its share of the window, the current one by the part that has passed (Allegro)."""

    STRICT = "strict", False, 0
    """The oldest frame counts in full until it has left the window. Never admits more than the limit in any window."""

    def weigh(self, current: int, past: Sequence[int], frame_count: int) -> tuple[int, int]:
        """Return ``(full, edge)``.

        ``past`` has at most ``frame_count`` frames before the current one, newest first. Missing ones count as zero.
        """
        fading = past[frame_count - 1] if self.fades and len(past) >= frame_count else 0
        return current + sum(past) - fading, fading + self.edge_per_hit * current


@dataclass(frozen=True, slots=True)
class Window:
    """Trailing period, cut into equal frames."""

    window_s: int  # length in whole seconds
    frame_count: int  # Frames per window, a divisor of ``window_s``. 1 is the classic two-frame form.
    frame_s: int = field(init=False)

    def __post_init__(self) -> None:
        if self.window_s < 1 or self.frame_count < 1 or self.window_s % self.frame_count:
            raise ValueError(f"{self.frame_count} frames of whole seconds do not fill a window of {self.window_s} s")
        object.__setattr__(self, "frame_s", self.window_s // self.frame_count)

    @classmethod
    @lru_cache(maxsize=1000)
    def of(cls, window_s: int, frame_count: int | None = None) -> "Window":
        """Return a window with ``frame_count`` frames, by default the largest divisor of ``window_s`` up to 10."""
        return cls(window_s, frame_count or default_frame_count(window_s))

    def frame_start_s(self, now_s: float) -> int:
        """Return the start of the frame that contains ``now_s``, seconds since the epoch."""
        return int(now_s // self.frame_s) * self.frame_s


def default_frame_count(window_s: int) -> int:
    """Return the largest divisor of ``window_s`` up to 10."""
    return next(count for count in range(MAX_DEFAULT_FRAMES, 0, -1) if window_s % count == 0)


def estimate_hits(full: int, edge: int, left_s: float, frame_s: int) -> float:
    """Return the estimated hits in the window: those that count in full, and the part of others that fade out.

    The product comes before the division, so that a result that is a whole number at a whole second is exact.
    """
    return full + edge * left_s / frame_s


def age(current: int, past: Sequence[int], frames: int, frame_count: int) -> tuple[int, Sequence[int]]:
    """Return ``(current, past)`` as they are ``frames`` frames later if nothing else happens.

    The past has at most ``frame_count`` frames.
    """
    if frames == 0:
        return current, past
    if frames > frame_count:
        return 0, ()
    return 0, (*(0,) * (frames - 1), current, *past)[:frame_count]


def retry_after_s(
    current: int, past: Sequence[int], window: Window, estimator: Estimator, *, room: int, left_s: float
) -> float:
    """Return the seconds until the estimate has fallen to ``room``, if nothing else happens.

    ``past`` has the frames before the current one, newest first, and ``left_s`` is until that ends. ``room`` is the
    largest estimate that still admits: limit minus cost. If it is negative, that is never, else after the window and
    one frame at most. Whole seconds are exact, anything else is rounded up by at most 2 µs, because a sum with a time
    of day loses digits.
    """
    if room < 0:
        return math.inf
    first, least = 1, 0
    for place, hits in enumerate((current, *past[: window.frame_count - 1])):
        least += hits
        if least > room:  # too many until these are of the oldest frame: before, they count in full
            first = window.frame_count - place
            break
    for frames in (0, *range(first, window.frame_count + 2)):
        full, edge = estimator.weigh(*age(current, past, frames, window.frame_count), window.frame_count)
        longest_s = left_s if frames == 0 else float(window.frame_s)
        if estimate_hits(full, edge, longest_s, window.frame_s) <= room:
            enough_s = longest_s
        elif edge > 0 and full <= room:
            enough_s = (room - full) * window.frame_s / edge
        else:
            continue
        return _rounded_up(left_s + frames * window.frame_s - enough_s)
    raise AssertionError("hits are left a window and a frame later")


def _rounded_up(seconds: float) -> float:
    whole = round(seconds)
    return float(whole) if abs(seconds - whole) < 1e-9 else (math.ceil(seconds * 1e6) + 1) / 1e6


def reset_after_s(current: int, past: Sequence[int], window: Window, *, left_s: float) -> float:
    """Return the seconds until no hit counts any more, if nothing else happens. 0.0 if none counts now."""
    if current:
        return window.window_s + left_s
    for frames, hits in enumerate(past, start=1):
        if hits:
            return window.window_s + left_s - frames * window.frame_s
    return 0.0
