"""Counts requests in the host table: reads the rows of a request, decides, and writes them back."""

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from oauth_ratelimit.core.decision import Decision, check_limits
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import Content, Tier
from oauth_ratelimit.counters import urgency
from oauth_ratelimit.counters.hits import Cells, Totals, unpack
from oauth_ratelimit.counters.rules import Part, Rows
from oauth_ratelimit.counters.table import (
    CYCLE_WAIT_S,
    DAMAGES,
    MAX_WAITING,
    READ_HELD,
    READ_LOCAL,
    READ_SHARED,
    HostLocked,
    HostTable,
    Written,
)
from oauth_ratelimit.process.log import ThrottledLog, get_logger

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0
MAX_POSTPONED = 2000  # requests
POSTPONED_STEP = 10  # of them that one request writes after its own, and a cycle before it lets others go on
STOPPED_S = 1.0  # a request that has taken longer goes by a later time: its process may have been stopped meanwhile
POSTPONED = "the request was decided by what the file holds; the next one that gets its lock counts it, too"
DROPPED = f"the request is not counted: {MAX_POSTPONED} others wait for the lock of the file already"
LOST = "the process ends, and what waits for the lock of the file is not counted"

Starts = dict[int, int]
"""Frames that a request counts in: the start of one for each series, by its number."""


@dataclass(slots=True, eq=False)
class Opened:
    """Row of a request, with the limits that count in it. The last fields are read if there is a store."""

    name: str
    part: Part
    totals: Totals
    starts: Starts  # where the request counts in it
    change: int
    unsent: Cells
    held: Cells
    writer_count: int = 0
    is_asked: int = 0
    due_s: float = 0.0
    urgent_s: float | None = None
    # Of the first row of a held request
    spare_s: float | None = None  # for which it may still wait for the file's lock
    guess_id: int | None = None  # by which the table knows it


Held = tuple[Opened, ...]
"""Request that counts in the totals here, and is not to be sent before its response is known."""


class Step(Enum):
    """Step of a request that is left to take."""

    SEND = auto()  # count it, and have it sent
    HOLD = auto()  # count it
    CONFIRM = auto()  # it is counted and held: have it sent
    TAKE_BACK = auto()  # it is counted and held: take it out of the totals, or have it sent if too many were
    RELEASE = auto()  # it is counted and held: take it out of the totals


@dataclass(slots=True, eq=False)
class Postponed:
    """Step of a request that did not get the file's lock."""

    rows: Sequence[Opened]
    step: Step
    cost: int = 1


