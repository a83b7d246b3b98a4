"""
The labels of metrics, so few that no client can make more series than there is room for.
"""

import threading
from collections.abc import Callable

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import visible_name

MAX_CLIENTS = 50  # with series of their own; each has up to ten
FIRST_COME_CLIENTS = MAX_CLIENTS // 2  # whoever they are; the rest is kept for clients that are over a limit
OTHER = "other"
NONE = "none"

KNOWN_GRANTS = (
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


def outcome_of(decision: Decision) -> str:
    """
    Return what became of a request: ``allowed``, ``denied``, ``would_deny`` or ``trusted``.
    """
    if decision.would_deny:
        return "would_deny" if decision.allowed else "denied"
    return "trusted" if decision.trusted else "allowed"


class Labels:
    """
    Names grant types and clients. Thread-safe.
    """

    def __init__(self) -> None:
        self._grants: dict[str | None, str] = {**{name: name for name in KNOWN_GRANTS}, None: NONE}
        self._clients: dict[str, str] = {}  # client ids with series of their own, and their labels
        self._lock = threading.Lock()  # guards additions to the clients

    def grant(self, grant_type: str | None, is_grant: Callable[[str], bool]) -> str:
        """
        Return the label of a grant type: its name if it is a standard one or one of the server's.

        Args:
            grant_type: Its name, None if it does not matter.

            is_grant: Whether a grant type is one of the server's; any other is not worth a label.
        """
        label = self._grants.get(grant_type)
        if label is not None:
            return label
        if grant_type is None or not is_grant(grant_type):
            return OTHER
        self._grants[grant_type] = grant_type
        return grant_type

    def client(self, client_id: str, *, is_over: bool) -> str:
        """
        Return the label of a client, after giving it one of its own if there are any left.

        Args:
            client_id: The client.

            is_over: Whether it is over a limit, so that it is worth more.
        """
        label = self._clients.get(client_id)
        if label is not None:
            return label
        if len(self._clients) >= (MAX_CLIENTS if is_over else FIRST_COME_CLIENTS):
            return OTHER
        with self._lock:
            if len(self._clients) >= MAX_CLIENTS:
                return OTHER
            return self._clients.setdefault(client_id, visible_name(client_id))
