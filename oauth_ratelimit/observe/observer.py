"""Reports each decision to metrics, statistics, the current trace and callbacks of the application."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.observe.metrics import NONE, OTHER, Labels, Metrics
from oauth_ratelimit.observe.otel import annotate_span, has_context
from oauth_ratelimit.observe.statistics import StatisticsRecorder

Hook = Callable[..., object]
"""Called as ``hook(decision, client_id=..., username=..., grant_type=...)``."""

_Count = Callable[[Counter[Labels]], None]  # counts one request, in metrics with the others of its group

NEAR_LIMIT_SHARE = 5  # less than a fifth of the quota is left
COUNTED_AT_ONCE = 20  # requests; one at a time takes five times as long, because its code has left the CPU's caches

STANDARD_GRANTS = (
    "authorization_code",
    "client_credentials",
    "implicit",
    "password",
    "refresh_token",
    "urn:ietf:params:oauth:grant-type:device_code",
    "urn:ietf:params:oauth:grant-type:jwt-bearer",
    "urn:ietf:params:oauth:grant-type:saml2-bearer",
    "urn:ietf:params:oauth:grant-type:token-exchange",
)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that an application passes in.

    Args:
        has_grant: Returns True if the server supports a grant type.
        on_denied: Called with each denied request.
        on_near_limit: Called with each request that is admitted near its limit.
    """

    has_grant: Callable[[str], bool]
    on_denied: Hook | None = None
    on_near_limit: Hook | None = None


class GrantNames:
    """Names of grant types in metrics and statistics. Their number is bounded: clients cannot make up more.

    Args:
        has_grant: Returns True if the server supports a grant type.
    """

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


class Observer:
    """Reports the decisions of one application in one process. Takes no lock of its own.

    Metrics and statistics count the requests without a trace in groups, the last ones when ``count_noted`` is called.

    Args:
        callbacks: Functions of the application.
        metrics: Counts decisions, if given.
        statistics: Counts decisions by client and minute, if given.
        clock: Returns the time that statistics use, seconds since the epoch.

    Attributes:
        is_active: True if anything is reported.
        counts_lifetimes: True if lifetimes of tokens are.
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
        self._noted: deque[_Count] = deque()
        self._counts = metrics is not None or statistics is not None
        self.is_active = self._counts or callbacks.on_denied is not None or callbacks.on_near_limit is not None
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
        """Note a decision to be counted, and call the callback that it concerns. Raises what the callback raises.

        Args:
            decision: The decision.
            client_id: The client.
            username: Pseudonym of the user, None for grants without a user.
            grant_type: Grant type of the request, None if it is unknown.
            endpoint: Endpoint of the request.
            duration_s: Seconds that the decision took.
        """
        if self._counts:
            now_s = self._clock()
            count = partial(self._count, decision, client_id, username, grant_type, endpoint, duration_s, now_s)
            if has_context():  # OpenTelemetry gives a measurement the current trace as an exemplar
                self._count_all([count])
                annotate_span(decision, client_id)
            else:
                self._note(count)
        callbacks, hook = self._callbacks, None
        if not decision.allowed:
            hook = callbacks.on_denied
        elif callbacks.on_near_limit is not None and is_near_limit(decision):
            hook = callbacks.on_near_limit
        if hook is not None:
            hook(decision, client_id=client_id, username=username, grant_type=grant_type)

    def report_lifetime(self, client_id: str, lifetime_s: int) -> None:
        """Note the lifetime of a token that was issued, after its request was reported."""
        if self._statistics is not None:
            self._note(partial(self._count_lifetime, client_id, lifetime_s))

    def _note(self, count: _Count) -> None:
        self._noted.append(count)
        if len(self._noted) >= COUNTED_AT_ONCE:
            self.count_noted()

    def count_noted(self) -> None:
        """Count what was noted so far. Several threads may do so at once."""
        self._count_all(self._taken())

    def _taken(self) -> Iterator[_Count]:
        while True:
            try:
                yield self._noted.popleft()
            except IndexError:
                return

    def _count_all(self, noted: Iterable[_Count]) -> None:
        counts = Counter[Labels]()  # their sums go to the metrics, because each addition takes long
        try:
            for count in noted:
                count(counts)
        finally:
            if self._metrics is not None:
                self._metrics.add_decisions(counts)

    def _count(
        self,
        decision: Decision,
        client_id: str,
        username: str | None,
        grant_type: str | None,
        endpoint: str,
        duration_s: float,
        now_s: float,
        counts: Counter[Labels],
    ) -> None:
        grant = self._grants.name_of(grant_type)
        if self._statistics is not None:
            self._statistics.count(decision, client_id, username=username, grant=grant, endpoint=endpoint, now_s=now_s)
        if self._metrics is not None:
            self._metrics.record_decision(
                decision,
                client_id,
                counts,
                kind="client" if username is None else "user",
                grant=grant,
                is_near_limit=is_near_limit(decision),
                duration_s=duration_s,
            )

    def _count_lifetime(self, client_id: str, lifetime_s: int, _counts: Counter[Labels]) -> None:
        if self._statistics is not None:
            self._statistics.count_lifetime(client_id, lifetime_s)


def is_near_limit(decision: Decision) -> bool:
    """Return True if a request was admitted with less than a fifth of its quota left."""
    rule = decision.rule
    return rule is not None and not decision.would_deny and decision.remaining * NEAR_LIMIT_SHARE < rule.limit
