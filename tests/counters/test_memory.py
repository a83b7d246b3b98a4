"""Floods of new names: memory is bounded, and what was counted is not lost for it."""

import gc
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import MAX_NAME_LENGTH
from oauth_ratelimit.counters import rules
from oauth_ratelimit.store.base import Change, CounterStore, WriteResult
from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.limiters import CLIENT, a_limiter, hit, known_keys, limiter_of
from tests.support.memory import entry_count, held_by

MAX_KEYS = 100
FLOOD = 3 * MAX_KEYS
LIMIT = 5
SPARE_CLIENTS = 100  # that may be known besides one for each key: those without limits, and new ones


def small_limiter(store: CounterStore | None, clock: Clock, **more: Any) -> Limiter:
    """Return a limiter with room for a hundred keys and five requests a minute each."""
    rates = [f"{LIMIT}/minute"]
    config = {"max_keys": MAX_KEYS, "limits": {"user": rates, "client": rates}, **more}
    return limiter_of(config, store, clock=clock)


def entries(limiter: Limiter) -> int:
    return entry_count(limiter, without=(limiter.settings, limiter.denial_events))


def all_hits(faulty: FaultyStore) -> int:
    documents = faulty.latest(1_000_000).values()
    return sum(sum(frames.values()) for document in documents for frames in document.hits.values())


def flood(limiter: Limiter, name: str, *, cost: int = 1) -> None:
    for index in range(FLOOD):
        assert limiter.check("app", f"{name}-{index}", cost=cost).allowed


def idle(limiter: Limiter, clock: Clock) -> None:
    for _ in range(100):
        limiter.sync()
        clock.advance(10)


@pytest.fixture(autouse=True)
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SPARE_CLIENTS", SPARE_CLIENTS)


@pytest.fixture
def faulty(clock: Clock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock), clock)


@pytest.fixture
def limiter(faulty: FaultyStore, clock: Clock) -> Limiter:
    return small_limiter(faulty, clock)


def test_users_beyond_max_keys_are_admitted_uncounted_and_logged_once_a_minute(
    limiter: Limiter, faulty: FaultyStore, clock: Clock
) -> None:
    with capture_logs() as logs:
        flood(limiter, "user")
        assert MAX_KEYS == len(known_keys(limiter))
        limiter.sync()
        assert MAX_KEYS == all_hits(faulty)
        for cycle in range(17):
            flood(limiter, f"user-{cycle}")
            limiter.sync()
            clock.advance(10)
    assert 3 == sum(entry["event"] == "keys_exhausted" for entry in logs)


@pytest.mark.parametrize("is_reached", [False, True], ids=["no server", "no answer"])
def test_flood_during_an_outage_drops_no_unsent_hit(
    limiter: Limiter, faulty: FaultyStore, clock: Clock, is_reached: bool
) -> None:
    """Keys whose hits are not known to have arrived are kept as long, and forgotten afterwards."""
    faulty.is_down = not is_reached
    faulty.faults.extend([Fault.LOST_REQUEST] * 5)
    for cycle in range(5):
        flood(limiter, str(cycle))
        limiter.sync()
        assert MAX_KEYS == len(known_keys(limiter))
    faulty.is_down = False
    faulty.faults.clear()
    limiter.sync()
    assert MAX_KEYS == all_hits(faulty)
    idle(limiter, clock)
    assert 0 == len(known_keys(limiter))


@pytest.mark.parametrize(
    ("cost", "is_evicted"), [(1, False), (2, False), (LIMIT, True)], ids=["far below their limit", "near it", "at it"]
)
def test_user_who_is_denied_is_evicted_after_those_who_are_admitted(
    limiter: Limiter, clock: Clock, cost: int, is_evicted: bool
) -> None:
    """One who was evicted is denied again after the next urgent cycle."""
    limiter.check("app", "spender", cost=LIMIT)
    for cycle in range(10):
        limiter.sync()
        flood(limiter, f"user-{cycle}", cost=cost)
        clock.advance(1)
    limiter.sync()
    assert is_evicted == limiter.peek("app", "spender").allowed
    limiter.sync_urgent()
    assert not limiter.check("app", "spender").allowed


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_forgotten_keys_leave_memory(faulty: FaultyStore, clock: Clock, is_shared: bool) -> None:
    """At once, not only when their windows are over."""
    limiter = small_limiter(faulty if is_shared else None, clock)
    most = 0
    for number in range(6 * MAX_KEYS):
        limiter.check("app", f"user-{number}")
        if number % 10 == 0:
            limiter.sync()
            clock.advance(0.1)
        if number == MAX_KEYS // 2:
            most = 3 * entries(limiter)  # with half of the keys
    assert entries(limiter) <= most
    names = {value for value in held_by(limiter, without=(limiter.denial_events,)) if isinstance(value, str)}
    assert len([name for name in names if name.startswith("user-")]) <= 1.5 * MAX_KEYS


def test_limit_of_all_users_that_is_forgotten_leaves_the_client_its_own_counts(clock: Clock) -> None:
    """Both are keys without a user."""
    both = {"limits": {"client": ["3/minute"], "client_total": ["100/minute"]}}
    limiter = limiter_of(both, clock=clock)
    limiter.check(CLIENT)
    limiter.reconfigure(load_config({"mode": "enforce", "limits": {"client": ["3/minute"]}}))
    for _ in range(4):
        clock.advance(40)
        assert limiter.check(CLIENT).allowed
        limiter.sync()

    assert 1 == len(known_keys(limiter))
    assert 1 == limiter.peek(CLIENT).remaining


