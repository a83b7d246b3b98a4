"""The limiter of one application, with the worker of each process that serves it."""

import atexit
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet, ref

from oauth_ratelimit.background.health import Health
from oauth_ratelimit.background.live_settings import LiveSettings
from oauth_ratelimit.background.worker import Worker
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import DecidedRequest
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import TOKEN_ENDPOINT
from oauth_ratelimit.counters.steps import OpenRequest
from oauth_ratelimit.flask_authlib.app_config import shared_place
from oauth_ratelimit.flask_authlib.responses import EXPOSED, QuotaHeaders, RateLimited, quota_headers
from oauth_ratelimit.flask_authlib.start_report import StartReport
from oauth_ratelimit.flask_authlib.token_reuse import Reuser, ReuseRequest, TokenReuse
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.guard import Guard
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.observe.observer import Callbacks
from oauth_ratelimit.process.deadline import Deadline, begin_end, wait_for_end
from oauth_ratelimit.process.log import ErrorsLogged, ThrottledLog, get_logger
from oauth_ratelimit.process.signals import background_thread, signals_held

if TYPE_CHECKING:
    from oauth_ratelimit.operations.context import OperatorContext

EXTENSION = "oauth_ratelimit"  # key of the AppLimiter in app.extensions
LOG_INTERVAL_S = 10.0  # between two log lines about the same problem
UNCOUNTED = (
    "requests go on without a limit until this is corrected: it must not raise, and names are text; "
    "OAuthRateLimit(client_id_of=..., username_of=..., caller_of=...) name clients, users and callers"
)

TOO_MANY_REQUESTS = (
    "This client has sent too many requests here. Send fewer, and try again after the seconds given in Retry-After."
)
TAKEN_BACK = "the application failed before it saved a token, so the request does not count"

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class HeldHit:
    """Request that is counted and not sent before its response is known."""

    app_limiter: "AppLimiter"
    held: OpenRequest
    client_id: str
    is_saved: bool = False  # True if the application has saved the token

    def settle(self, *, is_failed: bool) -> None:
        """Have the request sent; or take it back, if the server has failed before it saved a token."""
        try:  # not ``fail_open``: this is the hot path
            limiter = self.app_limiter.open_limiter  # another one if the store was changed meanwhile
            if limiter is None:
                return
            if is_failed and not self.is_saved and limiter.take_back(self.held):
                self.app_limiter.note_taken_back(self.client_id)
            else:
                limiter.confirm(self.held)
        except Exception as exc:  # noqa: BLE001
            self.app_limiter.log_failure("check_failed", exc)


class LimitAnswer(NamedTuple):
    """Consequences of a decision for its request."""

    denial: RateLimited | None = None  # to raise
    reuse: TokenReuse | None = None  # the token that is given out again, or may be kept
    record: DecidedRequest | None = None  # for statistics
    quota_headers: QuotaHeaders = ()
    hit: "HeldHit | None" = None  # to be settled once the response is known


_started: WeakSet["AppLimiter"] = WeakSet()  # those that this process or its parent has started


def weak_call(owner: Any, name: str, default: Any = None) -> Callable[..., Any]:
    """Return a function that calls what an object has, and does not keep the object alive."""
    reference, find = ref(owner), attrgetter(name)

    def call(*args: Any, **facts: Any) -> Any:
        found = reference()
        return default if found is None else find(found)(*args, **facts)

    return call


def end_all() -> None:
    """Close the limiters of all applications at the end of the process, which requests that still run wait for."""
    begin_end()
    close_all()


def close_all() -> None:
    """Close the limiters of all applications when the process ends, within the time that one has."""
    running = [each for each in tuple(_started) if each.is_running]
    deadline = Deadline()
    with signals_held():  # a server may repeat what has ended the process
        while running:
            app_limiter = running.pop()
            with app_limiter.fail_open("last_flush_failed"):
                app_limiter.close(deadline.part(1 / (len(running) + 1)))


