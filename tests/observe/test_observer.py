"""Callbacks of the application, names of grant types, and requests near their limit."""

from typing import Any
from unittest.mock import Mock

import pytest

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.observe.observer import MAX_NOTED, Callbacks, Observer
from testbed.clock import Clock
from tests.support.decisions import DENIED, TRUSTED, WOULD_DENY, an_admission


class Calls(list[tuple[Decision, dict[str, Any]]]):
    def __call__(self, decision: Decision, **facts: Any) -> None:
        self.append((decision, facts))


@pytest.mark.parametrize(
    ("decision", "denied_count", "near_count"),
    [
        (an_admission(remaining=24), 0, 0),
        (an_admission(remaining=23), 0, 1),
        (an_admission(remaining=0), 0, 1),
        (DENIED, 1, 0),
        (WOULD_DENY, 0, 0),
        (TRUSTED, 0, 0),
    ],
    ids=["a fifth left", "less than a fifth", "nothing left", "denied", "would be denied", "trusted"],
)
def test_callback_of_a_decision(decision: Decision, denied_count: int, near_count: int) -> None:
    """Each decision calls the callback that it concerns, with the ids of the request."""
    on_denied, on_near_limit = Calls(), Calls()
    observer = Observer(Callbacks(has_grant=bool, on_denied=on_denied, on_near_limit=on_near_limit))
    ids = {"client_id": "web-shop", "username": "alice", "grant_type": "password"}
    observer.report(decision, **ids, duration_s=3e-6)

    assert [(decision, ids)] * denied_count == on_denied
    assert [(decision, ids)] * near_count == on_near_limit
    assert decision.described()[-1] is bool(near_count)


def test_requests_are_counted_in_groups_with_the_time_at_which_they_came_and_the_name_of_their_grant_type() -> None:
    """Standard and supported grant types have names of their own; a client cannot make up more."""
    counted: list[tuple[str, str, float]] = []
    statistics, clock = Mock(), Clock(1000.0)
    statistics.count = lambda requests: counted.extend((each.client_id, each.grant, each.now_s) for each in requests)
    observer = Observer(Callbacks(has_grant="urn:own".__eq__), statistics=statistics, clock=clock)
    names = {"password": "password", "urn:own": "urn:own", "made up": "other", "": "other", None: "none"}
    grant_types = [*names] * (MAX_NOTED // len(names))
    for number, grant_type in enumerate([*grant_types, None]):
        observer.report(an_admission(remaining=50), str(number), username=None, grant_type=grant_type, duration_s=3e-6)
        clock.advance(1)

    assert [(str(at), names[grant_type], 1000.0 + at) for at, grant_type in enumerate(grant_types)] == counted
    observer.count_noted()
    assert [(str(MAX_NOTED), "none", 1000.0 + MAX_NOTED)] == counted[MAX_NOTED:]
