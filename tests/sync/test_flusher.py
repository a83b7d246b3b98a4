"""Flushing on a store that fails: every hit arrives, and arrives once."""

from collections.abc import Iterator, Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, StoreRejected
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.pseudonyms import erasure_mark
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.pruning import SLACK_S
from oauth_ratelimit.store.base import ERASURES, Change, Snapshot, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.sync.flusher import MAX_BATCH, MAX_ROUNDS
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, KEY, a_limiter, a_policy, some_settings, stored_hits
from tests.support.stores import a_change
from tests.sync.faulty_store import Fault, FaultyStore

Pair = tuple[Limiter, Limiter]

HORIZON_S = 66  # how long a frame of a window of 60 s matters


@pytest.fixture
def inner(clock: Clock) -> MemoryStore:
    """The store behind the faults. It goes by the same clock as the instances."""
    return MemoryStore(clock)


@pytest.fixture
def faulty(inner: MemoryStore) -> FaultyStore:
    """The store that fails as ordered."""
    return FaultyStore(inner)


@pytest.fixture
def pair(faulty: FaultyStore, inner: MemoryStore, clock: Clock) -> Iterator[Pair]:
    """An instance whose store fails, and one whose does not."""
    limiters = a_limiter(faulty, clock), a_limiter(inner, clock)
    yield limiters
    for limiter in limiters:
        limiter.close()


def hit(limiter: Limiter, *, cost: int = 1) -> None:
    """Count, and flush."""
    limiter.check(CLIENT, cost=cost)
    limiter.sync()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("is_first", (True, False), ids=("first write", "later write"))
@pytest.mark.parametrize("rivals", (0, 1, 5), ids=("alone", "one other write", "other writes"))
def test_hits_of_an_unanswered_write_count_once(
    pair: Pair, faulty: FaultyStore, inner: MemoryStore, fault: Fault, is_first: bool, rivals: int
) -> None:
    """Its hits count once, applied or not, however many others wrote since."""
    here, there = pair
    if not is_first:
        hit(here)
    faulty.faults.append(fault)
    hit(here, cost=10)
    assert 10 == here.counts(CLIENT).in_flight_hits
    for _ in range(rivals):
        hit(there, cost=100)
    for held in faulty.held:
        faulty.deliver(held)
    here.sync()
    assert (not is_first) + 10 + rivals * 100 == stored_hits(inner)
    assert 0 == here.counts(CLIENT).in_flight_hits


@pytest.mark.parametrize("is_first", (True, False), ids=("first write", "later write"))
@pytest.mark.parametrize(("after_s", "dropped"), ((HORIZON_S, 0), (HORIZON_S + 1, 10)), ids=("in time", "too late"))
def test_hits_of_an_unanswered_write_are_sent_again_as_long_as_a_window_may_hold_them(
    pair: Pair, faulty: FaultyStore, inner: MemoryStore, clock: Clock, is_first: bool, after_s: int, dropped: int
) -> None:
    here, there = pair
    if not is_first:
        hit(here)
    faulty.faults.append(Fault.LOST_REQUEST)
    hit(here, cost=10)
    hit(there)
    clock.advance(after_s)
    assert dropped == here.sync().dropped_hits
    assert ((not is_first) + 1 + 10 - dropped, 0) == (stored_hits(inner), here.counts(CLIENT).in_flight_hits)


@pytest.mark.parametrize("rivals", (0, 3), ids=("alone", "other writes"))
def test_late_write_finds_its_version_gone(pair: Pair, faulty: FaultyStore, inner: MemoryStore, rivals: int) -> None:
    """Both name the same version, so the late one finds the document moved on."""
    here, there = pair
    hit(here)
    faulty.faults.append(Fault.LATE)
    hit(here, cost=10)
    here.sync()
    for _ in range(rivals):
        hit(there, cost=100)
    assert [] == faulty.deliver(faulty.held[0])
    here.sync()
    assert 11 + rivals * 100 == stored_hits(inner)


