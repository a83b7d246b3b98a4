"""Sends token requests over real HTTP: one, or a whole schedule at the times it names."""

import base64
import http.client
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from demo.cast import TRUSTED, Call, Caller
from demo.instance import HOST, Instance
from demo.tally import WOULD_DENY_HEADER, Outcome, Tally
from oauth_ratelimit.errors import RateLimitError

SENDERS = 16  # more than the servers answer at a time, so that a slow answer delays no other request
REFRESH_S = 0.1

_TIMEOUT_S = 60.0


class UnexpectedAnswer(RateLimitError):
    """A server answered something that this demo has no place for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said.

    Attributes:
        status: The HTTP status.
        reason: Its name.
        headers: In the order sent.
        body: The text.
        outcome: How the request was decided.
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
    """Asks servers for tokens over connections of its own. For one thread. Closed by the end of ``with``.

    Args:
        tally: Where every answer is noted.
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

    def ask(self, instance: Instance, caller: Caller) -> Answer:
        """Request one token.

        Raises:
            UnexpectedAnswer: The answer tells no outcome, or there is none.
        """
        connection = self._connections.get(instance)
        if connection is None:
            connection = http.client.HTTPConnection(HOST, instance.port, timeout=_TIMEOUT_S)
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
        self._tally.add(caller, answer.outcome)
        return answer


class Replay:
    """Sends each call of a schedule when it is due, to one of the servers at random.

    Args:
        calls: In the order of their times.
        instances: The servers.
        tally: Where every answer is noted.
    """

    def __init__(self, calls: Sequence[Call], instances: Sequence[Instance], tally: Tally) -> None:
        self._instances = instances
        self._tally = tally
        self._calls = iter(calls)
        self._taking = threading.Lock()  # guards _calls
        self._stopped = threading.Event()
        self._started_s = 0.0

    def run(self, on_progress: Callable[[], None]) -> float:
        """Send everything and return how long it took, in seconds.

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
                client.ask(random.choice(self._instances), call.caller)

    def _next(self) -> Call | None:
        with self._taking:
            return next(self._calls, None)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s


def _token_request(caller: Caller) -> tuple[str, dict[str, str]]:
    """Return the body and the headers of a token request."""
    form = {"grant_type": caller.grant_type}
    if caller.user:
        form |= {"username": caller.user.username, "password": caller.user.password}
    credentials = f"{caller.client_id}:{caller.client.client_secret}"
    return urlencode(form), {
        "Authorization": "Basic " + base64.b64encode(credentials.encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _outcome(response: http.client.HTTPResponse, caller: Caller) -> Outcome | None:
    """Return what an answer means for the books, None if it is none of the answers that a sound server gives.

    Whatever was decided and counted carries a quota. Without one only a trusted client may get a token.
    """
    if response.status == http.client.TOO_MANY_REQUESTS:
        return Outcome.DENIED
    if response.status != http.client.OK:
        return None
    if response.getheader(WOULD_DENY_HEADER):
        return Outcome.WOULD_DENY
    if response.getheader("RateLimit"):
        return Outcome.ALLOWED
    return Outcome.TRUSTED if caller.client_id == TRUSTED else None
