"""Reports of each decision to metrics, statistics, the current trace and callbacks of the application."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from oauth_ratelimit.core.decision import DecidedRequest, Decision, outcome_of
from oauth_ratelimit.core.key import storable_name, visible_name
from oauth_ratelimit.core.policy import STANDARD_GRANTS, TOKEN_ENDPOINT
from oauth_ratelimit.observe.metrics import NONE, OTHER, Metrics
from oauth_ratelimit.observe.statistics import StatisticsRecorder

# Spans of OpenTelemetry, if its API is installed (the extra ``otel``). Without an SDK its calls do nothing.
try:
    from opentelemetry import trace
except ImportError:
    HAS_SPANS = False
else:
    HAS_SPANS = True

Hook = Callable[..., object]
"""Called as ``hook(decision, client_id=..., username=..., grant_type=...)``."""

Noted = TypeVar("Noted")

MAX_NOTED = 1000  # requests that wait for the background thread; one at a time takes five times as long as all at once


class Callbacks(NamedTuple):
    """Functions of an application. ``has_grant`` returns True if its server supports a grant type."""

    has_grant: Callable[[str], bool]
    on_denied: Hook | None = None
    on_near_limit: Hook | None = None


class Observer:
    """Reporter of the decisions of one application in one process. Takes no lock of its own.

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
        self._grant_names = {name: name for name in STANDARD_GRANTS}
        self._requests: deque[DecidedRequest] = deque()
        self._lifetimes: deque[tuple[DecidedRequest, object]] = deque()  # of tokens that were issued for them
        self._counts = metrics is not None or statistics is not None

    def report(
        self,
        decision: Decision,
        client_id: str,
        username: str | None,
        grant_type: str | None,
        duration_s: float,
        endpoint: str = TOKEN_ENDPOINT,
    ) -> DecidedRequest | None:
        """Note a decision to be counted, and call the callback that it concerns. Raises what the callback raises.

        Returns what it noted.
        """
        record = None
        if self._counts:
            grant = NONE if grant_type is None else self._grant_names.get(grant_type) or self._grant_name(grant_type)
            now_s = decision.now_s or self._clock()
            record = DecidedRequest(decision, client_id, username, grant, endpoint, now_s, duration_s)
            self._requests.append(record)
            if len(self._requests) >= MAX_NOTED:
                self.count_noted()
        if HAS_SPANS:
            annotate_span(decision, client_id)
        _, on_denied, on_near_limit = self._callbacks
        if on_denied is not None and outcome_of(decision) == "denied":
            on_denied(decision, client_id=client_id, username=username, grant_type=grant_type)
        if on_near_limit is not None and decision.described()[-1]:
            on_near_limit(decision, client_id=client_id, username=username, grant_type=grant_type)
        return record

    def note_lifetime(self, request: DecidedRequest, lifetime_s: object) -> None:
        """Note the lifetime of a token, to be counted: its request may be counted already."""
        if self._statistics is not None:
            self._lifetimes.append((request, lifetime_s))

    def note_taken_back(self) -> None:
        """Count a request that was taken back."""
        if self._metrics is not None:
            self._metrics.record_taken_back()

    def _grant_name(self, grant_type: str) -> str:
        """Return a supported grant type itself, else ``other``. Clients cannot make up more names."""
        if not self._callbacks.has_grant(grant_type):
            return OTHER
        return self._grant_names.setdefault(grant_type, storable_name(grant_type))

    def count_noted(self) -> None:
        """Count what was noted so far. Several threads may do so at once."""
        requests = _drained(self._requests)
        if self._statistics is not None:
            self._statistics.count(requests)
            self._statistics.count_lifetimes(_drained(self._lifetimes))
        if self._metrics is not None and requests:
            self._metrics.record_decisions(requests)


def _drained(queue: deque[Noted]) -> list[Noted]:
    """Return what a queue holds, and empty it."""
    found: list[Noted] = []
    with suppress(IndexError):  # the end
        while True:
            found.append(queue.popleft())
    return found


def annotate_span(decision: Decision, client_id: str) -> None:
    """Add a decision to the current span, as attributes and, if it is over a limit, as an event. It names no user."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    has_end = decision.would_deny and math.isfinite(decision.retry_after_s)
    facts = {
        "decision": outcome_of(decision),
        "mode": decision.mode.value,
        "client_id": visible_name(client_id),
        "policy": decision.policy,
        "limit": decision.limit,
        "window_s": decision.window_s,
        "remaining": None if decision.policy is None else decision.remaining,
        "retry_after_s": decision.retry_after_s if has_end else None,
        "decision_id": decision.decision_id,
    }
    attributes = {f"oauth_ratelimit.{name}": value for name, value in facts.items() if value is not None}
    span.set_attributes(attributes)
    if decision.would_deny:
        span.add_event(f"oauth_ratelimit.{outcome_of(decision)}", attributes)


def current_trace_id() -> str | None:
    """Return the id of the current trace, 32 hexadecimal digits; None without a trace or without the library."""
    if not HAS_SPANS:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