@dataclass(eq=False)
class AppLimiter:
    """Limiter of one application. The first request of each process starts its worker.

    While it is switched off it starts nothing, and the mode in ``live`` is off. ``log`` is for problems that may come
    with every request. The functions are those that ``OAuthRateLimit`` takes.
    """

    worker_type: ClassVar[type[Worker]] = Worker

    live: LiveSettings
    _: KW_ONLY
    client_id_of: Callable[[Any], str]
    username_of: Callable[[Any], str]
    caller_of: Callable[[Any], Any]
    callbacks: Callbacks
    is_token_active: Callable[[dict[str, Any]], object] | None
    reuse_key: Callable[[Any], str] | None
    authorize_endpoint: bool
    start_report: StartReport
    is_switched_off: bool
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.log = ThrottledLog(log, LOG_INTERVAL_S)
        self._reuser = Reuser(self.is_token_active, self.reuse_key, self.log_failure)
        self._worker: Worker | None = None
        self.unseen_checks: set[str] = set()  # what checked a password or a secret where the guard did not see it
        self._inherited: list[Worker] = []  # the parent's: collecting them would close connections that it uses
        self._locks: dict[int, threading.Lock] = {}  # by process id; each guards the start of that process's worker

    @property
    def settings(self) -> Settings:
        """The configuration with the overrides of operators applied."""
        return self.live.current

    @property
    def limiter(self) -> Limiter:
        """This process's limiter, started if needed."""
        return self._running_worker().limiter

    @property
    def open_limiter(self) -> Limiter | None:
        """This process's limiter, None if it was closed."""
        if self._worker is None:
            wait_for_end()
            return None
        return self._running_worker().limiter

    def guard(self) -> Guard | None:
        """Return this process's guard against guessing, started if needed; None while it is off."""
        return self._running_worker().guard if self.live.current.is_guarded else None

    def start(self) -> None:
        """Start this process's worker and load the keys that were busy last. Blocks on MongoDB."""
        if not self.is_switched_off:
            with self.fail_open("check_failed"):
                self._running_worker(is_started=True).preload()

    def fail_open(self, event: str) -> ErrorsLogged:
        """Return a context that logs an unexpected error and lets the request go on without us. A denial passes.

        What decides, guards and reports runs inside this, or does the same by itself. Hooks around it only pass values.
        """
        return ErrorsLogged(partial(self.log_failure, event), RateLimited)

    def log_uncounted(self, source: str, exc: Exception) -> None:
        """Log that a request goes on and is counted nowhere, because foreign code did not say whose it is."""
        self.log_failure("caller_unknown", exc, key=source, source=source, hint=UNCOUNTED)

    def log_failure(self, event: str, exc: Exception, **facts: str) -> None:
        try:
            error = repr(exc)
        except Exception:  # noqa: BLE001  # foreign code, too
            error = type(exc).__name__
        # As text, because structlog may render local variables with a traceback, the client's secret included.
        self.log.error(event, error=error, traceback="".join(traceback.format_exception(exc)), **facts)

    def note_unseen(self, name: str, hint: str) -> None:
        """Log once that a grant or a method of the application checks what the guard does not see."""
        if name not in self.unseen_checks:
            self.unseen_checks.add(name)
            log.warning("guard_sees_no_check", name=name, hint=hint)

    def checked_client_id_of(self, client: Any) -> str:
        """Return the name under which a client is counted.

        Raises:
            Exception: The application's function has failed, or did not return a name. See ``log_uncounted``.
        """
        client_id = self.client_id_of(client)
        if client_id is None or client_id == "":
            raise TypeError("client_id_of must name the client")
        return f"{client_id}"

    def checked_username_of(self, user: Any) -> str | None:
        """Return the name of a user; None while nothing is decided.

        Raises:
            Exception: The application's function has failed, or did not return a name. See ``log_uncounted``.
        """
        if self.live.current.policies.mode is Mode.OFF:
            return None
        username = self.username_of(user)
        if not isinstance(username, str):
            raise TypeError(f"username_of must return str, got {type(username).__name__}")
        return str(username)  # a proxy ends with its request

    def check(
        self,
        client_id: str,
        username: str | None,
        *,
        client: Any = None,
        grant_type: str | None = None,
        endpoint: str = TOKEN_ENDPOINT,
        reuse_request: ReuseRequest | None = None,
        holds: bool = False,
        is_cross_site: bool = False,
    ) -> LimitAnswer:
        """Decide and count one request. Fails open: after an error the request is admitted.

        ``reuse_request`` is None unless the token of the ``client`` may be given out again. With ``holds``, a request
        within its limits is to be settled.
        """
        if self.is_switched_off:
            return LimitAnswer()
        settings = self.live.current
        reuse = partition = record = hit = None
        try:  # not ``fail_open``: this is the hot path
            worker = self._running_worker()
            begun_s = time.perf_counter()
            decision, held = worker.limiter.hold(
                client_id, username, grant_type=grant_type, endpoint=endpoint, is_cross_site=is_cross_site
            )
            hit = HeldHit(self, held, client_id) if held and holds else None
            if not holds:
                worker.limiter.confirm(held)
            duration_s = time.perf_counter() - begun_s
            username = None if username is None else worker.limiter.pseudonym_of(username)
            if username is not None:
                key = settings.denial.partition_key or settings.privacy.key
                partition = None if key is None else key.partition(client_id, username)
            elif reuse_request is not None:
                reuse = self._reuser.answer(decision, worker.tokens, client, client_id, reuse_request, settings.denial)
            if decision.denial is not None and decision.action == "reuse" and decision.answer is None:
                worker.limiter.report_denial(decision, client_id, grant_type=grant_type)
            try:
                record = worker.observer.report(decision, client_id, username, grant_type, duration_s, endpoint)
            except Exception as exc:  # noqa: BLE001  # an error in a callback does not change the answer
                self.log_failure("observer_failed", exc)
            if decision.denial is None or decision.allowed or reuse is not None:
                headers = quota_headers(decision, settings.denial.headers, partition)
                headers += (EXPOSED,) if headers and settings.denial.expose_headers else ()
                return LimitAnswer(None, reuse, record, headers, hit)
            text = settings.denial
            if endpoint != TOKEN_ENDPOINT:
                own = settings.policies.endpoints[endpoint].error_description
                text = replace(text, error_description=own or TOO_MANY_REQUESTS)
            denial = RateLimited(decision, text, grant_type=grant_type, partition=partition)
            return LimitAnswer(denial, None, record)
        except Exception as exc:  # noqa: BLE001
            self.log_failure("check_failed", exc)
            if reuse is not None:
                reuse.release()
            return LimitAnswer(hit=hit)

    def note_taken_back(self, client_id: str) -> None:
        """Log and count a request that was taken back."""
        self.log.warning("request_taken_back", key=client_id, client_id=logged_name(client_id), hint=TAKEN_BACK)
        self._running_worker().observer.note_taken_back()

    def note_lifetime(self, record: DecidedRequest, lifetime_s: object) -> None:
        """Note the lifetime of the token that was issued for a request, as the token says it."""
        if self._worker is not None:
            self._worker.observer.note_lifetime(record, lifetime_s)

    def forget_tokens(self, client_id: str) -> None:
        """Drop the tokens that are kept of a client, here at once and in other processes with their next cycles.

        Here also where nothing is reused now: it may have been, and may be again.
        """
        with self.fail_open("reuse_failed"):
            if client_id and not self.is_switched_off:  # no client has an empty name, which means all
                self._running_worker().tokens.revoke(client_id)

    def health(self) -> Health:
        """Return the state of this process's synchronisation. Starts the worker if needed."""
        return Health() if self.is_switched_off else self._running_worker().health_monitor.health()

    @property
    def is_shared(self) -> bool:
        """True if this process shares its counters, whatever the file says by now. Starts the worker if needed."""
        return not self.is_switched_off and self._running_worker().stores is not None

    def update_metrics(self) -> None:
        if not self.is_switched_off:
            worker = self._running_worker()
            with self.fail_open("observer_failed"):  # a request that cannot be counted does not hide the other metrics
                worker.observer.count_noted()
            worker.health_monitor.note_state()

    def context(self) -> "OperatorContext | None":
        """Return the context of operator commands, with this process's stores; None if nothing is shared."""
        from oauth_ratelimit.operations.context import OperatorContext  # at a command or page, no worker's need

        stores = None if self.is_switched_off else self._running_worker().stores
        return OperatorContext(lambda: self.live.base, lambda: stores, clock=self.now_s) if stores else None

    def now_s(self) -> float:
        """Return the time, seconds since the epoch: MongoDB's, as soon as it is known. Starts the worker if needed."""
        return self.clock() if self.is_switched_off else self._running_worker().limiter.now_s()

    def close(self, deadline: Deadline | None = None) -> None:
        """Flush for the last time and release everything of this process. A later request starts a new worker."""
        worker = self._worker
        if self.is_running and worker is not None:
            self._worker = None
            _started.discard(self)
            worker.stop(deadline)

    @property
    def is_running(self) -> bool:
        """True if this process has a worker; a fork inherits its parent's, which it does not close."""
        return self._worker is not None and self._worker.pid == os.getpid()

    def _stop_apart(self, worker: Worker) -> None:
        background_thread(partial(self._stop, worker), "stop", daemon=False).start()  # it may block

    def _stop(self, worker: Worker) -> None:
        with self.fail_open("last_flush_failed"):
            worker.stop()

    def _running_worker(self, *, is_started: bool = False) -> Worker:
        wait_for_end()
        worker = self._worker
        if worker is None or worker.is_outdated or worker.pid != os.getpid():
            return self._start_worker(is_started=is_started)
        if worker.missing:
            worker.start_missing()
        return worker

    def _start_worker(self, *, is_started: bool) -> Worker:
        """Start this process's worker, once.

        Safe with ``--preload`` and gevent: nothing is started before the fork, and the lock is made in the process that
        uses it, after gevent has replaced the threading module's.
        """
        pid = os.getpid()
        with self._locks.setdefault(pid, threading.Lock()):
            former = self._worker
            if former is not None and former.pid == pid and not former.is_outdated:
                return former
            if former is not None and former.pid != pid:
                former.tokens.forget_parent()
                self._inherited.append(former)
                former = None
            place = None
            with self.fail_open("check_failed"):  # it asks the server
                place = shared_place(self.start_report.app, self.live, is_started=is_started)
            # The worker's threads do not keep the application alive, or it would never be collected.
            owner, callbacks = ref(self), self.callbacks._asdict()
            worker = self.worker_type(
                self.live,
                callbacks=Callbacks(*(callbacks[name] and weak_call(self, f"callbacks.{name}") for name in callbacks)),
                clock=self.clock,
                trace_of=weak_call(self, "_trace_of", Trace()),
                is_needed=lambda: owner() is not None,
                place=place,
            )
            try:
                worker.start()
            finally:  # also if gevent ends the request: else each one would start another worker
                self._worker = worker
                _started.add(self)
                atexit.unregister(end_all)  # a fork inherits the registration
                atexit.register(end_all)  # to run before what the start has registered
                if former is not None:
                    worker.missing["end of the former worker"] = partial(self._stop_apart, former)
                self.report_start()
            worker.start_missing()
            return worker

    def report_start(self) -> None:
        with self.fail_open("check_failed"):
            place = None if self._worker is None else self._worker.limiter.place
            self.start_report.log(self.settings, place and place.path, authorize_endpoint=self.authorize_endpoint)

    def _trace_of(self) -> Trace:
        with self.fail_open("observer_failed"):  # a denial stands without its trace
            return trace_of_request(self.live.current.events.request_id_header)
        return Trace()
