"""
The longest pause of a request where much happens at once: is there a cliff?

Many keys arrive; every client is at its limit; all keys cross the boundary of a frame; a flush loses every race. Each
request leaves a reference cycle behind, as those of web frameworks do, so that the garbage collector gets to run.

CPU time of the requesting thread is all that a request does, the collector included. The clock on the wall has the
waits for a core and for the interpreter in it, too: compare it with the bare runs, which do nothing but that.

Everything runs three times, each in a new process, and the run whose longest pause is the smallest counts: what is ours
comes back in every run, what the host does not.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from benchmarks import subjects
from benchmarks.memory import AgreeingStore
from benchmarks.processes import in_new_process
from benchmarks.results import Result
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.collector import FullCollections
from oauth_ratelimit.store.base import CounterStore
from oauth_ratelimit.store.memory import MemoryStore

ON, PUT_OFF = "collector on", "gc_interval"
COLLECTORS = (ON, PUT_OFF)
GC_INTERVAL_S = 86_400.0  # does not end meanwhile
RUN_COUNT = 3
CLIENT_COUNT = 25
STEP_S = 0.001  # between two requests beside a flush
FRAME_S = 6
GOAL = "<= 5"  # ms


def run(*, short: bool) -> Iterator[Result]:
    """
    Yield the longest pauses.
    """
    key_count, client_count, conflict_count = (100_000, 10_000, 20_000) if short else (1_000_000, 100_000, 100_000)
    yield from _calmest(_bare, key_count)
    yield from _calmest(_bare_collection, key_count)
    for collector in COLLECTORS:
        yield from _calmest(_arrival, key_count, collector)
        yield from _calmest(_one_client, key_count, collector)
        yield from _calmest(_at_limits, client_count, collector)
        yield from _calmest(_frame_boundary, key_count, collector)
    yield from _calmest(_beside_loop)
    for collector in COLLECTORS:
        yield from _calmest(_conflicts, conflict_count, collector)


def _calmest(scenario: Callable[..., list[Result]], *arguments: object) -> list[Result]:
    """
    Return the results of the run whose longest pause is the smallest.
    """
    runs = [in_new_process(scenario, *arguments) for _ in range(RUN_COUNT)]
    return min(runs, key=lambda results: max(result.value for result in results))


@dataclass(slots=True)
class _Pauses:
    """
    The longest request.
    """

    cpu_ns: int = 0
    wall_ns: int = 0

    def serve(self, requests: Iterable[tuple[str, str | None]], check: Callable[..., object]) -> None:
        """
        Ask for each, and note the longest.
        """
        wall, cpu = time.perf_counter_ns, time.thread_time_ns
        for client_id, username in requests:
            wall_ns, cpu_ns = wall(), cpu()
            _leave_cycle()
            check(client_id, username)
            cpu_ns, wall_ns = cpu() - cpu_ns, wall() - wall_ns
            if cpu_ns > self.cpu_ns:
                self.cpu_ns = cpu_ns
            if wall_ns > self.wall_ns:
                self.wall_ns = wall_ns

    def results(self, name: str, *, goal: str | None = GOAL) -> list[Result]:
        """
        Return both times.
        """
        return [
            Result(f"cliff/{name}/longest, CPU", self.cpu_ns / 1e6, "ms", goal),
            Result(f"cliff/{name}/longest, wall", self.wall_ns / 1e6, "ms", goal),
        ]


def _leave_cycle() -> None:
    cycle: list[object] = []
    cycle.append(cycle)


def _set(collector: str) -> None:
    """
    Have what is there in the state that a process has reached which runs for long.
    """
    gc.collect()
    gc.enable()
    if collector == PUT_OFF:
        FullCollections(clock=time.monotonic).run(GC_INTERVAL_S)


@dataclass(slots=True)
class _Fleet:
    """
    A limiter on a clock of its own, and many keys.
    """

    key_count: int
    limit: int = subjects.NO_LIMIT
    kind: str = "user"
    store: CounterStore = field(default_factory=AgreeingStore)
    client_count: int = CLIENT_COUNT
    now_s: float = subjects.STANDING_S // FRAME_S * FRAME_S + 1.0
    limiter: Limiter = field(init=False)

    def __post_init__(self) -> None:
        limits = {self.kind: [{"limit": self.limit, "window": 10 * FRAME_S}]}
        settings = subjects.settings_of(limits=limits, max_keys=2 * self.key_count)
        self.limiter = Limiter(load_config(settings), self.store, clock=lambda: self.now_s)

    def requests(self, *, first: int = 0) -> Iterator[tuple[str, str | None]]:
        """
        Yield one request of each key. Ids are new strings each time, as they come with requests.
        """
        for number in range(first, self.key_count):
            if self.kind == "client":
                yield f"partner-app-{number:06d}", None
            else:
                yield f"partner-app-{number % self.client_count}", f"user-{number:06d}@example.com"

    def fill(self) -> None:
        """
        Have each key ask once, and synchronise.
        """
        gc.disable()  # until the caller sets it
        for client_id, username in self.requests():
            self.limiter.check(client_id, username)
        self.limiter.sync()


def _bare(request_count: int) -> list[Result]:
    """
    Nothing but the reference cycle: what the machine and the timers themselves come to. And putting names into one
    dictionary, which is copied whenever it is full.
    """
    pauses, growing, requests = _Pauses(), _Pauses(), list(_Fleet(request_count).requests())
    pauses.serve(requests, lambda *_: None)
    names: dict[str | None, str] = {}
    gc.disable()  # what it costs is in the other rows
    growing.serve(requests, lambda client_id, username: names.setdefault(username, client_id))
    return [
        *pauses.results(f"bare, {request_count:,} requests", goal=None),
        *growing.results(f"bare, {request_count:,} names put into a dictionary", goal=None),
    ]


class _Bare:
    """
    The least that a key can be if it is an object.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def _bare_collection(key_count: int) -> list[Result]:
    """
    One look of the collector at a dictionary of as many objects with nothing in them.
    """
    keys = {f"user-{number:06d}@example.com": _Bare() for number in range(key_count)}
    gc.collect()
    cpu_ns = time.thread_time_ns()
    gc.collect()
    cpu_ns = time.thread_time_ns() - cpu_ns
    return [Result(f"cliff/bare, {len(keys):,} objects/full garbage collection", cpu_ns / 1e6, "ms")]


