"""Token requests over real HTTP: one, a schedule once, or a schedule again and again in the background."""

import base64
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from demo.tally import Outcome, Tally
from oauth_ratelimit.errors import RateLimitError
from testbed.deployment import REUSE_HEADER, WOULD_DENY_HEADER, Instance
from testbed.oauth_server.models import Client, User
from testbed.trace import TRUSTED, Call, Caller, assign, hits_from, schedule

SENDERS = 16  # more than the servers answer at a time, so that a slow answer delays no other request
REFRESH_S = 0.1

BACKGROUND_FIRST_HIT, BACKGROUND_HIT_COUNT = 6000, 20_000  # from half past seven until one in the afternoon
BACKGROUND_HOST_COUNT = 80  # the busiest ones: about fifteen requests a second, a few of them over a limit
BACKGROUND_SPEED = 100.0
RETRY_PAUSE_S = 1.0  # after an unexpected answer, such as while a server is reconfigured

_TIMEOUT_S = 60.0


class UnexpectedAnswer(RateLimitError):
    """A server gave an answer that the demo cannot classify."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a token request.

    Attributes:
        status: The HTTP status.
        reason: Its name.
        headers: In the order sent.
        body: The text.
        outcome: The decision that it shows.
    """

    status: int
    reason: str
    headers: Sequence[tuple[str, str]]
    body: str
    outcome: Outcome

    def header(self, name: str) -> str:
        """Return a header's value, empty if there is none."""
        return dict(self.headers).get(name, "")


class TokenClient:
    """Requests tokens over its own connections. For one thread. ``with`` closes the connections.

    Args:
        tally: Counts every answer.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._connections: dict[Instance, http.client.HTTPConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def request(self, instance: Instance, caller: Caller) -> Answer:
        """Request one token.

        Raises:
            UnexpectedAnswer: The connection broke, or the answer shows no outcome.
        """
        connection = self._connections.get(instance)
        if connection is None:
            connection = http.client.HTTPConnection(instance.address, timeout=_TIMEOUT_S)
            self._connections[instance] = connection
        body, headers = _token_request(caller)
        try:
            connection.request("POST", "/token", body, headers)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as exc:
            raise UnexpectedAnswer(f"{instance.name} broke the connection: {exc!r}") from exc
        outcome = _outcome(response, caller)
        if outcome is None:
            raise UnexpectedAnswer(f"{instance.name} answered {response.status} to {caller.key}: {text[:500]}")
        answer = Answer(response.status, response.reason, response.getheaders(), text, outcome)
        self._tally.add(caller, outcome, json.loads(text).get("access_token"))
        return answer


class Replay:
    """Sends each call of a schedule when it is due, to a server chosen at random.

    Args:
        calls: In the order of their times.
        instances: The servers.
        tally: Counts every answer.
    """

    def __init__(self, calls: Sequence[Call], instances: Sequence[Instance], tally: Tally) -> None:
        self._instances = instances
        self._tally = tally
        self._calls = iter(calls)
        self._lock = threading.Lock()  # guards _calls
        self._stopped = threading.Event()
        self._started_s = 0.0

    def run(self, on_progress: Callable[[], None]) -> float:
        """Send everything and return the duration in seconds.

        Args:
            on_progress: Called several times a second.

        Raises:
            UnexpectedAnswer: A server failed; nothing more is sent.
        """
        self._started_s = time.monotonic()
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="sender") as pool:
            try:
                unfinished = {pool.submit(self._send) for _ in range(SENDERS)}
                while unfinished:
                    finished, unfinished = wait(unfinished, REFRESH_S, return_when=FIRST_EXCEPTION)
                    for sender in finished:
                        sender.result()
                    on_progress()
            finally:
                self._stopped.set()
        return self._elapsed_s()

    def _send(self) -> None:
        with TokenClient(self._tally) as client:
            while call := self._next():
                if self._stopped.wait(max(0.0, call.due_s - self._elapsed_s())):
                    return
                client.request(random.choice(self._instances), call.caller)

    def _next(self) -> Call | None:
        with self._lock:
            return next(self._calls, None)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s


class BackgroundTraffic:
    """The busiest hosts of the trace, which request tokens from one server until the end of ``with``.

    Args:
        without: Clients to leave out.
    """

    def __init__(self, *, without: Sequence[Client] = ()) -> None:
        hits = hits_from(BACKGROUND_FIRST_HIT, BACKGROUND_HIT_COUNT)
        callers = assign(hits)
        busiest = {host for host, _ in Counter(hit.host for hit in hits).most_common(BACKGROUND_HOST_COUNT)}
        left_out = {client.client_id for client in without}
        chosen = [hit for hit in hits if hit.host in busiest and callers[hit.host].client_id not in left_out]
        self._calls = schedule(chosen, callers, speed=BACKGROUND_SPEED)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def clients(self) -> set[Client]:
        """Clients to register."""
        return {call.caller.client for call in self._calls}

    @property
    def users(self) -> set[User]:
        """Users to register."""
        return {call.caller.user for call in self._calls if call.caller.user}

    def start(self, instance: Instance) -> Self:
        """Start the traffic."""
        self._thread = threading.Thread(target=self._send, args=(instance,), name="traffic", daemon=True)
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _send(self, instance: Instance) -> None:
        calls = self._due()
        while not self._stopped.is_set():
            try:
                with TokenClient(Tally()) as client:
                    for call in calls:
                        client.request(instance, call.caller)
            except UnexpectedAnswer:
                calls = self._due()
                self._stopped.wait(RETRY_PAUSE_S)

    def _due(self) -> Iterator[Call]:
        """Yield each call when it is due, over and over, until the traffic is stopped."""
        while True:
            started_s = time.monotonic()
            for call in self._calls:
                if self._stopped.wait(max(0.0, started_s + call.due_s - time.monotonic())):
                    return
                yield call


def _token_request(caller: Caller) -> tuple[str, dict[str, str]]:
    """Return body and headers of a token request."""
    form = {"grant_type": caller.grant_type}
    if caller.user:
        form |= {"username": caller.user.username, "password": caller.user.password}
    credentials = f"{caller.client_id}:{caller.client.client_secret}"
    return urlencode(form), {
        "Authorization": "Basic " + base64.b64encode(credentials.encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _outcome(response: http.client.HTTPResponse, caller: Caller) -> Outcome | None:
    """Return the decision that an answer shows, None if a working server does not answer so.

    Answers of a dry run have no quota headers, so a trusted client is known by its id. If its requests were counted
    all the same, the comparison with MongoDB shows it.
    """
    if response.status == http.client.TOO_MANY_REQUESTS:
        return Outcome.DENIED
    if response.status != http.client.OK:
        return None
    if response.getheader(WOULD_DENY_HEADER):
        return Outcome.WOULD_DENY
    if reuse := response.getheader(REUSE_HEADER):
        return Outcome(reuse)
    return Outcome.TRUSTED if caller.client_id == TRUSTED else Outcome.ALLOWED
