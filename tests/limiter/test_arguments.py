"""Arguments of ``Limiter.check``: any text for names, whole numbers for costs."""

import math
from typing import Any

import pytest

from oauth_ratelimit.core.policy import MAX_LIMIT
from testbed.clock import Clock
from tests.support.limiters import CLIENT, a_limiter, in_flight


@pytest.mark.parametrize("cost", (0, -1, 1.5, 1.0, 2.0, True, False, "1", None, MAX_LIMIT + 1, math.nan))
def test_cost_that_is_no_whole_number_is_rejected(clock: Clock, cost: Any) -> None:
    limiter = a_limiter(None, clock)
    for ask in (limiter.peek, limiter.check):
        with pytest.raises(ValueError, match="cost must be a whole number from 1 to 2\\^53"):
            ask(CLIENT, cost=cost)
    assert {} == in_flight(limiter)


@pytest.mark.parametrize("name", (1, b"app", 1.5, True, ("app",), ["app"]))
def test_ids_that_are_no_text_are_rejected(clock: Clock, name: Any) -> None:
    limiter = a_limiter(None, clock)
    for ask in (limiter.peek, limiter.check):
        for client_id in (name, None):
            with pytest.raises(TypeError, match=r"client_id must be text|unhashable type"):
                ask(client_id)
        with pytest.raises(TypeError):
            ask(CLIENT, name)
