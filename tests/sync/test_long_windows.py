"""Documents outlive everything that they can still deny."""

import math
from collections.abc import Sequence

import pytest

from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import MAX_WINDOW_S, Estimator, Window
from oauth_ratelimit.store.base import Change, WriteResult
from oauth_ratelimit.store.mongo.fields import date_of
from testbed.clock import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, hit
from tests.support.stores import Shared

DAY_S = 86_400
WINDOWS = [
    Window(1, 1),
    Window(60, 10),
    Window(183 * DAY_S, 1),
    Window(184 * DAY_S, 1),
    Window(333 * DAY_S, 10),
    Window(MAX_WINDOW_S, 3600),
    Window(MAX_WINDOW_S, 10),
    Window(MAX_WINDOW_S, 1),
]


@pytest.mark.parametrize("estimator", Estimator)
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.window_s} s, k = {window.frame_count}")
def test_replaced_instance_denies_until_the_window_and_a_frame_are_over(
    shared: Shared, clock: Clock, window: Window, estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, expiries = shared.store.compare_and_set, []

    def note(writer: str, changes: Sequence[Change]) -> WriteResult:
        expiries.extend(change.expire_at_s for change in changes)
        return write(writer, changes)

    monkeypatch.setattr(shared.store, "compare_and_set", note)
    policy = Policy("client", 1, window, estimator)
    clock.now_s = begin_s = float(window.frame_start_s(clock.now_s))
    hit(a_limiter(shared.store, clock, policy))
    (expire_s,) = expiries
    if shared.collection is not None:
        document = shared.collection.find_one() or {}
        assert date_of(expire_s).replace(tzinfo=None) == document["expire"].replace(tzinfo=None)
    for left_s, is_admitted in ((1 / 8, False), (0, True)):
        clock.now_s = begin_s + window.window_s + window.frame_s - left_s
        if clock.now_s >= expire_s:
            shared.remove(KEY)
        fresh = a_limiter(shared.store, clock, policy)
        fresh.preload()
        assert is_admitted is fresh.check(CLIENT).allowed
    assert math.isclose(60, expire_s - clock.now_s)
