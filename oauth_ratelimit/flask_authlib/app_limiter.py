"""What one application knows: its settings, and the limiter and background cycle of the process that serves it."""

import atexit
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from oauth_ratelimit.background.health import Health
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.responses import RateLimited, Ruling, quota_headers
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.observer import Callbacks, Observer
from oauth_ratelimit.operations.context import OperatorContext

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S = 10.0  # between two log lines on the same trouble


class Caller(NamedTuple):
    """Who asks at another endpoint than the token endpoint.

    Attributes:
        client_id: The client.
        username: The user, None if there is none.
    """

    client_id: str
    username: str | None

    def get_client_id(self) -> str:
        """Return the client's id, as Authlib's clients do."""
        return self.client_id


class AppLimiter:
    """Decides the requests of one application. Starts its background cycle with the first of them in each process.

    Args:
        live: The configuration.
        username_of: Names a user.
        caller_of: Tells whose a token is.
        callbacks: Functions of the application.
        authorize_endpoint: Whether tokens from the authorization endpoint are decided, too.
        is_switched_off: Do nothing at all, whatever the settings say.
        clock: Tells the time, seconds since the epoch.

    Attributes:
        worker_type: What is started in each process.
    """

    worker_type: type[Worker] = Worker

    def __init__(
        self,
        live: LiveSettings,
        *,
        username_of: Callable[[Any], str],
        caller_of: Callable[[Any], Caller | None],
        callbacks: Callbacks,
        authorize_endpoint: bool,
        is_switched_off: bool,
        clock: Callable[[], float],
    ) -> None:
        self._live = live
        self.authorize_endpoint = authorize_endpoint
        self.is_switched_off = is_switched_off
        self._username_of = username_of
        self.caller_of = caller_of
        self._callbacks = callbacks
        self._clock = clock
        self._worker: Worker | None = None
        self._inherited: list[Worker] = []  # of the parent: kept, because collecting them would close what it uses
        self._locks: dict[int, threading.Lock] = {}  # by pid; guards the start
        self._reports: dict[str, tuple[float, int]] = {}  # event: when it was logged last, how often suppressed since

    @property
    def settings(self) -> Settings:
        """What applies now: the configuration with the overrides of operators on top."""
        return self._live.current

    @property
    def limiter(self) -> Limiter:
        """This process's limiter, started if it is not running."""
        return self._running().limiter

    def guard(self) -> Guard | None:
        """What counts failed authentications in this process, started if it is not running; None while that is off."""
        return self._running().guard if not self.is_switched_off and self._live.current.is_guarded else None

    def _running(self) -> Worker:
        worker = self._worker
        if worker is None or worker.pid != os.getpid():
            worker = self._start()
        return worker

    def start(self) -> None:
        """Start this process's background cycle, and have it know the keys that were busy last. Blocks on MongoDB."""
        if not self.is_switched_off:
            self._running().preload()

    def name_of(self, user: Any) -> str | None:
        """Return a user's name; None while nothing is decided.

        Raises:
            TypeError: The user has none, which would go unnoticed for ever if the token were issued all the same.
        """
        if self.is_switched_off or self._live.current.policies.mode is Mode.OFF:
            return None
        username = self._username_of(user)
        if not isinstance(username, str):
            raise TypeError(f"username_of must return str, got {type(username).__name__}")
        return username

    def decide_request(
        self, client: Any, username: str | None, grant_type: str | None = None, endpoint: str = TOKEN_ENDPOINT
    ) -> Ruling:
        """Decide and count one request.

        This is the place that fails open: whatever breaks in here, the token is issued.
        """
        if self.is_switched_off:
            return []
        settings = self._live.current
        try:
            client_id = f"{client.get_client_id()}"
            worker = self._running()
            limiter, observer = worker.limiter, worker.observer
            begun_s = time.perf_counter() if observer.is_active else 0.0
            decision = limiter.check(client_id, username, grant_type=grant_type, endpoint=endpoint)
            if observer.is_active:
                duration_s = time.perf_counter() - begun_s
                self._observe(
                    observer,
                    decision,
                    client_id,
                    username=limiter.pseudonym_of(username),
                    grant_type=grant_type,
                    endpoint=endpoint,
                    duration_s=duration_s,
                )
            if decision.allowed:
                return quota_headers(decision, settings.denial.headers)
            return RateLimited(decision, settings.denial, grant_type=grant_type)
        except Exception as exc:  # noqa: BLE001  # fail open
            # As text: structlog's own rendering of a traceback may show local variables, the client's secret included.
            self.report("check_failed", error=repr(exc), traceback=traceback.format_exc())
            return []

    def _observe(self, observer: Observer, decision: Decision, client_id: str, **facts: Any) -> None:
        """
        Tell the observer. What goes wrong there, in a hook of the application above all, does not change the answer.
        """
        try:
            observer.report(decision, client_id, **facts)
        except Exception as exc:  # noqa: BLE001  # see above
            self.report("observer_failed", error=repr(exc), traceback=traceback.format_exc())

    def health(self) -> Health:
        """Return how the synchronisation of this process fares. Starts it if it is not running."""
        return Health() if self.is_switched_off else self._running().health_monitor.health()

    def note_state(self) -> None:
        """Bring the metrics of this process up to date."""
        if not self.is_switched_off:
            self._running().health_monitor.note_state()

    def context(self) -> OperatorContext | None:
        """Return what operators look through; None if nothing is shared, or if the emergency switch is pulled here.

        Uses the stores of this process, and starts its worker if that is not running.
        """
        stores = None if self.is_switched_off else self._running().stores
        return OperatorContext(lambda: self._live.base, lambda: stores, clock=self._clock) if stores else None

    def report_undecided(self) -> None:
        """
        Say that a token was issued without a decision, by a grant that neither generates nor saves with the server.
        """
        self.report("token_without_decision")

    def close(self) -> None:
        """Flush for the last time and release everything of this process. A later request starts anew."""
        worker = self._worker
        if worker is not None and worker.pid == os.getpid():
            self._worker = None
            atexit.unregister(self.at_exit)
            worker.stop()

    def at_exit(self) -> None:
        """Close when the process ends. A fork inherits this handler; there it finds nothing of its own."""
        try:
            self.close()
        except Exception as exc:  # noqa: BLE001  # nobody is left to handle it
            log.error("last_flush_failed", error=repr(exc), traceback=traceback.format_exc())

    def _trace_of(self) -> Trace:
        return trace_of_request(self._live.current.events.request_id_header)

    def _start(self) -> Worker:
        """Start this process's worker, once.

        Safe with ``--preload`` and with gevent: nothing exists before the fork, and even the lock is made in the
        process that uses it, after gevent has replaced the threading module's.
        """
        pid = os.getpid()
        with self._locks.setdefault(pid, threading.Lock()):
            worker = self._worker
            if worker is not None and worker.pid == pid:
                return worker
            if worker is not None:
                self._inherited.append(worker)
            worker = self.worker_type(self._live, callbacks=self._callbacks, clock=self._clock, trace_of=self._trace_of)
            worker.start()
            self._worker = worker
            atexit.unregister(self.at_exit)  # a fork inherits the registration
            atexit.register(self.at_exit)
            return worker

    def report(self, event: str, **facts: Any) -> None:
        """Log a trouble that may come with every request, once per interval."""
        now_s = time.monotonic()
        logged_at_s, suppressed_count = self._reports.get(event, (-REPORT_INTERVAL_S, 0))
        if now_s - logged_at_s < REPORT_INTERVAL_S:
            self._reports[event] = (logged_at_s, suppressed_count + 1)
            return
        self._reports[event] = (now_s, 0)
        log.error(event, suppressed_count=suppressed_count, **facts)
