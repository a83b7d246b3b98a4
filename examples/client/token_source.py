"""Access tokens for client credentials, each used until it expires."""

import random
import threading
import time
from collections.abc import Callable

import requests
from requests.auth import AuthBase

MARGIN_S = 30.0  # a token is renewed this long before it expires, but in the last tenth of its life at the earliest
TIMEOUT_S = 10.0


class TokenDenied(Exception):
    """The server gave no token. ``answer`` is what it said, and before ``retry_at_s`` it is not asked again."""

    def __init__(self, answer: requests.Response, retry_at_s: float = 0.0) -> None:
        self.answer = answer
        self.retry_at_s = retry_at_s
        super().__init__(f"no token: {answer.status_code} {answer.text[:200]}")


class TokenSource(AuthBase):
    """
    Gives out one token to everybody until it is about to expire. Thread-safe: one thread asks, the others wait for it.

    A denial is remembered for everybody until the server's Retry-After is over. Until then a token that is still valid
    is given out although it should be renewed, and without one each caller waits, or gets the denial at once.

    Args:
        url: The token endpoint.
        client_id: The client.
        client_secret: Its secret.
        wait_s: How long a caller may wait for a token after a denial, in seconds.
        clock: Tells the time in seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        *,
        wait_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        self._credentials = (client_id, client_secret)
        self._wait_s = wait_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()  # guards all that follows, and that only one thread asks for a token
        self._token = ""
        self._renew_at_s = self._expires_at_s = float("-inf")
        self._denial: TokenDenied | None = None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the token into a request."""
        request.headers["Authorization"] = f"Bearer {self.token()}"
        return request

    def token(self) -> str:
        """Return a token that is valid for a while.

        Raises:
            TokenDenied: The server gives none, or none within the time that a caller may wait.
        """
        give_up_at_s = self._clock() + self._wait_s
        while True:
            with self._lock:
                if self._clock() >= self._renew_at_s and not self._is_denied():
                    self._renew()
                if self._clock() < self._expires_at_s:
                    return self._token
                denial = self._denial
            if denial is not None:
                if denial.retry_at_s > give_up_at_s:
                    raise denial
                self._sleep(max(0.0, denial.retry_at_s - self._clock()))

    def _is_denied(self) -> bool:
        return self._denial is not None and self._clock() < self._denial.retry_at_s

    def _renew(self) -> None:
        """Ask for a token, once. A denial counts for everybody; any other error for this caller alone."""
        asked_at_s = self._clock()
        form = {"grant_type": "client_credentials"}
        answer = requests.post(self._url, data=form, auth=self._credentials, timeout=TIMEOUT_S)
        if answer.status_code == 429:
            self._denial = TokenDenied(answer, self._clock() + seconds_to_wait(answer))
        elif answer.status_code != 200:
            raise TokenDenied(answer)
        else:
            body = answer.json()
            life_s = float(body.get("expires_in", 60))
            self._token, self._denial = body["access_token"], None
            self._expires_at_s = asked_at_s + life_s
            self._renew_at_s = self._expires_at_s - min(MARGIN_S, life_s / 10)


def seconds_to_wait(answer: requests.Response) -> float:
    """Return how long to wait after a 429: never less than the server says, a minute if it does not say.

    Up to a tenth is added at random, so that processes that were denied together do not come back together.
    """
    value = answer.headers.get("Retry-After", "")
    asked_s = float(value) if value.isascii() and value.isdigit() else 60.0
    return asked_s * random.uniform(1.0, 1.1)
