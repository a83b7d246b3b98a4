"""
Keys change while instances restart one after the other: no count is lost, and no user gets more than the limit.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.names import PLAIN, Form
from oauth_ratelimit.store.base import CounterStore
from tests.helpers import Clock
from tests.limiters import CLIENT, a_policy, stored_hits
from tests.privacy.names import ALICE, NEW, OLD, hashing_limiter, stored
from tests.stores import Shared
from tests.sync.faulty_store import Fault, FaultyStore

LIMIT = 7
WINDOW_S = 600
HOURLY = (a_policy(LIMIT, WINDOW_S, name="user"),)
STEPS = {
    "hash from now on: read": ((PLAIN,), (PLAIN, OLD)),
    "hash from now on: write": ((PLAIN, OLD), (OLD, PLAIN)),
    "rotate: read": ((OLD,), (OLD, NEW)),
    "rotate: write": ((OLD, NEW), (NEW, OLD)),
}
LAST_STEPS = {"hash from now on: drop": ((OLD, PLAIN), (OLD,)), "rotate: drop": ((NEW, OLD), (NEW,))}
SIDES = list(product((0, 1), repeat=3))


class Fleet:
    """
    Three instances that share a store.
    """

    def __init__(self, store: CounterStore, clock: Clock, user: str) -> None:
        self.store = store
        self.clock = clock
        self.user = user
        self.admitted_count = 0
        self._forms: list[Sequence[Form]] = [(), (), ()]
        self._limiters: list[Limiter] = []

    def start(self, *forms: Sequence[Form]) -> None:
        """
        Start every instance anew, each with forms of its own.
        """
        self.stop()
        self._limiters = [hashing_limiter(self.store, self.clock, *own, user=HOURLY) for own in forms]

    def restart(self, index: int, forms: Sequence[Form]) -> None:
        """
        Start one instance anew: it sends what it has counted, and then learns of the user before it is asked.
        """
        self._limiters[index].sync()
        self._limiters[index] = hashing_limiter(self.store, self.clock, *forms, user=HOURLY)
        self._limiters[index].peek(CLIENT, self.user)
        self._limiters[index].sync()

    def ask(self, *indexes: int) -> None:
        """
        Ask instances for one token each, and let all instances synchronise after each.
        """
        for index in indexes:
            self.admitted_count += self._limiters[index].check(CLIENT, self.user).allowed
            self.sync()

    def hurry(self, count: int, *indexes: int) -> None:
        """
        Ask some instances for tokens, or all, without a cycle in between.
        """
        for index in (indexes or (0, 1, 2)) * count:
            self.admitted_count += self._limiters[index].check(CLIENT, self.user).allowed

    def sync(self) -> None:
        """
        Run a cycle on each instance twice at the same time: all have sent, then all have read.
        """
        for limiter in self._limiters * 2:
            limiter.sync()

    def cycle(self) -> None:
        """
        Run a cycle on each instance, one after the other.
        """
        self.clock.advance(0.01)
        for limiter in self._limiters:
            limiter.sync()

    def remaining(self) -> list[int]:
        """
        Return what each instance thinks is left.
        """
        return [limiter.peek(CLIENT, self.user).remaining for limiter in self._limiters]

    def stop(self) -> None:
        """
        End all instances. They share the store, so they do not close it.
        """
        for limiter in self._limiters:
            limiter.sync()
        self._limiters = []


@pytest.fixture
def fleet(shared: Shared, clock: Clock) -> Iterator[Fleet]:
    """
    A fleet on each kind of store.
    """
    fleet = Fleet(shared.store, clock, ALICE)
    yield fleet
    fleet.stop()


def stored_under_all_names(store: CounterStore, user: str) -> int:
    """
    Return the hits that a user's documents hold together.
    """
    return sum(stored_hits(store, Key(CLIENT, stored(user, form))) for form in (PLAIN, OLD, NEW))


@pytest.mark.parametrize("step", STEPS)
def test_every_mix_of_a_rolling_restart(fleet: Fleet, step: str) -> None:
    """
    Whichever instances have restarted already, together they admit the limit and not one more.
    """
    for number, sides in enumerate(SIDES):
        fleet.user, fleet.admitted_count = f"{ALICE}{number}", 0
        fleet.start(*(STEPS[step][side] for side in sides))
        fleet.ask(0, 1, 2, 0, 1, 2, 0, 1, 2, 0)

        assert (LIMIT, [0, 0, 0]) == (fleet.admitted_count, fleet.remaining()), sides
        assert LIMIT == stored_under_all_names(fleet.store, fleet.user), sides


@pytest.mark.parametrize("step", STEPS)
def test_counts_from_before_the_step(fleet: Fleet, step: str) -> None:
    """
    One instance after the other restarts while requests come: what was counted before each restart still counts.
    """
    before, after = STEPS[step]
    fleet.start(before, before, before)
    fleet.ask(0, 1)
    for index in range(3):
        fleet.restart(index, after)
        fleet.ask(index, (index + 1) % 3)

    assert (LIMIT, [0, 0, 0]) == (fleet.admitted_count, fleet.remaining())


@pytest.mark.parametrize("step", LAST_STEPS)
def test_dropping_a_key(fleet: Fleet, step: str) -> None:
    """
    A key that nobody has written under for the longest window can be dropped, in every mix: all agree on what is left.
    """
    before, after = LAST_STEPS[step]
    fleet.start(before[::-1], before[::-1], before[::-1])
    fleet.ask(0, 1, 2)
    fleet.start(before, before, before)
    fleet.clock.advance(WINDOW_S + WINDOW_S / 10)
    fleet.admitted_count = 0
    fleet.ask(0, 1)
    for index in range(3):
        fleet.restart(index, after)
        fleet.ask(0, 1, 2)

    assert (LIMIT, [0, 0, 0]) == (fleet.admitted_count, fleet.remaining())


@pytest.mark.parametrize("step", STEPS)
def test_busy_instances(fleet: Fleet, step: str) -> None:
    """
    With many requests between two cycles every admitted one is stored once, and afterwards all instances know them all.
    """
    before, after = STEPS[step]
    fleet.start(before, after, before)
    for _ in range(3):
        fleet.hurry(2)
        fleet.sync()

    assert fleet.admitted_count == stored_under_all_names(fleet.store, ALICE)
    assert [0, 0, 0] == fleet.remaining()


def test_asked_in_every_cycle(shared: Shared, clock: Clock) -> None:
    """
    Instances that have something to write in every cycle, and lose no race, learn of the other document as soon as of
    changes of their own: they admit no more than instances that share one document.
    """
    admitted = []
    for user, forms in (("bob", [(OLD,)] * 3), (ALICE, [(OLD, NEW), (NEW, OLD), (NEW, OLD)])):
        fleet = Fleet(shared.store, clock, user)
        fleet.start(*forms)
        for _ in range(10):
            fleet.hurry(1)
            fleet.cycle()
        admitted.append(fleet.admitted_count)
        fleet.stop()

    assert admitted[0] == admitted[1] < 2 * LIMIT


def test_lost_replies(shared: Shared, clock: Clock) -> None:
    """
    A write whose answer is lost is found again under the name that it was written to, and not counted twice.
    """
    store = FaultyStore(shared.store)
    fleet = Fleet(store, clock, ALICE)
    fleet.start((OLD, NEW), (NEW, OLD), (NEW, OLD))
    with capture_logs():
        for _ in range(3):
            fleet.hurry(1)
            store.faults.extend([Fault.LOST_REPLY, None, Fault.PARTLY])
            fleet.sync()
        fleet.sync()

    assert fleet.admitted_count == stored_under_all_names(shared.store, ALICE)
    fleet.stop()


def test_key_that_only_others_count(fleet: Fleet) -> None:
    """
    An instance that is asked nothing any more follows a filling key, though the document that it writes stands still.
    """
    fleet.start((NEW, OLD), (OLD, NEW), (NEW, OLD))
    fleet.ask(0, 1, 1, 1, 1)
    for _ in range(20):
        fleet.cycle()
    fleet.hurry(1, 1)
    fleet.cycle()
    fleet.cycle()

    assert [1, 1] == fleet.remaining()[:2]


def test_preload_during_a_rotation(fleet: Fleet) -> None:
    """
    A new instance does not take one of two documents of a user for all that is known.
    """
    fleet.start((OLD, NEW), (NEW, OLD), (NEW, OLD))
    fleet.ask(0, 0, 1, 1)
    limiter = hashing_limiter(fleet.store, fleet.clock, NEW, OLD, user=HOURLY)
    limiter.preload()
    limiter.peek(CLIENT, ALICE)
    limiter.sync_urgent()

    assert LIMIT - 4 == limiter.peek(CLIENT, ALICE).remaining


def test_preload_of_hashed_names(fleet: Fleet) -> None:
    """
    With one key a new instance starts with the users that were busy last, as with plain names.
    """
    fleet.start((OLD,), (OLD,), (OLD,))
    fleet.ask(0, 0, 1, 1)
    limiter = hashing_limiter(fleet.store, fleet.clock, OLD, user=HOURLY)
    limiter.preload()

    assert LIMIT - 4 == limiter.peek(CLIENT, ALICE).remaining
