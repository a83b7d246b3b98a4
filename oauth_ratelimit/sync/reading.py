"""Times at which a key is read because other instances may have counted it: arithmetic on numbers, without state.

A read is worth its cost only if it can change a decision: others write the key, and they have probably used up a part
of the room that a window has left. Hits that leave the window meanwhile make room, so a client with an even rate is
read seldom, and one that sends a burst soon.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

AGAIN_RATIO = 1 / 5  # of a limit: from there on a key is read once more after its requests
FILLING_RATIO = 1 / 4  # of a limit; below it, reading at the next request is cheaper (benchmarks/scaling.py)
ROOM_SHARE = 2 / 5  # of the room: a key is read when others have probably used it up
RATE_MARGIN = 2.0  # hits of clients come in bursts: the next ones may come faster than those before
READS_PER_HIT = 10.0  # of all instances together, at most
SHORTEST_BURST_S = 0.5  # hits that came in less time say little about the rate
SHORTEST_GAP_S = 0.003  # between two reads of a key
FIRST_QUIET_S = 0.004  # taken for the time since a request when that is shorter
QUIET_HITS = 1 / 2  # expected after a request within as much time as has passed since
LONE_READ_GAP_S = 60.0  # at least, between two reads of a document for what nobody's hits need


class Filling(NamedTuple):
    """Content of one window, as an instance knows it.

    Attributes:
        limit: Hits that the window may hold.
        estimate: Hits that it holds.
        current: Hits of the current frame.
        past: Hits of the frames before it, newest first; missing ones are zero.
        frame_count: Frames of the window.
        frame_s: Length of a frame.
        left_s: Seconds until the current frame ends.
        opens_after_s: Seconds until a request is admitted, 0.0 if one is now.
    """

    limit: int
    estimate: float
    current: int
    past: Sequence[int]
    frame_count: int
    frame_s: int
    left_s: float
    opens_after_s: float = 0.0


def read_gap_s(
    filling: Filling,
    *,
    quiet_s: float,
    found_rate: float,
    writer_count: int,
    instance_count: int,
    interval_s: float,
) -> float:
    """Return the seconds until a key is read, ``inf`` if only its next request needs that.

    Args:
        filling: The content of the window.
        quiet_s: Seconds since this instance had a request; 0.0 in the cycle that has sent it.
        found_rate: What the last read says, see ``found_rate``.
        writer_count: Instances that have written the key lately.
        instance_count: Instances that may come to write it.
        interval_s: Seconds between two cycles.
    """
    window_s = filling.frame_s * filling.frame_count
    is_asked = quiet_s <= 0.0 and filling.estimate >= AGAIN_RATIO * filling.limit and window_s > 2 * interval_s
    gap_s = interval_s if is_asked else inf
    if filling.estimate < FILLING_RATIO * filling.limit:
        return gap_s
    rate = max(hit_rate(filling), found_rate)
    if not filling.opens_after_s:
        rate = max(rate, QUIET_HITS / max(quiet_s, FIRST_QUIET_S))  # a burst may have begun, at any rate
    if instance_count > 1 and not any(filling.past):
        writer_count = max(writer_count, 2)  # the others may not have come to it yet
    if writer_count > 1:
        least_s = max(SHORTEST_GAP_S, writer_count / (READS_PER_HIT * rate))
        gap_s = min(gap_s, max(least_s, filled_after_s(filling, rate)))
    return gap_s


def hit_rate(filling: Filling) -> float:
    """Return the hits per second to expect: those around a hit of the window, and at least the mean of the window.

    At an even rate both are the same. In a burst most hits have many others around them.
    """
    total = filling.current + sum(filling.past)
    if not total:
        return 0.0
    elapsed_s = max(filling.frame_s - filling.left_s, SHORTEST_BURST_S)
    around = filling.current * (filling.current - 1) / elapsed_s
    around += sum(hits * (hits - 1) for hits in filling.past) / filling.frame_s
    return max(RATE_MARGIN * around / total, filling.estimate / (filling.frame_s * filling.frame_count))


def found_rate(hits: int, passed_s: float) -> float:
    """Return the hits per second of others that a read has found since it was last known. A lone one counts half."""
    return (hits - 1 / 2) / passed_s if hits > 0 and passed_s > 0.0 else 0.0


def filled_after_s(filling: Filling, rate: float) -> float:
    """Return the seconds until hits at a rate use up ``ROOM_SHARE`` of the room that there is by then.

    Before the limit admits a request again nobody uses up anything. It is ``inf`` if the window is empty before.
    """
    opens_after_s, room = filling.opens_after_s, filling.limit - filling.estimate
    frames = (filling.current, *filling.past, *(0,) * (filling.frame_count - len(filling.past)))
    begin_s, length_s = 0.0, filling.left_s
    for hits in reversed(frames):  # the oldest frame fades out until the current one ends, then the next
        fading = hits / filling.frame_s
        end_s, excess = begin_s + length_s, rate - ROOM_SHARE * fading
        if opens_after_s < end_s and excess > 0.0:
            at_s = (rate * opens_after_s + ROOM_SHARE * (room - fading * begin_s)) / excess
            if at_s <= end_s:
                return max(at_s, opens_after_s)
        room += fading * length_s
        begin_s, length_s = end_s, float(filling.frame_s)
    return inf


def reads_first(used_ratio: float, *, writer_count: int, instance_count: int) -> bool:
    """Return whether an urgent key is read before it is written, because others have probably written it.

    One read gives both their hits and the version.
    """
    return writer_count > 1 or (instance_count > 1 and used_ratio >= FILLING_RATIO)


def is_overdue(passed_s: float, *, shortest_window_s: int, horizon_s: int, is_far: bool) -> bool:
    """Return whether a document was not read for so long that it is read whoever writes it.

    The reading finds parts to remove, and what others count of a key that is written without being read.
    """
    most_s = 2 * horizon_s
    if passed_s <= min(LONE_READ_GAP_S, most_s):
        return False
    least_s = 2 * LONE_READ_GAP_S if is_far else LONE_READ_GAP_S
    return passed_s > min(max(shortest_window_s / 2, least_s), most_s)