def test_late_write_between_read_and_write_is_found(pair: Pair, faulty: FaultyStore, inner: MemoryStore) -> None:
    """
    A write that arrives at the worst moment, after the document was read again, is found with the conflict it makes.
    """
    here, _ = pair
    hit(here)
    faulty.faults.append(Fault.LATE)
    hit(here, cost=10)
    faulty.before_write = lambda: [faulty.deliver(held) for held in list(faulty.held)]
    here.sync()
    assert (11, 0) == (stored_hits(inner), here.counts(CLIENT).in_flight_hits)


@pytest.mark.parametrize("user_window_s", (60, 600))
def test_write_whose_mark_is_gone_is_not_repeated_for_a_wider_window(
    pair: Pair, faulty: FaultyStore, inner: MemoryStore, clock: Clock, user_window_s: int
) -> None:
    """The document had a short horizon when others removed the mark. That it has a long one now proves nothing.

    Nor does a wider window for users, who have documents of their own.
    """
    here, there = pair
    here.reconfigure(some_settings(a_policy(window_s=60), user=(a_policy(window_s=user_window_s),)))
    faulty.faults.append(Fault.LOST_REPLY)
    hit(here, cost=10)
    clock.advance(60 + SLACK_S + 12)
    hit(there)
    clock.advance(2)
    hit(there)
    assert 1 == len(inner.read([KEY])[KEY].writers)
    hit(a_limiter(inner, clock, a_policy(1000, 600, frames=100)))
    before = stored_hits(inner)
    with capture_logs() as events:
        here.sync()
    assert (before, 0) == (stored_hits(inner), here.counts(CLIENT).in_flight_hits)
    assert [10] == [event["hits"] for event in events if event["event"] == "hits_dropped"]


def test_first_write_that_arrives_after_its_document_was_removed_counts_once(
    pair: Pair, faulty: FaultyStore, inner: MemoryStore
) -> None:
    """Another instance's document refuses it as long as it exists. Then nothing does."""
    here, there = pair
    faulty.faults.append(Fault.LATE)
    hit(here, cost=10)
    hit(there)

    def remove_and_deliver() -> None:
        for held in list(faulty.held):
            inner.remove(KEY)
            faulty.deliver(held)

    faulty.before_write = remove_and_deliver
    here.sync()
    assert (10, 0) == (stored_hits(inner), here.counts(CLIENT).in_flight_hits)


@pytest.mark.parametrize("is_known_gone", (True, False), ids=("after reading", "without reading"))
def test_recreated_document_is_not_overwritten(pair: Pair, inner: MemoryStore, is_known_gone: bool) -> None:
    """An instance that knows a former life of a document neither overwrites the new one nor brings back the old."""
    here, there = pair
    for _ in range(3):
        hit(here)
    inner.remove(KEY)
    if is_known_gone:
        here.peek(CLIENT)
        here.sync()
    for _ in range(3):
        hit(there, cost=100)
    hit(here, cost=10)
    assert 310 == stored_hits(inner)
    hit(there)
    assert 311 == there.counts(CLIENT).shared_hits


def test_versions_do_not_repeat_over_the_lives_of_a_document(inner: MemoryStore, clock: Clock) -> None:
    """Each life of a document starts at a version of its own, and each write adds one."""
    first = set()
    for _ in range(50):
        limiter = a_limiter(inner, clock)
        hit(limiter)
        first.add(inner.read([KEY])[KEY].version)
        hit(limiter)
        assert inner.read([KEY])[KEY].version - 1 in first
        inner.remove(KEY)
    assert 50 == len(first)