class RequestCounter:
    """Decides about requests, and counts them in the rows of a table.

    Args:
        table: The rows.
        is_shared: True if there is a store, to which the hits are sent.
        keeps_held: True if held requests are told from others; with a store they are in any case.
        interval_s: Seconds between two sync cycles.
        max_interval_s: Longest time that hits far from a limit wait to be sent.
        clock: Returns the time that requests come with, read again before they are counted.
        monotonic: Returns the time of a clock that is never set, in seconds.
    """

    def __init__(
        self,
        table: HostTable,
        *,
        is_shared: bool,
        keeps_held: bool = False,
        interval_s: float,
        max_interval_s: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._table = table
        self._clock = clock
        self._is_shared = is_shared
        self._keeps_held = is_shared or keeps_held
        self._read = READ_SHARED if self._keeps_held else READ_LOCAL
        self._interval_s = interval_s
        self._max_interval_s = max_interval_s
        self._monotonic = monotonic
        self._log = ThrottledLog(log, LOG_INTERVAL_S, monotonic)
        self._is_exhausted = False  # a key found no room
        self._has_waited = False  # the request has waited for the lock for as long as it may
        self._lock_effect: str | None = None  # what became of a request that did not get the lock

    def decide(
        self,
        mode: Mode,
        rows: Rows,
        *,
        now_s: float,
        cost: int = 1,
        can_reuse: bool = False,
        holds: bool = False,
        is_guess: bool = False,
        is_counted: bool = True,
        begun_s: float | None = None,
    ) -> tuple[Decision, Held]:
        """Decide about a request and count it where it counts: in all of its rows, or in none.

        With ``holds``, a request within its limits is then to be confirmed or taken back. ``is_guess`` holds one that
        only a dry run denies, too; its new rows ask for no document before it is confirmed. ``begun_s`` is the time of
        ``time.monotonic`` at which it has begun to wait for the lock, now if None.
        """
        turn_s = self._table.wait_for_turn()
        with self._table.lock:
            self._table.begin(turn_s if begun_s is None else begun_s)
            self._has_waited = False
            while True:
                opened = self._open(rows, now_s, is_guess=is_guess)
                tiers, contents = self._checked(opened, now_s)
                decision = check_limits(mode, tiers, contents, now_s, cost, can_reuse=can_reuse, is_counted=is_counted)
                is_held = holds and (decision.denial is None or (is_guess and decision.allowed))
                if self._clock() - now_s > STOPPED_S:
                    now_s = self._clock()
                elif self._count(opened, decision.counts, now_s, cost, is_held=is_held, is_counted=is_counted):
                    break
            held = tuple([each for each in opened if each.starts]) if is_held else ()
            if held:
                held[0].spare_s = self._table.spare_s()
                if is_guess:
                    rows_of = [(each.name, list(each.starts.items())) for each in held]
                    held[0].guess_id = self._table.note_guess(json.dumps(rows_of))
        if self._is_exhausted or self._lock_effect:
            self._log_noted()
        return decision, held

    def peek_known(self, mode: Mode, rows: Rows, *, now_s: float, ignores_held: bool = False) -> Decision:
        """Decide by the rows that there are, and change nothing; with ``ignores_held`` as if none were held."""
        with self._table.locked():
            opened = self._open(rows, now_s, adds=False)
            for each in opened if ignores_held else ():
                for (number, start_s), count in each.held.items():
                    each.totals.remove(number, start_s, count)
            tiers, contents = self._checked(opened, now_s, ignores_held=ignores_held)
            decision = check_limits(mode, tiers, contents, now_s, is_counted=False)
            for each in opened if decision.would_deny else ():
                self._ask(each)
        return decision

    def confirm(self, held: Held, *, now_s: float) -> None:
        """Have a request sent that was held. It counts again where its row was forgotten meanwhile."""
        if not held or not self._keeps_held:
            return
        with self._table.locked(held[0].spare_s):
            postponed = self._find(held)
            if postponed is not None:
                postponed.step = Step.SEND
                return
            try:
                # Most rows are as the request has left them.
                if not self._table.write([self._confirmed(each, now_s) for each in held]):
                    self._do(Postponed(held, Step.CONFIRM), now_s)
                self._table.forget_guess(held[0].guess_id)
            except HostLocked:
                self._postpone(Postponed(held, Step.CONFIRM))
        self._log_noted()

    def _confirmed(self, each: Opened, now_s: float) -> Written:
        held = each.held
        lost = {number: at_s for number, at_s in each.starts.items() if not held.remove_hit(number, at_s)}
        held.drop_over(each.part.horizon_by_number, now_s)
        for number, start_s in lost.items():
            each.totals.add(number, start_s, 1, each.part.horizon_by_number[number])
        values: dict[str, Any] = {"held": held.packed()}
        if self._is_shared:
            values.update(self._sent(each, now_s))
        if lost or each.totals.is_moved:
            each.totals.drop_over(each.part.horizon_by_number, now_s)
            values["hits"] = each.totals.packed()
        return each.name, each.change, values

    def take_back(self, held: Held, *, now_s: float) -> bool:
        """Take a request that was held out of the totals again, and return whether it was.

        At most ``limit`` requests are taken back in a window, so that nobody is served without a limit by causing
        errors.
        """
        if not held:
            return True
        with self._table.locked(held[0].spare_s):
            postponed = self._find(held)
            try:
                if postponed is not None:
                    self._do(postponed, now_s)
                    self._table.postponed.remove(postponed)
                self._table.forget_guess(held[0].guess_id)  # or it would be taken back once more, as a lost one
                return self._take_back(held, now_s, is_bounded=True)
            except HostLocked:
                self._postpone(Postponed(held, Step.TAKE_BACK))
                return True

    def release(self, held: Held, *, now_s: float) -> None:
        """Take a guess that was right out of the totals again, always, and forget rows that hold nothing else."""
        if not held:
            return
        with self._table.locked(held[0].spare_s):
            postponed = self._find(held)
            if postponed is not None:
                self._table.postponed.remove(postponed)
                self._table.forget_guess(held[0].guess_id)
                return
            try:
                self._take_back(held, now_s, is_bounded=False)
                self._table.forget_guess(held[0].guess_id)
            except HostLocked:
                self._postpone(Postponed(held, Step.RELEASE))

    def release_lost(self, part_of: Callable[[str], Part | None], *, now_s: float) -> None:
        """Release the guesses of processes that were killed: nobody got an answer. ``part_of`` finds limits of a row.

        At most ``limit`` in a window, further ones count as wrong: nobody is to guess without a limit by causing kills.
        """
        with suppress(sqlite3.Error, *DAMAGES):  # the next cycle tries again
            for guess_id, found in self._table.lost_guesses():
                with self._table.transaction():
                    for name, frames in json.loads(found) if self._table.forget_guess(guess_id) else ():
                        part = part_of(name)
                        if part is not None:  # else the limits have changed, as for other series
                            starts = {number: at_s for number, at_s in frames if number in part.horizon_by_number}
                            row = Opened(name, part, Totals(b"", now_s), starts, 0, Cells(None), Cells(None))
                            self._do(Postponed((row,), Step.TAKE_BACK), now_s)

    def _take_back(self, held: Sequence[Opened], now_s: float, *, is_bounded: bool) -> bool:
        while True:
            written = []
            for each in held:
                found = self._table.read(READ_HELD, each.name)
                if found is None:
                    continue
                try:
                    taken = Totals(found[-1] or b"", now_s)
                    for tier, content in zip(each.part.tiers, taken.contents(each.part.tiers, now_s), strict=True):
                        if is_bounded and content.estimate > tier.limit - 1:
                            return False
                    written.append(self._without(each, found, taken if is_bounded else None, now_s))
                except DAMAGES as exc:
                    self._table.drop_damaged(each.name, exc)
            rest = written if is_bounded else [row for row in written if not self._is_deleted(row)]
            if not rest or self._table.write(rest):
                return True

    def _is_deleted(self, row: Written) -> bool:
        """Delete a row in which nothing counts any more, if nothing else needs it, and return whether it was."""
        name, change, values = row
        is_empty = values["held"] is None and not any(unpack(values["hits"]).hits.values())
        return is_empty and self._table.delete_unused(name, change)

    def _without(self, each: Opened, found: tuple[Any, ...], taken: Totals | None, now_s: float) -> Written:
        """Return a row after a request was taken back; ``taken`` are those that were, if they are bounded."""
        hits, change, packed_held, _ = found
        totals, held = Totals(hits, math.inf), Cells(packed_held)
        for number, start_s in each.starts.items():
            is_here = held.remove_hit(number, start_s) or not self._keeps_held
            if is_here:  # else the row was forgotten meanwhile
                totals.remove(number, start_s, 1)
        values = {"hits": totals.packed(), "held": held.packed()}
        if taken is not None:
            for number, start_s in each.starts.items():
                taken.add(number, start_s, 1, each.part.horizon_by_number[number])
            taken.drop_over(each.part.horizon_by_number, now_s)
            values["taken"] = taken.packed()
        return each.name, change, values

    def write_postponed(self, *, now_s: float, is_last: bool = False) -> None:
        """Write what requests could not write, unless the file is locked for too long. The last time waits longer."""
        is_written = True
        while is_written and self._table.postponed:
            with self._table.locked(CYCLE_WAIT_S if is_last else None):
                is_written = self._write_postponed(now_s)
        if is_last and self._table.postponed:
            self._log.error("requests_uncounted", effect=LOST, count=len(self._table.postponed))

    def _open(
        self,
        rows: Sequence[tuple[str, Part]],
        now_s: float,
        *,
        adds: bool = True,
        is_counted: bool = False,
        is_guess: bool = False,
    ) -> list[Opened]:
        """Return the rows of a request, with ``adds`` after adding those of new keys if there is room."""
        opened = []
        for name, part in rows:
            row = self._table.read(self._read, name)
            if row is None and adds:
                row = self._add_row(name, part, now_s, is_counted=is_counted, is_guess=is_guess)
                self._is_exhausted = self._is_exhausted or row is None
            if row is not None:
                # Others may have counted in later frames since the time was read.
                try:
                    totals = Totals(row[0], max(now_s, self._clock()))
                    unsent, held = Cells(row[2]), Cells(row[3])
                    sum([number for number in row[4:] if number is not None])  # nothing but numbers has one
                except DAMAGES as exc:
                    self._table.drop_damaged(name, exc)
                    return self._open(rows, now_s, adds=adds, is_counted=is_counted, is_guess=is_guess)
                opened.append(Opened(name, part, totals, {}, row[1], unsent, held, *row[4:]))
        return opened

    def _add_row(self, name: str, part: Part, now_s: float, *, is_counted: bool, is_guess: bool) -> Any:
        """Add a row if there is room, and return it.

        A request that was counted gets its row in any case: it may have been forgotten meanwhile.
        """
        due_s, writer_count = self._monotonic(), self._table.max_writer_count
        if is_guess:
            due_s += part.horizon_s + self._interval_s
        is_urgent = (
            self._is_shared and not is_guess and urgency.is_urgent_when_new(part.tiers, writer_count=writer_count)
        )
        urgent_s = due_s if is_urgent else None
        try:
            self._table.insert(name, now_s=now_s, due_s=due_s, urgent_s=urgent_s, has_room=is_counted)
        except HostLocked:  # as it would be
            return self._table.read(self._read, name) or (b"", 0, None, None, 0, 0, due_s, urgent_s)
        return self._table.read(self._read, name)

    def _log_noted(self) -> None:
        """Log what requests have met, with the lock free."""
        if self._is_exhausted:
            self._is_exhausted = False
            effect = "requests of new keys are admitted uncounted"
            reason = "the file system is full" if self._table.is_nearly_full else "max_keys"
            self._log.error("keys_exhausted", max_keys=self._table.max_keys, reason=reason, effect=effect)
        lock_effect, self._lock_effect = self._lock_effect, None
        if lock_effect:
            self._log.warning("host_lock_timeout", key=lock_effect, effect=lock_effect)

    def _count(
        self,
        opened: Sequence[Opened],
        counts: Sequence[bool],
        now_s: float,
        cost: int,
        *,
        is_held: bool,
        is_counted: bool,
    ) -> bool:
        """Count a request in the tiers of its rows. Return False if a row has changed since it was read."""
        changed, written, place = [], [], 0
        for each in opened:
            each.starts = {}
            for tier in each.part.tiers:
                if counts[place]:
                    each.starts[tier.series_number] = int(now_s // tier.frame_s) * tier.frame_s
                place += 1
            if is_counted and (each.starts or each.totals.is_moved):
                changed.append(each)
                written.append(self._written(each, now_s, cost, is_held=is_held))
            else:
                self._ask(each)
        try:
            if written and not self._table.write(written):
                return False
        except HostLocked:
            if not self._has_waited:
                self._has_waited = True
                return False  # decide on what the rows hold after the wait
            if any(each.starts for each in opened):
                rows = [each for each in opened if each.starts]
                self._postpone(Postponed(rows, Step.HOLD if is_held else Step.SEND, cost))
        else:
            for each in changed:
                each.change += 1  # for ``confirm``
            if written and self._table.postponed:
                self._write_postponed(now_s)
        return True

    def _written(self, each: Opened, now_s: float, cost: int = 1, *, is_held: bool = False) -> Written:
        """Return a row after a request that counts in it."""
        part, totals = each.part, each.totals
        for number, start_s in each.starts.items():
            totals.add(number, start_s, cost, part.horizon_by_number[number])
        totals.drop_over(part.horizon_by_number, now_s, counted=each.starts)
        values: dict[str, Any] = {"hits": totals.packed()}
        if self._keeps_held and (is_held or each.held):
            for number, start_s in each.starts.items() if is_held else ():
                each.held.add(number, start_s, cost)
            each.held.drop_over(part.horizon_by_number, now_s)
            values["held"] = each.held.packed()
        if self._is_shared:
            if each.starts and not is_held:
                values.update(self._sent(each, now_s, cost))
        elif totals.has_new_frame:  # the row is over later; of many rows those go first that were quiet longest
            values["due"] = self._monotonic() + part.horizon_s + self._interval_s
        return each.name, each.change, values

    def _sent(self, each: Opened, now_s: float, cost: int = 1) -> dict[str, Any]:
        """Return what changes in a row with hits that are to be sent, by column."""
        part, monotonic_s = each.part, self._monotonic()
        unsent, had_none = each.unsent, not each.unsent
        for number, start_s in each.starts.items():
            unsent.add(number, start_s, cost)
        values: dict[str, Any] = {"unsent": unsent.packed()}
        contents = each.totals.contents(part.tiers, now_s)
        writer_count, is_read = max(each.writer_count, self._table.max_writer_count), each.writer_count > 0
        if each.urgent_s is None or each.urgent_s > monotonic_s:
            for tier, content in zip(part.tiers, contents, strict=True):
                fresh = unsent.count_of(tier.series_number)
                known = content.estimate - fresh
                if urgency.must_send(tier, known, fresh, writer_count=writer_count, is_read=is_read):
                    values["urgent"] = monotonic_s
        due_s = monotonic_s
        may_wait = is_read and each.due_s > due_s and self._table.waiting_count < MAX_WAITING
        if may_wait and urgency.is_far(part.tiers, contents, writer_count=writer_count):
            due_s += max(0.0, min(part.wait_s, self._max_interval_s) - self._interval_s)
            self._table.waiting_count += had_none
        if due_s < each.due_s:
            values["due"] = due_s
        return values

    def _postpone(self, postponed: Postponed) -> None:
        self._table.lock_timeout_count += 1
        if len(self._table.postponed) < MAX_POSTPONED:
            self._lock_effect = POSTPONED
            self._table.postponed.append(postponed)
        else:
            self._lock_effect = DROPPED
            for each in postponed.rows:
                each.starts = {}  # it counts nowhere, so it is not held, either

    def _find(self, held: Held) -> Postponed | None:
        """Return the step of a request that is left, None if there is none."""
        return next((each for each in self._table.postponed if each.rows[0] is held[0]), None)

    def _write_postponed(self, now_s: float) -> bool:
        """Write some of what was postponed, and return False if the file is still locked."""
        postponed = self._table.postponed
        for _ in range(min(POSTPONED_STEP, len(postponed))):
            try:
                self._do(postponed[0], now_s)
            except HostLocked:
                return False
            postponed.popleft()
        return True

    def _do(self, postponed: Postponed, now_s: float) -> None:
        """Take a step of a request."""
        if postponed.step is not Step.HOLD:
            self._table.forget_guess(postponed.rows[0].guess_id)
        if postponed.step in (Step.RELEASE, Step.TAKE_BACK):
            is_bounded = postponed.step is Step.TAKE_BACK
            if self._take_back(postponed.rows, now_s, is_bounded=is_bounded) or not is_bounded:
                return
            postponed.step = Step.CONFIRM
        while True:
            written = []
            rows = tuple([(each.name, each.part) for each in postponed.rows])
            opened = self._open(rows, now_s, is_counted=True)
            for each, row in zip(opened, postponed.rows, strict=True):
                each.starts = row.starts
                try:
                    if postponed.step is Step.CONFIRM:
                        written.append(self._confirmed(each, now_s))
                    else:
                        is_held = postponed.step is Step.HOLD
                        written.append(self._written(each, now_s, postponed.cost, is_held=is_held))
                except DAMAGES as exc:
                    self._table.drop_damaged(each.name, exc)
                    break
            else:
                if self._table.write(written):
                    return

    def _ask(self, each: Opened) -> None:
        """Have the next cycle look at a document, because of a request that counts nowhere."""
        if self._is_shared and not each.is_asked:
            self._table.ask(each.name, self._monotonic())

    def _checked(
        self, opened: Sequence[Opened], now_s: float, *, ignores_held: bool = False
    ) -> tuple[tuple[Tier, ...], list[Content]]:
        """Return the limits of rows and what their windows hold, with what this process could not write yet."""
        tiers: tuple[Tier, ...] = ()
        contents: list[Content] = []
        for each in opened:
            tiers += each.part.tiers
            totals = each.totals
            if self._table.postponed:
                totals = self._with_postponed(each, now_s, Step.CONFIRM if ignores_held else Step.HOLD)
            contents += totals.contents(each.part.tiers, now_s)
        return tiers, contents

    def _with_postponed(self, each: Opened, now_s: float, other_step: Step) -> Totals:
        """Return what a row holds after the postponed requests that are to be sent, and those of another step."""
        totals = Totals(each.totals.packed(), now_s)
        for postponed in self._table.postponed:
            for row in postponed.rows if postponed.step in (Step.SEND, other_step) else ():
                for number, start_s in row.starts.items() if row.name == each.name else ():
                    totals.add(number, start_s, postponed.cost, row.part.horizon_by_number[number])
        return totals
