"""Instances of the limiter on one simulated MongoDB: no threads and no real time, nothing real but the code.

The oracle counts the truth for itself and shares no code with the package: a request that was admitted counts once in
each series that it was admitted under, in the frame of the instance's clock at that moment.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, cast

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config import Settings
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.support.simulated_mongo import Fate, Server, SimulatedCollection, SimulatedConnection, State

START_S = 1_800_000_000.0
FAULTS = tuple(fate for fate in Fate if fate is not Fate.ANSWERED)

SPARE_FRAMES = 10  # of a series, besides those of the widest window
SPARE_ENTRIES, ENTRIES_PER_CELL = 20, 6
NOT_IN_FLIGHT = frozenset(("past", "prunable", "cached_denial", "others", "tier", "client", "username", "scope"))
ROUNDS, ROUND_S = 14, 70.0  # longer than the longest horizon and the slack, measured each minute

Cell = tuple[str, str | None, str | None, str, int]  # client, user, scope, series, frame start


@dataclass(frozen=True)
class Series:
    """A series that requests are counted in.

    Attributes:
        name: Its name in a document.
        frame_s: Length of its frames.
        horizon_s: How long a frame can matter, from its start: the window and one frame.
    """

    name: str
    frame_s: int
    horizon_s: int


@dataclass(frozen=True)
class Config:
    """A configuration, with the series that it counts in: spelt out here and not derived.

    Attributes:
        limits: The ``limits`` of the configuration.
        user, client, total: The series of a user, of a client without a user, and of all users together.
        max_keys: Keys in memory.
    """

    limits: dict[str, Any]
    user: tuple[Series, ...]
    client: tuple[Series, ...]
    total: tuple[Series, ...] = ()
    max_keys: int = 1000

    @property
    def horizon_s(self) -> int:
        """The longest horizon."""
        return max(series.horizon_s for series in (*self.user, *self.client, *self.total))


MINUTE = Series("6", 6, 66)
TWO_MINUTES = Series("12", 12, 132)
CONFIGS = (
    Config({"user": ["50/minute"], "client": ["80/minute"]}, user=(MINUTE,), client=(MINUTE,)),
    Config({"user": ["90 per 2 minute"], "client": ["80/minute"]}, user=(TWO_MINUTES,), client=(MINUTE,)),
    Config(
        {"user": ["20 per 10 second", "50/minute"], "client": ["200 per 10 minute"]},
        user=(Series("1", 1, 11), MINUTE),
        client=(Series("60", 60, 660),),
    ),
    # The frames of the first in a window ten times as wide.
    Config(
        {"user": [{"limit": 200, "window": "10m", "frames": 100}], "client": ["80/minute"]},
        user=(Series("6", 6, 606),),
        client=(MINUTE,),
    ),
    # Limits on all users of a client together, and too few keys in memory.
    Config(
        {"user": ["50/minute"], "client": ["80/minute"], "client_total": ["90 per 2 minute"]},
        user=(MINUTE,),
        client=(MINUTE,),
        total=(TWO_MINUTES,),
        max_keys=4,
    ),
)


def settings_of(config: Config) -> Settings:
    """Return the settings of a configuration."""
    return load_config({"mode": "enforce", "limits": config.limits, "max_keys": config.max_keys})


@dataclass
class Clock:
    """A clock of an instance: the true time with an error.

    Args:
        true_s: Returns the true time, seconds since the epoch.
        offset_s: How far it is ahead.
        drift: How many seconds it gains in a second.
    """

    true_s: Callable[[], float]
    offset_s: float = 0.0
    drift: float = 0.0

    def __call__(self) -> float:
        """Return the time that it shows."""
        true_s = self.true_s()
        return true_s + self.offset_s + (true_s - START_S) * self.drift


class Instance:
    """One process.

    Args:
        fleet: Where it belongs.
        clock: Its clock.
        config: Its configuration.
        follows_store_clock: Whether it corrects its clock by the server's.
    """

    def __init__(self, fleet: "Fleet", clock: Clock, config: Config, *, follows_store_clock: bool) -> None:
        self.fleet = fleet
        self.clock = clock
        self.config = config
        self.follows_store_clock = follows_store_clock
        self.in_request = False
        self.was_wrong = False
        self.pending: Counter[Cell] = Counter()  # admitted since everything was known to be sent
        self.counted: defaultdict[tuple[str, str | None, str | None], set[Cell]] = defaultdict(set)
        self.horizon_s = config.horizon_s
        collection = SimulatedCollection(fleet.server, fleet.fate, self._on_command)
        connection = cast(Connection, SimulatedConnection(collection))
        self.limiter = Limiter(
            settings_of(config),
            MongoStore(connection),
            clock=clock,
            monotonic=fleet.true_time,
            follows_store_clock=follows_store_clock,
        )

    def ask(self, client_id: str, username: str | None, cost: int) -> None:
        """Make one request, and note what it counts if it is admitted."""
        now_s = self.clock() + self.correction_s
        self.in_request = True
        decision = self.limiter.check(client_id, username, cost=cost)
        self.in_request = False
        if not decision.allowed or decision.policy is None:  # without a policy: no room for the key, so not counted
            return
        own = self.config.client if username is None else self.config.user
        for key, every in (((client_id, username, None), own), ((client_id, None, "client_total"), self.config.total)):
            for series in every:
                start_s = int(now_s // series.frame_s) * series.frame_s
                cell = (*key, series.name, start_s)
                self.fleet.truth[cell] += cost
                self.counted[key].add(cell)
                if not self.was_wrong:
                    self.fleet.certain[cell] += cost
                    self.pending[cell] += cost
                self.fleet.ends_s[cell] = max(self.fleet.ends_s.get(cell, 0), start_s + series.horizon_s)

    @property
    def correction_s(self) -> float:
        """Seconds that it adds to its clock."""
        return self.limiter.clock_offset_s if self.follows_store_clock else 0.0

    def sync(self, *, urgent: bool) -> None:
        """Run one cycle."""
        before_s = self.correction_s
        report = self.limiter.sync_urgent() if urgent else self.limiter.sync()
        if self.correction_s != before_s:
            self._distrust_clock()
        if report is not None and not urgent and report.error is None and not report.in_flight_hits:
            self.pending.clear()
            self.counted.clear()

    def set_clock(self, *, offset_s: float = 0.0, drift: float = 0.0) -> None:
        """Make its clock wrong. From now on nobody can say in which frames its own hits are, nor if it is corrected."""
        self.clock.offset_s, self.clock.drift = offset_s, drift
        self._distrust_clock()

    def _distrust_clock(self) -> None:
        self.was_wrong = self.fleet.was_wrong = True
        self.fleet.lost.update(self.pending)
        self.pending.clear()

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration. The number of keys in memory stays."""
        self.config = replace(config, max_keys=self.config.max_keys)
        self.horizon_s = max(self.horizon_s, config.horizon_s)
        self.limiter.reconfigure(settings_of(self.config))

    def check_memory(self) -> None:
        """Fail if a key holds more than what may be still to be sent, or more frames of it than their bound."""
        for client in self.limiter._clients:
            for state in (*client.keys.values(), *client.former.values(), client.total, client.former_total):
                if state is None or state.key in self.fleet.damaged:
                    continue
                for series, frames in (state.unsent or {}).items():
                    most = 2 * (self.horizon_s // series.frame_s + SPARE_FRAMES)
                    assert len(frames) <= most, f"{state.key} holds {len(frames)} frames of {series}, not {most}"
                counted = len(self.counted[state.key])
                entries = sum(_entry_count(getattr(state, name)) for name in _in_flight_slots(type(state)))
                most = SPARE_ENTRIES + ENTRIES_PER_CELL * counted
                assert entries <= most, f"{state.key} holds {entries} entries for {counted} frames to be sent"

    def _on_command(self, command: str) -> None:
        assert not self.in_request, f"a request waited for MongoDB ({command})"
        self.fleet.commands[command] += 1


class Fleet:
    """Instances, their server, and the truth about them.

    Args:
        rng: Decides what happens to commands.

    Attributes:
        true_s: The true time.
        server_offset_s: Seconds that the server's clock is ahead.
        truth: Hits that were admitted.
        certain: Those of instances whose clocks were never wrong.
        was_wrong: Whether a clock was ever wrong.
        ends_s: When a cell stops to matter.
        lost: Hits that may be missing, because an instance was killed or a document removed.
        damaged: Documents that somebody has damaged; nothing is expected of them.
        backup: The documents as they once were.
        fault_rate: Share of the commands that something happens to.
        only_writes_fail: Whether reads are always answered.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.true_s = START_S
        self.truth: Counter[Cell] = Counter()
        self.certain: Counter[Cell] = Counter()
        self.was_wrong = False
        self.ends_s: dict[Cell, float] = {}
        self.lost: Counter[Cell] = Counter()
        self.damaged: set[tuple[str, str | None, str | None]] = set()
        self.backup: State | None = None
        self.fault_rate = 0.0
        self.only_writes_fail = False
        self.commands: Counter[str] = Counter()
        self.history: list[str] = []
        self.server_offset_s = 0.0
        self.started_count = 0
        self.server = Server(lambda: self.true_s + self.server_offset_s)
        self.instances: list[Instance] = []

    def true_time(self) -> float:
        """Return the true time."""
        return self.true_s

    def fate(self, command: str) -> Fate:
        """Return what happens to the next command."""
        if self.rng.random() >= self.fault_rate or (self.only_writes_fail and command != "update"):
            return Fate.ANSWERED
        fate = self.rng.choice(FAULTS)
        self.history.append(f"    {command}: {fate.name.lower()}")
        return fate

    def start(self, config: Config) -> Instance:
        """Start an instance. Every other one corrects its clock."""
        self.started_count += 1
        follows = self.started_count % 2 == 0
        instance = Instance(self, Clock(self.true_time), config, follows_store_clock=follows)
        self.instances.append(instance)
        return instance

    def kill(self, instance: Instance) -> None:
        """End an instance without a last flush."""
        self.instances.remove(instance)
        self.lost.update(instance.pending)

    def stop(self, instance: Instance) -> None:
        """End an instance in good order. It loses nothing if the server answers."""
        instance.limiter.close()
        self.instances.remove(instance)
        if self.fault_rate:
            self.lost.update(instance.pending)

    def forget(self, identity: tuple[str, str | None, str | None] | None = None) -> None:
        """Expect nothing more of what a document held, or of what all did."""
        for cell, count in self.truth.items():
            if identity is None or cell[:3] == identity:
                self.lost[cell] = max(self.lost[cell], count)

    def settle(self) -> None:
        """Let everything arrive that was held back, and all instances synchronise without faults."""
        self.fault_rate = 0.0
        while self.server.held:
            self.server.release(0)
        self.server.commit()
        for instance in [*self.instances] * 4:
            instance.sync(urgent=False)
        for instance in self.instances:
            report = instance.limiter.sync()
            assert report.error is None, f"the server answers, and a cycle failed: {report}"
            assert not report.in_flight_hits or self.damaged, f"the server answers, and hits stay in flight: {report}"

    def check_marks(self) -> None:
        """Let time pass until all other marks are over, and fail if a document has more marks than instances run.

        It must have been written since by two instances: one that is alone with a document seldom reads it.
        """
        keys = [(key_of(document)[0], key_of(document)[1]) for document in self.server.documents()]
        for _ in range(ROUNDS):
            self.true_s += ROUND_S
            for instance in self.instances:
                for client_id, username in keys:
                    instance.ask(client_id, username, 1)
                instance.sync(urgent=False)
        since_s = self.server.clock() - 2 * ROUND_S
        for document in self.server.documents():
            recent = [name for name, seen in document.get("seen", {}).items() if seen.timestamp() >= since_s]
            if len(recent) >= 2 and key_of(document) not in self.damaged:
                marks = document["writers"].keys() | document["seen"].keys()
                assert len(marks) <= len(self.instances), f"{len(marks)} marks in {key_of(document)}"

    def stored(self) -> Counter[Cell]:
        """Return the hits in the documents on the primary."""
        found: Counter[Cell] = Counter()
        for document in self.server.latest.values():
            identity = key_of(document)
            if identity in self.damaged:
                continue
            for series, frames in document["requestCounters"].items():
                for start_s, count in frames.items():
                    found[(*identity, series, int(start_s))] += count
        return found

    def check_nothing_doubled(self) -> None:
        """Fail if a document holds more than was admitted. By series where a wrong clock may have chosen the frame."""
        stored, truth = self.stored(), self.truth
        if self.was_wrong:
            stored, truth = _by_series(stored), _by_series(truth)
        for cell, count in stored.items():
            assert count <= truth[cell], f"doubled in {cell}: stored {count}, admitted {truth[cell]}"

    def check_nothing_lost(self) -> None:
        """Fail if a frame that can still matter holds less than was admitted."""
        stored = self.stored()
        for cell, count in self.certain.items():
            if self.ends_s[cell] > self.true_s and cell[:3] not in self.damaged:
                kept = stored[cell]
                assert kept >= count - self.lost[cell], f"lost in {cell}: stored {kept}, admitted {count}"


def _by_series(cells: Counter[Cell]) -> Counter[Cell]:
    summed: Counter[Cell] = Counter()
    for cell, count in cells.items():
        summed[(*cell[:4], 0)] += count
    return summed


def key_of(document: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Return client, user and scope of a document."""
    identity = document["_id"]
    return identity["clientId"], identity["username"], identity.get("scope")


@cache
def _in_flight_slots(kind: type) -> frozenset[str]:
    """Return the attributes of a key's state that may hold hits to be sent, whatever they are called."""
    return frozenset(name for base in kind.__mro__ for name in getattr(base, "__slots__", ())) - NOT_IN_FLIGHT


def _entry_count(value: object) -> int:
    """Return the number of entries in containers, those of what they contain included."""
    if isinstance(value, Mapping):
        return sum(1 + _entry_count(entry) for entry in value.values())
    if isinstance(value, list | tuple):
        return sum(1 + _entry_count(entry) for entry in value)
    return sum(_entry_count(getattr(value, each.name)) for each in fields(value)) if is_dataclass(value) else 0
