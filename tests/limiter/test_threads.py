"""Many threads on one limiter: no hit is lost or doubled, and no limit is passed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from oauth_ratelimit import Limiter, Settings
from oauth_ratelimit.core.key import Key
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.limiters import CLIENT, a_limiter, a_policy, some_settings, stored_hits

THREADS, ROUNDS = 4, 2000
USERS = ("kim", "lee", "max")

pytestmark = pytest.mark.usefixtures("quick_switches")


def in_threads(work: Callable[[int], Any], *, beside: Callable[[], object] | None = None) -> list[Any]:
    """Do something in four threads at once, and something else in a fifth again and again until they are done."""
    done = threading.Event()
    with ThreadPoolExecutor(THREADS + 1) as pool:
        repeated = pool.submit(lambda: [beside() for _ in iter(done.is_set, True)] if beside else [])
        results = [pool.submit(work, number) for number in range(THREADS)]
        wait(results)
        done.set()
        repeated.result()
    return [result.result() for result in results]


TABLE = {
    "one tier": some_settings(a_policy(1000)),
    "two tiers": some_settings(a_policy(1000), a_policy(name="wide")),
    "total of several users": some_settings(a_policy(), total=(a_policy(1000, name="total"),)),
}


@pytest.mark.parametrize("settings", TABLE.values(), ids=TABLE)
def test_threads_admit_exactly_the_limit_in_each_window(clock: Clock, settings: Settings) -> None:
    limiter = Limiter(settings, clock=clock)
    users = [f"user-{number}" if settings.policies.limits.client_total else None for number in range(THREADS)]
    for _ in range(3):
        assert 1000 == sum(in_threads(lambda n: sum(limiter.check(CLIENT, users[n]).allowed for _ in range(500))))
        clock.advance(120)


def test_reload_under_load_loses_no_hit(clock: Clock) -> None:
    store = MemoryStore()
    limiter = a_limiter(store, clock, a_policy(window_s=60))

    def change() -> None:
        for window_s in (60, 600):
            limiter.reconfigure(some_settings(a_policy(window_s=window_s)))
            limiter.sync()

    in_threads(lambda _: [limiter.check(CLIENT) for _ in range(1500)], beside=change)
    limiter.sync()
    assert THREADS * 1500 == stored_hits(store)


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
        for round_number in range(ROUNDS):
            limiters[number % 2].check(CLIENT, USERS[round_number % len(USERS)])
            limiters[number % 2].check("one app")

    # No frame leaves the window meanwhile.
    end_s = clock.now_s + 50
    in_threads(work, beside=lambda: cycle() if clock.now_s < end_s else [limiter.sync() for limiter in limiters])
    for limiter in limiters:
        limiter.close()
    expected = THREADS * ROUNDS
    assert expected == stored_hits(store, Key("one app", None))
    assert expected == sum(stored_hits(store, Key(CLIENT, user)) for user in USERS)


def test_decisions_during_a_reload_never_mix_limits(clock: Clock) -> None:
    limiter = a_limiter(None, clock, a_policy(10))
    limits = (10, 1000)
    seen: set[tuple[int | None, int]] = set()

    def look(_: int) -> None:
        for _ in range(ROUNDS):
            decision = limiter.peek(CLIENT)
            seen.add((decision.limit, decision.remaining))

    in_threads(look, beside=lambda: [limiter.reconfigure(some_settings(a_policy(limit))) for limit in limits])
    assert {(limit, limit) for limit in limits} == seen
