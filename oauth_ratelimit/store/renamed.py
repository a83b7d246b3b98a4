"""
Users that go by several names in the store while the instances change from one to the other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.names import StoredName
from oauth_ratelimit.store.base import Change, CounterStore, Snapshot, WriteResult


class RenamedStore:
    """
    A store that reads what is counted under all names of a user, and writes under the first.

    What it returns for a key has the version of the document that is written, so compare-and-set goes on as ever. That
    version does not tell whether another document has changed, so a key has to be read before every write.

    Args:
        store: What it reads and writes.
    """

    def __init__(self, store: CounterStore) -> None:
        self._store = store

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """
        See ``CounterStore.read``. One round trip for all names.
        """
        return read_all_names(keys, self._store.read)

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """
        See ``CounterStore.compare_and_set``.
        """
        return self._store.compare_and_set(writer, changes)

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """
        See ``CounterStore.latest``. Without users: from one name of theirs the others cannot be known.
        """
        return {key: snapshot for key, snapshot in self._store.latest(count).items() if key.username is None}

    def clock_offset_s(self) -> float:
        """
        See ``CounterStore.clock_offset_s``.
        """
        return self._store.clock_offset_s()

    def abandon(self) -> None:
        """
        See ``CounterStore.abandon``.
        """
        self._store.abandon()

    def close(self) -> None:
        """
        See ``CounterStore.close``.
        """
        self._store.close()


def read_all_names(
    keys: Sequence[Key], read: Callable[[Sequence[Key]], Mapping[Key, Snapshot]]
) -> Mapping[Key, Snapshot]:
    """
    Return what is counted under all names of the users of some keys, by these keys.

    Args:
        keys: Under the names that are written.

        read: Reads documents.
    """
    found = read([name for key in keys for name in (key, *_other_names(key))])
    snapshots = {}
    for key in keys:
        snapshot = _merged(found.get(key), (found[name] for name in _other_names(key) if name in found))
        if snapshot is not None:
            snapshots[key] = snapshot
    return snapshots


def _other_names(key: Key) -> list[Key]:
    """
    Return the keys that the same user may have been counted under as well.
    """
    name = key.username
    return [key._replace(username=other) for other in name.others] if isinstance(name, StoredName) else []


def _merged(first: Snapshot | None, others: Iterable[Snapshot]) -> Snapshot | None:
    """
    Return the counts of several documents of one user as one, at the version of the first; None if there is none.

    Args:
        first: The document that is written, None if it does not exist.

        others: Those that exist under other names.
    """
    rest = list(others)
    if not rest:
        return first
    hits: dict[str, dict[int, int]] = {}
    writers: dict[str, int] = {}
    damage: set[str] = set()
    for snapshot in (*rest, first) if first else rest:
        for series, frames in snapshot.hits.items():
            counts = hits.setdefault(series, {})
            for start_s, count in frames.items():
                counts[start_s] = counts.get(start_s, 0) + count
        writers.update(snapshot.writers)  # the first comes last: the mark in it is the one that an instance looks for
        damage.update(snapshot.damage)
    return Snapshot(first.version if first else None, hits, writers, tuple(sorted(damage)))
