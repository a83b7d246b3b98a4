"""Floods of new names: memory is bounded, and what was counted is not lost for it."""

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import MAX_NAME_LENGTH, Key
from oauth_ratelimit.counters.bucket import Bucket
from oauth_ratelimit.counters.client_state import ClientState
from oauth_ratelimit.counters.key_state import KeyState
from oauth_ratelimit.counters.registry import SPARE_CLIENTS, ClientRegistry
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.base import Change, CounterStore, WriteResult
from oauth_ratelimit.store.memory import MemoryStore
from tests.support.helpers import Clock

MAX_KEYS = 100
FLOOD = 1000
LIMIT = 5
HORIZON_S = 120.0


class FailingStore(MemoryStore):
    """A store that can go away."""

    is_down = False
    takes_writes = True

    def compare_and_set(self, writer: str, changes: list[Change]) -> WriteResult:  # type: ignore[override]
        if self.is_down or not self.takes_writes:
            raise StoreUnavailable("down")
        return super().compare_and_set(writer, changes)

    def read(self, keys: Any) -> Any:
        if self.is_down:
            raise StoreUnavailable("down")
        return super().read(keys)


def a_limiter(store: CounterStore | None, clock: Clock, **more: Any) -> Limiter:
    """Return a limiter with room for a hundred keys and five requests a minute each."""
    rates = [f"{LIMIT}/minute"]
    config = {"mode": "enforce", "max_keys": MAX_KEYS, "limits": {"user": rates, "client": rates}, **more}
    return Limiter(load_config(config), store, clock=clock)


def registry_of(limiter: Limiter) -> ClientRegistry:
    """Return what the limiter remembers."""
    return limiter._clients


def stored_hits(store: MemoryStore) -> int:
    """Return all hits in the store."""
    documents = store.latest(1_000_000)
    return sum(
        count for document in documents.values() for frames in document.hits.values() for count in frames.values()
    )


@pytest.fixture
def store() -> FailingStore:
    """An empty store."""
    return FailingStore()


@pytest.fixture
def limiter(store: FailingStore, clock: Clock) -> Iterator[Limiter]:
    """A limiter on it."""
    made = a_limiter(store, clock)
    yield made
    store.is_down = False
    made.close()


def test_users_beyond_max_keys_are_admitted_uncounted_and_logged_once(limiter: Limiter, store: FailingStore) -> None:
    """Keys never exceed the bound; users beyond it are admitted; what was counted is sent, and it is logged once."""
    with capture_logs() as logs:
        decisions = []
        for index in range(FLOOD):
            decisions.append(limiter.check("app", f"user-{index}"))
            assert registry_of(limiter).key_count <= MAX_KEYS
    assert all(decision.allowed for decision in decisions)
    assert ["keys_exhausted"] == [entry["event"] for entry in logs]

    limiter.sync()

    assert MAX_KEYS == stored_hits(store)


def test_flood_during_an_outage_drops_no_unsent_hit(limiter: Limiter, store: FailingStore) -> None:
    """Unsent hits are not dropped to make room: it arrives when the store is back."""
    store.is_down = True
    for cycle in range(5):
        for index in range(FLOOD):
            limiter.check("app", f"user-{cycle}-{index}")
        limiter.sync()
        assert MAX_KEYS == registry_of(limiter).key_count
    assert 0 == stored_hits(store)

    store.is_down = False
    limiter.sync()

    assert MAX_KEYS == stored_hits(store)


def test_key_with_a_write_of_unknown_outcome_is_forgotten_after_its_window(
    limiter: Limiter, store: FailingStore, clock: Clock
) -> None:
    """A key is kept with one attempt until its outcome is known, then it is forgotten when its hits are over."""
    store.takes_writes = False
    limiter.check("app", "user")
    for _ in range(50):
        limiter.sync()
        clock.advance(10)
    assert 1 == registry_of(limiter).key_count

    store.takes_writes = True
    limiter.sync()
    assert 1 == stored_hits(store)
    for _ in range(50):
        limiter.sync()
        clock.advance(10)
    assert 0 == registry_of(limiter).key_count


def test_next_cycle_makes_room_for_new_users(limiter: Limiter, clock: Clock) -> None:
    """The next cycle makes room, so that new users are counted again."""
    for index in range(FLOOD):
        limiter.check("app", f"user-{index}")
    limiter.sync()

    assert registry_of(limiter).key_count <= 0.9 * MAX_KEYS
    for _ in range(LIMIT):
        assert limiter.check("app", "newcomer").allowed
    assert not limiter.check("app", "newcomer").allowed


