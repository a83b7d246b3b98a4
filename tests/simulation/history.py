"""Random histories of a fleet: a seed decides what happens, and a failure shrinks to the few steps that it needs."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from bson import encode

from tests.simulation.configs import CONFIGS, PLAIN, WITH_TOTAL
from tests.simulation.fleet import Fleet
from tests.simulation.instance import MANY_KEYS, Instance, key_of

CLIENTS = ("shop", "app")
USERS = (None, "ann", "bob")
INSTANCE_COUNT = 3
WAITS_S = (0.05, 0.3, 1.0, 3.0, 7.0)
LONG_S = 50.0  # some of them are longer than a window
QUIET_S = (150.0, 500.0)  # longer than frames of most windows are kept, and shorter than those of the widest
OFFSETS_S = (-3600.0, -300.0, -61.0, -7.0, -1.0, 0.0, 0.0, 1.0, 7.0, 61.0, 300.0, 3600.0)
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

Action = Callable[[Fleet, Instance, random.Random], str]


def _request(_fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    count, client_id, username = rng.randint(1, 6), rng.choice(CLIENTS), rng.choice(USERS)
    for _ in range(count):
        instance.ask(client_id, username, 1 if rng.random() < 0.9 else rng.randint(2, 4))
    return f"{count} requests of {client_id}, user {username}"


def _estimate(_fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    client_id, username = rng.choice(CLIENTS), rng.choice(USERS)
    instance.check_estimate(client_id, username)
    return f"looks at what is left of {client_id}, user {username}"


def _sync(_fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    urgent = rng.random() < 0.3
    instance.sync(urgent=urgent)
    return "urgent sync" if urgent else "sync"


def _wait(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    seconds = rng.choice(WAITS_S)
    fleet.true_s += seconds
    return f"{seconds} s pass"


def _network(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    fleet.fault_rate = rng.choice((0.0, 0.0, 0.2, 0.6, 1.0))
    fleet.only_writes_fail = rng.random() < 0.5
    return f"{fleet.fault_rate:.0%} of the {'writes' if fleet.only_writes_fail else 'commands'} fail"


def _cut_off(_fleet: Fleet, instance: Instance, _rng: random.Random) -> str:
    instance.is_cut_off = not instance.is_cut_off
    return "is cut off" if instance.is_cut_off else "reaches the server again"


def _release(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    if not fleet.server.held:
        return "nothing is held back"
    fleet.server.release(rng.randrange(len(fleet.server.held)))
    return "a write that was held back arrives"


def _replicate(fleet: Fleet, _instance: Instance, _rng: random.Random) -> str:
    fleet.server.commit()
    return "everything is replicated"


def _elect(fleet: Fleet, _instance: Instance, _rng: random.Random) -> str:
    fleet.server.elect()
    return "an election rolls back what no majority has"


def _expire(fleet: Fleet, _instance: Instance, _rng: random.Random) -> str:
    fleet.expire()
    return "TTL removal"


def _quiet(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    seconds = rng.choice(QUIET_S)
    fleet.true_s += seconds
    fleet.expire()
    return f"{seconds} s pass, then TTL removal"


def _step_clock(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    instance = fleet.instances[-1]  # always the last one, so that there are others to be harmed
    instance.set_clock(offset_s=rng.choice(OFFSETS_S))
    return f"the last one's clock is {instance.clock.offset_s} s ahead"


def _shake_clock(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    instance, client_id, username = fleet.instances[-1], rng.choice(CLIENTS), rng.choice(USERS)
    steps_s = rng.choices(SHAKEN_S, k=6)
    for offset_s in steps_s:
        instance.set_clock(offset_s=offset_s)
        instance.ask(client_id, username, 1)
    return f"the last one's clock is ahead by {steps_s} s, with a request of {client_id}, user {username} at each"


def _elect_other_clock(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    fleet.server_offset_s = rng.choice(SERVER_OFFSETS_S)
    return f"the new primary's clock is {fleet.server_offset_s} s ahead"


def _drift(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    instance = fleet.instances[-1]
    instance.set_clock(drift=rng.choice((-0.01, 0.01)))
    return f"the last one's clock drifts by {instance.clock.drift:.0%}"


def _reconfigure(_fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    number = rng.randrange(len(CONFIGS))
    instance.reconfigure(CONFIGS[number])
    return f"configuration {number}"


def _toggle_total(_fleet: Fleet, instance: Instance, _rng: random.Random) -> str:
    config = PLAIN if instance.config is WITH_TOTAL else WITH_TOTAL
    instance.reconfigure(config)
    return f"a limit of all users {'goes' if config is PLAIN else 'comes'}"


def _wait_long(fleet: Fleet, _instance: Instance, _rng: random.Random) -> str:
    fleet.true_s += LONG_S
    return f"{LONG_S} s pass"


def _kill(fleet: Fleet, instance: Instance, _rng: random.Random) -> str:
    fleet.kill(instance)
    fleet.start(instance.config, max_keys=instance.max_keys, reserves=instance.reserves)
    return "killed, another starts"


def _restart(fleet: Fleet, instance: Instance, _rng: random.Random) -> str:
    fleet.stop(instance)
    fleet.start(instance.config, max_keys=instance.max_keys, reserves=instance.reserves)
    return "ends in good order, another starts"


def _change_memory(fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    max_keys = rng.choice((3, 4, 5, MANY_KEYS))
    fleet.stop(instance)
    fleet.start(instance.config, max_keys=max_keys, reserves=instance.reserves)
    return f"ends in good order, another with room for {max_keys} keys starts"


def _change_reservation(fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    reserves, max_keys = rng.random() < 0.7, rng.choice((4, MANY_KEYS))
    fleet.stop(instance)
    fleet.start(instance.config, max_keys=max_keys, reserves=reserves)
    return f"ends in good order, another that {'reserves' if reserves else 'flushes'} with {max_keys} keys starts"


def _remove(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    document = _some_document(fleet, rng)
    if document is None:
        return "no document to remove"
    fleet.forget(key_of(document))
    fleet.server.remove(encode({"_id": document["_id"]}))
    return f"the document of {key_of(document)} is removed"


def _reset(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    document = _some_document(fleet, rng)
    if document is None or key_of(document) in fleet.damaged:
        return "no document to reset"
    fleet.forget(key_of(document))
    fleet.server.reset(encode({"_id": document["_id"]}))
    return f"{key_of(document)} is reset"


def _restore(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    if fleet.backup is None or rng.random() < 0.5:
        fleet.backup = fleet.server.backup()
        return "backup"
    fleet.restore(fleet.backup)
    return "restore from the backup"


def _erase(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    username, client_id = rng.choice(("ann", "bob")), rng.choice((None, None, *CLIENTS))
    fleet.erase(username, client_id)
    return f"user {username} is erased at {client_id or 'all clients'}"


def _start_preloaded(fleet: Fleet, instance: Instance, rng: random.Random) -> str:
    is_killed = rng.random() < 0.3
    (fleet.kill if is_killed else fleet.stop)(instance)
    fleet.start(instance.config, max_keys=instance.max_keys, reserves=instance.reserves).preload()
    return f"{'killed' if is_killed else 'ends in good order'}, another starts and reads the busiest keys"


def _damage(fleet: Fleet, _instance: Instance, rng: random.Random) -> str:
    document = _some_document(fleet, rng)
    if document is None:
        return "no document to damage"
    name, value = rng.choice(DAMAGE)
    fleet.damaged.add(key_of(document))
    fleet.server.replace(encode({"_id": document["_id"]}), {**document, name: value})
    return f"{name} of {key_of(document)} becomes {value!r}"


def _some_document(fleet: Fleet, rng: random.Random) -> dict[str, Any] | None:
    documents = sorted(fleet.documents(), key=lambda document: str(key_of(document)))
    return rng.choice(documents) if documents else None


# What can go wrong, with how often it does.
DIMENSIONS: dict[str, tuple[tuple[Action, float], ...]] = {
    "network": ((_network, 2.0), (_cut_off, 1.0), (_release, 2.0), (_replicate, 1.0), (_elect, 0.5)),
    "expiry": ((_expire, 0.5), (_quiet, 0.5)),
    "clocks": ((_step_clock, 1.0), (_shake_clock, 1.0), (_drift, 0.5), (_elect_other_clock, 0.2)),
    "configuration": ((_reconfigure, 1.0),),
    "total": ((_toggle_total, 1.0), (_wait_long, 0.3)),
    "restarts": ((_kill, 0.3), (_restart, 0.5)),
    "eviction": ((_change_memory, 0.5),),
    "reservation": ((_change_reservation, 0.5),),
    "removal": ((_remove, 0.3), (_reset, 0.2)),
    "restore": ((_restore, 0.5),),
    "damage": ((_damage, 0.2),),
    "erase": ((_erase, 0.5),),
    "preload": ((_start_preloaded, 0.5),),
}
ALWAYS: tuple[tuple[Action, float], ...] = ((_request, 10.0), (_sync, 8.0), (_wait, 5.0), (_estimate, 2.0))


class Step(NamedTuple):
    """One thing that happens.

    Attributes:
        action: To which instance it happens is drawn from ``seed``, as all details are.
        seed: So that a step does the same when others are left out.
    """

    action: Action
    seed: int


def plan(seed: int, *, steps: int, dimensions: Collection[str] = tuple(DIMENSIONS)) -> list[Step]:
    """Return a history that is still to happen."""
    rng = random.Random(seed)
    choices = [*ALWAYS, *(choice for name in dimensions for choice in DIMENSIONS[name])]
    drawn = rng.choices([action for action, _ in choices], [weight for _, weight in choices], k=steps)
    return [Step(action, rng.getrandbits(32)) for action in drawn]


def run(steps: Sequence[Step]) -> Fleet:
    """Let a history happen, and check the invariants after each step.

    Raises:
        AssertionError: One is broken. The history is attached as a note.
    """
    rng = random.Random(0)
    fleet = Fleet(rng)
    for _ in range(INSTANCE_COUNT):
        fleet.start(CONFIGS[0])
    try:
        for step in steps:
            rng.seed(step.seed)
            number = rng.randrange(INSTANCE_COUNT)
            instance = fleet.instances[number]
            fleet.history.append(f"instance {number}: {step.action(fleet, instance, rng)}")
            fleet.check_nothing_doubled()
            fleet.check_removals()
            instance.check_memory()
            instance.check_one_state()
        fleet.history.append("everything arrives, and all synchronise")
        fleet.settle()
        fleet.check_nothing_doubled()
        fleet.check_nothing_lost()
        fleet.check_agreement()
        if fleet.erased:
            fleet.history.append("erased users are erased again, and come back")
            fleet.check_erased()
            fleet.check_nothing_doubled()
            fleet.check_nothing_lost()
            fleet.check_agreement()
        fleet.history.append("time passes, and all make requests")
        fleet.check_marks()
        fleet.check_nothing_doubled()
        fleet.check_nothing_lost()
        fleet.check_removals()
    except AssertionError as exc:
        exc.add_note("\n".join(fleet.history))
        raise
    return fleet


def check(seed: int, *, steps: int, dimensions: Collection[str] = tuple(DIMENSIONS)) -> None:
    """Run the history of a seed.

    Raises:
        AssertionError: It breaks an invariant. The shortest history found that does so is attached as a note.
    """
    planned = plan(seed, steps=steps, dimensions=dimensions)
    if _failure(planned) is None:
        return
    failure = _failure(shrink(planned))
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
            if _failure(shorter) is None:
                start += size
            else:
                steps = shorter
        size //= 2
    return steps


def _failure(steps: Sequence[Step]) -> AssertionError | None:
    try:
        run(steps)
    except AssertionError as exc:
        return exc
    return None
