"""Counting of requests in the host table: reads the rows of a request, decides, and writes them back."""

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, islice
from typing import Any

from oauth_ratelimit.core.decision import Decision, check_limits
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.tier import Content, Tier
from oauth_ratelimit.counters import urgency
from oauth_ratelimit.counters.guesses import Guesses
from oauth_ratelimit.counters.hits import Cells, Totals, unpack
from oauth_ratelimit.counters.host import CYCLE_WAIT_S, Host, HostLocked
from oauth_ratelimit.counters.host_place import UnusableFile
from oauth_ratelimit.counters.rules import RowLimits, Rows
from oauth_ratelimit.counters.steps import OpenRequest, Row, RowChanges, Step, has_no_more, is_damaged, requests_of
from oauth_ratelimit.counters.table import DAMAGES, READ_ALL, READ_HITS, HostTable, Written
from oauth_ratelimit.process.log import ThrottledLog, get_logger

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0
MAX_POSTPONED = 2000  # requests
POSTPONED_STEP = 10  # of them that one request writes after its own, and a cycle before it lets others go on
STOPPED_S = 1.0  # a request that has taken longer goes by a later time: its process may have been stopped meanwhile
POSTPONED = "the request was decided by what the file holds; the next one that gets its lock counts it, too"
DROPPED = f"the request is not counted: {MAX_POSTPONED} others wait for the lock of the file already"
LOST = "the process ends, and what waits for the lock of the file is not counted"