def test_user_far_below_the_limit_is_evicted_before_one_who_is_denied(limiter: Limiter, clock: Clock) -> None:
    """A user who has used up a limit is kept, whatever number of users have used little of theirs."""
    for _ in range(LIMIT):
        limiter.check("app", "spender")
    for cycle in range(10):
        limiter.sync()
        for index in range(FLOOD):
            limiter.check("app", f"user-{cycle}-{index}")
        clock.advance(1)
    limiter.sync()
    assert LIMIT == limiter.counts("app", "spender").shared_hits


def test_evicted_user_is_denied_again_after_the_next_urgent_cycle(limiter: Limiter, clock: Clock) -> None:
    """A user who was forgotten to make room is denied again as soon as an urgent cycle has read the counts."""
    for _ in range(LIMIT):
        limiter.check("app", "spender")
    for cycle in range(10):
        limiter.sync()
        for index in range(FLOOD):
            limiter.check("app", f"user-{cycle}-{index}", cost=2)  # near their limits, too
        clock.advance(1)
    limiter.sync()
    assert 0 == limiter.counts("app", "spender").shared_hits

    limiter.peek("app", "spender")
    limiter.sync_urgent()

    assert LIMIT == limiter.counts("app", "spender").shared_hits
    assert not limiter.check("app", "spender").allowed


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_forgotten_keys_leave_memory(store: FailingStore, clock: Clock, is_shared: bool) -> None:
    """Keys that were forgotten to make room are gone at once, not only when their windows are over."""
    limiter = a_limiter(store if is_shared else None, clock)
    for number in range(6 * MAX_KEYS):
        limiter.check("app", f"user-{number}")
        if number % 10 == 0:
            limiter.sync()
            clock.advance(0.1)
    limiter.sync()
    gc.collect()
    client = registry_of(limiter).get("app")

    alive = [state for state in gc.get_objects() if type(state) is KeyState and state.client is client]
    assert len(alive) <= MAX_KEYS
    assert registry_of(limiter).key_count <= MAX_KEYS


@pytest.mark.no_cover
def test_lasting_flood_is_logged_once_a_minute(limiter: Limiter, clock: Clock) -> None:
    """A flood of ten minutes is ten lines, not one for each time that room was made."""
    with capture_logs() as logs:
        for step in range(60):
            for index in range(2 * MAX_KEYS):
                limiter.check("app", f"user-{step}-{index}")
            limiter.sync()
            clock.advance(10)

    assert 10 == sum(entry["event"] == "keys_exhausted" for entry in logs)


def test_reload_counts_no_key_twice(limiter: Limiter, clock: Clock) -> None:
    """
    Keys that live through changes of the configuration count once, also when there is no room for others.
    """
    for _ in range(3):
        for index in range(MAX_KEYS):
            limiter.check("app", f"user-{index}")
        limiter.reconfigure(limiter.settings)
    assert MAX_KEYS == registry_of(limiter).key_count
    assert LIMIT - 3 == limiter.peek("app", "user-0").remaining

    limiter.sync()
    clock.advance(10 * HORIZON_S)
    for _ in range(100):
        limiter.sync()
        clock.advance(10)

    assert 0 == registry_of(limiter).key_count


