"""One simulated process: the real limiter, with a clock of its own, on the simulated MongoDB.

It notes the truth about its requests by itself and shares no code with the package: a request that was admitted counts
once in each series that it was admitted under, in the frame of the instance's clock at that moment.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from bson import encode

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.tier import Series
from oauth_ratelimit.counters.rules import row_name
from oauth_ratelimit.counters.steps import OpenRequest
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from oauth_ratelimit.sync.flusher import CycleReport
from tests.simulation.configs import ENFORCE, PLAIN_ROUTE, SHORTEST_HORIZONS_S, Config, Limit, Route
from tests.support.interruption import Interruption
from tests.support.limiters import in_flight, known_keys
from tests.support.memory import entry_count
from tests.support.simulated_mongo import Fate, SimulatedMongo

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

START_S = 1_800_000_000.0
MANY_KEYS = 1000
ENDLESS, ROUNDING = 2**53, 1e-6
SPARE_FRAMES = 10  # of a series, besides those of the widest window
SHORT_CYCLE = 1000  # instructions

Identity = tuple[str, str | None, str | None]  # client, user, scope
Cell = tuple[str, str | None, str | None, str, int]  # the same, series, frame start


def settings_of(config: Config, *, max_keys: int = MANY_KEYS, path: str | None = None) -> Settings:
    return load_config({"max_keys": max_keys, "host": path or "off", **config.content})


@dataclass
class Clock:
    """A clock of an instance: the true time, with an offset and the seconds that it gains in a second."""

    true_s: Callable[[], float]
    offset_s: float = 0.0
    drift: float = 0.0

    def __call__(self) -> float:
        true_s = self.true_s()
        return true_s + self.offset_s + (true_s - START_S) * self.drift


class Killed(BaseException):
    """A worker ends at once, while a command or its answer is on the way."""


class Instance:
    """One process; or several workers of a host, with one clock, that count in one file."""

    def __init__(
        self, fleet: "Fleet", config: Config, *, follows_store_clock: bool, max_keys: int, worker_count: int
    ) -> None:
        self.fleet = fleet
        self.clock = Clock(lambda: fleet.true_s)
        self.follows_store_clock = follows_store_clock
        self.max_keys = max_keys
        self.is_cut_off = False  # True if nothing that it sends reaches the server
        self.cycle_length = SHORT_CYCLE  # in instructions, roughly
        self.in_doubt_since_s: float | None = None  # true time of the first write whose outcome it may not know
        self.pending_since_s: float | None = None  # true time of the first hit that it may not have sent
        self.in_request = False
        self.was_wrong = False
        self.knows_restored = True
        self.last_error_s = 0.0
        self.pending: Counter[Cell] = Counter()  # admitted since everything was known to be sent
        self.written: defaultdict[Identity, set[Limit]] = defaultdict(set)  # limits that the next full cycle has sent
        self.held: list[tuple[OpenRequest, Config, Callable[[], None]]] = []  # requests whose response is not known yet
        self.known: dict[Identity, Counter[Cell]] = {}  # counted here since it knows the key
        self.horizon_s = config.horizon_s
        self.path = fleet.new_path() if worker_count > 1 else None  # of the file that its workers count in
        self.at = 0  # the worker that acts
        self.may_be_killed = False
        self.configs = [config] * worker_count
        self.workers = [self._new_worker(config) for _ in self.configs]

    def _new_worker(self, config: Config) -> Limiter:
        mongo = SimulatedMongo(self.fleet.server, self._begin, self._end)
        return Limiter(
            self._settings_of(config),
            MongoStore(cast(Connection, mongo)),
            clock=self.clock,
            monotonic=lambda: self.fleet.true_s,
            follows_store_clock=self.follows_store_clock,
        )

    def _settings_of(self, config: Config) -> Settings:
        return settings_of(config, max_keys=self.max_keys, path=self.path)

    @property
    def limiter(self) -> Limiter:
        return self.workers[self.at]

    @property
    def config(self) -> Config:
        return self.configs[self.at]

    def replace_worker(self) -> None:
        """Kill the worker that acts, and start another one."""
        self.limiter.host.close()
        self.workers[self.at] = self._new_worker(self.config)
        self._note_forgotten()

    def each_worker(self) -> Iterator[None]:
        """Let each worker act, one after the other."""
        for number in range(len(self.workers)):
            self.at = number
            yield

    def close(self) -> None:
        for _ in self.each_worker():
            self.limiter.close()

    def close_files(self) -> None:
        """Close what the system closes after a process."""
        for _ in self.each_worker():
            self.limiter.host.close()

    def sync_all(self) -> CycleReport | None:
        """Run a full cycle of each worker, and return the report of the one that synchronises."""
        reports = [self.sync(urgent=False) for _ in self.each_worker()]
        return next(filter(None, reports), None)

    @property
    def now_s(self) -> float:
        return self.limiter.now_s() if self.follows_store_clock else self.clock()

    def ask(self, client_id: str, username: str | None, cost: int, route: Route = PLAIN_ROUTE) -> None:
        """Make one request, and note what it counts."""
        now_s = self.now_s
        limits_of, mode = self._limits_of(client_id, username, route)
        self._note_forgotten()
        self.fleet.asked[client_id, username, route] = None
        self.in_request = True
        decision = self.limiter.check(client_id, username, cost=cost, **route._asdict())
        self.in_request = False
        self._note_correction()
        if decision.policy is not None:  # else there is no room for the key, so it is not counted
            self._note_counted(limits_of, decision, mode, now_s, cost)

    def hold(self, client_id: str, username: str | None) -> None:
        """Make one request whose response is not known yet."""
        now_s = self.now_s
        limits_of, mode = self._limits_of(client_id, username, PLAIN_ROUTE)
        self._note_forgotten()
        self.fleet.asked[client_id, username, PLAIN_ROUTE] = None
        self.in_request = True
        decision, held = self.limiter.hold(client_id, username)
        self.in_request = False
        self._note_correction()
        if held:
            known = {
                key: limits
                for key, limits in limits_of.items()
                if any(row.name == row_name(Key(*key)) for row in held.rows)
            }
            self.held.append((held, self.config, lambda: self._note_counted(known, decision, mode, now_s, 1)))
        elif decision.policy is not None:
            self._note_counted(limits_of, decision, mode, now_s, 1)

    def respond(self, *, is_failed: bool) -> None:
        """Answer the requests whose response is not known yet.

        One that was asked under another configuration drops what is over by that, although a wider window is new here.
        """
        self.in_request = True
        for held, config, note_counted in self.held:
            if not is_failed or not self.limiter.take_back(held):
                self.limiter.confirm(held)
                note_counted()
                if config is not self.config:
                    self.known.clear()
        self.in_request = False
        self.held.clear()

    def _note_counted(
        self, limits_of: Mapping[Identity, tuple[Limit, ...]], decision: Decision, mode: str, now_s: float, cost: int
    ) -> None:
        """Note what a request counts."""
        *_, total = limits_of
        keys = set(known_keys(self.limiter))
        for key, limits in limits_of.items():
            if key not in keys and limits_of[total]:  # no room for the key, and the request counts in the total alone
                continue
            known = self.known.setdefault(key, Counter())
            counted = [limit for limit in limits if _counts(decision, limit, mode)]
            for limit in {limit.series: limit for limit in sorted(counted, key=lambda limit: limit.window_s)}.values():
                start_s = int(now_s // limit.frame_s) * limit.frame_s
                cell = (*key, limit.series, start_s)
                self.fleet.ends_s[cell] = max(self.fleet.ends_s.get(cell, 0), start_s + limit.horizon_s)
                self.fleet.truth[cell] += cost
                self.pending[cell] += cost
                known[cell] += cost
                if not self.knows_restored:
                    self.fleet.twice[cell] += cost
                if not self.was_wrong:
                    self.fleet.certain[cell] += cost
            self.written[key].update(counted)
            if counted and self.pending_since_s is None:
                self.pending_since_s = self.fleet.true_s

    def _limits_of(
        self, client_id: str, username: str | None, route: Route
    ) -> tuple[dict[Identity, tuple[Limit, ...]], str]:
        """Return the limits of the key and those of all users together, and the mode of those without one."""
        scope, kinds, mode = self.config.at(client_id, route)
        own = kinds.get("client" if username is None else "user", ())
        total = (client_id, None, "client_total" if scope is None else f"{scope}/client_total")
        return {(client_id, username, scope): own, total: kinds.get("client_total", ())}, mode

    def check_estimate(self, client_id: str, username: str | None, route: Route = PLAIN_ROUTE) -> None:
        """Fail if more or less is left of a limit than can be: by all that was admitted, and by what it counted itself.

        With a wrong clock anywhere nobody can say which frames are in the window. Until all workers of a host have the
        same configuration, one may have dropped what only a wider window of another one reaches.
        """
        limits, _ = self._limits_of(client_id, username, route)
        now_s = self.now_s
        decision = self.limiter.peek(client_id, username, **route._asdict())
        if decision.policy is None or self.fleet.damaged & limits.keys():
            return
        least = most = float(ENDLESS)
        keys = set(known_keys(self.limiter))
        for key, own in limits.items():
            if key not in keys:  # no room for the key
                continue
            for limit in own:
                truth = _frames_of(self.fleet.truth, key, limit)
                mine = _frames_of(self.known.get(key, {}), key, limit)
                if self.fleet.was_wrong:
                    least = min(least, limit.hits - sum(truth.values()) - len(self.held))
                else:
                    least = min(least, limit.room(truth, now_s) - len(self.held))
                    most = min(most, limit.room(mine, now_s) if len(set(map(id, self.configs))) == 1 else ENDLESS)
        left = f"{decision.remaining} hits left of {client_id}, {username}, {route}"
        assert decision.remaining >= math.floor(least - ROUNDING), f"above the truth: {left}, not {least}"
        assert decision.remaining <= max(0, math.floor(most + ROUNDING)), f"own hits forgotten: {left}, not {most}"

    def check_agreement(self, client_id: str, username: str | None, route: Route = PLAIN_ROUTE) -> None:
        """Fail if it decides by anything else than the documents. It has read them, and nothing is in flight."""
        decision = self.limiter.peek(client_id, username, **route._asdict())
        limits, _ = self._limits_of(client_id, username, route)
        if decision.policy is None or self.fleet.damaged & limits.keys():
            return
        stored = self.fleet.stored()
        room = min(
            limit.room(_frames_of(stored, key, limit), self.now_s) for key, own in limits.items() for limit in own
        )
        expected = {max(0, math.floor(room + rounding)) for rounding in (-ROUNDING, ROUNDING)}
        assert decision.remaining in expected, (
            f"{decision.remaining} hits left of {client_id}, {username}, {route}: not {room}"
        )

    def sync(self, *, urgent: bool, scheduled: bool = False) -> CycleReport | None:
        self.may_be_killed = self.path is not None
        try:
            report = self.limiter.sync_urgent() if urgent else self.limiter.sync(is_scheduled=scheduled)
        except Killed:
            self._note_unreported()
            self.replace_worker()
            return None
        finally:
            self.may_be_killed = False
        if report is not None and report.is_elsewhere:
            return None
        assert report is None or "the cycle failed" not in str(report.error), f"a bug: {report.error}"
        return self._note(report, urgent=urgent)

    def interrupt(self, *, urgent: bool) -> None:
        """Synchronise, and be interrupted at any instruction, as by Ctrl-C. What was dropped nobody knows then."""
        report = None
        interruption = Interruption(self.fleet.rng.randint(1, self.cycle_length))
        with self.fleet.quiet(), suppress(KeyboardInterrupt), interruption:
            report = self.limiter.sync_urgent() if urgent else self.limiter.sync()
        self.cycle_length = interruption.count if report else 2 * self.cycle_length
        if report is None:
            self._note_unreported()
        self._note(report, urgent=urgent)

    def interrupt_end(self) -> None:
        """End, and be interrupted at any instruction."""
        with suppress(KeyboardInterrupt), Interruption(self.fleet.rng.randint(1, self.cycle_length)):
            self.close()
        self._note_unreported()

    def _note_unreported(self) -> None:
        """Note that nobody will say what a cycle has dropped."""
        if self._may_drop:
            self.fleet.lost.update(self.pending)

    def _note(self, report: CycleReport | None, *, urgent: bool) -> CycleReport | None:
        self._note_correction()
        self._note_forgotten()
        if report is not None and report.dropped_hits:
            assert self._may_drop, f"dropped {report.dropped_hits} hits too early"
            self.fleet.lost.update(self.pending)
            self.written.clear()
        if report is not None and not urgent and report.error is None and not report.in_flight_hits:
            self.fleet.check_removals()  # by the horizons that the documents had
            # Totals, which the report leaves out, and requests that came during the cycle.
            left = {key for key in known_keys(self.limiter) if in_flight(self.limiter, key)}
            for key in self.written.keys() - left:
                for limit in self.written.pop(key):
                    self.fleet.note_written(key, limit)
            self.pending = Counter({cell: count for cell, count in self.pending.items() if cell[:3] in left})
            if not self.fleet.server.held:  # else a write of before the restore may replace the mark of a later one
                self.knows_restored = True
            if not left:
                self.in_doubt_since_s = self.pending_since_s = None
        if report is not None and report.error is not None:  # the moment at which hits are easily forgotten
            for client_id, username in sorted({cell[:2] for cell in self.pending}, key=repr):
                self.check_estimate(client_id, username)
        return report

    @property
    def _may_drop(self) -> bool:
        """True if some of its hits have waited so long that they may matter to nobody.

        An attempt can be that old as soon as the longest horizon of what it sends has passed.
        """
        longest_s: dict[Identity, int] = {}
        for cell in self.pending:
            longest_s[cell[:3]] = max(SHORTEST_HORIZONS_S[cell[3]], longest_s.get(cell[:3], 0))
        passed_s = self.fleet.true_s - (self.pending_since_s or self.fleet.true_s)
        return passed_s > min(longest_s.values(), default=math.inf)

    def _note_forgotten(self) -> None:
        """Expect nothing more of what it has counted for keys that it has forgotten."""
        keys = set(known_keys(self.limiter))
        self.known = {key: counted for key, counted in self.known.items() if key in keys}

    def preload(self) -> None:
        """Read the busiest keys, as before the first requests, and go by them."""
        fleet = self.fleet
        fleet.busy_rate = 0.0
        self.limiter.preload()
        self._note_correction()
        is_settled = fleet.server.latest == fleet.server.committed.documents
        if fleet.fault_rate or fleet.stale_rate or fleet.was_wrong or not is_settled or self.max_keys < MANY_KEYS:
            return
        keys = set(known_keys(self.limiter))
        for document in fleet.documents():
            client_id, username, _ = key = key_of(document)
            if key in keys and "client_total" not in self.config.at(client_id, PLAIN_ROUTE)[1]:
                self.check_agreement(client_id, username)

    def set_clock(self, *, offset_s: float = 0.0, drift: float = 0.0) -> None:
        """Make its clock wrong. An instance that knows the server's time does not go by it."""
        before_s = self.now_s
        self.clock.offset_s, self.clock.drift = offset_s, drift
        server_clock = self.limiter._server_clock
        if self.follows_store_clock and server_clock is not None and server_clock.is_measured:
            assert self.now_s == before_s, "a wall clock that was set has moved its time"
        self._note_correction()

    def _note_correction(self) -> None:
        """Note a change of its time: from then on nobody can say in which frames its own hits are."""
        error_s = self.now_s - self.fleet.true_s
        if abs(error_s - self.last_error_s) > ROUNDING:
            self.last_error_s = error_s
            self.was_wrong = self.fleet.was_wrong = True
            self.fleet.moved.update(self.pending)

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration. The number of keys in memory stays."""
        for _ in self.each_worker():
            self.reconfigure_worker(config)

    def reconfigure_worker(self, config: Config) -> None:
        """Let the worker that acts take over another configuration."""
        self.configs[self.at] = config
        self.known.clear()
        self.horizon_s = max(self.horizon_s, config.horizon_s)
        self.limiter.reconfigure(self._settings_of(config))

    def check_memory(self) -> None:
        """Fail if more hits of a key are in flight than were admitted since all were sent, or in too many frames.

        Two states of one document would write with the same mark.
        """
        keys = known_keys(self.limiter)
        assert len(keys) == len(set(keys)), f"two states of one of {keys}"
        admitted: Counter[tuple[Identity, str]] = Counter()
        for cell, count in self.pending.items():
            admitted[cell[:3], cell[3]] += count
        for key in keys:
            for series, frames in in_flight(self.limiter, key).items():
                hits, most = sum(frames.values()), 2 * (self.horizon_s // series.frame_s + SPARE_FRAMES)
                assert len(frames) <= most, f"{key} holds {len(frames)} frames of {series}, not {most}"
                known = admitted[key, _name_of(series)]
                assert hits <= known, f"{hits} hits of {key} in {series} are in flight, and {known} were admitted"

    def entry_count(self) -> int:
        """Return the number of entries in memory that belong to counters and their synchronisation."""
        return entry_count(self.limiter, without=self._not_counters)

    @property
    def _not_counters(self) -> tuple[object, ...]:
        host = self.limiter.host
        return self.limiter.settings, self.limiter.denial_events, host._connected, host.connection  # SQLite's own

    def _fate(self, command: str) -> Fate:
        fate = Fate.UNREACHED if self.is_cut_off else self.fleet.fate(command)
        if fate is not Fate.ANSWERED:
            self._note_doubt(command)
        return fate

    def _note_doubt(self, command: str) -> None:
        if command == "update" and self.in_doubt_since_s is None:
            self.in_doubt_since_s = self.fleet.true_s

    def _begin(self, command: str) -> Fate:
        assert not self.in_request, f"a request waited for MongoDB ({command})"
        self._end(command)
        return self._fate(command)

    def _end(self, command: str) -> None:
        at, may_be_killed = self.at, self.may_be_killed
        self.fleet.happen_meanwhile(self, command)
        self.at, self.may_be_killed = at, may_be_killed
        if may_be_killed and self.fleet.rng.random() < self.fleet.kill_rate:
            self.fleet.history.append(f"    {command}: worker {at} is killed")
            self._note_doubt(command)
            raise Killed


def _counts(decision: Decision, limit: Limit, mode: str) -> bool:
    """Return whether a request counts in a limit: if all admit it, or if this one does not depend on that.

    An enforced limit counts all that no enforced one denies, whatever those in a dry run say.
    """
    if not decision.would_deny or limit.count_denied:
        return True
    return decision.allowed and (limit.mode or mode) == ENFORCE


def _frames_of(cells: Mapping[Cell, int], key: Identity, limit: Limit) -> dict[int, int]:
    """Return the hits of a key by frame start, as far as they count in the series of a limit."""
    return {cell[4]: hits for cell, hits in cells.items() if cell[:4] == (*key, limit.series)}


def _name_of(series: Series) -> str:
    return f"{series.frame_s}{'+denied' * series.count_denied}{'+dry-run' * series.on_trial}"


def identity_of(document: Mapping[str, Any]) -> bytes:
    """Return the id of a document as the server knows it."""
    return encode({"_id": document["_id"]})


def key_of(document: Mapping[str, Any]) -> Identity:
    identity = document["_id"]
    return identity["clientId"], identity["username"], identity.get("scope")
