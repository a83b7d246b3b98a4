"""Data of a chart: the busiest part of a recording, its estimates, and the requests that algorithms admitted."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from oauth_ratelimit.core.window import Estimator, Window, estimate_hits
from oauth_ratelimit.replay.formats import SECOND_US, Row
from oauth_ratelimit.replay.run import FIXED_WINDOW, TOKEN_BUCKET, ClientUser, Contender, Rate, Replay

SEGMENT_WINDOWS = 12  # length of a segment
POINTS_PER_WINDOW = 60
MAX_LINES = 6  # more are hard to tell apart
SHOWN_COMMON = (FIXED_WINDOW, TOKEN_BUCKET)  # GCRA draws the line of the token bucket, the exact log that of the limit


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a recording.

    Args:
        key: Client and user.
        since_us: Start, microseconds since the epoch.
        until_us: End, microseconds since the epoch.
    """

    key: ClientUser
    since_us: int
    until_us: int


class BusiestSegment:
    """Search for the segment with the most denials by the exact log, or else the most requests.

    Pass it to ``Replay`` as ``on_decisions``, with the exact log as the first contender.

    Args:
        rate: Limit to replay.
    """

    def __init__(self, rate: Rate) -> None:
        self._length_us = SEGMENT_WINDOWS * rate.window_us
        self._open: dict[ClientUser, tuple[int, int, int]] = {}  # number of the segment, denials, requests
        self._best: tuple[int, int, Segment] | None = None

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

    def found(self) -> Segment | None:
        """Return the segment; None without requests."""
        for key, (number, denied, count) in self._open.items():
            self._close(key, number, denied, count)
        return self._best[2] if self._best else None

    def _close(self, key: ClientUser, number: int, denied: int, count: int) -> None:
        if count and (self._best is None or (denied, count) > self._best[:2]):
            since_us = number * self._length_us
            self._best = (denied, count, Segment(key, since_us, since_us + self._length_us))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Args:
        label: Text in the legend.
        values: Value at each time of the chart.
    """

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class ChartData:
    """Content of a chart.

    Args:
        segment: Part of the recording.
        rate: Limit to replay.
        times_us: Times of the values of all lines.
        exact: Exact count of the requests in the window.
        estimates: Estimates of the same count.
        admitted: Exact count of the requests in the window that each algorithm admitted.
    """

    segment: Segment
    rate: Rate
    times_us: Sequence[int]
    exact: Line
    estimates: Sequence[Line]
    admitted: Sequence[Line]


def chart_data(
    batches: Iterable[Sequence[Row]], segment: Segment, rate: Rate, *, contenders: Sequence[Contender]
) -> ChartData:
    """Return the chart of a segment.

    Args:
        batches: The recording, in the order of time.
        segment: Part to show.
        rate: Limit to replay.
        contenders: Algorithms to compare. At most ``MAX_LINES`` of them are shown.
    """
    shown = [one for one in contenders if one.is_ours or one.algorithm in SHOWN_COMMON]
    shown = sorted(shown, key=lambda one: one.algorithm == TOKEN_BUCKET)[:MAX_LINES]
    requests = _SegmentRequests(segment, rate, contender_count=len(shown))
    Replay(rate, shown, on_decisions=requests).run(_rows_of(segment, batches))
    times_us = requests.chart_times_us()
    return ChartData(
        segment=segment,
        rate=rate,
        times_us=times_us,
        exact=Line("exact", [requests.count_in_window(requests.all_us, at_us) for at_us in times_us]),
        estimates=[
            Line(contender_label(contender), requests.estimates(contender, times_us))
            for contender in shown
            if contender.is_ours and contender.plan is None
        ],
        admitted=[
            Line(contender_label(contender), [requests.count_in_window(admitted_us, at_us) for at_us in times_us])
            for contender, admitted_us in zip(shown, requests.admitted_us, strict=True)
        ],
    )


def contender_label(contender: Contender) -> str:
    """Return the label of a contender in a chart."""
    words = [contender.algorithm.replace("-", " ")]
    if contender.frame_count:
        words.append(f"k = {contender.frame_count}")
    if contender.plan:
        words.append(f"{contender.plan.instance_count} × {contender.plan.sharing.value}")
    return ", ".join(words)


def _rows_of(segment: Segment, batches: Iterable[Sequence[Row]]) -> Iterable[Sequence[Row]]:
    for batch in batches:
        if batch[0].at_us > segment.until_us:
            return
        rows = [row for row in batch if (row.client, row.user) == segment.key and row.at_us <= segment.until_us]
        if rows:
            yield rows


class _SegmentRequests:
    """Requests of a segment and of the two windows before it, because the estimates depend on them.

    Attributes:
        all_us: Times of all requests.
        admitted_us: Times of the admitted requests, by contender.
    """

    def __init__(self, segment: Segment, rate: Rate, *, contender_count: int) -> None:
        self._segment = segment
        self._rate = rate
        self.all_us: list[int] = []
        self.admitted_us: list[list[int]] = [[] for _ in range(contender_count)]

    def __call__(self, index: int, key: ClientUser, times: Sequence[int], decisions: Sequence[bool]) -> None:
        since_us = self._segment.since_us - 2 * self._rate.window_us
        if not index:
            self.all_us += [at_us for at_us in times if at_us >= since_us]
        self.admitted_us[index] += [
            at_us for at_us, is_admitted in zip(times, decisions, strict=True) if is_admitted and at_us >= since_us
        ]

    def chart_times_us(self) -> list[int]:
        """Return the times of all values: evenly spaced, and just before and at each request."""
        window_us = self._rate.window_us
        since_us = max(self._segment.since_us, self.all_us[0] - window_us)
        until_us = min(self._segment.until_us, self.all_us[-1] + 2 * window_us)
        times = set(range(since_us, until_us + 1, window_us // POINTS_PER_WINDOW))
        times.update(at_us for at_us in self.all_us if since_us <= at_us <= until_us)
        times.update(at_us - 1 for at_us in self.all_us if since_us < at_us <= until_us)
        return sorted(times)

    def count_in_window(self, times_us: Sequence[int], at_us: int) -> int:
        """Return the number of times in the window that ends at ``at_us``."""
        return bisect_right(times_us, at_us) - bisect_right(times_us, at_us - self._rate.window_us)

    def estimates(self, contender: Contender, times_us: Sequence[int]) -> list[float]:
        """Return the estimates of a contender at the given times, with all requests counted."""
        window, estimator = Window(self._rate.window_s, contender.frame_count), Estimator(contender.algorithm)
        frame_us = window.frame_s * SECOND_US
        values = []
        for at_us in times_us:
            start_us = at_us // frame_us * frame_us
            ends = [start_us - age * frame_us - 1 for age in range(window.frame_count + 1)]
            counts = [bisect_right(self.all_us, end_us) for end_us in (at_us, *ends)]
            current, *past = (newer - older for newer, older in pairwise(counts))
            full, edge = estimator.weigh(current, past, window.frame_count)
            left_s = (start_us + frame_us - at_us) / SECOND_US
            values.append(estimate_hits(full, edge, left_s, window.frame_s))
        return values
