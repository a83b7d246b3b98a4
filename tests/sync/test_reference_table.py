"""The reference run of two instances, A and B: what each of them knows after every step."""

from collections.abc import Iterator

import pytest

from oauth_ratelimit import Limiter
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_limiter, stored_hits
from tests.support.stores import Shared
from tests.sync.faulty_store import FaultyStore


@pytest.fixture
def watched(shared: Shared) -> FaultyStore:
    """The store, with a look between two calls."""
    return FaultyStore(shared.store)


@pytest.fixture
def instances(watched: FaultyStore, clock: Clock) -> Iterator[tuple[Limiter, Limiter]]:
    """A and B. Both have been asked about the client, so that they follow its counts."""
    pair = (a_limiter(watched, clock), a_limiter(watched, clock))
    for limiter in pair:
        limiter.peek(CLIENT)
    yield pair
    for limiter in pair:
        limiter.close()


class Table:
    """Writes down what the instances and the store hold.

    Attributes:
        rows: A's shared and in-flight hits, B's, and the store's.
    """

    def __init__(self, watched: FaultyStore, instances: tuple[Limiter, Limiter]) -> None:
        self.rows: list[tuple[str, str, int]] = []
        self._watched = watched
        self._instances = instances

    def row(self) -> tuple[str, str, int]:
        """Return the present state."""
        counts = [limiter.counts(CLIENT) for limiter in self._instances]
        a, b = (f"{known.shared_hits}/{known.in_flight_hits}" for known in counts)
        return a, b, stored_hits(self._watched.inner)

    def note(self) -> None:
        """Write down the present state."""
        self.rows.append(self.row())


def test_two_instances_follow_the_ten_steps_of_the_documentation(
    watched: FaultyStore, instances: tuple[Limiter, Limiter]
) -> None:
    """A conflict costs A one look at the document; in the end all know of all five requests, and so does the store."""
    a, b = instances
    table = Table(watched, instances)

    table.note()  # start
    a.check(CLIENT)
    table.note()  # request to A
    a.sync()
    table.note()  # A flushes
    b.sync()
    table.note()  # B pulls
    a.check(CLIENT)
    for _ in range(3):
        b.check(CLIENT)
    table.note()  # one to A, three to B
    b.sync()
    table.note()  # B flushes
    watched.before_read = table.note  # A flushes: version differs, conflict; before it reads again
    watched.before_write = table.note
    report = a.sync()
    watched.before_read = watched.before_write = lambda: None
    table.note()  # A flushes
    b.peek(CLIENT)
    b.sync()
    table.note()  # B pulls

    first_try = table.rows.pop(6)  # A is about to flush: nothing has changed since B did
    assert table.rows[5] == first_try
    assert [
        ("0/0", "0/0", 0),  # start
        ("0/1", "0/0", 0),  # request to A
        ("1/0", "0/0", 1),  # A flushes
        ("1/0", "1/0", 1),  # B pulls
        ("1/1", "1/3", 1),  # one to A, three to B
        ("1/1", "4/0", 4),  # B flushes
        ("1/1", "4/0", 4),  # A flushes: version differs, conflict
        ("4/1", "4/0", 4),  # A refreshes
        ("5/0", "4/0", 5),  # A flushes
        ("5/0", "5/0", 5),  # B pulls
    ] == table.rows
    assert (1, 2, 1) == (report.conflict_count, report.round_count, report.flushed_count)