def _arrival(key_count: int, collector: str) -> list[Result]:
    """
    Keys that nobody has seen before, of some clients.
    """
    return _arrive(_Fleet(key_count), collector, f"{key_count:,} keys arrive")


def _one_client(key_count: int, collector: str) -> list[Result]:
    """
    The same, all of one client: one dictionary holds them.
    """
    return _arrive(_Fleet(key_count, client_count=1), collector, f"{key_count:,} keys of one client arrive")


def _arrive(fleet: _Fleet, collector: str, name: str) -> list[Result]:
    pauses = _Pauses()
    requests = list(fleet.requests())  # so that they do not count as the limiter's
    _set(collector)
    pauses.serve(requests, fleet.limiter.check)
    return pauses.results(f"{name}/{collector}")


def _at_limits(client_count: int, collector: str) -> list[Result]:
    """
    Each client has used up its limit, and asks twice more: the first denial is worked out, the second one repeats it.
    """
    fleet, pauses = _Fleet(client_count, limit=1, kind="client"), _Pauses()
    fleet.fill()
    _set(collector)
    for _ in range(2):
        pauses.serve(fleet.requests(), fleet.limiter.check)
    return pauses.results(f"{client_count:,} clients at their limits/{collector}")


def _frame_boundary(key_count: int, collector: str) -> list[Result]:
    """
    All keys are asked for in one frame, and then in the next one.
    """
    fleet, pauses = _Fleet(key_count), _Pauses()
    fleet.fill()
    _set(collector)
    fleet.now_s += FRAME_S
    pauses.serve(fleet.requests(), fleet.limiter.check)
    return pauses.results(f"{key_count:,} keys cross a frame boundary/{collector}")


def _conflicts(key_count: int, collector: str) -> list[Result]:
    """
    Another limiter has written every key, so each write of ours loses, reads, merges and goes again.
    """
    store = MemoryStore()
    ours, rival = _Fleet(key_count, store=store), _Fleet(key_count, store=store)
    for fleet in (rival, ours, ours, rival):  # ours knows the documents by its second cycle; rival then adds to them
        fleet.now_s += 1
        fleet.fill()
    ours.now_s += 1
    for client_id, username in ours.requests():
        ours.limiter.check(client_id, username)
    names = list(ours.requests())
    reports = []
    _set(collector)
    flush = threading.Thread(target=lambda: reports.append(ours.limiter.sync()), name="flush")
    pauses = _serve_beside(flush, names, ours.limiter.check)
    if reports[0].conflict_count < key_count:
        raise RuntimeError(f"not {key_count} conflicts: {reports[0]}")
    return pauses.results(f"{key_count:,} conflicts in a flush/{collector}")


def _beside_loop() -> list[Result]:
    """
    What a request waits for the interpreter beside a thread that does nothing but count.
    """

    def count() -> None:
        until_s = time.perf_counter() + 2.0
        while time.perf_counter() < until_s:
            pass

    pauses = _serve_beside(threading.Thread(target=count, name="count"), [("app", "user")], lambda *_: None)
    return pauses.results("bare, beside a thread that counts", goal=None)


def _serve_beside(
    thread: threading.Thread, names: list[tuple[str, str | None]], check: Callable[..., object]
) -> _Pauses:
    """
    Serve a request each millisecond while the thread runs. On the wall a request counts from when it was due.
    """
    longest, number = _Pauses(), 0
    thread.start()
    while thread.is_alive():
        due_ns = time.perf_counter_ns() + int(STEP_S * 1e9)
        time.sleep(STEP_S)
        one = _Pauses()
        one.serve((names[number * 7919 % len(names)],), check)
        number += 1
        longest.cpu_ns = max(longest.cpu_ns, one.cpu_ns)
        longest.wall_ns = max(longest.wall_ns, time.perf_counter_ns() - due_ns)
    thread.join()
    return longest
