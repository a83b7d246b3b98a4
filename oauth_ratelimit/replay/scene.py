"""Lines of a picture: exact and estimated requests of one key in a busy stretch, and admissions of each algorithm."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from oauth_ratelimit.core.window import Estimator, Window, estimate_hits
from oauth_ratelimit.replay.formats import SECOND_US, Row
from oauth_ratelimit.replay.run import FIXED_WINDOW, TOKEN_BUCKET, ClientUser, Contender, Rate, Replay

STRETCH_WINDOWS = 12  # length of a stretch
POINTS_PER_WINDOW = 60
MAX_LINES = 6  # more are hard to tell apart
SHOWN_COMMON = (FIXED_WINDOW, TOKEN_BUCKET)  # GCRA draws the line of the token bucket, the exact log that of the limit


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a recording.

    Args:
        key: Client and user.
        since_us: Start, microseconds since the epoch.
        until_us: End, microseconds since the epoch.
    """

    key: ClientUser
    since_us: int
    until_us: int


class Busiest:
    """Search for the key and stretch with the most denials by the exact log, or else the most requests.

    Pass it to ``Replay`` as ``watch``, with the exact log as the first contender.

    Args:
        rate: Limit to replay.
    """

    def __init__(self, rate: Rate) -> None:
        self._length_us = STRETCH_WINDOWS * rate.window_s * SECOND_US
        self._open: dict[ClientUser, tuple[int, int, int]] = {}  # current stretch, its denials, its requests
        self._best: tuple[int, int, Stretch] | None = None

    def __call__(self, index: int, key: ClientUser, times: Sequence[int], decisions: Sequence[bool]) -> None:
        if index:
            return
        number, denied, count = self._open.get(key, (-1, 0, 0))
        for at_us, is_admitted in zip(times, decisions, strict=True):
            if at_us // self._length_us != number:
                self._close(key, number, denied, count)
                number, denied, count = at_us // self._length_us, 0, 0
            denied += not is_admitted
            count += 1
        self._open[key] = (number, denied, count)

    def found(self) -> Stretch | None:
        """Return the busiest stretch, None without requests."""
        for key, (number, denied, count) in self._open.items():
            self._close(key, number, denied, count)
        return self._best[2] if self._best else None

    def _close(self, key: ClientUser, number: int, denied: int, count: int) -> None:
        if count and (self._best is None or (denied, count) > self._best[:2]):
            since_us = number * self._length_us
            self._best = (denied, count, Stretch(key, since_us, since_us + self._length_us))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a picture.

    Args:
        label: Text in the legend.
        values: Value at each time of the scene.
    """

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Scene:
    """Content of a picture.

    Args:
        stretch: Key and part of the recording.
        rate: Limit to replay.
        moments_us: Times of the values of all lines.
        exact: Exact count of the requests in the window.
        estimates: Estimates of the same count.
        admitted: Exact count of the requests in the window that each algorithm admitted.
    """

    stretch: Stretch
    rate: Rate
    moments_us: Sequence[int]
    exact: Line
    estimates: Sequence[Line]
    admitted: Sequence[Line]


def build_scene(
    batches: Iterable[Sequence[Row]], stretch: Stretch, rate: Rate, *, contenders: Sequence[Contender]
) -> Scene:
    """Return the scene of a stretch of a recording.

    Args:
        batches: The recording, in the order of time.
        stretch: Key and part of the recording.
        rate: Limit to replay.
        contenders: Algorithms to compare. At most ``MAX_LINES`` of them are shown.
    """
    shown = [each for each in contenders if each.is_ours or each.algorithm in SHOWN_COMMON]
    shown = sorted(shown, key=lambda each: each.algorithm == TOKEN_BUCKET)[:MAX_LINES]
    recorder = _Recorder(stretch, rate, count=len(shown))
    Replay(rate, shown, watch=recorder).run(_rows_of(stretch, batches))
    moments_us = recorder.moments_us()
    return Scene(
        stretch=stretch,
        rate=rate,
        moments_us=moments_us,
        exact=Line("exact", [recorder.inside(recorder.requests, at_us) for at_us in moments_us]),
        estimates=[
            Line(label(contender), recorder.estimates(contender, moments_us))
            for contender in shown
            if contender.is_ours and contender.plan is None
        ],
        admitted=[
            Line(label(contender), [recorder.inside(times, at_us) for at_us in moments_us])
            for contender, times in zip(shown, recorder.admitted, strict=True)
        ],
    )


def label(contender: Contender) -> str:
    """Return the label of a contender in the legend."""
    words = [contender.algorithm.replace("-", " ")]
    if contender.frame_count:
        words.append(f"k = {contender.frame_count}")
    if contender.plan:
        words.append(f"{contender.plan.instance_count} × {contender.plan.sharing.value}")
    return ", ".join(words)


def _rows_of(stretch: Stretch, batches: Iterable[Sequence[Row]]) -> Iterable[Sequence[Row]]:
    for batch in batches:
        if batch[0].at_us > stretch.until_us:
            return
        rows = [row for row in batch if row[1:] == stretch.key and row.at_us <= stretch.until_us]
        if rows:
            yield rows


class _Recorder:
    """Requests of a stretch, and of the two windows before it, because the estimates depend on them."""

    def __init__(self, stretch: Stretch, rate: Rate, *, count: int) -> None:
        self._stretch = stretch
        self._window_us = rate.window_s * SECOND_US
        self._window_s = rate.window_s
        self.requests: list[int] = []
        self.admitted: list[list[int]] = [[] for _ in range(count)]

    def __call__(self, index: int, key: ClientUser, times: Sequence[int], decisions: Sequence[bool]) -> None:
        begin_us = self._stretch.since_us - 2 * self._window_us
        if not index:
            self.requests += [at_us for at_us in times if at_us >= begin_us]
        self.admitted[index] += [at_us for at_us, ok in zip(times, decisions, strict=True) if ok and at_us >= begin_us]

    def moments_us(self) -> list[int]:
        """Return the times of all values: evenly spaced, and just before and at each request."""
        first_us, last_us = self.requests[0] - self._window_us, self.requests[-1] + 2 * self._window_us
        since_us, until_us = max(self._stretch.since_us, first_us), min(self._stretch.until_us, last_us)
        step_us = self._window_us // POINTS_PER_WINDOW
        moments = set(range(since_us, until_us + 1, step_us))
        moments.update(at_us for at_us in self.requests if since_us <= at_us <= until_us)
        moments.update(at_us - 1 for at_us in self.requests if since_us < at_us <= until_us)
        return sorted(moments)

    def inside(self, times: Sequence[int], at_us: int) -> int:
        """Return the number of times in the window that ends at ``at_us``."""
        return bisect_right(times, at_us) - bisect_right(times, at_us - self._window_us)

    def estimates(self, contender: Contender, moments_us: Sequence[int]) -> list[float]:
        """Return the estimates of a contender at the given times, with all requests counted."""
        window, estimator = Window(self._window_s, contender.frame_count), Estimator(contender.algorithm)
        frame_us = window.frame_s * SECOND_US
        values = []
        for at_us in moments_us:
            start_us = at_us // frame_us * frame_us
            ends = [start_us - age * frame_us - 1 for age in range(window.frame_count + 1)]
            counts = [bisect_right(self.requests, end_us) for end_us in (at_us, *ends)]
            current, *past = (newer - older for newer, older in pairwise(counts))
            full, edge = estimator.weigh(current, past, window.frame_count)
            left_s = (start_us + frame_us - at_us) / SECOND_US
            values.append(estimate_hits(full, edge, left_s, window.frame_s))
        return values
