"""Random histories of a fleet: a seed decides what happens, and a failure shrinks to the few steps that it needs."""

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from oauth_ratelimit import limiter
from oauth_ratelimit.sync import cycle, flusher
from tests.simulation.configs import COMMON_COUNT, CONFIGS, OTHER_ROUTES
from tests.simulation.fleet import CLIENTS, USERS, Fleet
from tests.simulation.instance import MANY_KEYS, Instance, identity_of, key_of

SEEDS, STEPS = 60, 200  # histories that the tests run, and the length of each
INSTANCE_COUNT = 3
SHARES = {"network": 0.8, "traffic": 0.7, "clocks": 0.2, "damage": 0.2}  # of histories in which it goes wrong
USUAL_SHARE = 0.45
BATCHES = (2, 3, 400)  # documents of one round trip
WAITS_S = (0.05, 0.3, 1.0, 3.0, 7.0)
LONG_S = 50.0  # some of them are longer than a window
QUIET_S = (150.0, 500.0)  # longer than frames of most windows are kept, and shorter than those of the widest
MONTH_S = 30 * 86_400.0
OFFSETS_S = (-MONTH_S, -3600.0, -300.0, -61.0, -20.0, -1.0, 0.0, 0.0, 1.0, 7.0, 61.0, 300.0, 3600.0, MONTH_S)
GLITCHES_S = (-MONTH_S, -300.0, 300.0, MONTH_S)  # over after two seconds
SHAKEN_S = (0.0, 0.0, -7.0, -13.0)  # up to two frames back, and forward again
SERVER_OFFSETS_S = (-25.0, -5.0, 0.0, 0.0, 5.0, 34.0)  # clocks of two servers agree within a minute
DAMAGE: tuple[tuple[str, Any], ...] = (
    ("requestCounters", []),
    ("requestCounters", {"6": {"0": 0.5}}),
    ("requestCounters", {"6": {"0": -5}}),
    ("requestCounters", "text"),
    ("requestCounters", {"6": []}),
    ("version", "text"),
    ("version", 2**62 + 1),
    ("writers", []),
)


class Event(NamedTuple):
    """Something that can happen."""

    name: str
    weight: float  # how often it does
    happen: Callable[..., object]  # called with the fleet, an instance, and one of each of the options
    options: tuple[Sequence[Any], ...] = ()


def _request(fleet: Fleet, instance: Instance, count: int, client_id: str, username: str | None) -> None:
    for _ in range(count):
        instance.ask(client_id, username, 1 if fleet.rng.random() < 0.9 else fleet.rng.randint(2, 4))


def _request_elsewhere(fleet: Fleet, instance: Instance, count: int, *asked: Any) -> None:
    for _ in range(count):
        instance.ask(*asked[:2], 1, asked[2])


def _limit_batch(_: Fleet, __: Instance, size: int) -> None:
    """Change how many documents and frames are sent at once, until the history ends."""
    cycle.MAX_BATCH = size
    flusher.MAX_COUNTERS = 10 * size


def _wait(fleet: Fleet, _: Instance, seconds: float, is_long: bool) -> None:
    fleet.true_s += seconds
    if is_long:
        fleet.expire()


def _set(fleet: Fleet, _: Instance, name: str, value: Any) -> None:
    setattr(fleet, name, value)


def _cut_off(_: Fleet, instance: Instance) -> None:
    instance.is_cut_off = not instance.is_cut_off


def _release(fleet: Fleet, _: Instance) -> None:
    if fleet.server.held:
        fleet.server.release(fleet.rng.randrange(len(fleet.server.held)))


def _set_clock(fleet: Fleet, _: Instance, offset_s: float, drift: float) -> None:
    fleet.instances[-1].set_clock(offset_s=offset_s, drift=drift)  # always the last one: there are others to be harmed


def _glitch(fleet: Fleet, chosen: Instance, offset_s: float, client_id: str, username: str | None) -> None:
    """Set a clock wrong for two seconds, with requests and cycles meanwhile."""
    instance = chosen if chosen.follows_store_clock else fleet.instances[-1]
    former_s = instance.clock.offset_s
    for second in range(3):
        instance.set_clock(offset_s=offset_s if second < 2 else former_s)
        instance.ask(client_id, username, 1)
        instance.sync(urgent=False, scheduled=True)
        fleet.true_s += 1.0


def _shake_clock(fleet: Fleet, _: Instance, client_id: str, username: str | None) -> None:
    for offset_s in fleet.rng.choices(SHAKEN_S, k=6):
        fleet.instances[-1].set_clock(offset_s=offset_s)
        fleet.instances[-1].ask(client_id, username, 1)


def _replace(fleet: Fleet, instance: Instance, is_killed: bool, max_keys: int | None, is_preloaded: bool) -> None:
    (fleet.kill if is_killed else fleet.stop)(instance)
    other = fleet.start(instance.config, max_keys=max_keys or instance.max_keys)
    if is_preloaded:
        other.preload()


def _make_host(fleet: Fleet, instance: Instance, worker_count: int) -> None:
    fleet.stop(instance)
    fleet.start(instance.config, max_keys=instance.max_keys, worker_count=worker_count)