def test_contested_key_is_tried_a_bounded_number_of_times(pair: Pair, faulty: FaultyStore, inner: MemoryStore) -> None:
    """The number of tries is bounded; what was not sent goes with a later cycle."""
    here, there = pair
    hit(here)
    faulty.before_write = lambda: hit(there, cost=100)
    here.check(CLIENT, cost=10)
    faulty.calls.clear()
    report = here.sync()
    assert (0, MAX_ROUNDS, MAX_ROUNDS) == (report.flushed_count, report.conflict_count, report.round_count)
    assert [("write", 1), ("read", 1)] * MAX_ROUNDS == faulty.calls
    assert 10 == here.counts(CLIENT).in_flight_hits
    assert 1 + MAX_ROUNDS * 100 == here.counts(CLIENT).shared_hits
    faulty.before_write = lambda: None
    here.sync()
    assert (11 + MAX_ROUNDS * 100, 0) == (stored_hits(inner), here.counts(CLIENT).in_flight_hits)


def test_conflicts_hold_up_no_other_key(pair: Pair, faulty: FaultyStore, inner: MemoryStore) -> None:
    """Of many keys only those that lost are written again."""
    here, there = pair
    users = [f"user-{number}" for number in range(10)]
    for limiter in (here, there):
        for user in users:
            limiter.check(CLIENT, user)
    here.sync()
    there.check(CLIENT, "user-3")
    there.sync()
    for user in users:
        here.check(CLIENT, user)
    faulty.calls.clear()
    report = here.sync()
    assert {("write", 10), ("read", 10), ("write", 10)} >= set(faulty.calls)
    assert (10, 10, 2) == (report.flushed_count, report.conflict_count, report.round_count)
    assert [3] * 3 + [4] + [3] * 6 == [stored_hits(inner, Key(CLIENT, user)) for user in users]


def test_failed_batch_leaves_earlier_ones_sent_and_later_ones_in_flight(
    faulty: FaultyStore, inner: MemoryStore, clock: Clock
) -> None:
    """Keys go in batches; a batch that fails leaves those before it sent, and those after it in flight."""
    limiter = a_limiter(faulty, clock)
    users = [f"user-{number}" for number in range(2 * MAX_BATCH + 7)]
    for user in users:
        limiter.check(CLIENT, user)
    faulty.faults += [None, Fault.LOST_REPLY]
    report = limiter.sync()
    assert (MAX_BATCH, True) == (report.flushed_count, report.error is not None)
    in_flight = [limiter.counts(CLIENT, user).in_flight_hits for user in users]
    assert [0] * MAX_BATCH + [1] * (MAX_BATCH + 7) == in_flight
    limiter.sync()
    assert [1] * len(users) == [stored_hits(inner, Key(CLIENT, user)) for user in users]
    assert 0 == sum(limiter.counts(CLIENT, user).in_flight_hits for user in users)


def test_unreachable_store_leaves_decisions_to_what_is_known(
    faulty: FaultyStore, inner: MemoryStore, clock: Clock
) -> None:
    """While nothing can be read, decisions go on from what is known, and nothing is lost."""
    limiter = a_limiter(faulty, clock, a_policy(10))
    hit(limiter, cost=2)
    faulty.is_down = True
    for _ in range(5):
        assert limiter.check(CLIENT).allowed
        assert limiter.sync().error is not None
    assert (3, 2, 5) == (
        limiter.peek(CLIENT).remaining,
        limiter.counts(CLIENT).shared_hits,
        limiter.counts(CLIENT).in_flight_hits,
    )
    faulty.is_down = False
    assert None is limiter.sync().error
    assert 7 == stored_hits(inner)


