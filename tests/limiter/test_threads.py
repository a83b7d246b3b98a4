"""Many threads on one limiter: no hit is lost or doubled, and no limit is passed."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock
from tests.support.limiters import CLIENT, a_limiter, a_policy, some_settings, stored_hits

THREADS, ROUNDS = 4, 4000
USERS = ("kim", "lee", "max")


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Have threads interrupt each other as often as the interpreter can."""
    former_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(former_s)


def in_threads(work: Callable[[int], object], *, beside: Callable[[], object] | None = None) -> None:
    """Do something in four threads at once, and something else in a fifth again and again until they are done."""
    done, errors = threading.Event(), []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:  # noqa: BLE001  # raised again below
            errors.append(exc)

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                action()
        except BaseException as exc:  # noqa: BLE001  # raised again below
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    fifth = threading.Thread(target=repeat, args=(beside,)) if beside else None
    for thread in [*threads, *([fifth] if fifth else [])]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    if fifth:
        fifth.join()
    for error in errors:
        raise error


@pytest.mark.parametrize("tier_count", (1, 2), ids=("one tier", "two tiers"))
def test_threads_admit_exactly_the_limit(clock: Clock, tier_count: int) -> None:
    """However many ask at once, exactly the limit is admitted, in every frame anew."""
    limit = 1000
    tiers = (a_policy(limit, 10, frames=1), a_policy(name="wide"))[:tier_count]
    limiter = a_limiter(None, clock, *tiers)
    for _ in range(3):
        admitted = [0] * THREADS

        def work(number: int, admitted: list[int] = admitted) -> None:
            admitted[number] = sum(limiter.check(CLIENT).allowed for _ in range(limit // 2))

        in_threads(work)
        assert limit == sum(admitted)
        clock.advance(20)


def test_threads_of_several_users_admit_exactly_the_total(clock: Clock) -> None:
    """Users in different threads use up one total exactly."""
    limiter = Limiter(some_settings(a_policy(), total=(a_policy(1000, name="total"),)), clock=clock)
    admitted = [0] * THREADS

    def work(number: int) -> None:
        admitted[number] = sum(limiter.check(CLIENT, f"user-{number}").allowed for _ in range(500))

    in_threads(work)
    assert 1000 == sum(admitted) == sum(limiter.counts(CLIENT, f"user-{n}").in_flight_hits for n in range(THREADS))


def test_threads_that_add_keys_lose_no_hit(clock: Clock) -> None:
    """Threads that meet over a new client and a new user make one key, not two."""
    limiter = a_limiter(None, clock, a_policy(1))
    admitted = [0] * THREADS

    def work(number: int) -> None:
        admitted[number] = sum(limiter.check(f"app-{n}", f"user-{n}").allowed for n in range(1000))

    in_threads(work)
    assert 1000 == sum(admitted)


@pytest.mark.no_cover
def test_threads_during_cycles_lose_no_hit(clock: Clock) -> None:
    """Every request of every key is in the store once, while cycles flush and time passes."""
    store = MemoryStore()
    limiters = [a_limiter(store, clock, a_policy(window_s=60)) for _ in range(2)]

    def cycle() -> None:
        for limiter in limiters:
            limiter.sync()
        clock.advance(0.5)

    def work(number: int) -> None:
        for round_number in range(3 * ROUNDS):
            limiters[number % 2].check(CLIENT, USERS[round_number % len(USERS)])
            limiters[number % 2].check("one app")

    # No frame leaves the window meanwhile.
    end_s = clock.now_s + 50
    in_threads(work, beside=lambda: cycle() if clock.now_s < end_s else [limiter.sync() for limiter in limiters])
    for limiter in limiters:
        limiter.close()
    expected = THREADS * 3 * ROUNDS
    assert expected == stored_hits(store, Key("one app", None))
    assert expected == sum(stored_hits(store, Key(CLIENT, user)) for user in USERS)


def test_peek_and_counts_during_requests_stay_in_bounds(clock: Clock) -> None:
    limiter = a_limiter(MemoryStore(), clock)

    def look() -> None:
        limiter.peek(CLIENT)
        limiter.counts(CLIENT)
        limiter.sync_urgent()

    in_threads(lambda _: [limiter.check(CLIENT) for _ in range(ROUNDS)], beside=look)
    counts = limiter.counts(CLIENT)
    assert THREADS * ROUNDS == counts.shared_hits + counts.in_flight_hits
    limiter.close()