def _kill_workers(fleet: Fleet, instance: Instance, is_all: bool) -> None:
    """Kill one worker of a host, or all; others go on with the file."""
    if instance.path is not None:
        for _ in instance.each_worker() if is_all else (None,):
            instance.replace_worker()


def _interrupt_end(fleet: Fleet, instance: Instance) -> None:
    fleet.stop(instance, is_interrupted=True)
    fleet.start(instance.config, max_keys=instance.max_keys)


def _change_document(fleet: Fleet, _: Instance, name: str, value: Any) -> None:
    """Remove a document or its counters, or damage a field."""
    documents = sorted(fleet.documents(), key=lambda document: str(key_of(document)))
    if not documents:
        return
    document = fleet.rng.choice(documents)
    if name == "remove":
        fleet.remove(document)
    elif name != "reset":
        fleet.damaged.add(key_of(document))
        fleet.server.replace(identity_of(document), {**document, name: value})
    elif key_of(document) not in fleet.damaged:
        fleet.forget(key_of(document))
        fleet.server.reset(identity_of(document))


def _restore(fleet: Fleet, _: Instance) -> None:
    """Make a backup, or restore the last one."""
    if fleet.backup is None or fleet.rng.random() < 0.5:
        fleet.backup = fleet.server.committed
    else:
        fleet.restore(fleet.backup)


YES, NO, EITHER = (True,), (False,), (True, False)
ALWAYS = (
    Event("requests", 10.0, _request, (range(1, 7), CLIENTS, USERS)),
    Event(
        "sync: urgent, scheduled",
        8.0,
        lambda _, instance, urgent, scheduled: instance.sync(urgent=urgent, scheduled=scheduled),
        ((True, False, False), EITHER),
    ),
    Event("seconds pass", 5.0, _wait, (WAITS_S, NO)),
    Event("a look at what is left", 2.0, lambda _, instance, *key: instance.check_estimate(*key), (CLIENTS, USERS)),
)
# What can go wrong.
DIMENSIONS: dict[str, tuple[Event, ...]] = {
    "traffic": (Event("set", 1.0, _set, (("busy_rate",), (0.0, 0.2, 0.5))),),
    "network": (
        Event("set", 2.0, _set, (("fault_rate",), (0.0, 0.0, 0.2, 0.6, 1.0))),
        Event("set", 1.0, _set, (("only_writes_fail",), EITHER)),
        Event("cut off, or connected again", 1.0, _cut_off),
        Event("a write that was held back arrives", 2.0, _release),
        Event("everything is replicated", 1.0, lambda fleet, _: fleet.server.commit()),
        Event("an election rolls back what no majority has", 0.5, lambda fleet, _: fleet.server.elect()),
    ),
    "expiry": (Event("seconds pass, then TTL removal", 1.0, _wait, ((0.0, 0.0, *QUIET_S), YES)),),
    "clocks": (
        Event("the last one's clock: offset, drift", 1.0, _set_clock, (OFFSETS_S, (0.0,))),
        Event("the last one's clock: offset, drift", 0.5, _set_clock, ((0.0,), (-0.01, 0.01))),
        Event("a clock is wrong for two seconds", 0.5, _glitch, (GLITCHES_S, CLIENTS, USERS)),
        Event("the last one's clock goes back and forth", 1.0, _shake_clock, (CLIENTS, USERS)),
        Event("set", 0.2, _set, (("server_offset_s",), SERVER_OFFSETS_S)),
    ),
    "configuration": (
        Event("configuration", 1.0, lambda _, instance, number: instance.reconfigure(CONFIGS[number]), (range(6),)),
    ),
    "total": (
        Event("configuration", 2.0, lambda _, instance, number: instance.reconfigure(CONFIGS[number]), ((0, 4),)),
        Event("seconds pass", 0.3, _wait, ((LONG_S,), NO)),
    ),
    "restarts": (Event("replaced: killed, room, preload", 0.8, _replace, ((True, False, False), (None,), NO)),),
    "eviction": (Event("replaced: killed, room, preload", 0.5, _replace, (NO, (3, 4, 5, MANY_KEYS), NO)),),
    "removal": (Event("document", 0.5, _change_document, (("remove", "reset"), (None,))),),
    "restore": (Event("backup or restore", 0.5, _restore),),
    "damage": tuple(Event("document", 0.025, _change_document, ((name,), (value,))) for name, value in DAMAGE),
    "preload": (Event("replaced: killed, room, preload", 0.5, _replace, ((True, False, False), (None,), YES)),),
    "stale": (Event("set", 1.0, _set, (("stale_rate",), (0.0, 0.3, 0.8))),),
    "batches": (Event("batch", 0.3, _limit_batch, (BATCHES,)),),
    "interruption": (
        Event("interrupted", 3.0, lambda _, instance, urgent: instance.interrupt(urgent=urgent), ((True, *NO * 2),)),
        Event("interrupted when it ends, and replaced", 0.5, _interrupt_end),
    ),
    "hosts": (
        Event("replaced by a host with workers", 2.0, _make_host, ((2, 3),)),
        Event("workers are killed and replaced: all", 2.0, _kill_workers, ((True, False, False),)),
        Event("set", 1.0, _set, (("kill_rate",), (0.0, 0.1, 0.3))),
        Event(
            "configuration of one worker", 1.0, lambda _, i, number: i.reconfigure_worker(CONFIGS[number]), (range(6),)
        ),
        Event("seconds pass", 1.0, _wait, ((8.0,), NO)),
    ),
    "responses": (
        Event("a request", 6.0, lambda _, instance, *key: instance.hold(*key), (CLIENTS, USERS)),
        Event("responses: failed", 3.0, lambda _, i, failed: i.respond(is_failed=failed), ((True, False, False),)),
    ),
    "routes": (
        Event(
            "configuration",
            1.0,
            lambda _, instance, number: instance.reconfigure(CONFIGS[number]),
            (range(COMMON_COUNT, len(CONFIGS)),),
        ),
        Event("requests elsewhere", 6.0, _request_elsewhere, (range(1, 7), CLIENTS, USERS, OTHER_ROUTES)),
        Event("a look at what is left", 1.0, lambda _, i, *key: i.check_estimate(*key), (CLIENTS, USERS, OTHER_ROUTES)),
    ),
}