def test_threads_together_stay_within_max_keys(clock: Clock) -> None:
    """Also those that add keys of different clients at the same time."""
    limiter = small_limiter(None, clock)
    start = threading.Barrier(8)

    def ask(client_id: str) -> None:
        start.wait()
        for index in range(MAX_KEYS):
            limiter.check(client_id, f"user-{index}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, [f"app-{index}" for index in range(8)]))
    assert MAX_KEYS == len(known_keys(limiter))


@pytest.mark.parametrize("limits", [{}, {"client_total": ["5/minute"]}, {"client": [], "user": []}], ids=repr)
def test_random_client_ids_are_bounded_and_swept(clock: Clock, limits: dict[str, Any]) -> None:
    """Within a cycle, and nearly gone when their windows are over."""
    rates = [f"{LIMIT}/minute"]
    limiter = small_limiter(FaultyStore(), clock, limits={"user": rates, "client": rates, **limits})
    for index in range(MAX_KEYS + SPARE_CLIENTS):
        limiter.check(f"client-{index}")
    most = entries(limiter)
    for cycle in range(3):
        for index in range(5 * SPARE_CLIENTS // 2):
            assert limiter.check(f"client-{cycle}-{index}").allowed
        assert entries(limiter) <= 1.5 * most
        limiter.sync()
        clock.advance(1)
    idle(limiter, clock)
    assert entries(limiter) <= most


@pytest.mark.slow
def test_new_client_is_limited_after_a_flood_of_others_with_a_key_each(clock: Clock) -> None:
    """Clients whose keys were evicted make room themselves."""
    limiter = small_limiter(MemoryStore(clock), clock, max_keys=4 * SPARE_CLIENTS)
    for index in range(8 * SPARE_CLIENTS):
        limiter.check(f"client-{index}")
        if index % (SPARE_CLIENTS // 4) == 0:
            clock.advance(1.0)
            limiter.sync()
    for _ in range(2):
        clock.advance(1.0)
        limiter.sync()
    assert [True] * LIMIT + [False] == [limiter.check("new").allowed for _ in range(LIMIT + 1)]


def test_trusted_client_without_room_for_its_state_stays_trusted(clock: Clock) -> None:
    limiter = small_limiter(None, clock, trusted_clients=["friend"])
    for index in range(MAX_KEYS + SPARE_CLIENTS):
        limiter.check(f"client-{index}")
    assert limiter.check("friend").trusted
    assert not limiter.check("stranger").trusted


@pytest.mark.slow
@pytest.mark.usefixtures("quick_switches")
def test_requests_during_sweeps_and_evictions_are_counted_once(clock: Clock) -> None:
    """However requests, evictions and sweeps meet: no key ever has two states. Without room a request is uncounted."""
    faulty = FaultyStore(MemoryStore(clock), clock)
    limiter = small_limiter(faulty, clock, limits={"client": ["1000000/minute"]})
    is_over = threading.Event()

    def ask(start: int) -> int:
        # More clients than there is room for, each now and then in several threads.
        names = (f"client-{number % 1500}" for number in range(start, sys.maxsize))
        return sum(limiter.check(next(names)).policy is not None for _ in iter(is_over.is_set, True))

    with ThreadPoolExecutor(4) as pool:
        counted = [pool.submit(ask, start) for start in (0, 0, 700, 1400)]
        for _ in range(50):
            limiter.sync()
            limiter.sync_urgent()
        is_over.set()
    limiter.sync()
    assert sum(count.result() for count in counted) == all_hits(faulty)
    assert len(known_keys(limiter)) == len(set(known_keys(limiter)))


def test_names_of_megabytes_are_cut_and_stay_apart(limiter: Limiter, faulty: FaultyStore) -> None:
    """Wherever they are kept: in memory, in documents and in the log. Two of them stay two."""
    names = ["x" * 5_000_000 + last for last in "ab"]
    with capture_logs() as logs:
        for name in names:
            assert [True] * LIMIT + [False] == [limiter.check(name, name).allowed for _ in range(LIMIT + 1)]
    limiter.sync()
    kept = [value for value in held_by(limiter) if isinstance(value, str)]
    kept += [part for key in faulty.latest(10) for part in key if part]
    kept += [entry[field] for entry in logs for field in ("client_id", "username")]
    assert max(map(len, kept)) <= MAX_NAME_LENGTH
    assert 2 == len(faulty.latest(10)) == len(known_keys(limiter))


class ForgetfulStore(MemoryStore):
    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        return WriteResult()


def test_busy_keys_do_not_pile_up_until_their_window_is_over(clock: Clock) -> None:
    """A day has thousands of cycles, and each puts them off."""
    limiter = limiter_of({"limits": {"user": ["1000000/day"]}}, ForgetfulStore(clock), clock=clock)
    for number in range(6000):
        limiter.check(CLIENT, f"user-{number % 200}")
        if number % 200 == 0:
            limiter.sync()
            clock.advance(1)
    assert entries(limiter) < 3000


def table_bytes(limiter: Limiter) -> int:
    with limiter.host.locked():
        size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(limiter.host.connection.execute(size).fetchone()[0])


@pytest.mark.slow
def test_key_needs_few_bytes(clock: Clock) -> None:
    """With its names, after it was synchronised; benchmarks/memory.py measures it as deployed."""
    limiter = a_limiter(ForgetfulStore(clock), clock)
    hit(limiter, CLIENT, "the first")
    before_bytes = table_bytes(limiter)
    gc.collect()
    tracemalloc.start()
    for number in range(2000):
        limiter.check(CLIENT, f"user-{number}")
    limiter.sync()
    gc.collect()
    grown_bytes, _ = tracemalloc.get_traced_memory()
    grown_bytes += table_bytes(limiter) - before_bytes
    tracemalloc.stop()
    assert 2001 == len(known_keys(limiter))
    assert grown_bytes / 2000 <= 350
