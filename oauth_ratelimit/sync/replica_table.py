"""Loads replicas from the host table, and stores them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.hits import pack, pack_hits, unpack_hits
from oauth_ratelimit.counters.rules import Part, key_of
from oauth_ratelimit.counters.table import HostTable
from oauth_ratelimit.process.yielding import pause
from oauth_ratelimit.sync.attempt import Attempt
from oauth_ratelimit.sync.replica import Document, Replica

STEP = 50  # rows of one transaction: requests wait for its end; more would make the garbage collector run too often


class ReplicaTable:
    """Rows of the host table as replicas. ``progress`` returns how far the state of the store has come."""

    def __init__(
        self, table: HostTable, part_of: Callable[[Key], Part | None], progress: Callable[[], int | None]
    ) -> None:
        self.table = table
        self._part_of = part_of
        self._progress = progress

    def load(self, names: Sequence[str]) -> list[Replica]:
        """Return the replicas of rows, to look at."""
        found = []
        for step in self.steps(names):
            with self.table.locked():
                rows = self.table.load(step)
            found += [self._replica(row) for row in rows]
        return found

    def is_limited(self, name: str) -> bool:
        """Return True if limits count in a row."""
        return self._part_of(key_of(name)) is not None

    def unsent_names(self) -> list[str]:
        """Return the rows with hits that no document is known to hold."""
        with self.table.locked():
            return self.table.unsent_names()

    def unsent(self) -> Iterator[Replica]:
        """Yield the replicas with such hits."""
        for step in self.steps(self.unsent_names()):
            yield from self.load(step)

    def steps(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        """Divide rows into those of one transaction each, and pause after each, so that requests run."""
        for start in range(0, len(names), STEP):
            if start:
                pause()
            yield names[start : start + STEP]

    @contextmanager
    def changing(self, names: Sequence[str]) -> Iterator[list[Replica]]:
        """Load replicas, and store them at the end. After an error or Ctrl-C nothing has changed.

        Raises ``TermOver`` if another process synchronises them by now.
        """
        with self.table.change(self._progress()):
            replicas = list(map(self._replica, self.table.load(names)))
            urgent = {replica.name: replica.urgent_s for replica in replicas}
            yield replicas
            self.table.store([_columns_of(replica) for replica in replicas if not replica.is_forgotten])
            self.table.delete([replica.name for replica in replicas if replica.is_forgotten])
        if any(replica.urgent_s not in (None, urgent[replica.name]) for replica in replicas):
            self.table.wake()

    def _replica(self, row: Sequence[Any]) -> Replica:
        name, hits, unsent, *plain, attempted, attempt = row[:11]
        key = key_of(name)
        writer_count, is_asked, due_s, urgent_s, requested_s, held = plain
        return Replica(
            name,
            (hits, unsent),
            writer_count,
            bool(is_asked),
            due_s,
            urgent_s,
            requested_s,
            held,
            None if attempt is None else Attempt.of(attempt, unpack_hits(attempted)),
            Document.of(row[11:]),
            self.table.max_writer_count,
            key,
            self._part_of(key),
        )


def _columns_of(replica: Replica) -> Sequence[Any]:
    attempt, counted = replica.attempt, replica.changed_hits
    return (
        replica.name,
        replica.packed[0] if counted is None else pack(*counted),
        pack_hits(replica.unsent) if replica.has_unsent else None,
        replica.writer_count,
        replica.is_asked,
        replica.due_s,
        replica.urgent_s,
        replica.requested_s,
        replica.held,
        None if attempt is None else pack_hits(attempt.hits),
        None if attempt is None else attempt.dump(),
        *replica.document.columns(),
    )
