"""Callbacks of the application, names of grant types, and requests near their limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import requests
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, seed
from oauth_ratelimit.core.decision import Decision, FullDecision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.core.window import Window
from oauth_ratelimit.observe.observer import COUNTED_AT_ONCE, Callbacks, GrantNames, Observer, is_near_limit
from tests.support.flows import post
from tests.support.helpers import Clock
from tests.support.sites import Site, config, protected

POLICY = Policy("client", 100, Window.of(60))
DENIED = FullDecision(False, True, Mode.ENFORCE, rule=POLICY, decision_id="0123456789abcdef")
WOULD_DENY = FullDecision(True, True, Mode.DRY_RUN, rule=POLICY)
TRUSTED = FullDecision(True, False, Mode.ENFORCE, trusted=True)


def allowed(remaining: int) -> FullDecision:
    """Return the decision about an admitted request."""
    return FullDecision(True, False, Mode.ENFORCE, rule=POLICY, remaining=remaining)


class Calls(list[tuple[Decision, dict[str, Any]]]):
    """A callback that remembers its calls."""

    def __call__(self, decision: Decision, **facts: Any) -> None:
        """Remember a call."""
        self.append((decision, facts))


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (allowed(20), False),
        (allowed(19), True),
        (allowed(0), True),
        (DENIED, False),
        (WOULD_DENY, False),
        (TRUSTED, False),
    ],
    ids=["a fifth left", "less than a fifth", "nothing left", "denied", "would be denied", "trusted"],
)
def test_request_near_its_limit(decision: Decision, expected: bool) -> None:
    """Only an admitted request with less than a fifth of its quota left is near its limit."""
    assert expected is is_near_limit(decision)


@pytest.mark.parametrize(
    ("decision", "denied_count", "near_count"),
    [(allowed(50), 0, 0), (allowed(1), 0, 1), (DENIED, 1, 0), (WOULD_DENY, 0, 0), (TRUSTED, 0, 0)],
    ids=["allowed", "near its limit", "denied", "would be denied", "trusted"],
)
def test_callback_of_a_decision(decision: Decision, denied_count: int, near_count: int) -> None:
    """Each decision calls the callback that it concerns, with the ids of the request."""
    on_denied, on_near_limit = Calls(), Calls()
    observer = Observer(Callbacks(has_grant=bool, on_denied=on_denied, on_near_limit=on_near_limit))
    ids = {"client_id": "web-shop", "username": "alice", "grant_type": "password"}
    observer.report(decision, **ids, duration_s=3e-6)

    assert [(decision, ids)] * denied_count == on_denied
    assert [(decision, ids)] * near_count == on_near_limit


class FakeStatistics:
    """Statistics that remember the time of each request that they count."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, float]] = []

    def count(self, decision: Decision, client_id: str, *, now_s: float, **_: Any) -> None:
        """Remember a request."""
        if client_id == "broken":
            raise LookupError("a defect")
        self.counted.append((client_id, now_s))


def test_requests_are_counted_in_groups_with_the_time_at_which_they_came() -> None:
    statistics, clock = FakeStatistics(), Clock(1000.0)
    observer = Observer(Callbacks(has_grant=bool), statistics=cast(Any, statistics), clock=clock)
    for number in range(COUNTED_AT_ONCE + 2):
        observer.report(allowed(50), str(number), username=None, grant_type=None, duration_s=3e-6)
        clock.advance(1)

    assert [(str(number), 1000.0 + number) for number in range(COUNTED_AT_ONCE)] == statistics.counted
    observer.count_noted()
    assert [("20", 1020.0), ("21", 1021.0)] == statistics.counted[COUNTED_AT_ONCE:]


def test_request_that_cannot_be_counted_loses_no_other() -> None:
    statistics = FakeStatistics()
    observer = Observer(Callbacks(has_grant=bool), statistics=cast(Any, statistics), clock=Clock(1000.0))
    for client_id in ("broken", "web-shop"):
        observer.report(allowed(50), client_id, username=None, grant_type=None, duration_s=3e-6)

    with pytest.raises(LookupError):
        observer.count_noted()
    observer.count_noted()
    assert [("web-shop", 1000.0)] == statistics.counted


@pytest.mark.parametrize(
    ("grant_type", "name"),
    [
        ("password", "password"),
        ("urn:example:own", "urn:example:own"),
        ("made up", "other"),
        ("", "other"),
        (None, "none"),
    ],
)
def test_name_of_a_grant_type(grant_type: str | None, name: str) -> None:
    """Standard and supported grant types have names of their own; a client cannot make up more."""
    names = GrantNames(lambda grant: grant == "urn:example:own")

    assert [name, name] == [names.name_of(grant_type), names.name_of(grant_type)]


@contextmanager
def site(directory: Path, *, limit: int, **callbacks: Any) -> Iterator[Site]:
    """Serve the demo's server with callbacks."""
    database = directory / "demo.sqlite3"
    seed(database)
    with protected(database, config(limit=limit), **callbacks) as served:
        yield served


def ask(served: Site, *, times: int) -> list[requests.Response]:
    """Ask for tokens as a client."""
    return [post(f"{served.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"}) for _ in range(times)]


def test_denial_has_one_id_in_answer_log_and_callback(tmp_path: Path) -> None:
    """Denials that follow the logged one have ids of their own."""
    on_denied = Calls()
    with capture_logs() as logs, site(tmp_path, limit=1, on_denied=on_denied) as served:
        answers = ask(served, times=4)

    assert [200, 429, 429, 429] == [answer.status_code for answer in answers]
    ids = [answer.json()["decision_id"] for answer in answers[1:]]
    assert 3 == len(set(ids))
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in ids)
    assert ids == [decision.decision_id for decision, _ in on_denied]
    assert ids[:1] == [entry["decision_id"] for entry in logs if entry["event"] == "request_denied"]


@pytest.mark.parametrize("name", ["on_denied", "on_near_limit"])
def test_callback_that_raises_changes_no_answer(tmp_path: Path, name: str) -> None:
    """The error is logged once, not with every request."""

    def fail(decision: Decision, **ids: Any) -> None:
        raise LookupError("no such table")

    with capture_logs() as logs, site(tmp_path, limit=2, **{name: fail}) as served:
        answers = ask(served, times=5)

    assert [200, 200, 429, 429, 429] == [answer.status_code for answer in answers]
    [event] = [entry for entry in logs if entry["event"] == "observer_failed"]
    assert "LookupError('no such table')" == event["error"]
