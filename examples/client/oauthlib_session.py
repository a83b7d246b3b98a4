"""The same with requests-oauthlib: a session that takes a token when it has none, and waits when it is told to."""

import time
from collections.abc import Callable
from typing import Any

import requests
from oauthlib.oauth2 import BackendApplicationClient, TokenExpiredError
from requests_oauthlib import OAuth2Session
from token_source import wait_s

TIMEOUT_S = 10.0


class PatientSession(OAuth2Session):
    """Asks for a token at the first request and when the one it has is expired, and not before.

    Args:
        token_url: The token endpoint.
        client_id: The client.
        client_secret: Its secret.
        attempts: How often to ask for a token before giving up.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        token_url: str,
        client_id: str,
        client_secret: str,
        *,
        attempts: int = 3,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(client=BackendApplicationClient(client_id=client_id))
        self._token_url = token_url
        self._secret = client_secret
        self._attempts = attempts
        self._sleep = sleep
        self._answer = requests.Response()
        # The library turns the answer into an exception that has no headers, so they are noted before.
        self.register_compliance_hook("access_token_response", self._note)

    def _note(self, answer: requests.Response) -> requests.Response:
        self._answer = answer
        return answer

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request with a token. Requests to the token endpoint itself have none."""
        if url == self._token_url:
            return super().request(method, url, *args, **kwargs)
        if not self.authorized:
            self._take_token()
        try:
            return super().request(method, url, *args, **kwargs)
        except TokenExpiredError:
            self._take_token()
            return super().request(method, url, *args, **kwargs)

    def _take_token(self) -> None:
        for attempt in range(1, self._attempts + 1):
            try:
                self.fetch_token(self._token_url, client_secret=self._secret, timeout=TIMEOUT_S)
                return
            except Exception:
                if self._answer.status_code != 429 or attempt == self._attempts:
                    raise
                self._sleep(wait_s(self._answer))
