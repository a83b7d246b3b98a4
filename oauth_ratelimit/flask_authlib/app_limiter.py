"""The limiter of one application, with the worker of each process that serves it."""

import atexit
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from oauth_ratelimit.background.health import Health
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.flask_authlib.caller import Caller
from oauth_ratelimit.flask_authlib.responses import Headers, RateLimited, quota_headers
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.process.throttled_log import ThrottledLog

EXTENSION = "oauth_ratelimit"  # key of the AppLimiter in app.extensions
MAX_LIFETIME_S = 100 * 366 * 86_400  # of a token; more is a mistake
LOG_INTERVAL_S = 10.0  # between two log lines about the same problem

log = structlog.get_logger(__name__)


class AppLimiter:
    """Decides the requests of one application. The first request of each process starts its worker.

    Args:
        live: The configuration.
        username_of: Returns the name of a user object.
        caller_of: Returns the client and user of a token.
        callbacks: Functions of the application.
        authorize_endpoint: Decide tokens from the authorization endpoint.
        is_switched_off: Do nothing at all. The mode in ``live`` is off.
        clock: Returns the time, seconds since the epoch.

    Attributes:
        worker_type: The class of the worker.
        log: For problems that may come with every request.
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
        self._caller_of = caller_of
        self._callbacks = callbacks
        self._clock = clock
        self.log = ThrottledLog(log, LOG_INTERVAL_S)
        self._worker: Worker | None = None
        self._inherited: list[Worker] = []  # the parent's: collecting them would close connections that it uses
        self._locks: dict[int, threading.Lock] = {}  # by process id; each guards the start of that process's worker

    @property
    def settings(self) -> Settings:
        """The configuration with the overrides of operators applied."""
        return self._live.current

    @property
    def configured_settings(self) -> Settings:
        """The configuration without overrides."""
        return self._live.base

    @property
    def limiter(self) -> Limiter:
        """This process's limiter, started if needed."""
        return self._running_worker().limiter

    @property
    def is_guarded(self) -> bool:
        """True if failed authentications are counted."""
        return self._live.current.is_guarded

    def guard(self) -> Guard | None:
        """Return this process's guard against guessing, started if needed; None while it is off."""
        return self._running_worker().guard if self.is_guarded else None

    def start(self) -> None:
        """Start this process's worker and load the keys that were busy last. Blocks on MongoDB."""
        if not self.is_switched_off:
            self._running_worker().preload()

    @contextmanager
    def fail_open(self, event: str) -> Iterator[None]:
        """Log an unexpected error and let the request go on without us.

        What decides, guards and reports runs inside this, or does the same by itself. Hooks around it only pass values;
        errors of the application's functions (``username_of``, ``caller_of``) are raised. A denial is raised outside,
        so that it reaches the client.

        Args:
            event: Name of the log event.
        """
        try:
            yield
        except Exception as exc:  # noqa: BLE001  # whatever it is, the client gets its token
            self.log_failure(event, exc)

    def log_failure(self, event: str, exc: Exception) -> None:
        """Log an unexpected error."""
        # As text, because structlog may render local variables with a traceback, the client's secret included.
        self.log.error(event, error=repr(exc), traceback="".join(traceback.format_exception(exc)))

    def username_of(self, user: Any) -> str | None:
        """Return the name of a user; None while nothing is decided.

        Raises:
            TypeError: The user has no name. If the token were issued, nobody would notice.
        """
        if self._live.current.policies.mode is Mode.OFF:
            return None
        username = self._username_of(user)
        if not isinstance(username, str):
            raise TypeError(f"username_of must return str, got {type(username).__name__}")
        return username

    def caller_of(self, token: Any) -> Caller | None:
        """Return the client and user of a token; None if it names no client, and while nothing is decided."""
        return None if self._live.current.policies.mode is Mode.OFF else self._caller_of(token)

    def check(
        self, client: Any, username: str | None, grant_type: str | None = None, endpoint: str = TOKEN_ENDPOINT
    ) -> tuple[Headers, RateLimited | None]:
        """Decide and count one request. Fails open: after an error the request is admitted.

        Returns:
            The quota headers of an admitted request, and the error to raise for a denied one.
        """
        if self.is_switched_off:
            return [], None
        settings = self._live.current
        try:  # not ``fail_open``: this is the hot path
            client_id = f"{client.get_client_id()}"
            worker = self._running_worker()
            limiter, observer = worker.limiter, worker.observer
            begun_s = time.perf_counter() if observer.is_active else 0.0
            decision = limiter.check(client_id, username, grant_type=grant_type, endpoint=endpoint)
            if observer.is_active:
                duration_s = time.perf_counter() - begun_s
                try:
                    observer.report(
                        decision,
                        client_id,
                        username=limiter.pseudonym_of(username),
                        grant_type=grant_type,
                        endpoint=endpoint,
                        duration_s=duration_s,
                    )
                except Exception as exc:  # noqa: BLE001  # an error in a callback does not change the answer
                    self.log_failure("observer_failed", exc)
            if decision.allowed:
                return quota_headers(decision, settings.denial.headers), None
            return [], RateLimited(decision, settings.denial, grant_type=grant_type)
        except Exception as exc:  # noqa: BLE001
            self.log_failure("check_failed", exc)
            return [], None

    def record_lifetime(self, client: Any, token: object) -> None:
        """Record the lifetime of a token that was issued to a client, if it is whole seconds."""
        worker = self._worker  # started by the decision; without one there is nothing to record with
        if worker is None or not worker.observer.counts_lifetimes or not isinstance(token, Mapping):
            return
        lifetime_s = token.get("expires_in")
        if type(lifetime_s) is int and 0 < lifetime_s <= MAX_LIFETIME_S:
            try:
                worker.observer.report_lifetime(f"{client.get_client_id()}", lifetime_s)
            except Exception as exc:  # noqa: BLE001  # the token has been issued
                self.log_failure("observer_failed", exc)

    def health(self) -> Health:
        """Return the state of this process's synchronisation. Starts the worker if needed."""
        return Health() if self.is_switched_off else self._running_worker().health_monitor.health()

    def update_metrics(self) -> None:
        """Bring the metrics of this process up to date."""
        if not self.is_switched_off:
            worker = self._running_worker()
            with self.fail_open("observer_failed"):  # a request that cannot be counted does not hide the other metrics
                worker.observer.count_noted()
            worker.health_monitor.note_state()

    def context(self) -> OperatorContext | None:
        """Return the context of operator commands, with this process's stores; None if nothing is shared."""
        stores = None if self.is_switched_off else self._running_worker().stores
        return OperatorContext(lambda: self._live.base, lambda: stores, clock=self._clock) if stores else None

    def now_s(self) -> float:
        """Return the time, seconds since the epoch."""
        return self._clock()

    def close(self) -> None:
        """Flush for the last time and release everything of this process. A later request starts a new worker."""
        worker = self._worker
        if worker is not None and worker.pid == os.getpid():
            self._worker = None
            atexit.unregister(self.at_exit)
            worker.stop()

    def at_exit(self) -> None:
        """Close when the process ends. A fork inherits this handler, but has no worker of its own to close."""
        try:
            self.close()
        except Exception as exc:  # noqa: BLE001  # nobody is left to handle it
            log.error("last_flush_failed", error=repr(exc), traceback=traceback.format_exc())

    def _running_worker(self) -> Worker:
        worker = self._worker
        if worker is None or worker.pid != os.getpid():
            worker = self._start_worker()
        return worker

    def _start_worker(self) -> Worker:
        """Start this process's worker, once.

        Safe with ``--preload`` and gevent: nothing is started before the fork, and the lock is made in the process that
        uses it, after gevent has replaced the threading module's.
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

    def _trace_of(self) -> Trace:
        return trace_of_request(self._live.current.events.request_id_header)
