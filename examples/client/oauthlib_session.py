"""The same with requests-oauthlib: sessions that share one token, and do not ask before they may."""

from typing import Any

import requests
from oauthlib.oauth2 import BackendApplicationClient
from requests_oauthlib import OAuth2Session
from token_source import TokenSource


class PatientSession(OAuth2Session):
    """Takes the token of each request from a ``TokenSource``.

    Args:
        tokens: The source, one for all sessions and threads of the client in this process.
        client_id: The client.
    """

    def __init__(self, tokens: TokenSource, client_id: str) -> None:
        super().__init__(client=BackendApplicationClient(client_id=client_id))
        self._tokens = tokens

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request with a token.

        Raises:
            TokenDenied: The server gives none.
        """
        self.token = {"access_token": self._tokens.token(), "token_type": "Bearer"}
        return super().request(method, url, *args, **kwargs)
