"""One simulated process: the real limiter, with a clock of its own, on the simulated MongoDB.

It notes the truth about its requests by itself and shares no code with the package: a request that was admitted counts
once in each series that it was admitted under, in the frame of the instance's clock at that moment.
"""

import gc
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config import Settings
from oauth_ratelimit.counters.key_state import Due, KeyState
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.sync.cycle import SyncCycle
from oauth_ratelimit.sync.flusher import CycleReport
from oauth_ratelimit.sync.reservation import Reservations
from tests.simulation.configs import Config, Limit, Series
from tests.support.simulated_mongo import Fate, SimulatedCollection, SimulatedConnection

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

START_S = 1_800_000_000.0
MANY_KEYS = 1000
ENDLESS, ROUNDING = 2**53, 1e-6
SPARE_FRAMES = 10  # of a series, besides those of the widest window
SPARE_ENTRIES, ENTRIES_PER_CELL = 20, 6
NOT_IN_FLIGHT = frozenset(("past", "prunable", "cached_denial", "others", "tier", "client", "username", "scope"))

Identity = tuple[str, str | None, str | None]  # client, user, scope
Cell = tuple[str, str | None, str | None, str, int]  # the same, series, frame start


def settings_of(config: Config, *, max_keys: int = MANY_KEYS, reserves: bool = False) -> Settings:
    """Return the settings of a configuration."""
    sync = {"near_limit": "reserve" if reserves else "flush"}
    return load_config({"mode": "enforce", "max_keys": max_keys, "sync": sync, **config.content})


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


class Erased(NamedTuple):
    """A user who was erased.

    Attributes:
        username: The user.
        client_id: The only client; None for all.
        at_s: The true time.
    """

    username: str
    client_id: str | None
    at_s: float

    def concerns(self, identity: Identity) -> bool:
        """Return whether a key is the user's."""
        return identity[1] == self.username and self.client_id in (None, identity[0])


class Known(NamedTuple):
    """Hits that an instance has counted for a key and must not forget.

    Attributes:
        state: Its memory of the key, as long as the key is not evicted.
        hits: By series and frame start.
    """

    state: object
    hits: Counter[tuple[str, int]]


