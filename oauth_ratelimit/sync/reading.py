"""Times at which a key is read because other instances may have counted it: arithmetic on numbers, without state.

A read is worth its cost only if it can change a decision: others write the key, and they have probably used up a part
of the room that a window has left. Hits that leave the window meanwhile make room, so a client with an even rate is
read seldom, and one that sends a burst soon.
"""

from collections.abc import Callable
from math import inf

from oauth_ratelimit.core.tier import Content, Tier

AGAIN_RATIO = 1 / 5  # of a limit: from there on a key is read once more after its requests
FILLING_RATIO = 1 / 4  # of a limit; below it, reading at the next request is cheaper (benchmarks/scaling.py)
ROOM_SHARE = 4 / 5  # of the room: a key is read when others have probably used it up
RATE_MARGIN = 2.0  # hits of clients come in bursts: the next ones may come faster than those before
READS_PER_HIT = 10.0  # of all instances together, at most
SHORTEST_BURST_S = 0.5  # hits that came in less time say little about the rate
SHORTEST_GAP_S = 0.003  # between two reads of a key
FIRST_QUIET_S = 0.004  # taken for the time since a request when that is shorter
EMPTY_READS = 20  # in a row that may find nothing, before reads become rarer
BACK_OFF = 2  # times the time that a read has looked back on in vain
QUIET_HITS = 1 / 2  # expected after a request within as much time as has passed since
LONE_READ_GAP_S = 60.0  # at least, between two reads of a document for what nobody's hits need


def read_gap_s(
    tier: Tier,
    content: Content,
    *,
    quiet_s: float,
    found_rate: float,
    writer_count: int,
    instance_count: int,
    interval_s: float,
) -> float:
    """Return the seconds until a key is read, ``inf`` if only its next request needs that.

    Args:
        tier: The limit.
        content: What its window holds, as this instance knows it.
        quiet_s: Seconds since this instance had a request; 0.0 in the cycle that has sent it.
        found_rate: What the last read says, see ``found_rate``.
        writer_count: Instances that have written the key lately.
        instance_count: Instances that may come to write it.
        interval_s: Seconds between two cycles.
    """
    is_asked = quiet_s <= 0.0 and content.estimate >= AGAIN_RATIO * tier.limit and tier.window_s > 2 * interval_s
    gap_s = interval_s if is_asked else inf
    if content.estimate < FILLING_RATIO * tier.limit:
        return gap_s
    rate = max(hit_rate(tier, content), found_rate)
    if (quiet_s <= 0.0 or found_rate > 0.0) and not _opens_after_s(tier, content):
        rate = max(rate, QUIET_HITS / max(quiet_s, FIRST_QUIET_S))  # a burst may have begun, at any rate
    if instance_count > 1 and not any(content.past):
        writer_count = max(writer_count, 2)  # the others may not have come to it yet
    if writer_count > 1:
        least_s = max(SHORTEST_GAP_S, writer_count / (READS_PER_HIT * rate))
        gap_s = min(gap_s, max(least_s, filled_after_s(tier, content, rate)))
    return gap_s


def _opens_after_s(tier: Tier, content: Content) -> float:
    """Return the seconds until a request is admitted, 0.0 if one is now."""
    return tier.retry_after_s(content, cost=1) if content.estimate > tier.limit - 1 else 0.0


def hit_rate(tier: Tier, content: Content) -> float:
    """Return the hits per second to expect: those around a hit of the window, and at least the mean of the window.

    At an even rate both are the same. In a burst most hits have many others around them.
    """
    total = content.current + sum(content.past)
    if not total:
        return 0.0
    elapsed_s = max(tier.frame_s - content.left_s, SHORTEST_BURST_S)
    around = content.current * (content.current - 1) / elapsed_s
    around += sum(hits * (hits - 1) for hits in content.past) / tier.frame_s
    return max(RATE_MARGIN * around / total, content.estimate / tier.window_s)


def found_rate(hits: int, passed_s: float) -> float:
    """Return the hits per second of others to expect after a read has found some. A lone one counts half."""
    return RATE_MARGIN * (hits - 1 / 2) / passed_s if hits > 0 and passed_s > 0.0 else 0.0


def back_off_s(empty_count: int, passed_s: float) -> float:
    """Return the least seconds until the next read after some in a row that found nothing.

    ``passed_s`` is the time that the last one looked back on.
    """
    return BACK_OFF * passed_s if empty_count > EMPTY_READS else 0.0


def filled_after_s(tier: Tier, content: Content, rate: float) -> float:
    """Return the seconds until hits at a rate use up ``ROOM_SHARE`` of the room that there is by then.

    Before the limit admits a request again nobody uses up anything. It is ``inf`` if the window is empty before.
    """
    opens_after_s, room = _opens_after_s(tier, content), tier.limit - content.estimate
    frames = (content.current, *content.past, *(0,) * (tier.frame_count - len(content.past)))
    begin_s, length_s = 0.0, content.left_s
    for hits in reversed(frames):  # the oldest fades out in the current frame, then the next, as with ``sliding``
        fading = hits / tier.frame_s
        end_s, excess = begin_s + length_s, rate - ROOM_SHARE * fading
        if opens_after_s < end_s and excess > 0.0:
            at_s = (rate * opens_after_s + ROOM_SHARE * (room - fading * begin_s)) / excess
            if at_s <= end_s:
                return max(at_s, opens_after_s)
        room += fading * length_s
        begin_s, length_s = end_s, float(tier.frame_s)
    return inf


def is_overdue(passed_s: float, *, shortest_window_s: int, horizon_s: int, is_far: Callable[[], bool]) -> bool:
    """Return whether a document was not read for so long that it is read whoever writes it.

    The reading finds parts to remove, and what others count of a key that is written without being read.
    """
    most_s = 2 * horizon_s
    if passed_s <= min(LONE_READ_GAP_S, most_s):
        return False
    least_s = 2 * LONE_READ_GAP_S if is_far() else LONE_READ_GAP_S
    return passed_s > min(max(shortest_window_s / 2, least_s), most_s)
