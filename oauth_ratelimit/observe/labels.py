"""
The labels of clients in metrics, so few that nobody can make more series than there is room for.
"""

import threading

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.observe.metric_labels import OTHER

MAX_CLIENTS = 50  # with series of their own; each has up to ten
FIRST_COME_CLIENTS = MAX_CLIENTS // 2  # whoever they are; the rest is kept for clients that are over a limit


class ClientLabels:
    """
    Names clients. Thread-safe.
    """

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}  # client ids with series of their own, and their labels
        self._lock = threading.Lock()  # guards additions

    def of(self, client_id: str, *, is_over: bool) -> str:
        """
        Return the label of a client, after giving it one of its own if there are any left.

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
