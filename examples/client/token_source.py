"""Access tokens for client credentials, each used until it expires."""

import random
import threading
import time
from collections.abc import Callable

import requests
from requests.auth import AuthBase

MARGIN_S = 30.0  # a token is renewed this long before it expires, but in the last tenth of its life at the earliest
LONGEST_WAIT_S = 300.0
TIMEOUT_S = 10.0


class TokenDenied(Exception):
    """The server gave no token. ``answer`` is what it said."""

    def __init__(self, answer: requests.Response) -> None:
        self.answer = answer
        super().__init__(f"no token: {answer.status_code} {answer.text[:200]}")


class TokenSource(AuthBase):
    """
    Gives out one token to everybody until it is about to expire. Thread-safe: one thread asks, the others wait for it.

    Args:
        url: The token endpoint.
        client_id: The client.
        client_secret: Its secret.
        attempts: How often to ask before giving up.
        clock: Tells the time in seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        *,
        attempts: int = 3,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        self._credentials = (client_id, client_secret)
        self._attempts = attempts
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()  # guards the token, and that only one thread asks for it
        self._token = ""
        self._renew_at_s = float("-inf")

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the token into a request."""
        request.headers["Authorization"] = f"Bearer {self.token()}"
        return request

    def token(self) -> str:
        """Return a token that is valid for a while.

        Raises:
            TokenDenied: The server gives none.
        """
        with self._lock:
            if self._clock() >= self._renew_at_s:
                self._renew()
            return self._token

    def _renew(self) -> None:
        answer = self._ask()
        for _ in range(self._attempts - 1):
            if answer.status_code != 429:
                break
            self._sleep(wait_s(answer))
            answer = self._ask()
        if answer.status_code != 200:
            raise TokenDenied(answer)
        body = answer.json()
        life_s = float(body.get("expires_in", 60))
        self._token = body["access_token"]
        self._renew_at_s = self._clock() + life_s - min(MARGIN_S, life_s / 10)

    def _ask(self) -> requests.Response:
        form = {"grant_type": "client_credentials"}
        return requests.post(self._url, data=form, auth=self._credentials, timeout=TIMEOUT_S)


def wait_s(answer: requests.Response) -> float:
    """Return how long to wait after a 429.

    That is what it asks for; a minute if it does not say, and never for ever. Up to a tenth is added at random, so that
    processes that were denied together do not come back together.
    """
    value = answer.headers.get("Retry-After", "")
    asked_s = min(float(value), LONGEST_WAIT_S) if value.isascii() and value.isdigit() else 60.0
    return asked_s * random.uniform(1.0, 1.1)
