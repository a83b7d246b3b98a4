"""Counts what a process sends to MongoDB."""

import threading
from collections import Counter

from pymongo import monitoring


class Commands(monitoring.CommandListener):
    """Counts commands by name, and the documents that come back, of all clients that are made later.

    The driver cannot take a listener away again, so this is for processes that end after the measurement.

    Attributes:
        by_name: Commands sent, the ``hello`` of the driver's own monitoring included.
        documents_read: Documents in the answers.
    """

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()
        self.documents_read = 0
        self._lock = threading.Lock()  # the driver's monitors have threads of their own
        monitoring.register(self)
        monitoring.register(_Heartbeats(self))

    def count(self, name: str, *, document_count: int = 0) -> None:
        """Count a command."""
        with self._lock:
            self.by_name[name] += 1
            self.documents_read += document_count

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Wait for its end."""

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Count a command that was answered."""
        cursor = event.reply.get("cursor", {})
        documents = cursor.get("firstBatch", cursor.get("nextBatch", ()))
        self.count(event.command_name, document_count=len(documents))

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Count a command that failed."""
        self.count(event.command_name)


class _Heartbeats(monitoring.ServerHeartbeatListener):
    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        """Wait for its end."""

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        """Count a sign of life."""
        self._commands.count("hello")

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        """Count a missing one."""
        self._commands.count("hello")