def test_threads_together_stay_within_max_keys(clock: Clock) -> None:
    """Threads that add keys of different clients at the same time stay within the bound together."""
    limiter = a_limiter(None, clock)
    start = threading.Barrier(8)

    def flood(client_id: str) -> None:
        start.wait()
        for index in range(MAX_KEYS):
            limiter.check(client_id, f"user-{index}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(flood, [f"app-{index}" for index in range(8)]))

    assert MAX_KEYS == registry_of(limiter).key_count == sum(len(client.keys) for client in registry_of(limiter))
    limiter.close()


@pytest.mark.parametrize("limits", [{}, {"client_total": ["5/minute"]}, {"client": [], "user": []}], ids=repr)
def test_random_client_ids_are_bounded_and_swept(clock: Clock, limits: dict[str, Any]) -> None:
    """Random client ids are bounded within a cycle, and gone when their windows are over."""
    rates = [f"{LIMIT}/minute"]
    limiter = a_limiter(MemoryStore(), clock, limits={"user": rates, "client": rates, **limits})
    clients = registry_of(limiter)
    for cycle in range(3):
        for index in range(2 * SPARE_CLIENTS):
            assert limiter.check(f"client-{cycle}-{index}").allowed
            assert clients.client_count <= MAX_KEYS + SPARE_CLIENTS
        limiter.sync()
        clock.advance(1)

    for _ in range(100):
        limiter.sync()
        clock.advance(10)

    assert clients.client_count <= SPARE_CLIENTS // 2
    limiter.close()


def test_new_client_is_limited_after_a_flood_of_others_with_a_key_each(clock: Clock) -> None:
    """Clients whose keys were evicted make room themselves."""
    limiter = a_limiter(MemoryStore(), clock, max_keys=4 * SPARE_CLIENTS)
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
    """A client without room for its state keeps what the configuration says of it."""
    limiter = a_limiter(None, clock, trusted_clients=["friend"])
    for index in range(MAX_KEYS + SPARE_CLIENTS):
        limiter.check(f"client-{index}")

    assert limiter.check("friend").trusted
    assert not limiter.check("stranger").trusted
    limiter.close()


@pytest.mark.parametrize(
    "privacy", [{}, {"user_names": "hashed", "keys": [{"env": "NAME_KEY"}]}], ids=["plain", "hashed"]
)
def test_client_that_is_dropped_between_finding_and_locking_counts_in_its_new_state(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, privacy: dict[str, Any]
) -> None:
    """A request that found a state a moment before it was dropped counts in the state that the next request finds."""
    monkeypatch.setenv("NAME_KEY", "k" * 32)
    limiter = a_limiter(None, clock, privacy=privacy)
    clients = registry_of(limiter)
    dropped = clients.get("app")
    for index in range(SPARE_CLIENTS):
        clients.get(f"client-{index}")
    limiter.sync()
    assert dropped.is_gone
    clients.plain = _Outdated(clients.plain, dropped)

    limiter.check("app", "alice")

    assert {} == dropped.keys
    assert LIMIT - 1 == limiter.peek("app", "alice").remaining
    limiter.close()


class _Outdated(dict[str, Any]):
    """Clients by id, of which the first look finds one that is gone."""

    def __init__(self, clients: dict[str, Any], dropped: Any) -> None:
        super().__init__(clients)
        self._found = [dropped]

    def get(self, name: str, default: Any = None) -> Any:
        return self._found.pop() if self._found else super().get(name, default)


@pytest.mark.slow
def test_requests_during_sweeps_and_evictions_are_counted_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """However requests, evictions and sweeps meet, each request is counted exactly once: no key ever has two states."""
    monkeypatch.setattr("oauth_ratelimit.counters.registry.SPARE_CLIENTS", -1_000_000)  # there are always too many
    monkeypatch.setattr("oauth_ratelimit.counters.registry.SWEEP_GAP_S", 0.0)
    store = MemoryStore()
    limiter = a_limiter(store, clock, max_keys=2_000_000, limits={"client": ["1000000/minute"]})
    clients = registry_of(limiter)
    added: list[ClientState] = []
    real_add_key = ClientState.add_key

    def add_key(client: ClientState, username: str | None, now_s: float) -> Bucket:
        added.append(client)
        assert not client.is_gone
        return real_add_key(client, username, now_s)

    monkeypatch.setattr(ClientState, "add_key", add_key)
    is_over = threading.Event()

    def flood(name: str) -> int:
        count = 0
        while not is_over.is_set():
            limiter.check(f"{name}-{count // 500 % 20}")  # the other clients have nothing to send meanwhile
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood, name) for name in ("a", "a", "b", "b")]
        try:
            give_up_s = time.monotonic() + 30.0
            while len({id(client) for client in added}) < 60 and time.monotonic() < give_up_s:
                limiter.sync()
                forget_everything(clients)
                clients.sweep(clock())
        finally:
            is_over.set()
    limiter.sync()

    assert sum(flood.result() for flood in floods) == stored_hits(store)
    assert len({id(client) for client in added}) > 40  # more states than clients: the sweep was at work
    limiter.close()


def forget_everything(clients: ClientRegistry) -> None:
    """Evict every key that has nothing to send, as a shortage would."""
    for client in clients:
        with client.lock:
            states = list(client.keys.values())
        for state in states:
            clients.forget(state)


def test_names_of_megabytes_are_cut_and_stay_apart(limiter: Limiter, store: FailingStore) -> None:
    """Long names are cut wherever they are kept: in memory, in documents and in the log. Two of them stay two."""
    names = ["x" * 5_000_000 + last for last in "ab"]
    with capture_logs() as logs:
        for name in names:
            for _ in range(LIMIT):
                assert limiter.check(name, name).allowed
            assert not limiter.check(name, name).allowed
    limiter.sync()

    kept = [client.client_id for client in registry_of(limiter)]
    kept += [username for client in registry_of(limiter) for username in client.keys if username]
    kept += [part for key in store.latest(10) for part in key if part]
    kept += [name for key in limiter.denial_events._periods for name in key if name]
    kept += [entry[field] for entry in logs for field in ("client_id", "username")]
    assert 2 * 2 * 4 == len(kept)
    assert all(len(name) <= MAX_NAME_LENGTH for name in kept)
    assert 2 == len({Key(*key) for key in store.latest(10)})