class Step(NamedTuple):
    """One thing that happens."""

    event: Event
    seed: int  # chooses the instance and the details, so that a step does the same when others are left out


def dimensions_of(seed: int) -> list[str]:
    """Return what goes wrong in the history of a seed: not all of it, because little could be expected then."""
    rng = random.Random(seed)
    return [name for name in DIMENSIONS if rng.random() < SHARES.get(name, USUAL_SHARE)]


def plan(seed: int, *, steps: int, dimensions: Collection[str]) -> list[Step]:
    rng = random.Random(seed)
    events = [*ALWAYS, *(event for name in dimensions for event in DIMENSIONS[name])]
    drawn = rng.choices(events, [event.weight for event in events], k=steps)
    return [Step(event, rng.getrandbits(32)) for event in drawn]


def run(steps: Sequence[Step]) -> Fleet:
    """Let a history happen, and check the invariants after each step. Errors have the history as a note."""
    rng = random.Random(0)
    fleet = Fleet(rng)
    try:
        with _patched(fleet):
            _run(fleet, steps)
    except AssertionError as exc:
        exc.add_note("\n".join(fleet.history))
        raise
    finally:
        for instance in fleet.instances:
            instance.close_files()
    return fleet


@contextmanager
def _patched(fleet: Fleet) -> Iterator[None]:
    """Let the machines' own clocks be right, and bounds of the package change for one history only."""
    with ExitStack() as stack:
        clocks = SimpleNamespace(time=lambda: fleet.true_s, monotonic=time.monotonic)
        stack.enter_context(patch.object(limiter, "time", clocks))
        for module, name in ((cycle, "MAX_BATCH"), (flusher, "MAX_COUNTERS")):
            stack.enter_context(patch.object(module, name, getattr(module, name)))
        yield


def _run(fleet: Fleet, steps: Sequence[Step]) -> None:
    rng = fleet.rng
    for _ in range(INSTANCE_COUNT):
        fleet.start(CONFIGS[0])
    for (name, _, happen, options), step_seed in steps:
        rng.seed(step_seed)
        number = rng.randrange(INSTANCE_COUNT)
        drawn = [rng.choice(option) for option in options]
        fleet.history.append(f"instance {number}: {name} {drawn or ''}")
        instance = fleet.instances[number]
        instance.at = rng.randrange(len(instance.workers))
        happen(fleet, instance, *drawn)
        fleet.check_nothing_doubled()
        fleet.check_removals()
        if instance in fleet.instances:  # one that has ended would open its file again
            instance.check_memory()
    fleet.history.append("everything arrives, and all synchronise")
    fleet.settle()
    fleet.check_counts()
    fleet.check_agreement()
    fleet.history.append("time passes, and all make requests")
    fleet.check_marks()
    fleet.check_memory()
    fleet.check_counts()


def check(seed: int, *, steps: int = STEPS, dimensions: Collection[str] | None = None) -> None:
    """Run the history of a seed, which also chooses the dimensions if there are none.

    If it breaks an invariant, the error has the shortest history found that does so as a note.
    """
    dimensions = dimensions_of(seed) if dimensions is None else dimensions
    planned = plan(seed, steps=steps, dimensions=dimensions)
    if failure_of(planned) is None:
        return
    failure = failure_of(shrink(planned))
    assert failure is not None
    failure.add_note(f"seed {seed}, {steps} steps, dimensions: {', '.join(dimensions)}")
    raise failure


def shrink(steps: list[Step]) -> list[Step]:
    """Return a part of a failing history that still fails, and from which no single step can be left out."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            shorter = steps[:start] + steps[start + size :]
            if failure_of(shorter) is None:
                start += size
            else:
                steps = shorter
        size //= 2
    return steps


def failure_of(steps: Sequence[Step]) -> AssertionError | None:
    try:
        run(steps)
    except AssertionError as exc:
        return exc
    return None