class Instance:
    """One process.

    Args:
        fleet: Where it belongs.
        clock: Its clock.
        config: Its configuration.
        follows_store_clock: Whether it corrects its clock by the server's.
        max_keys: Keys in memory.
        reserves: Whether the last requests of a quota wait for the server.

    Attributes:
        is_cut_off: Whether nothing that it sends reaches the server.
    """

    def __init__(
        self,
        fleet: "Fleet",
        clock: Clock,
        config: Config,
        *,
        follows_store_clock: bool,
        max_keys: int = MANY_KEYS,
        reserves: bool = False,
    ) -> None:
        self.fleet = fleet
        self.clock = clock
        self.config = config
        self.follows_store_clock = follows_store_clock
        self.max_keys = max_keys
        self.reserves = reserves
        self.is_cut_off = False
        self.in_request = False
        self.is_waiting = False
        self.states: dict[Identity, KeyState] = {}  # after the decision that waits
        self.was_wrong = False
        self.knows_restored = True
        self.last_correction_s = 0.0
        self.pending: Counter[Cell] = Counter()  # admitted since everything was known to be sent
        self.counted: defaultdict[Identity, set[Cell]] = defaultdict(set)
        self.written: defaultdict[Identity, set[Series]] = defaultdict(set)  # series that the next full cycle has sent
        self.known: dict[Identity, Known] = {}
        self.unread = fleet.late_erasures()  # it may still drop the hits of these users
        self.horizon_s = config.horizon_s
        collection = SimulatedCollection(fleet.server, self._fate, self._on_command, self._on_read)
        connection = cast(Connection, SimulatedConnection(collection))
        self.limiter = Limiter(
            settings_of(config, max_keys=max_keys, reserves=reserves),
            MongoStore(connection),
            clock=clock,
            monotonic=fleet.true_time,
            follows_store_clock=follows_store_clock,
        )
        if self.limiter._reservations is not None:
            self.limiter._reservations = InlineReservations(self.limiter._cycle, self._while_waiting)

    @property
    def now_s(self) -> float:
        """The time that it goes by."""
        return self.clock() + self.correction_s

    def ask(self, client_id: str, username: str | None, cost: int) -> None:
        """Make one request, and note what it counts if it is admitted."""
        now_s = self.now_s
        limits_of, total = self._limits_of(client_id, username), (client_id, None, "client_total")
        unread = {key for key in limits_of if any(erased.concerns(key) for erased in self.unread)}
        self.in_request = not self.reserves
        self.states = {}
        decision = self.limiter.check(client_id, username, cost=cost)
        states = self.states or self._states()
        self.in_request = False
        self._note_correction()
        if not decision.allowed or decision.policy is None:  # without a policy: no room for the key, so not counted
            return
        for key, limits in limits_of.items():
            state = states.get(key)
            if state is None and limits_of[total]:  # no room for the key, and the request counts in the total alone
                continue
            if key not in self.known or self.known[key].state is not state:
                self.known[key] = Known(state, Counter())
            for series in {limit.series for limit in limits}:
                start_s = int(now_s // series.frame_s) * series.frame_s
                cell = (*key, series.name, start_s)
                self.fleet.truth[cell] += cost
                self.pending[cell] += cost
                self.counted[key].add(cell)
                self.known[key].hits[series.name, start_s] += cost
                if key in unread:
                    self.fleet.lost[cell] += cost
                if not self.knows_restored:
                    self.fleet.twice[cell] += cost
                if not self.was_wrong:
                    self.fleet.certain[cell] += cost
                if key not in unread:  # else the hits may be dropped
                    self.written[key].add(series)
                self.fleet.ends_s[cell] = max(self.fleet.ends_s.get(cell, 0), start_s + series.horizon_s)

    def _limits_of(self, client_id: str, username: str | None) -> dict[Identity, tuple[Limit, ...]]:
        kinds = self.config.of(client_id)
        own = kinds.client if username is None else kinds.user
        return {(client_id, username, None): own, (client_id, None, "client_total"): kinds.total}

    def _states(self) -> dict[Identity, KeyState]:
        """Return its memory of each key that is counted."""
        found: dict[Identity, KeyState] = {}
        for client_id, client in self.limiter._clients.plain.items():
            found.update({(client_id, username, None): state for username, state in client.keys.items()})
            if client.total is not None:
                found[client_id, None, "client_total"] = client.total
        return found

    def check_estimate(self, client_id: str, username: str | None) -> None:
        """Fail if more or less is left of a limit than can be: by all that was admitted, and by what it counted itself.

        With a wrong clock anywhere nobody can say which frames are in the window.
        """
        limits = self._limits_of(client_id, username)
        now_s = self.now_s
        decision = self.limiter.peek(client_id, username)
        if decision.policy is None or self.fleet.damaged & limits.keys():
            return
        least = most = float(ENDLESS)
        states = self._states()
        for key, own in limits.items():
            if key not in states:  # no room for the key
                continue
            known = self.known.get(key)
            counted = known.hits if known is not None and known.state is states[key] else Counter()
            for limit in own:
                name = limit.series.name
                truth = {cell[4]: hits for cell, hits in self.fleet.truth.items() if cell[:4] == (*key, name)}
                mine = {start_s: hits for (series, start_s), hits in counted.items() if series == name}
                if self.fleet.was_wrong:
                    least = min(least, limit.hits - sum(truth.values()))
                else:
                    least = min(least, limit.room(truth, now_s))
                    most = min(most, limit.room(mine, now_s))
        left = f"{decision.remaining} hits left of {client_id}, {username}"
        assert decision.remaining >= math.floor(least - ROUNDING), f"above the truth: {left}, not {least}"
        assert decision.remaining <= max(0, math.floor(most + ROUNDING)), f"own hits forgotten: {left}, not {most}"

    def check_agreement(self, client_id: str, username: str | None) -> None:
        """Fail if it decides by anything else than the documents. It has read them, and nothing is in flight."""
        decision = self.limiter.peek(client_id, username)
        limits = self._limits_of(client_id, username)
        if decision.policy is None or self.fleet.damaged & limits.keys():
            return
        stored = self.fleet.stored()
        room = min(
            limit.room({cell[4]: n for cell, n in stored.items() if cell[:4] == (*key, limit.series.name)}, self.now_s)
            for key, own in limits.items()
            for limit in own
        )
        expected = {max(0, math.floor(room + rounding)) for rounding in (-ROUNDING, ROUNDING)}
        assert decision.remaining in expected, f"{decision.remaining} hits left of {client_id}, {username}, not {room}"

    @property
    def correction_s(self) -> float:
        """Seconds that it adds to its clock."""
        return self.limiter.clock_offset_s if self.follows_store_clock else 0.0

    def sync(self, *, urgent: bool) -> CycleReport | None:
        """Run one cycle, and return its report."""
        report = self.limiter.sync_urgent() if urgent else self.limiter.sync()
        self._note_correction()
        if report is not None:
            self._note_drops(report)
        if report is not None and not urgent and report.error is None and not report.in_flight_hits:
            self.fleet.check_removals()  # by the horizons that the documents had
            for key, all_series in self.written.items():
                for series in all_series:
                    self.fleet.note_written(key, series)
            self.written.clear()
            self.pending.clear()
            self.counted.clear()
            self.knows_restored = True
        return report

    def _note_drops(self, report: CycleReport) -> None:
        if report.dropped_hits:
            self.fleet.lost.update(self.pending)
            self.written.clear()

    def _while_waiting(self, report: CycleReport) -> None:
        """Let something happen while a request waits and holds no lock."""
        self._note_drops(report)
        if self.is_waiting:
            return
        states = self._states()  # as the decision left them: the key may be evicted now
        self.is_waiting = True
        rng = self.fleet.rng
        if rng.random() < 0.5:
            for username in ("cid", "dan", "eve"):
                self.ask("shop", username, 1)
            self.sync(urgent=rng.random() < 0.3)
        if rng.random() < 0.3:  # others need the room
            for state in states.values():
                self.limiter._clients.forget(state)
        self.is_waiting = False
        self.states = states

    def preload(self) -> None:
        """Read the busiest keys, as before the first requests, and go by them."""
        fleet = self.fleet
        self.limiter.preload()
        self._note_correction()
        is_exact = not fleet.fault_rate and fleet.server.latest == fleet.server.committed and not fleet.was_wrong
        if not is_exact or self.max_keys < MANY_KEYS or self.reserves:
            return
        for document in fleet.documents():
            client_id, username, _ = key = key_of(document)
            if self._states().get(key) is not None and not self.config.of(client_id).total:
                self.check_agreement(client_id, username)

    def _on_read(self) -> None:
        self.unread.clear()

    def set_clock(self, *, offset_s: float = 0.0, drift: float = 0.0) -> None:
        """Make its clock wrong. From now on nobody can say in which frames its own hits are, nor if it is corrected."""
        self.clock.offset_s, self.clock.drift = offset_s, drift
        self._distrust_clock()

    def _note_correction(self) -> None:
        if self.correction_s != self.last_correction_s:
            self.last_correction_s = self.correction_s
            self._distrust_clock()

    def _distrust_clock(self) -> None:
        self.was_wrong = self.fleet.was_wrong = True
        self.fleet.moved.update(self.pending)

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration. The number of keys in memory stays."""
        self.config = config
        self.known.clear()
        self.horizon_s = max(self.horizon_s, config.horizon_s)
        self.limiter.reconfigure(settings_of(config, max_keys=self.max_keys, reserves=self.reserves))

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

    def check_one_state(self) -> None:
        """Fail if two memories of one document exist: both would write with the same mark."""
        states = self._states()
        for client in self.limiter._clients:
            states.update({state.key: state for state in client.former.values()})
            if client.former_total is not None:
                states[client.former_total.key] = client.former_total
        for state in self.limiter._cycle.schedule.all():
            assert state.due_cycle is Due.FORGOTTEN or state is states.get(state.key), f"two states of {state.key}"

    def _fate(self, command: str) -> Fate:
        return Fate.LOST if self.is_cut_off else self.fleet.fate(command)

    def _on_command(self, command: str) -> None:
        assert not self.in_request, f"a request waited for MongoDB ({command})"
        self.fleet.commands[command] += 1


class InlineReservations(Reservations):
    """Reservations that synchronise in the thread of the request.

    Args:
        cycle: The sync cycle.
        afterwards: Called with the report of each synchronisation.
    """

    def __init__(self, cycle: SyncCycle, afterwards: Callable[[CycleReport], None]) -> None:
        super().__init__(cycle, deadline_s=0.0)
        self._afterwards = afterwards

    def _synchronise(self, states: tuple[KeyState, ...], _deadline_s: float) -> None:
        self._afterwards(self._cycle.run_for(states))


def key_of(document: Mapping[str, Any]) -> Identity:
    """Return client, user and scope of a document."""
    identity = document["_id"]
    return identity["clientId"], identity["username"], identity.get("scope")


def states_in_memory(limiter: Limiter) -> list[KeyState]:
    """Return all states of keys that anything in a limiter holds, wherever it is."""
    seen: dict[int, object] = {}
    found: list[object] = [limiter._clients, limiter._cycle]
    while found:
        value = found.pop()
        is_own = type(value).__module__.startswith("oauth_ratelimit.")
        if id(value) not in seen and (is_own or isinstance(value, dict | list | tuple | set | frozenset | deque)):
            seen[id(value)] = value
            found += gc.get_referents(value)
    return [value for value in seen.values() if isinstance(value, KeyState)]


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
