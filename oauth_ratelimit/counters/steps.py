"""Steps of a request, and how each of them changes a row that it counts in."""

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from oauth_ratelimit.core.tier import number_of
from oauth_ratelimit.counters import urgency
from oauth_ratelimit.counters.hits import Cells, Totals, unpack
from oauth_ratelimit.counters.rules import RowLimits
from oauth_ratelimit.counters.table import DAMAGES, MAX_WAITING, HostTable, Written


class Step(Enum):
    """Step of a request."""

    SEND = auto()  # count it, and have it sent
    HOLD = auto()  # count it
    CONFIRM = auto()  # it is counted and held: have it sent
    TAKE_BACK = auto()  # it is counted and held: take it out of the totals, or have it sent if too many were
    RELEASE = auto()  # it is counted and held: take it out of the totals


@dataclass(slots=True, eq=False)
class Row:
    """Row of a request, with the limits that count in it."""

    name: str
    limits: RowLimits
    totals: Totals
    change: int
    # All others are packed or unpacked where they are needed. Without a store they stay as they are in a new row.
    unsent: bytes | None = None
    held: bytes | None = None
    taken: bytes | None = None
    writer_count: int = 0
    is_asked: int = 0
    due_s: float = 0.0
    urgent_s: float | None = None
    # Where the request counts in it: the start of a frame for each series, by its number
    starts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Request with a step to take: it is held until its response is known, or it waits for the file's lock."""

    rows: Sequence[Row]  # that it counts in
    step: Step
    cost: int = 1
    guess_id: int | None = None  # by which the table knows it
    is_written: bool = False  # it counts in the rows
    unchanged: Sequence[Row] | None = None  # the rows as it has left them, for one step
    spare_s: float | None = None  # for which it may still wait for the lock

    def note_written(self, rows: Sequence[Row]) -> None:
        """Note that it counts in rows."""
        for each in rows:
            each.change += 1
        self.rows = self.unchanged = rows
        self.is_written = True


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of a row by each step of a request. Writes nothing."""

    table: HostTable
    is_shared: bool  # there is a store, to which the hits are sent
    keeps_held: bool  # held requests are counted apart
    interval_s: float  # between two sync cycles
    max_interval_s: float  # longest time that hits far from a limit wait to be sent

    def counted(self, each: Row, step: Step, now_s: float, cost: int) -> Written:
        """Return a row after a request was counted in it, or confirmed."""
        totals, horizons = each.totals, each.limits.horizon_by_number
        values: dict[str, Any] = {}
        new = each.starts  # where the totals lack it
        if self.keeps_held and (each.held or step is not Step.SEND):
            held = Cells(each.held)
            if step is Step.HOLD:
                for number, start_s in each.starts.items():
                    held.add(number, start_s, cost)
            elif step is Step.CONFIRM:
                new = {number: at_s for number, at_s in each.starts.items() if not held.remove_hit(number, at_s)}
            held.drop_expired(horizons, now_s)
            values["held"] = each.held = held.packed()
        if new or totals.is_moved:
            for number, start_s in new.items():
                totals.add(number, start_s, cost, horizons[number])
            totals.drop_expired(horizons, now_s, counted=new)
            values["hits"] = totals.packed()
        if not self.is_shared:
            if totals.has_new_frame:  # the row is over later; of many rows those go first that were quiet longest
                values["due"] = self.table.host.monotonic() + each.limits.horizon_s + self.interval_s
        elif each.starts and step is not Step.HOLD:
            values.update(self._sent(each, now_s, cost))
        return each.name, each.change, values

    def _sent(self, each: Row, now_s: float, cost: int) -> dict[str, Any]:
        """Return what changes in a row with hits that are to be sent, by column."""
        limits, monotonic_s = each.limits, self.table.host.monotonic()
        unsent = Cells(each.unsent)
        for number, start_s in each.starts.items():
            unsent.add(number, start_s, cost)
        values: dict[str, Any] = {"unsent": unsent.packed()}
        contents = each.totals.contents(limits.tiers, now_s)
        writer_count, is_read = max(each.writer_count, self.table.host.max_writer_count), each.writer_count > 0
        if each.urgent_s is None or each.urgent_s > monotonic_s:
            for tier, content in zip(limits.tiers, contents, strict=True):
                fresh = unsent.count_of(tier.series_number)
                known = content.estimate - fresh
                if urgency.must_send(tier, known, fresh, writer_count=writer_count, is_read=is_read):
                    values["urgent"] = monotonic_s
        due_s = monotonic_s
        may_wait = is_read and each.due_s > due_s and self.table.waiting_count < MAX_WAITING
        if may_wait and urgency.is_far(limits.tiers, contents, writer_count=writer_count):
            due_s += max(0.0, min(limits.wait_s, self.max_interval_s) - self.interval_s)
            self.table.waiting_count += each.unsent is None
        if due_s < each.due_s:
            values["due"] = due_s
        return values

    def uncounted(self, each: Row, request: OpenRequest, now_s: float) -> Written:
        """Return a row after a request was taken back or released."""
        totals, held, horizons = each.totals, Cells(each.held), each.limits.horizon_by_number
        starts = list(each.starts.items())
        if request.is_written:  # without those that were forgotten meanwhile, or never counted before a kill
            starts = [start for start in starts if held.remove_hit(*start) or not self.keeps_held]
            for number, start_s in starts:
                totals.remove(number, start_s, 1)
        values = {"hits": totals.packed(), "held": held.packed()}
        if request.step is Step.TAKE_BACK:
            taken = Totals(each.taken or b"", now_s)
            for number, start_s in starts:
                taken.add(number, start_s, 1, horizons[number])
            taken.drop_expired(horizons, now_s)
            values["taken"] = taken.packed()
        return each.name, each.change, values


def requests_of(connection: sqlite3.Connection, limits_of: Callable[[str], RowLimits | None]) -> Iterator[OpenRequest]:
    """Yield the hits of all rows as requests that are to count elsewhere; without those that wait for their response.

    These count then. ``limits_of`` returns the present limits of a row.
    """
    for name, packed, held in connection.execute("SELECT name, hits, held FROM rows"):
        limits, totals = limits_of(name), Totals(packed, math.inf)
        if limits is None:
            continue
        for number, start_s, count in Cells(held):
            totals.remove(number, start_s, count)
        for series, frames in unpack(totals.packed()).hits.items():
            number = number_of(series)
            for start_s, count in frames.items() if number in limits.horizon_by_number else ():
                yield OpenRequest(
                    [Row(name, limits, Totals(b"", math.inf), change=0, starts={number: start_s})], Step.SEND, count
                )


def has_no_more(each: Row, now_s: float) -> bool:
    """Return True if no further request of a row can be taken back."""
    contents = Totals(each.taken or b"", now_s).contents(each.limits.tiers, now_s)
    return any(content.estimate > tier.limit - 1 for tier, content in zip(each.limits.tiers, contents, strict=True))


def is_damaged(found: Sequence[Any] | None) -> bool:
    """Return True if a row that was read cannot be unpacked."""
    if found is None:
        return False
    hits, change, unsent, held, taken, *numbers = found
    try:
        Totals(hits, math.inf), Totals(taken or b"", math.inf), Cells(unsent), Cells(held)
        sum([number for number in (change, *numbers) if number is not None])
    except DAMAGES:
        return True
    return False
