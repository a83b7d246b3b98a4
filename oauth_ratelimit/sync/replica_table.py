"""Replicas as the host table holds them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from oauth_ratelimit.counters.host import Host, HostLocked
from oauth_ratelimit.counters.rules import RuleBook, key_of
from oauth_ratelimit.counters.table import DAMAGES, SYNC_COLUMNS, HostTable
from oauth_ratelimit.process.yielding import collect_young_garbage, pause
from oauth_ratelimit.sync.document import Attempt, Document
from oauth_ratelimit.sync.replica import Replica

STEP = 50  # rows of one transaction: requests wait for its end; more would make the garbage collector run too often


class ReplicaTable:
    """Rows of the host table as replicas.

    ``progress`` returns how far the state of the store has come, ``clock`` the last measurement of its clock.
    """

    def __init__(
        self,
        table: HostTable,
        rules: Callable[[], RuleBook],
        progress: Callable[[], int | None],
        clock: Callable[[], str | None],
    ) -> None:
        self.table = table
        self._rules = rules
        self._progress = progress
        self._clock = clock
        self._kept: dict[str, Replica | None] = {}  # by name; None while a step changes it, and if the step has failed
        self._kept_rules = rules()

    def of(self, host: Host) -> "ReplicaTable":
        """Return the rows of another host."""
        return ReplicaTable(HostTable(host, max_keys=0), self._rules, self._progress, self._clock)

    def load(self, names: Sequence[str]) -> list[Replica]:
        """Return the replicas of rows, to look at."""
        found: list[Replica] = []
        for step in self.steps(names):
            with self.table.host.locked():
                rows = self.table.load(step)
                found += filter(None, map(self._replica, rows))
        return found

    def take(self, names: Sequence[str]) -> list[Replica]:
        """Load replicas for the steps that follow. Until ``release``, rows are loaded again only if they have changed.

        A request or another process raises the number of a row's change. New limits have all loaded again.
        """
        collect_young_garbage(names)  # before they are loaded: what it finds alive becomes old
        self._kept_rules = self._rules()
        replicas = self.load(names)
        self._kept = {replica.name: replica for replica in replicas}
        return replicas

    def release(self) -> None:
        """Keep no replicas for further steps."""
        self._kept = {}

    def is_limited(self, name: str) -> bool:
        """Return True if limits count in a row."""
        return self._rules().limits_of(key_of(name)) is not None

    def unsent_names(self) -> list[str]:
        """Return the rows with hits that no document is known to hold."""
        with self.table.host.locked():
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
    def changing(self, names: Sequence[str], *, added_at_s: float | None = None) -> Iterator[list[Replica]]:
        """Load replicas, and store them at the end. After an error or Ctrl-C nothing has changed.

        With ``added_at_s``, a time of the limiter's clock, missing rows are added if there is room. Raises ``TermOver``
        if another process synchronises them by now.
        """
        with self.table.host.change(self._progress(), self._clock()):
            if added_at_s is not None:
                for name in names:
                    self.table.insert(name, now_s=added_at_s, due_s=self.table.host.monotonic())
            replicas = self._current(names)
            yield replicas
            is_urgent = self._store([replica for replica in replicas if not replica.is_forgotten])
            if forgotten := [replica.name for replica in replicas if replica.is_forgotten]:
                self.table.delete(forgotten)
        if is_urgent:
            self.table.host.wake()
        self._kept.update((replica.name, replica) for replica in replicas if replica.name in self._kept)

    def _current(self, names: Sequence[str]) -> list[Replica]:
        """Return the replicas of rows as they are now. None is kept any more, until what follows is stored."""
        kept = {name: replica for name in names if (replica := self._kept.get(name)) is not None}
        self._kept.update(dict.fromkeys(kept))
        if self._rules() is not self._kept_rules:
            kept = {}
        current = dict.fromkeys(names)
        for name, change in self.table.changes(list(kept)):
            replica = kept[name]
            if replica.change == change:
                replica.known_writer_count = self.table.host.max_writer_count
                current[name] = replica
        for row in self.table.load([name for name, replica in current.items() if replica is None]):
            replica = self._replica(row)
            if replica is not None:
                current[replica.name] = replica
        return [replica for replica in current.values() if replica is not None]

    def _store(self, replicas: Sequence[Replica]) -> bool:
        """Store what has changed, and return whether a row became urgent."""
        is_urgent = False
        rows: dict[tuple[str, ...], list[Sequence[Any]]] = {}  # by columns that have changed
        for replica in replicas:
            columns = replica.new_columns()
            compared = zip(SYNC_COLUMNS, columns, replica.columns, strict=True)
            changed = {column: new for column, new, old in compared if new != old}
            if changed:
                rows.setdefault(tuple(changed), []).append((*changed.values(), replica.name))
                replica.change, replica.columns = replica.change + 1, columns
                is_urgent = is_urgent or changed.get("urgent") is not None
        for columns, values in rows.items():
            self.table.store(columns, values)
        return is_urgent

    def _replica(self, row: Sequence[Any]) -> Replica | None:
        """Return a row, None if it cannot be unpacked: then it is deleted, because each cycle would fail at it."""
        try:
            replica = self._unpacked(row)
            replica.check()
        except DAMAGES as exc:
            with suppress(HostLocked):
                self.table.drop_damaged(row[1], exc)
            return None
        return replica

    def _unpacked(self, row: Sequence[Any]) -> Replica:
        change, *columns = row
        *plain, attempt = columns[:10]
        key = key_of(columns[0])
        unpacked = None if attempt is None else Attempt.of(attempt), Document.of(columns[10:])
        known = change, columns, self.table.host.max_writer_count, key, self._rules().limits_of(key)
        return Replica(*(*plain, *unpacked, *known))
