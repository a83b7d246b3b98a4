"""Algorithms that other limiters use.

Each function returns a function that decides about the requests of one key, in the order of time. They compute in whole
microseconds, so that rounding causes no errors. Denied requests do not count. ``limit`` is the number of requests per
window, and the number that may come at once.
"""

from collections.abc import Callable

from testbed.comparison.accuracy import WindowLog

Admit = Callable[[int], bool]
"""Decides about a request at a time in microseconds, and counts it if it is admitted."""


def fixed_window(limit: int, window_us: int) -> Admit:
    """Return a counter that starts at zero in each window, aligned to the epoch."""
    present, count = -1, 0

    def admit(at_us: int) -> bool:
        nonlocal present, count
        number = at_us // window_us
        if number != present:
            present, count = number, 0
        is_admitted = count < limit
        count += is_admitted
        return is_admitted

    return admit


def exact_log(limit: int, window_us: int) -> Admit:
    """Return an exact log of the admitted requests, the reference for the other algorithms."""
    log = WindowLog(window_us)

    def admit(at_us: int) -> bool:
        is_admitted = log.count(at_us) < limit
        if is_admitted:
            log.add(at_us)
        return is_admitted

    return admit


def token_bucket(limit: int, window_us: int) -> Admit:
    """Return a token bucket: each request takes a token, and the bucket is refilled at an even rate."""
    # A token is ``window_us`` units, so that a whole number of units, ``limit``, is added per microsecond.
    level = capacity = limit * window_us
    seen_us = 0

    def admit(at_us: int) -> bool:
        nonlocal level, seen_us
        level = min(capacity, level + (at_us - seen_us) * limit)
        seen_us = at_us
        is_admitted = level >= window_us
        level -= is_admitted * window_us
        return is_admitted

    return admit


def gcra(limit: int, window_us: int) -> Admit:
    """Return the generic cell rate algorithm: the time at which the next request would come at an even rate.

    It makes the same decisions as the token bucket, with one number per key.
    """
    # A microsecond is ``limit`` units, so that ``window_us`` of them lie between two requests at an even rate.
    arrival, tolerance = 0, (limit - 1) * window_us

    def admit(at_us: int) -> bool:
        nonlocal arrival
        now = at_us * limit
        is_admitted = arrival - now <= tolerance
        if is_admitted:
            arrival = max(arrival, now) + window_us
        return is_admitted

    return admit


COMMON: dict[str, Callable[[int, int], Admit]] = {
    "exact-log": exact_log,
    "fixed-window": fixed_window,
    "token-bucket": token_bucket,
    "gcra": gcra,
}
