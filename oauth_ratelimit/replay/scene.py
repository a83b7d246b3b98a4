"""What a picture shows: a busy stretch of one key, what estimates made of it, and what algorithms let through."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from oauth_ratelimit.core.window import Estimator, Window, estimate_hits
from oauth_ratelimit.replay.formats import SECOND_US, Row
from oauth_ratelimit.replay.run import FIXED_WINDOW, TOKEN_BUCKET, Contender, Rate, Replay, Who

STRETCH_WINDOWS = 12  # of these a picture shows
POINTS_PER_WINDOW = 60
MAX_LINES = 6  # more could not be told apart
BESIDE_OURS = (
    FIXED_WINDOW,
    TOKEN_BUCKET,
)  # neither GCRA, which draws the same line, nor the log, which draws the limit


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording.

    Args:
        who: The key.
        since_us: Where it begins, microseconds since the epoch.
        until_us: Where it ends.
    """

    who: Who
    since_us: int
    until_us: int


class Busiest:
    """Finds the key and stretch of which an exact log denies most, or else the one with most requests.

    To be given to ``Replay`` as ``watch``, with the exact log as the first contender.

    Args:
        rate: What is allowed.
    """

    def __init__(self, rate: Rate) -> None:
        self._length_us = STRETCH_WINDOWS * rate.window_s * SECOND_US
        self._open: dict[Who, tuple[int, int, int]] = {}  # the stretch that each key is in, denials, requests
        self._best: tuple[int, int, Stretch] | None = None

    def __call__(self, index: int, who: Who, times: Sequence[int], decisions: Sequence[bool]) -> None:
        if index:
            return
        number, denied, count = self._open.get(who, (-1, 0, 0))
        for at_us, is_admitted in zip(times, decisions, strict=True):
            if at_us // self._length_us != number:
                self._close(who, number, denied, count)
                number, denied, count = at_us // self._length_us, 0, 0
            denied += not is_admitted
            count += 1
        self._open[who] = (number, denied, count)

    def found(self) -> Stretch | None:
        """Return it; None if there was no request."""
        for who, (number, denied, count) in self._open.items():
            self._close(who, number, denied, count)
        return self._best[2] if self._best else None

    def _close(self, who: Who, number: int, denied: int, count: int) -> None:
        if count and (self._best is None or (denied, count) > self._best[:2]):
            since_us = number * self._length_us
            self._best = (denied, count, Stretch(who, since_us, since_us + self._length_us))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a picture.

    Args:
        label: What it is.
        values: At each of the scene's moments.
    """

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a picture shows.

    Args:
        stretch: Of whom, from when to when.
        rate: What is allowed.
        moments_us: The moments of all lines.
        exact: Requests that came in the window, counted exactly.
        estimates: What estimates make of the same requests.
        admitted: Requests in the window that each algorithm let through, counted exactly.
    """

    stretch: Stretch
    rate: Rate
    moments_us: Sequence[int]
    exact: Line
    estimates: Sequence[Line]
    admitted: Sequence[Line]


def look(batches: Iterable[Sequence[Row]], stretch: Stretch, rate: Rate, *, contenders: Sequence[Contender]) -> Scene:
    """Return what there is to see in a stretch of a recording.

    Args:
        batches: The recording, in the order of time.
        stretch: Which part of it.
        rate: What is allowed.
        contenders: What is compared; not more of them are shown than can be told apart.
    """
    shown = [one for one in contenders if one.is_ours or one.algorithm in BESIDE_OURS]
    shown = sorted(shown, key=lambda one: one.algorithm == TOKEN_BUCKET)[:MAX_LINES]
    camera = _Camera(stretch, rate, count=len(shown))
    Replay(rate, shown, watch=camera).run(_of(stretch, batches))
    moments_us = camera.moments_us()
    return Scene(
        stretch=stretch,
        rate=rate,
        moments_us=moments_us,
        exact=Line("exact", [camera.inside(camera.came, at_us) for at_us in moments_us]),
        estimates=[
            Line(name(contender), camera.estimates(contender, moments_us))
            for contender in shown
            if contender.is_ours and contender.plan is None
        ],
        admitted=[
            Line(name(contender), [camera.inside(times, at_us) for at_us in moments_us])
            for contender, times in zip(shown, camera.admitted, strict=True)
        ],
    )


def name(contender: Contender) -> str:
    """Return what people call a contender."""
    words = [contender.algorithm.replace("-", " ")]
    if contender.frame_count:
        words.append(f"k = {contender.frame_count}")
    if contender.plan:
        words.append(f"{contender.plan.instance_count} × {contender.plan.sharing.value}")
    return ", ".join(words)


def _of(stretch: Stretch, batches: Iterable[Sequence[Row]]) -> Iterable[Sequence[Row]]:
    for batch in batches:
        if batch[0].at_us > stretch.until_us:
            return
        rows = [row for row in batch if row[1:] == stretch.who and row.at_us <= stretch.until_us]
        if rows:
            yield rows


class _Camera:
    """Keeps the requests of a stretch, and of the two windows before it, on which its estimates depend."""

    def __init__(self, stretch: Stretch, rate: Rate, *, count: int) -> None:
        self._stretch = stretch
        self._window_us = rate.window_s * SECOND_US
        self._window_s = rate.window_s
        self.came: list[int] = []
        self.admitted: list[list[int]] = [[] for _ in range(count)]

    def __call__(self, index: int, who: Who, times: Sequence[int], decisions: Sequence[bool]) -> None:
        begin_us = self._stretch.since_us - 2 * self._window_us
        if not index:
            self.came += [at_us for at_us in times if at_us >= begin_us]
        self.admitted[index] += [at_us for at_us, ok in zip(times, decisions, strict=True) if ok and at_us >= begin_us]

    def moments_us(self) -> list[int]:
        """Return evenly spaced moments while there is something to see, and those of the requests, just before and at
        each.
        """
        first_us, last_us = self.came[0] - self._window_us, self.came[-1] + 2 * self._window_us
        since_us, until_us = max(self._stretch.since_us, first_us), min(self._stretch.until_us, last_us)
        step_us = self._window_us // POINTS_PER_WINDOW
        moments = set(range(since_us, until_us + 1, step_us))
        moments.update(at_us for at_us in self.came if since_us <= at_us <= until_us)
        moments.update(at_us - 1 for at_us in self.came if since_us < at_us <= until_us)
        return sorted(moments)

    def inside(self, times: Sequence[int], at_us: int) -> int:
        """Return how many of the moments lie in the window that ends now."""
        return bisect_right(times, at_us) - bisect_right(times, at_us - self._window_us)

    def estimates(self, contender: Contender, moments_us: Sequence[int]) -> list[float]:
        """Return what an estimate makes of all requests that came."""
        window, estimator = Window(self._window_s, contender.frame_count), Estimator(contender.algorithm)
        frame_us = window.frame_s * SECOND_US
        values = []
        for at_us in moments_us:
            start_us = at_us // frame_us * frame_us
            ends = [start_us - age * frame_us - 1 for age in range(window.frame_count + 1)]
            counts = [bisect_right(self.came, end_us) for end_us in (at_us, *ends)]
            current, *past = (newer - older for newer, older in pairwise(counts))
            full, edge = estimator.weigh(current, past, window.frame_count)
            left_s = (start_us + frame_us - at_us) / SECOND_US
            values.append(estimate_hits(full, edge, left_s, window.frame_s))
        return values
