"""Instances of the limiter on one simulated MongoDB: no threads and no real time, nothing real but the code."""

import random
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.simulation.configs import SHORTEST_HORIZONS_S, Config, Limit, Route
from tests.simulation.instance import MANY_KEYS, START_S, Cell, Identity, Instance, identity_of, key_of
from tests.support.limiters import known_keys
from tests.support.simulated_mongo import Committed, Document, Fate, Server

FAULTS = tuple(fate for fate in Fate if fate not in (Fate.ANSWERED, Fate.STALE))
CLIENTS = ("shop", "app")
USERS = (None, "ann", "bob")
COMMAND_S = (0.0, 0.0, 0.2, 3.0, 30.0)  # how long a command may take on its way, and the same for the answer
HELLO_S = (*(0.0, 0.2) * 4, 30.0, 130.0)  # of one that measures a clock: a long one shows nothing of it
SLACK_S = 60  # how long a frame is kept after its last use
SPARE_ENTRIES, ENTRIES_PER_KEY = 100, 60  # in memory after these rounds; today about half as many
PATIENCE_S = 8.0  # after which a worker that has ended is replaced as the one that synchronises
ROUNDS, ROUND_S = 14, 70.0  # longer than the longest horizon and the slack, measured each minute


class Fleet:
    """Instances, their server, and the truth about them. The generator decides what happens to commands."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.true_s = START_S
        self.truth: Counter[Cell] = Counter()  # hits that were admitted
        self.certain: Counter[Cell] = Counter()  # those of instances whose clocks were never wrong
        self.was_wrong = False  # True if a clock was ever wrong
        self.ends_s: dict[Cell, float] = {}  # when a cell stops to matter to those who have counted in it
        # The longest horizon of those who have written a document, by its key and the name of the series
        self.horizons_s: dict[tuple[Identity, str], int] = {}
        self.lost: Counter[Cell] = Counter()  # may be missing: an instance was killed, or a document removed
        self.twice: Counter[Cell] = Counter()  # maybe stored twice: a restore repeats versions that writes may name
        # Hits of frames that instances have removed, and that a write has stored again, or may: the document had
        # expired or was removed, so nothing kept a late one from being applied, and nothing shows that it was.
        self.returned: Counter[Cell] = Counter()
        self.over: Counter[Cell] = Counter()  # of frames removed when nobody who had written the document needed them
        self.moved: Counter[Cell] = Counter()  # maybe in another frame: a clock was wrong before they were sent
        self.damaged: set[Identity] = set()  # documents of which nothing is expected
        self.backup: Committed | None = None
        self.fault_rate = 0.0  # share of the commands that something happens to
        self.only_writes_fail = False
        self.kill_rate = 0.0  # share of the commands at which a worker of a host is killed
        self._directory: str | None = None  # of files
        self.busy_rate = 0.0  # share of the commands before or after which something else happens
        self.stale_rate = 0.0  # share of the reads that a former primary answers
        self.asked: dict[tuple[str, str | None, Route], None] = {}  # in this order
        self._is_meanwhile = False
        self.history: list[str] = []
        self.server_offset_s = 0.0
        self.started_count = 0
        self.server = Server(lambda: self.true_s + self.server_offset_s, self._note_return)
        self.instances: list[Instance] = []
        self.earliest_s = self.latest_s = 0.0  # offsets of servers' clocks
        self._checked_removal_count = 0

    def fate(self, command: str) -> Fate:
        if self.rng.random() >= self.fault_rate or (self.only_writes_fail and command != "update"):
            is_stale = command == "find" and self.rng.random() < self.stale_rate
            return Fate.STALE if is_stale else Fate.ANSWERED
        fate = self.rng.choice(FAULTS)
        self.history.append(f"    {command}: {fate.name.lower()}")
        return fate

    def happen_meanwhile(self, instance: Instance, command: str) -> None:
        """Let requests, other instances or time go on while a command or its answer is on the way."""
        if self._is_meanwhile or not self.instances or self.rng.random() >= self.busy_rate:
            return
        with self.quiet():
            number, client_id, username = (
                self.rng.choice(each) for each in (range(len(self.instances)), CLIENTS, USERS)
            )
            other = self.instances[number]
            if len(other.workers) > 1:  # the one that waits does nothing else
                other.at = (other.at + self.rng.randrange(1, len(other.workers))) % len(other.workers)
            passed_s = self.rng.choice(HELLO_S if command == "hello" else COMMAND_S)
            self.history.append(f"    {command}: instance {number} meanwhile: {client_id}, {username}, {passed_s} s")
            other.ask(client_id, username, 1)
            if other is not instance or len(other.workers) > 1:
                other.sync(urgent=self.rng.random() < 0.3)
            self.true_s += passed_s
            if self.server.held and self.rng.random() < 0.2:
                self.server.release(0)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let nothing happen while commands are on the way."""
        was_meanwhile, self._is_meanwhile = self._is_meanwhile, True
        try:
            yield
        finally:
            self._is_meanwhile = was_meanwhile

    def new_path(self) -> str:
        """Return a path for the file of a host."""
        if self._directory is None:
            self._directory = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        return f"{self._directory}/{self.started_count}"

    def start(self, config: Config, *, max_keys: int = MANY_KEYS, worker_count: int = 1) -> Instance:
        """Start an instance. Every other one corrects its clock, unless it has several workers: each would do so."""
        self.started_count += 1
        follows = self.started_count % 2 == 0 and worker_count == 1
        instance = Instance(self, config, follows_store_clock=follows, max_keys=max_keys, worker_count=worker_count)
        self.instances.append(instance)
        return instance

    def kill(self, instance: Instance) -> None:
        self.instances.remove(instance)
        self.lost.update(instance.pending)
        instance.close_files()

    def stop(self, instance: Instance, *, is_interrupted: bool = False) -> None:
        """End an instance in good order. It loses nothing if the server answers, and if no mark may be gone.

        After an interruption it ends once more, as at the exit of a process.
        """
        self.busy_rate = self.kill_rate = 0.0  # nobody asks an instance that ends
        in_doubt_since_s = instance.in_doubt_since_s
        is_old = in_doubt_since_s is not None and self.true_s - in_doubt_since_s > SLACK_S
        if is_interrupted:
            instance.interrupt_end()
        instance.close()
        self.instances.remove(instance)
        if self.fault_rate or self.stale_rate or instance.is_cut_off or is_old:
            self.lost.update(instance.pending)

    def forget(self, identity: Identity | None = None) -> None:
        """Expect nothing more of what a document held, or of what all did."""
        self._forget_horizons(lambda key: identity in (None, key))
        for cell, count in self.truth.items():
            if identity is None or cell[:3] == identity:
                self.lost[cell] = max(self.lost[cell], count)
        for instance in self.instances:
            for key in [identity] if identity else list(instance.known):
                instance.known.pop(key, None)

    def remove(self, document: Document) -> None:
        """Remove a document. A write whose mark it held may store again what instances had removed from it."""
        identity = key_of(document)
        self.forget(identity)
        self.server.replace(identity_of(document), None)
        for cell, count in self._removed(by_instances=True).items():
            if cell[:3] == identity:
                self.returned[cell] = count

    def note_written(self, identity: Identity, limit: Limit) -> None:
        """Note that a document holds the horizon of a limit, as long as it is not removed."""
        longest_s = self.horizons_s.get((identity, limit.series), 0)
        self.horizons_s[identity, limit.series] = max(limit.horizon_s, longest_s)

    def _left_s(self, cell: Cell) -> float:
        """Return the seconds for which a cell matters to those who have written its document."""
        return cell[4] + self.horizons_s.get((cell[:3], cell[3]), 0) - self.true_s

    def expire(self) -> None:
        """Let the server remove what has expired, and fail if somebody who has written a document still needs it."""
        before = self.stored()
        self.server.expire()
        for cell, count in (before - self.stored()).items():
            left_s = self._left_s(cell)
            assert left_s <= 0, f"expired {left_s} s early: {cell}"
            self.lost[cell] += count
        kept = {key_of(document) for document in self.documents()}
        self._forget_horizons(lambda key: key not in kept)

    def _forget_horizons(self, is_gone: Callable[[Identity], bool]) -> None:
        self.horizons_s = {key: horizon_s for key, horizon_s in self.horizons_s.items() if not is_gone(key[0])}
        for instance in self.instances:  # what they have written lately may be gone, too
            for identity in filter(is_gone, list(instance.written)):
                del instance.written[identity]

    def restore(self, backup: Committed) -> None:
        """Restore the documents. What is sent before an instance has read them may be stored twice."""
        self.server.restore(backup)
        self.forget()
        for instance in self.instances:
            instance.knows_restored = False
            self.twice.update(instance.pending)

    def _note_return(self, identity: bytes) -> None:
        """Note the hits of a new document that were in one before, as far as instances have removed them from it."""
        removed = self._removed(by_instances=True) - self.returned
        for cell, count in self.stored([identity]).items():
            self.returned[cell] += min(count, removed[cell])

    def settle(self) -> None:
        """Let everything arrive that was held back, and all instances synchronise without faults."""
        self.fault_rate = self.busy_rate = self.stale_rate = self.kill_rate = 0.0
        self.true_s += PATIENCE_S
        while self.server.held:
            self.server.release(0)
        self.server.commit()
        for instance in self.instances:
            instance.is_cut_off = False
            instance.respond(is_failed=False)
        for instance in [*self.instances] * 4:
            instance.sync_all()
        for instance in self.instances:
            report = instance.sync_all()
            assert report is not None and report.error is None, f"the server answers, and a cycle failed: {report}"
            assert not report.in_flight_hits or self.damaged, f"the server answers, and hits stay in flight: {report}"

    def check_marks(self) -> None:
        """Let time pass until all other marks are over, and fail if a document has more marks than instances run.

        It must have been written since by two instances: one that is alone with a document seldom reads it.
        """
        keys = [key_of(document)[:2] for document in self.documents()]
        for _ in range(ROUNDS):
            self.true_s += ROUND_S
            for instance in self.instances:
                for client_id, username in keys:
                    instance.ask(client_id, username, 1)
                instance.sync_all()
        since_s = self.server.clock() - 2 * ROUND_S
        for document in self.documents():
            recent = [name for name, seen in document.get("seen", {}).items() if seen.timestamp() >= since_s]
            if len(recent) >= 2 and key_of(document) not in self.damaged:
                marks = document["writers"].keys() | document["seen"].keys()
                assert len(marks) <= len(self.instances), f"{len(marks)} marks in {key_of(document)}"

    def check_memory(self) -> None:
        """Fail if instances hold anything that grew with time: their counters are all that may be in memory now."""
        for instance in self.instances:
            held = known_keys(instance.limiter)
            entries, most = instance.entry_count(), SPARE_ENTRIES + ENTRIES_PER_KEY * len(held)
            assert entries <= most, f"{entries} entries in memory for {len(held)} keys, not {most}"

    def documents(self) -> list[Document]:
        return self.server.documents()

    def stored(self, ids: Iterable[bytes] | None = None) -> Counter[Cell]:
        """Return the hits in the documents on the primary, in all or in some."""
        found: Counter[Cell] = Counter()
        for document in map(self.server.latest.__getitem__, self.server.latest if ids is None else ids):
            identity = key_of(document)
            if identity in self.damaged:
                continue
            for series, frames in document.get("requestCounters", {}).items():
                for start_s, count in frames.items():
                    found[(*identity, series, int(start_s))] += count
        return found

    def check_counts(self) -> None:
        """Fail if a hit is lost or doubled, or was removed too early."""
        self.check_nothing_doubled()
        self._check_nothing_lost()
        self.check_removals()

    def check_nothing_doubled(self) -> None:
        """Fail if a document holds more than was admitted, with the frames that instances have removed.

        By series where a wrong clock may have chosen the frame. What went with a document may have been sent again, if
        the answer was lost.
        """
        stored, truth, twice = self.stored(), self.truth, self.twice
        if self.was_wrong:
            stored.update(self._removed(by_instances=True) - self.returned)
            stored, truth, twice = _by_series(stored), _by_series(truth), _by_series(twice)
        for cell, count in stored.items():
            assert count <= truth[cell] + twice[cell], f"doubled in {cell}: stored {count}, admitted {truth[cell]}"

    def _check_nothing_lost(self) -> None:
        """Fail if a frame that can still matter holds less than was admitted, or if anything is nowhere at all."""
        stored = self.stored()
        for cell, count in self.certain.items():
            # An instance that ends without a write leaves nobody who knows of its wider window.
            if min(self.ends_s[cell] - self.true_s, self._left_s(cell)) > 0 and cell[:3] not in self.damaged:
                kept = stored[cell]
                least = count - self.lost[cell] - self.over[cell] - self.moved[cell]
                assert kept >= least, f"lost in {cell}: stored {kept}, admitted {count}"
        stored.update(self._removed())
        stored, lost = _by_series(stored), _by_series(self.lost)
        for cell, count in _by_series(self.truth).items():
            if cell[:3] not in self.damaged:
                kept = stored[cell]
                assert kept >= count - lost[cell], f"lost in {cell}: stored {kept}, admitted {count}"

    def _removed(self, *, by_instances: bool = False) -> Counter[Cell]:
        found: Counter[Cell] = Counter()
        for removal in self.server.removals:
            if removal.is_update or not by_instances:
                found[(*key_of({"_id": removal.identity}), removal.series, removal.start_s)] += removal.count
        return found

    def check_removals(self) -> None:
        """Fail if an instance has removed a frame that was not over for all, by the time of a server that ran."""
        self.earliest_s = min(self.earliest_s, self.server_offset_s)
        self.latest_s = max(self.latest_s, self.server_offset_s)
        removals = self.server.removals
        for removal in removals[self._checked_removal_count :]:
            over_s = removal.start_s + SHORTEST_HORIZONS_S[removal.series] + SLACK_S
            left_s = over_s - removal.at_s - (self.latest_s - self.earliest_s)
            assert not removal.is_update or left_s < 0, f"removed {left_s} s early: {removal}"
            cell = (*key_of({"_id": removal.identity}), removal.series, removal.start_s)
            if removal.is_update and self._left_s(cell) <= 0:  # who writes with a wider window later finds it gone
                self.over[cell] += removal.count
        self._checked_removal_count = len(removals)

    def check_agreement(self) -> None:
        """Fail if an instance decides by anything else than the documents, after everything has settled.

        By then all workers of a host have read the same file: one without a wider limit of others keeps fewer frames.
        """
        for instance in self.instances:
            instance.reconfigure(instance.config)
            if instance.max_keys == MANY_KEYS:
                for client_id, username, route in self.asked:
                    instance.limiter.peek(client_id, username, **route._asdict())
                for _ in range(2):
                    instance.sync_all()
                for asked in self.asked if not self.was_wrong else ():
                    instance.check_agreement(*asked)


def _by_series(cells: Counter[Cell]) -> Counter[Cell]:
    summed: Counter[Cell] = Counter()
    for cell, count in cells.items():
        summed[(*cell[:4], 0)] += count
    return summed
