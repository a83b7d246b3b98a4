"""The reference run of two instances, A and B: what each of them knows after every step."""

from testbed.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.limiters import CLIENT, a_limiter, in_flight_hits, stored_hits, used_hits
from tests.support.stores import Shared


def test_two_instances_know_what_they_have_read_and_what_is_in_flight(shared: Shared, clock: Clock) -> None:
    """A conflict costs A one look at the document; in the end all know of all five requests, and so does the store."""
    watched = FaultyStore(shared.store)
    a, b = (a_limiter(watched, clock) for _ in range(2))
    rows = []

    def note() -> None:
        in_flight = [in_flight_hits(limiter) for limiter in (a, b)]
        read = [used_hits(limiter) - own for limiter, own in zip((a, b), in_flight, strict=True)]
        rows.append((f"{read[0]}/{in_flight[0]}", f"{read[1]}/{in_flight[1]}", stored_hits(shared.store)))

    note()
    a.check(CLIENT)
    note()
    a.sync()
    note()
    b.sync()
    note()
    a.check(CLIENT)
    for _ in range(3):
        b.check(CLIENT)
    note()
    b.sync()
    watched.before_read = watched.before_write = note
    report = a.sync()
    watched.before_read = watched.before_write = lambda: None
    note()
    b.sync()
    note()

    assert [
        ("0/0", "0/0", 0),
        ("0/1", "0/0", 0),  # a request to A
        ("1/0", "0/0", 1),  # A flushes
        ("1/0", "1/0", 1),  # B pulls
        ("1/1", "1/3", 1),  # one request to A, three to B
        ("1/1", "4/0", 4),  # B flushes; A is about to flush
        ("1/1", "4/0", 4),  # the version differs, and A is about to read
        ("4/1", "4/0", 4),  # A is about to flush again
        ("5/0", "4/0", 5),  # A has flushed
        ("5/0", "5/0", 5),  # B pulls
    ] == rows
    assert (1, 2, 1) == (report.conflict_count, report.round_count, report.flushed_count)