class RequestCounter:
    """Decisions about requests, which count in the rows of a table.

    Args:
        table: The rows.
        is_shared: True if there is a store, to which the hits are sent.
        keeps_held: True if held requests are counted apart; with a store they are in any case.
        interval_s: Seconds between two sync cycles.
        max_interval_s: Longest time that hits far from a limit wait to be sent.
        clock: Returns the time that requests come with, read again before they are counted.
        limits_of: Returns the limits of a row, None without any.
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
        limits_of: Callable[[str], RowLimits | None],
    ) -> None:
        self._table = table
        self._host = table.host
        self._guesses = Guesses(table.host)
        self._changes = RowChanges(table, is_shared, is_shared or keeps_held, interval_s, max_interval_s)
        self._keeps_held = is_shared or keeps_held
        self._read = READ_ALL if self._keeps_held else READ_HITS
        self._is_shared = is_shared
        self._interval_s = interval_s
        self._clock = clock
        self._limits_of = limits_of
        self._log = ThrottledLog(log, LOG_INTERVAL_S, table.host.monotonic)

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
    ) -> tuple[Decision, OpenRequest | None]:
        """Decide about a request and count it where it counts: in all of its rows, or in none.

        With ``holds``, a request within its limits is then to be confirmed or taken back. ``is_guess`` holds one that
        only a dry run denies, too; its new rows ask for no document before it is confirmed. ``begun_s`` is the time of
        ``time.monotonic`` at which it has begun to wait for the lock, now if None.
        """
        held, guess_id, has_timed_out = None, None, False
        begun_s = time.monotonic() if begun_s is None else begun_s
        with self._host.own_lock():
            self._host.begin(begun_s)
            while True:
                try:
                    opened = self._open(rows, now_s, is_guess=is_guess)
                    tiers, contents = self._checked(opened, now_s)
                    decision = check_limits(
                        mode, tiers, contents, now_s, cost, can_reuse=can_reuse, is_counted=is_counted
                    )
                    is_held = holds and (decision.denial is None or (is_guess and decision.allowed))
                    step = Step.HOLD if is_held else Step.SEND
                    if self._clock() - now_s > STOPPED_S:
                        now_s = self._clock()
                        continue
                    self._place(opened, decision.counts, now_s)
                    if is_guess:  # noted before it counts: a process may be killed between the two
                        places = [(each.name, each.starts) for each in opened if each.starts and is_held]
                        guess_id = self._guesses.note(places, former_id=guess_id)
                    if self._count(opened, step, now_s, cost, is_counted=is_counted):
                        break
                except DAMAGES as exc:
                    self._drop_damaged([name for name, _ in rows], exc)
                except HostLocked:
                    if has_timed_out:
                        held = OpenRequest([each for each in opened if each.starts], step, cost, guess_id)
                        self._postpone(held)
                        break
                    has_timed_out = True  # decide on what the rows hold after the wait
            if is_held:
                held = self._held(held or OpenRequest(opened, step, cost, guess_id, is_written=True))
        self._host.call_later()
        return decision, held if is_held else None

    def _held(self, held: OpenRequest) -> OpenRequest | None:
        """Return a request that is held, None if it counts nowhere."""
        held.rows = [each for each in held.rows if each.starts]
        if not held.rows:
            return None
        held.spare_s = self._host.spare_s()
        if held.is_written:
            held.note_written(held.rows)
        return held

    def _place(self, opened: Sequence[Row], counts: Sequence[bool], now_s: float) -> None:
        """Find the frames that a request counts in."""
        selected = iter(counts)
        for each in opened:
            for tier in compress(each.limits.tiers, selected):
                each.starts[tier.series_number] = int(now_s // tier.frame_s) * tier.frame_s

    def _count(self, opened: Sequence[Row], step: Step, now_s: float, cost: int, *, is_counted: bool) -> bool:
        """Count a request in its rows. Return False if a row has changed since it was read."""
        written = []
        for each in opened:
            if is_counted and (each.starts or each.totals.is_moved):
                written.append(self._changes.counted(each, step, now_s, cost))
            else:
                self._ask(each)
        if written and not self._table.write(written):
            return False
        if written and self._host.postponed:
            self._write_postponed(now_s)
        return True

    def peek_known(self, mode: Mode, rows: Rows, *, now_s: float, ignores_held: bool = False) -> Decision:
        """Decide by the rows that there are, and change nothing; with ``ignores_held`` as if none were held."""
        with self._host.locked():
            while True:
                try:
                    opened = self._open(rows, max(now_s, self._clock()), adds=False)
                    for each in opened if ignores_held else ():
                        for number, start_s, count in Cells(each.held):
                            each.totals.remove(number, start_s, count)
                    tiers, contents = self._checked(opened, now_s, ignores_held=ignores_held)
                    decision = check_limits(mode, tiers, contents, now_s, is_counted=False)
                    break
                except DAMAGES as exc:
                    self._drop_damaged([name for name, _ in rows], exc)
            for each in opened if decision.would_deny else ():
                self._ask(each)
        return decision

    def confirm(self, held: OpenRequest | None, *, now_s: float) -> None:
        """Have a request sent that was held. It counts again where its row was forgotten meanwhile."""
        if held is not None and self._keeps_held:
            self._settle(held, Step.CONFIRM, now_s)

    def take_back(self, held: OpenRequest | None, *, now_s: float) -> bool:
        """Take a request that was held out of the totals again, and return whether it was.

        At most ``limit`` requests are taken back in a window, so that nobody is served without a limit by causing
        errors.
        """
        return held is None or self._settle(held, Step.TAKE_BACK, now_s)

    def release(self, held: OpenRequest | None, *, now_s: float) -> None:
        """Take a guess that was right out of the totals again, always, and forget rows that hold nothing else."""
        if held is not None:
            self._settle(held, Step.RELEASE, now_s)

    def _settle(self, held: OpenRequest, step: Step, now_s: float) -> bool:
        """Take the last step of a request, or have it taken once the file's lock is free."""
        begun_s = time.monotonic()
        with self._host.own_lock():
            self._host.begin(begun_s, held.spare_s)
            # Not before: until then another thread may be writing the request, by the step that it had.
            held.step = step if held.is_written or step is not Step.CONFIRM else Step.SEND
            try:
                is_done = held in self._host.postponed or self._do(held, now_s)
            except HostLocked:
                self._postpone(held)
                is_done = True
        self._host.call_later()
        return is_done

    def _do(self, request: OpenRequest, now_s: float) -> bool:
        """Take the step of a request, and return False if it cannot be taken back any more."""
        counts = request.step not in (Step.TAKE_BACK, Step.RELEASE)
        opened, request.unchanged = request.unchanged if self._keeps_held else None, None
        while True:
            try:
                if opened is None:  # others may have counted in later frames since the time was read
                    opened = self._reopen(request, max(now_s, self._clock()), counts=counts)
                if request.step is Step.TAKE_BACK and any(has_no_more(each, now_s) for each in opened):
                    return False
                if counts:
                    written = [self._changes.counted(each, request.step, now_s, request.cost) for each in opened]
                else:
                    written = [self._changes.uncounted(each, request, now_s) for each in opened]
                if request.step is Step.RELEASE:
                    written = [row for row in written if not self._is_deleted(row)]
                if not written or self._table.write(written):
                    break
            except DAMAGES as exc:
                self._drop_damaged([each.name for each in request.rows], exc)
            opened = None  # others have changed them
        if request.step is Step.HOLD:
            request.note_written(opened)
        elif request.guess_id is not None:  # not before: a process may be killed between the two
            self._guesses.forget(request.guess_id)
        return True

    def _reopen(self, request: OpenRequest, now_s: float, *, counts: bool) -> list[Row]:
        """Return the rows of a request as they are now; with ``counts`` those that were forgotten meanwhile, too."""
        rows = tuple([(each.name, each.limits) for each in request.rows])
        opened = self._open(rows, now_s if counts else math.inf, adds=counts, was_counted=True)
        starts = {each.name: each.starts for each in request.rows}
        for each in opened:
            each.starts = starts[each.name]
        return opened

    def count_again(self, left: Host) -> None:
        """Have what this process has counted alone, in memory, counted with others. With a store it is sent there."""
        if not (left.is_file or self._is_shared):
            found = list(islice(requests_of(left.connection, self._limits_of), MAX_POSTPONED))
            with self._host.locked():
                self._host.postponed.extend(found)

    def release_lost(self, *, now_s: float) -> None:
        """Release the guesses of processes that were killed: nobody got an answer.

        At most ``limit`` in a window, further ones count as wrong: nobody is to guess without a limit by causing kills.
        """
        with suppress(sqlite3.Error):  # the next cycle tries again
            for guess_id, owner, found in self._guesses.lost():
                with self._host.transaction():
                    rows = []
                    with suppress(*DAMAGES):
                        for name, frames in json.loads(found):
                            limits = self._limits_of(name)
                            if limits is not None:  # else the limits have changed, as for other series
                                starts = {number: at_s for number, at_s in frames if number in limits.horizon_by_number}
                                rows.append(Row(name, limits, Totals(b"", now_s), change=0, starts=starts))
                    if self._guesses.forget(guess_id, owner):
                        self._finish(OpenRequest(rows, Step.TAKE_BACK, is_written=True), now_s)

    def write_postponed(self, *, now_s: float, is_last: bool = False) -> None:
        """Write what requests could not write, unless the file is locked for too long. The last time waits longer."""
        is_written = True
        while is_written and self._host.postponed:
            with self._host.locked(CYCLE_WAIT_S if is_last else None):
                is_written = self._write_postponed(now_s)
        if is_last and self._host.postponed:
            self._log.error("requests_uncounted", effect=LOST, count=len(self._host.postponed))

    def _write_postponed(self, now_s: float) -> bool:
        """Write some of what was postponed, and return False if the file is still locked."""
        postponed = self._host.postponed
        for _ in range(min(POSTPONED_STEP, len(postponed))):
            try:
                self._finish(postponed[0], now_s)
            except HostLocked:
                return False
            postponed.popleft()
        return True

    def _finish(self, request: OpenRequest, now_s: float) -> None:
        """Take the step of a request. One that cannot be taken back any more is sent."""
        if not self._do(request, now_s):
            request.step = Step.CONFIRM if request.is_written else Step.SEND
            self._do(request, now_s)

    def _postpone(self, request: OpenRequest) -> None:
        self._host.lock_timeout_count += 1
        effect = POSTPONED
        if len(self._host.postponed) < MAX_POSTPONED:
            self._host.postponed.append(request)
        else:
            effect, request.rows = DROPPED, ()  # it counts nowhere, so it is not held, either
        self._host.later(partial(self._log.warning, "host_lock_timeout", key=effect, effect=effect))

    def _open(
        self,
        rows: Rows,
        now_s: float,
        *,
        adds: bool = True,
        was_counted: bool = False,
        is_guess: bool = False,
    ) -> list[Row]:
        """Return the rows of a request, with ``adds`` after adding those of new keys if there is room."""
        opened = []
        for name, limits in rows:
            found = self._table.read(READ_ALL if was_counted else self._read, name)
            if found is None and adds:
                found = self._add_row(name, limits, now_s, was_counted=was_counted, is_guess=is_guess)
            if found is not None:
                opened.append(Row(name, limits, Totals(found[0], now_s), *found[1:]))
        return opened

    def _add_row(self, name: str, limits: RowLimits, now_s: float, *, was_counted: bool, is_guess: bool) -> Any:
        """Add a row if there is room, and return it.

        A request that was counted gets its row in any case: it may have been forgotten meanwhile.
        """
        due_s, writer_count = self._host.monotonic(), self._host.max_writer_count
        if is_guess:
            due_s += limits.horizon_s + self._interval_s
        is_urgent = (
            self._is_shared and not is_guess and urgency.is_urgent_when_new(limits.tiers, writer_count=writer_count)
        )
        urgent_s = due_s if is_urgent else None
        try:
            self._table.insert(name, now_s=now_s, due_s=due_s, urgent_s=urgent_s, has_room=was_counted)
        except HostLocked:  # as it would be
            return self._table.read(self._read, name) or (b"", 0)
        found = self._table.read(self._read, name)
        if found is None:
            self._host.later(
                partial(
                    self._log.error,
                    "keys_exhausted",
                    max_keys=self._table.max_keys,
                    reason="the file system is full" if self._host.is_nearly_full else "max_keys",
                    effect="requests of new keys are admitted uncounted",
                )
            )
        return found

    def _drop_damaged(self, names: Iterable[str], exc: Exception) -> None:
        """Delete the damaged rows of a request after an exception, which is raised again if there are none.

        While another process holds the file's lock, this one counts alone, until the next cycle.
        """
        damaged = [name for name in names if is_damaged(self._table.read(READ_ALL, name))]
        try:
            for name in damaged:
                self._table.drop_damaged(name, exc)
        except HostLocked:
            self._host.count_alone(UnusableFile("a row is damaged, and another process holds its lock"))
        if not damaged:
            raise exc

    def _checked(
        self, opened: Sequence[Row], now_s: float, *, ignores_held: bool = False
    ) -> tuple[tuple[Tier, ...], list[Content]]:
        """Return the limits of rows and what their windows hold, with what this process could not write yet."""
        tiers: tuple[Tier, ...] = ()
        contents: list[Content] = []
        for each in opened:
            tiers += each.limits.tiers
            totals = each.totals
            if self._host.postponed:
                totals = self._with_postponed(each, now_s, Step.CONFIRM if ignores_held else Step.HOLD)
            contents += totals.contents(each.limits.tiers, now_s)
        return tiers, contents

    def _with_postponed(self, each: Row, now_s: float, other_step: Step) -> Totals:
        """Return what a row holds after the postponed requests that are to be sent, and those of another step."""
        totals = Totals(each.totals.packed(), now_s)
        for postponed in self._host.postponed:
            for row in postponed.rows if postponed.step in (Step.SEND, other_step) else ():
                for number, start_s in row.starts.items() if row.name == each.name else ():
                    totals.add(number, start_s, postponed.cost, row.limits.horizon_by_number[number])
        return totals

    def _is_deleted(self, row: Written) -> bool:
        """Delete a row in which nothing counts any more, if nothing else needs it, and return whether it was."""
        name, change, values = row
        is_empty = values["held"] is None and not any(unpack(values["hits"]).hits.values())
        return is_empty and self._table.delete_unused(name, change)

    def _ask(self, each: Row) -> None:
        """Have the next cycle look at a document, because of a request that counts nowhere."""
        if self._is_shared and not each.is_asked:
            self._table.ask(each.name, self._host.monotonic())
