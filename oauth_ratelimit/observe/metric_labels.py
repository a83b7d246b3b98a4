"""The names of grant types in metrics and statistics, so few that no client can make up more."""

import threading
from collections.abc import Callable

from oauth_ratelimit.core.key import storable_name, visible_name

OTHER = "other"
NONE = "none"

STANDARD = (
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


class GrantNames:
    """Names grant types. Thread-safe."""

    def __init__(self) -> None:
        self._names: dict[str | None, str] = {**{name: name for name in STANDARD}, None: NONE}

    def of(self, grant_type: str | None, is_grant: Callable[[str], bool]) -> str:
        """Return the name of a grant type: its own if it is a standard one or one of the server's, else ``other``.

        Args:
            grant_type: The grant type; None, named ``none``, if it is not known or does not matter.
            is_grant: Whether a grant type is one of the server's; any other is not worth a name.
        """
        name = self._names.get(grant_type)
        if name is not None:
            return name
        if grant_type is None or not is_grant(grant_type):
            return OTHER
        return self._names.setdefault(grant_type, storable_name(grant_type))


MAX_CLIENTS = 50  # with series of their own; each has up to ten
FIRST_COME_CLIENTS = MAX_CLIENTS // 2  # whoever they are; the rest is kept for clients that are over a limit


class ClientLabels:
    """Names clients. Thread-safe."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}  # client ids with series of their own, and their labels
        self._lock = threading.Lock()  # guards additions

    def of(self, client_id: str, *, is_over: bool) -> str:
        """Return the label of a client, after giving it one of its own if there are any left.

        Args:
            client_id: The client.
            is_over: Whether it is over a limit, so that it is worth more.
        """
        label = self._labels.get(client_id)
        if label is not None:
            return label
        if len(self._labels) >= (MAX_CLIENTS if is_over else FIRST_COME_CLIENTS):
            return OTHER
        with self._lock:
            if len(self._labels) >= MAX_CLIENTS:
                return OTHER
            return self._labels.setdefault(client_id, visible_name(client_id))
