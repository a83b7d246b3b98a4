"""Memory per key, pauses of the garbage collector, and growth under a flood of users."""

import gc
import time
from collections.abc import Iterator, Sequence

from benchmarks import subjects
from benchmarks.measuring import in_new_process, resident_bytes
from benchmarks.results import Result
from benchmarks.subjects import Clock
from oauth_ratelimit.store.base import Change, WriteResult
from oauth_ratelimit.store.memory import MemoryStore

CLIENT_COUNT = 25
KEYS_PER_CYCLE, CYCLE_S = 50_000, 1.0
ROUND_COUNT = 3
FRAME_S, WINDOW_S = 6, 60
FLOOD_FACTOR = 5  # users of a flood, as a multiple of max_keys
NAMES = {
    "short names": "user-{:012x}",
    "512 letters": "{:0512x}",
    "512 letters of four bytes": "{:012x}" + "\U0001f600" * 500,
    "100,000 letters, cut": "{:0100000x}",
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield bytes per key, growth over rounds of new keys, pauses, and growth under a flood."""
    key_count = 100_000 if short else 1_000_000
    yield from in_new_process(_size, key_count)
    yield from in_new_process(_growth, key_count // 4)
    yield from in_new_process(_arrival, key_count)
    for kind in NAMES:
        yield in_new_process(_flood, kind, 20_000 if short else 100_000)


class EmptyStore(MemoryStore):
    """A store that accepts everything and keeps nothing, so that only the limiter's own memory counts."""

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Accept all changes."""
        return WriteResult()


class _Load:
    """A limiter, and requests of many users of some clients."""

    def __init__(self, key_count: int) -> None:
        self.clock = Clock()
        self.limiter = subjects.limiter(subjects.settings_of(max_keys=2 * key_count), EmptyStore(), clock=self.clock)
        self._key_count = key_count

    def hit(self, *, first: int = 0, keys_per_cycle: int = KEYS_PER_CYCLE) -> float:
        """Check each key once, and return the longest check in ms. The ids are new strings, as in requests."""
        check, timer, longest_s = self.limiter.check, time.perf_counter, 0.0
        for number in range(first, first + self._key_count):
            client_id, username = f"partner-app-{number % CLIENT_COUNT}", f"user-{number:06d}@example.com"
            started_s = timer()
            check(client_id, username)
            longest_s = max(longest_s, timer() - started_s)
            if (number + 1) % keys_per_cycle == 0:
                self.clock.now_s += CYCLE_S
                self.limiter.sync()
        return longest_s * 1000


def _size(key_count: int) -> list[Result]:
    load = _Load(key_count)
    load.limiter.check("partner-app-0", None)
    load.limiter.sync()
    gc.collect()
    before = resident_bytes()
    for _ in range(2):  # so that each key has a past
        load.hit()
        load.clock.now_s += FRAME_S
    load.limiter.sync()
    gc.collect()
    grown_bytes = resident_bytes() - before
    collected_s = _collection_s()
    gc.freeze()
    name = f"memory/{key_count:,} keys"
    return [
        Result(f"{name}/each, ids included", grown_bytes / key_count, "bytes per key", "<= 450"),
        Result(f"{name}/full garbage collection", collected_s * 1000, "ms"),
        Result(f"{name}/full garbage collection after gc.freeze()", _collection_s() * 1000, "ms"),
    ]


def _collection_s() -> float:
    started_s = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started_s


def _growth(key_count: int) -> list[Result]:
    """New keys come, become idle and are forgotten, several times."""
    load = _Load(key_count)
    full, empty, objects = [], [], []
    for index in range(ROUND_COUNT + 1):
        load.hit(first=index * key_count)
        load.clock.now_s += CYCLE_S
        load.limiter.sync()
        full.append(resident_bytes())
        while load.limiter.sync().key_count:
            load.clock.now_s += WINDOW_S
        gc.collect()
        empty.append(resident_bytes())
        objects.append(len(gc.get_objects()))
    name = f"memory/{key_count:,} new keys, forgotten, {ROUND_COUNT + 1} times"
    return [
        Result(f"{name}/when full, last against second", full[-1] / full[1], "x", "<= 1.02"),
        Result(f"{name}/when empty, last against second", empty[-1] / empty[1], "x"),
        Result(f"{name}/objects when empty, last less second", objects[-1] - objects[1], "objects", "<= 0"),
    ]


def _arrival(key_count: int) -> list[Result]:
    longest_ms = _Load(key_count).hit(keys_per_cycle=2 * key_count)
    load = _Load(key_count)
    gc.collect()
    gc.disable()
    name = f"memory/{key_count:,} keys at once"
    return [
        Result(f"{name}/longest check", longest_ms, "ms"),
        Result(f"{name}/longest check, garbage collector off", load.hit(keys_per_cycle=2 * key_count), "ms"),
    ]


def _flood(kind: str, max_keys: int) -> Result:
    """Return the growth of a process that sees more users than ``max_keys``."""
    clock, most = Clock(), 0
    limiter = subjects.limiter({"max_keys": max_keys, "limits": {"user": ["10/minute"]}}, clock=clock)
    gc.collect()
    before = resident_bytes()
    for number in range(FLOOD_FACTOR * max_keys):
        limiter.check("some-app", NAMES[kind].format(number))
        if number % 10_000 == 0:
            most = max(most, resident_bytes() - before)
            limiter.sync()
            clock.now_s += 0.01  # so little that hardly any key leaves its window
    return Result(f"memory/flood of {FLOOD_FACTOR} x max_keys users, {kind}/each key", most / max_keys, "bytes")
