"""What keys cost in memory, and what many of them do to the garbage collector and to requests."""

import gc
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import subjects
from benchmarks.processes import in_new_process, resident_bytes
from benchmarks.results import Result
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.base import Change, Snapshot, WriteResult

CLIENT_COUNT = 25
KEYS_PER_CYCLE, CYCLE_S = 50_000, 1.0
ROUND_COUNT = 3
FRAME_S, WINDOW_S = 6, 60


def run(*, short: bool) -> Iterator[Result]:
    """Yield bytes per key, growth over rounds of new keys, and pauses."""
    key_count = 100_000 if short else 1_000_000
    yield from in_new_process(_size, key_count)
    yield from in_new_process(_growth, key_count // 4)
    yield from in_new_process(_arrival, key_count)


class AgreeingStore:
    """A store that keeps nothing, so that only the limiter's own memory is seen."""

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Snapshot]:
        """Know no document."""
        return {}

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Agree."""
        return WriteResult()

    def latest(self, count: int) -> Mapping[Key, Snapshot]:
        """Know no document."""
        return {}

    def clock_offset_s(self) -> float:
        """Have the same clock."""
        return 0.0

    def close(self) -> None:
        """Nothing is held."""


class _Fleet:
    """A limiter, and requests of many users of some clients."""

    def __init__(self, key_count: int) -> None:
        self.now_s = 1_700_000_000.0
        config = load_config(subjects.settings_of(max_keys=2 * key_count))
        self.limiter = Limiter(config, AgreeingStore(), clock=lambda: self.now_s)
        self._key_count = key_count

    def hit(self, *, first: int = 0, cycle_count: int = KEYS_PER_CYCLE) -> float:
        """Have each key ask once, and return the longest time that one waited, in ms.

        The ids come as they come with requests: new strings each time. A sync cycle runs now and then.
        """
        check, timer, longest_s = self.limiter.check, time.perf_counter, 0.0
        for number in range(first, first + self._key_count):
            client_id, username = f"partner-app-{number % CLIENT_COUNT}", f"user-{number:06d}@example.com"
            started_s = timer()
            check(client_id, username)
            longest_s = max(longest_s, timer() - started_s)
            if (number + 1) % cycle_count == 0:
                self.now_s += CYCLE_S
                self.limiter.sync()
        return longest_s * 1000


def _size(key_count: int) -> list[Result]:
    fleet = _Fleet(key_count)
    fleet.limiter.check("partner-app-0", None)
    fleet.limiter.sync()
    gc.collect()
    before = resident_bytes()
    for _ in range(2):  # so that each key has a past
        fleet.hit()
        fleet.now_s += FRAME_S
    fleet.limiter.sync()
    gc.collect()
    known = resident_bytes() - before
    started_s = time.perf_counter()
    gc.collect()
    collected_s = time.perf_counter() - started_s
    gc.freeze()
    started_s = time.perf_counter()
    gc.collect()
    frozen_s = time.perf_counter() - started_s
    name = f"memory/{key_count:,} keys"
    return [
        Result(f"{name}/each, ids included", known / key_count, "bytes per key", "<= 500"),
        Result(f"{name}/full garbage collection", collected_s * 1000, "ms"),
        Result(f"{name}/full garbage collection after gc.freeze()", frozen_s * 1000, "ms"),
    ]


def _growth(key_count: int) -> list[Result]:
    """New keys come, go idle and are forgotten, again and again."""
    fleet = _Fleet(key_count)
    full, kept, objects = [], [], []
    for index in range(ROUND_COUNT + 1):
        fleet.hit(first=index * key_count)
        fleet.now_s += CYCLE_S
        fleet.limiter.sync()
        full.append(resident_bytes())
        while fleet.limiter.sync().key_count:
            fleet.now_s += WINDOW_S
        gc.collect()
        kept.append(resident_bytes())
        objects.append(len(gc.get_objects()))
    name = f"memory/{key_count:,} new keys, forgotten, {ROUND_COUNT + 1} times"
    return [
        Result(f"{name}/when full, last against second", full[-1] / full[1], "x", "<= 1.02"),
        Result(f"{name}/when empty, last against second", kept[-1] / kept[1], "x"),
        Result(f"{name}/objects when empty, last less second", objects[-1] - objects[1], "objects", "<= 0"),
    ]


def _arrival(key_count: int) -> list[Result]:
    fleet = _Fleet(key_count)
    longest_ms = fleet.hit(cycle_count=2 * key_count)
    fleet = _Fleet(key_count)
    gc.collect()
    gc.disable()
    without_ms = fleet.hit(cycle_count=2 * key_count)
    name = f"memory/{key_count:,} keys at once"
    return [
        Result(f"{name}/longest check", longest_ms, "ms"),
        Result(f"{name}/longest check, garbage collector off", without_ms, "ms"),
    ]
