"""Memory per key, pauses of the garbage collector, and growth under a flood of users."""

import gc
import time
from collections.abc import Iterator, Sequence

from benchmarks import subjects
from benchmarks.measuring import in_new_process, resident_bytes
from benchmarks.results import Result
from oauth_ratelimit.store.base import Change, WriteResult
from testbed.clock import Clock
from testbed.memory_store import MemoryStore

CLIENT_COUNT = 25
KEYS_PER_CYCLE, CYCLE_S = 50_000, 1.0
FRAME_S = 6
FLOOD_FACTOR = 5  # users of a flood, as a multiple of max_keys
NAMES = {
    "short names": "user-{:012x}",
    "512 letters": "{:0512x}",
    "512 letters of four bytes": "{:012x}" + "\U0001f600" * 500,
    "100,000 letters, cut": "{:0100000x}",
}


def run(*, short: bool) -> Iterator[Result]:
    """Yield bytes per key, pauses, and growth under a flood."""
    key_count = 100_000 if short else 1_000_000
    yield from in_new_process(_size, key_count, "", ["1000/minute"], "<= 450")
    yield in_new_process(_size, key_count, ", two tiers", ["1000/minute", "100/10s"], "<= 560")[0]
    for kind in NAMES:
        yield in_new_process(_flood, kind, 20_000 if short else 100_000)


class EmptyStore(MemoryStore):
    """A store that accepts everything and keeps nothing, so that only the limiter's own memory counts."""

    def compare_and_set(self, writer: str, changes: Sequence[Change]) -> WriteResult:
        """Accept all changes."""
        return WriteResult()


def _size(key_count: int, tiers: str, limits: Sequence[str], goal: str) -> list[Result]:
    """Check each key twice, so that it has a past. The ids are new strings, as in requests."""
    clock = Clock()
    config = {"mode": "enforce", "limits": {"user": limits}, "max_keys": 2 * key_count}
    limiter = subjects.limiter(config, EmptyStore(), clock=clock)
    limiter.check("partner-app-0", None)
    limiter.sync()
    gc.collect()
    before = resident_bytes()
    pauses = _Pauses()

    def check_all() -> list[float]:
        pauses.taken_s.clear()
        for number in range(key_count):
            limiter.check(f"partner-app-{number % CLIENT_COUNT}", f"user-{number:06d}@example.com")
            if (number + 1) % KEYS_PER_CYCLE == 0:
                clock.now_s += CYCLE_S
                limiter.sync()
        clock.now_s += FRAME_S
        return pauses.taken_s.copy()

    rounds_s = {"": check_all(), " once all keys are known": check_all()}
    limiter.sync()
    gc.collect()
    grown_bytes = resident_bytes() - before
    gc.freeze()
    rounds_s[" after gc.freeze()"] = check_all()
    name = f"memory/{key_count:,} keys{tiers}"
    return [
        Result(f"{name}/each, ids included", grown_bytes / key_count, "bytes per key", goal),
        *(
            result
            for when, taken_s in rounds_s.items()
            for result in (
                Result(f"{name}/full garbage collection{when}", 1000 * max(taken_s, default=0.0), "ms"),
                Result(f"{name}/full garbage collections{when}", len(taken_s), ""),
            )
        ),
    ]


class _Pauses:
    """CPU time of each full collection of the garbage collector."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun_s = time.thread_time()
        elif info["generation"] == 2:
            self.taken_s.append(time.thread_time() - self._begun_s)


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
