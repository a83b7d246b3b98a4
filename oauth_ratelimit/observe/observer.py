"""Reports each decision to metrics, statistics, the current trace and callbacks of the application."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from oauth_ratelimit.core.decision import Decision, is_near_limit, outcome_of
from oauth_ratelimit.core.grant_type import STANDARD_GRANTS
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.observe import spans
from oauth_ratelimit.observe.metrics import NONE, OTHER, Metrics
from oauth_ratelimit.observe.statistics import StatisticsRecorder

Hook = Callable[..., object]
"""Called as ``hook(decision, client_id=..., username=..., grant_type=...)``."""

Noted = TypeVar("Noted")

MAX_NOTED = 1000  # requests that wait for the background thread; one at a time takes five times as long as all at once


class Callbacks(NamedTuple):
    """Functions of an application. ``has_grant`` returns True if its server supports a grant type."""

    has_grant: Callable[[str], bool]
    on_denied: Hook | None = None
    on_near_limit: Hook | None = None


class GrantNames:
    """Names of grant types in metrics and statistics. Their number is bounded: clients cannot make up more."""

    def __init__(self, has_grant: Callable[[str], bool]) -> None:
        self._has_grant = has_grant
        self._names: dict[str | None, str] = {**{name: name for name in STANDARD_GRANTS}, None: NONE}

    def name_of(self, grant_type: str | None) -> str:
        """Return a standard or supported grant type itself, ``other`` for any other one, ``none`` for None."""
        name = self._names.get(grant_type)
        if name is not None:
            return name
        if grant_type is None or not self._has_grant(grant_type):
            return OTHER
        return self._names.setdefault(grant_type, storable_name(grant_type))


_Request = tuple[Decision, str, str | None, str | None, str, float, float]
"""Decision, client id, username, grant type, endpoint, time of the request, seconds that the decision took."""


class Observer:
    """Reports the decisions of one application in one process. Takes no lock of its own.

    Requests only note what metrics and statistics count when ``count_noted`` is called.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        *,
        metrics: Metrics | None = None,
        statistics: StatisticsRecorder | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._callbacks = callbacks
        self._metrics = metrics
        self._statistics = statistics
        self._clock = clock
        self._grants = GrantNames(callbacks.has_grant)
        self._requests: deque[_Request] = deque()
        self._uncounted: deque[_Request] = deque()  # in the statistics
        self._lifetimes: deque[tuple[str, int]] = deque()
        self._counts = metrics is not None or statistics is not None
        self._has_hook = callbacks.on_denied is not None or callbacks.on_near_limit is not None
        self.is_active = self._counts or self._has_hook or spans.IS_AVAILABLE
        self.counts_lifetimes = statistics is not None

    def report(
        self,
        decision: Decision,
        client_id: str,
        *,
        username: str | None,
        grant_type: str | None,
        endpoint: str = TOKEN_ENDPOINT,
        duration_s: float,
    ) -> None:
        """Note a decision to be counted, and call the callback that it concerns. Raises what the callback raises."""
        if self._counts:
            now_s = decision.now_s or self._clock()
            self._requests.append((decision, client_id, username, grant_type, endpoint, now_s, duration_s))
            if len(self._requests) >= MAX_NOTED:
                self.count_noted()
        if spans.IS_AVAILABLE:
            spans.annotate_span(decision, client_id)
        if self._has_hook:
            near = self._callbacks.on_near_limit if is_near_limit(decision) else None
            hook = self._callbacks.on_denied if outcome_of(decision) == "denied" else near
            if hook is not None:
                hook(decision, client_id=client_id, username=username, grant_type=grant_type)

    def report_lifetime(self, client_id: str, lifetime_s: int) -> None:
        """Note the lifetime of a token that was issued, after its request was reported."""
        self._lifetimes.append((client_id, lifetime_s))

    def count_noted(self) -> None:
        """Count what was noted so far. Several threads may do so at once.

        An error loses the requests of one group in the metrics, or one request in the statistics.
        """
        requests = [*_taken(self._requests)]
        name_of = self._grants.name_of
        if self._statistics is not None:
            self._uncounted.extend(requests)
        if self._metrics is not None and requests:
            self._metrics.record_decisions(
                [
                    (decision, client_id, "client" if username is None else "user", name_of(grant_type), duration_s)
                    for decision, client_id, username, grant_type, _, _, duration_s in requests
                ]
            )
        if self._statistics is None:
            return
        for decision, client_id, username, grant_type, endpoint, now_s, _ in _taken(self._uncounted):
            grant = name_of(grant_type)
            self._statistics.count(decision, client_id, username=username, grant=grant, endpoint=endpoint, now_s=now_s)
        for client_id, lifetime_s in _taken(self._lifetimes):
            self._statistics.count_lifetime(client_id, lifetime_s)


def _taken(noted: deque[Noted]) -> Iterator[Noted]:
    while True:
        try:
            yield noted.popleft()
        except IndexError:
            return