class ErasingStore(FaultyStore):
    """Shows the erasures with every read, as MongoDB does."""

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Read the keys and the erasures, unless the store is down."""
        return super().read([*keys, ERASURES])


def test_user_erased_in_an_outage_is_not_written_back(inner: MemoryStore, clock: Clock) -> None:
    """The read of another key failed, so nothing of the user was sent, and no outcome is unknown."""
    erasing = ErasingStore(inner)
    limiter = a_limiter(erasing, clock, a_policy(10))
    for number in range(50):  # users without documents: the next new one is written without a read
        limiter.check(CLIENT, f"user-{number}")
    limiter.sync()
    erasing.faults.append(Fault.LOST_REQUEST)
    hit(limiter)
    erasing.is_down = True
    limiter.check(CLIENT, "ann")
    erasing.calls.clear()
    hit(limiter)
    assert ["read"] == [name for name, _ in erasing.calls]
    inner.compare_and_set(erasure_mark("ann"), [a_change(ERASURES, version=None, next_version=1)])
    erasing.is_down = False
    limiter.check(CLIENT, "ann")
    limiter.sync_urgent()  # the user alone
    assert (0, 0) == (stored_hits(inner, Key(CLIENT, "ann")), limiter.counts(CLIENT, "ann").in_flight_hits)


class RefusingStore(FaultyStore):
    """Refuses everything, or one document."""

    refused: Key | None = None

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Refuse a document by position, or everything with an error."""
        if self.refused is None:
            raise StoreRejected("not authorized")
        bad = {index: "no such field" for index, change in enumerate(changes) if change.key == self.refused}
        good = [change for change in changes if change.key != self.refused]
        if good:
            super().compare_and_set(writer, good)
        return WriteResult(rejected=bad)


def test_hits_wait_for_a_store_that_refuses_everything(inner: MemoryStore, clock: Clock) -> None:
    """Without rights nothing is written; decisions go on, and the hits wait for the rights."""
    refusing = RefusingStore(inner)
    limiter = a_limiter(refusing, clock)
    with capture_logs() as events:
        hit(limiter, cost=5)
    assert ["flush_failed"] == [event["event"] for event in events if event["event"] != "clock_skew"]
    assert 5 == limiter.counts(CLIENT).in_flight_hits
    refusing.refused = Key("nobody", None)
    limiter.sync()
    assert (5, 0) == (stored_hits(inner), limiter.counts(CLIENT).in_flight_hits)


def test_refused_document_is_logged_and_holds_up_no_other(inner: MemoryStore, clock: Clock) -> None:
    """A document that cannot be written is reported, and keeps no other from being written."""
    refusing = RefusingStore(inner)
    refusing.refused = KEY
    limiter = a_limiter(refusing, clock)
    with capture_logs() as events:
        limiter.check(CLIENT)
        limiter.check(CLIENT, "kim")
        report = limiter.sync()
    assert (1, 1, None) == (report.flushed_count, report.rejected_count, report.error)
    assert 1 == stored_hits(inner, Key(CLIENT, "kim"))
    (event,) = [event for event in events if event["event"] == "document_rejected"]
    assert (CLIENT, "no such field") == (event["client_id"], event["reason"])


def test_expired_frames_are_removed(inner: MemoryStore, clock: Clock) -> None:
    """They are removed from a document that lives on, so that it does not grow."""
    limiter = a_limiter(inner, clock, a_policy(window_s=60, frames=10))
    sizes = []
    for _ in range(100):
        hit(limiter)
        clock.advance(6)
        sizes.append(len(inner.read([KEY])[KEY].hits[Series(6)]))
    assert max(sizes) <= 2 * (66 + 66 + SLACK_S) / 6
    assert sizes[-1] >= 10


def test_narrow_window_removes_no_frame_of_a_wider_one(inner: MemoryStore, clock: Clock) -> None:
    """While a change of limits is on its way, none removes frames that another's wider window holds."""
    wide = a_limiter(inner, clock, a_policy(window_s=3600, frames=10))
    narrow = a_limiter(inner, clock, a_policy(window_s=1, frames=1))
    hit(wide, cost=10)
    for _ in range(40):
        clock.advance(60)
        hit(narrow)
    hit(wide)
    assert 11 == stored_hits(inner, series=Series(360))
    assert 11 == wide.counts(CLIENT).shared_hits
