"""Counts requests in the host table: reads the rows of a request, decides, and writes them back."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.limit_check import check_limits, counts_of_admitted
from oauth_ratelimit.core.tier import Content, Series, Tier, extend_horizons
from oauth_ratelimit.counters import urgency
from oauth_ratelimit.counters.hits import Frames, add_hits, bring_back, drop_over, pack, unpack, unpack_hits
from oauth_ratelimit.counters.rules import ClientRules, Part
from oauth_ratelimit.counters.table import MAX_WAITING, HostLocked, HostTable, Row, Written
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.throttled_log import ThrottledLog

log = get_logger(__name__)

LOG_INTERVAL_S = 60.0
MAX_POSTPONED = 1000  # rows
POSTPONED_STEP = 10  # rows that are written at once
STOPPED_S = 1.0  # a request that has taken longer goes by a later time: its process may have been stopped meanwhile
POSTPONED = "the request was decided by what the file holds; the next one that gets its lock counts it, too"


@dataclass(slots=True, eq=False)
class Opened:
    """Row of a request, with the limits that count in it."""

    part: Part
    row: Row
    hits: dict[Series, Frames]
    horizons: Mapping[Series, int]
    is_moved: bool  # hits of frames that are far ahead were brought back

    def contents(self, now_s: float) -> tuple[Content, ...]:
        return tuple([tier.content(self.hits.get(tier.series, {}), now_s) for tier in self.part.tiers])


Cell = tuple[Series, int]
"""Series, and the start of one of its frames."""


class HeldRow(NamedTuple):
    """Row that a request counts in."""

    name: str
    part: Part
    cells: Sequence[Cell]  # that it counts in


class Postponed(NamedTuple):
    """Hits of a row that could not be written."""

    part: Part
    hits: dict[Series, Frames]


Held = tuple[HeldRow, ...]
"""Request that counts in the totals here, and is not to be sent before its response is known."""


class RequestCounter:
    """Decides about requests, and counts them in the rows of a table.

    Args:
        table: The rows.
        is_shared: True if there is a store, to which the hits are sent.
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
        interval_s: float,
        max_interval_s: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._table = table
        self._clock = clock
        self._is_shared = is_shared
        self._interval_s = interval_s
        self._max_interval_s = max_interval_s
        self._monotonic = monotonic
        self._log = ThrottledLog(log, LOG_INTERVAL_S, monotonic)
        self._is_exhausted = False  # a key found no room
        self._has_waited = False  # the request has waited for the lock for as long as it may
        self._has_postponed = False  # a request did not get the lock
        self._postponed: dict[str, Postponed] = {}  # by row; the lock of the table guards it

    def check(
        self, rules: ClientRules, username: str | None, *, now_s: float, cost: int = 1, can_reuse: bool = False
    ) -> Decision:
        """Decide about a request and count it where it counts: in all of its rows, or in none.

        Raises ``TypeError`` if the username is neither text nor None.
        """
        decision, _ = self._decide(rules, username, now_s, cost, can_reuse=can_reuse, holds=False)
        return decision

    def hold(
        self, rules: ClientRules, username: str | None, *, now_s: float, can_reuse: bool = False
    ) -> tuple[Decision, Held]:
        """Decide as ``check`` does. A request within its limits is then to be confirmed or taken back."""
        return self._decide(rules, username, now_s, 1, can_reuse=can_reuse, holds=True)

    def _decide(
        self, rules: ClientRules, username: str | None, now_s: float, cost: int, *, can_reuse: bool, holds: bool
    ) -> tuple[Decision, Held]:
        with self._locked():
            while True:
                opened = self._open(rules, username, now_s)
                tiers, contents = _checked(opened, now_s)
                decision, counts = check_limits(
                    rules.mode, tiers, contents, now_s=now_s, cost=cost, can_reuse=can_reuse
                )
                sends = not holds or decision.denial is not None
                if self._clock() - now_s > STOPPED_S:
                    now_s = self._clock()
                elif self._count(opened, counts, now_s, cost, sends=sends):
                    return decision, () if sends else tuple(_held(each, now_s) for each in opened)

    def confirm(self, held: Held, *, now_s: float) -> None:
        """Have a request sent that was held. It counts again where its row was forgotten meanwhile."""
        if not self._is_shared or not held:
            return
        with self._locked():
            while True:
                parts = {each.name: each.part for each in held}
                written = []
                for each, row in zip(held, self._open_rows(parts, now_s, is_counted=True), strict=True):
                    kept = unpack_hits(row.row.held)
                    lost = [cell for cell in each.cells if not _remove_hit(kept, *cell)]
                    written.append(self._written(row, lost, each.cells, now_s, held=kept))
                if self._table.write(written):
                    return

    def take_back(self, held: Held, *, now_s: float) -> bool:
        """Take a request that was held out of the totals again, and return whether it was.

        At most ``limit`` requests are taken back in a window, so that nobody is served without a limit by causing
        errors.
        """
        with self._locked():
            while True:
                rows = self._table.read([each.name for each in held])
                written = []
                for each in held:
                    row = rows.get(each.name)
                    if row is None:
                        continue
                    taken = unpack_hits(row.taken)
                    bring_back(taken, now_s)
                    counted = [tier.content(taken.get(tier.series, {}), now_s) for tier in each.part.tiers]
                    if any(
                        content.estimate > tier.limit - 1
                        for tier, content in zip(each.part.tiers, counted, strict=True)
                    ):
                        return False
                    written.append(self._without(each, row, taken, now_s))
                try:
                    if not written or self._table.write(written):
                        return True
                except HostLocked:
                    return False

    def count_postponed(self, *, now_s: float) -> None:
        """Count requests that could not be counted when they came."""
        if self._postponed:
            with self._locked():
                self._count_postponed(now_s)

    def _without(self, each: HeldRow, row: Row, taken: dict[Series, Frames], now_s: float) -> Written:
        """Return a row after a request was taken back."""
        hits, horizons = unpack(row.hits)
        kept = unpack_hits(row.held)
        for series, start_s in each.cells:
            add_hits(taken, series, start_s, 1)
            if _remove_hit(kept, series, start_s) or not self._is_shared:  # else the row was forgotten meanwhile
                _remove_hit(hits, series, start_s)
        drop_over(taken, each.part.horizons, now_s)
        packed = pack(hits, horizons), row.unsent, row.due, row.urgent, pack(taken), pack(kept) if kept else None
        return Written(row.name, *packed, row.change)

    def count(self, rules: ClientRules, username: str | None, *, now_s: float) -> None:
        """Count a request of a key that was admitted before."""
        with self._locked():
            while True:
                opened = self._open(rules, username, now_s)
                tiers, contents = _checked(opened, now_s)
                if self._count(opened, counts_of_admitted(tiers, contents), now_s):
                    return

    def preview(
        self, rules: ClientRules, username: str | None, *, now_s: float, cost: int = 1, can_reuse: bool = False
    ) -> Decision:
        """Decide as ``check`` does, and count nothing."""
        with self._locked():
            opened = self._open(rules, username, now_s)
            self._ask(opened)
        tiers, contents = _checked(opened, now_s)
        found = check_limits(rules.mode, tiers, contents, now_s=now_s, cost=cost, can_reuse=can_reuse, is_counted=False)
        return found.decision

    def knows(self, rules: ClientRules, username: str | None) -> bool:
        """Return whether a key has a row."""
        with self._table.locked():
            return bool(self._table.read([rules.name_of(_stored(username))]))

    def _open(self, rules: ClientRules, username: str | None, now_s: float) -> list[Opened]:
        """Return the rows of a request, after creating those of new keys if there is room."""
        username = _stored(username)
        own = rules.client if username is None else rules.user
        parts = {} if own is None else {rules.name_of(username): own}
        if rules.total is not None:
            parts[rules.total_name] = rules.total
        return self._open_rows(parts, now_s)

    def _open_rows(self, parts: Mapping[str, Part], now_s: float, *, is_counted: bool = False) -> list[Opened]:
        names = list(parts)
        rows = self._table.read(names)
        if len(rows) < len(names):
            missing = {name: part for name, part in parts.items() if name not in rows}
            rows = self._create(missing, names, now_s, is_counted=is_counted)
        now_s = max(now_s, self._clock())  # others may have counted in later frames since it was read
        opened = [_opened(part, rows[name], now_s) for name, part in parts.items() if name in rows]
        for each in opened if self._postponed else ():
            postponed = self._postponed.get(each.row.name)
            for series, frames in postponed.hits.items() if postponed else ():
                for start_s, count in frames.items():
                    add_hits(each.hits, series, start_s, count)
        return opened

    def _create(
        self, missing: Mapping[str, Part], names: Sequence[str], now_s: float, *, is_counted: bool
    ) -> dict[str, Row]:
        """Add rows as far as there is room, and return all rows of a request that exist then.

        One that was counted gets its row in any case: it may have been forgotten meanwhile.
        """
        due_s, writer_count = self._monotonic(), self._table.max_writer_count
        created: dict[str, Row] = {}  # as they would be
        for name, part in missing.items():
            is_urgent = self._is_shared and urgency.is_urgent_when_new(part.tiers, writer_count=writer_count)
            urgent_s = due_s if is_urgent else None
            try:
                self._table.insert(name, now_s=now_s, due_s=due_s, urgent_s=urgent_s, has_room=is_counted)
            except HostLocked:
                created[name] = Row(name, b"", None, 0, 0, 0, due_s, urgent_s, None, None)
        rows = created | self._table.read(names)
        self._is_exhausted |= len(rows) < len(names)
        return rows

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the table, and log afterwards if it had no room: nothing is written under a lock."""
        with self._table.locked():
            self._has_waited = False
            yield
        if self._is_exhausted:
            self._is_exhausted = False
            effect = "requests of new keys are admitted uncounted"
            self._log.error("keys_exhausted", max_keys=self._table.max_keys, effect=effect)
        if self._has_postponed:
            self._has_postponed = False
            self._log.warning("host_lock_timeout", effect=POSTPONED)

    def _count(
        self, opened: Sequence[Opened], counts: Sequence[bool], now_s: float, cost: int = 1, *, sends: bool = True
    ) -> bool:
        """Count a request in the tiers of its rows. Return False if a row has changed since it was read."""
        written, counted, place = [], list[tuple[Opened, list[Cell]]](), 0
        for each in opened:
            tiers = each.part.tiers
            counting = zip(tiers, counts[place : place + len(tiers)], strict=True)
            place += len(tiers)
            cells = _cells({tier.series for tier, is_counted in counting if is_counted}, now_s)
            if cells or each.is_moved or each.row.name in self._postponed:
                held = unpack_hits(each.row.held)
                for series, start_s in cells if self._is_shared and not sends else ():
                    add_hits(held, series, start_s, cost)
                written.append(self._written(each, cells, cells if sends else (), now_s, cost, held=held))
                counted.append((each, cells))
            else:
                self._ask([each])
        if not written:
            return True
        try:
            if not self._write(written):
                return False
        except HostLocked:
            if not self._has_waited:
                self._has_waited = True
                return False  # decide on what the rows hold after the wait
            self._postpone(counted, cost)
        else:
            self._count_postponed(now_s)
        return True

    def _write(self, written: Sequence[Written]) -> bool:
        """Write rows with what was postponed of them, and return False if one has changed since it was read."""
        is_written = self._table.write(written)
        for each in written if is_written and self._postponed else ():
            self._postponed.pop(each.name, None)
        return is_written

    def _postpone(self, counted: Sequence[tuple[Opened, Sequence[Cell]]], cost: int) -> None:
        if any(cells for _, cells in counted):
            self._table.lock_timeout_count += 1
            self._has_postponed = True
        for each, cells in counted:
            if len(self._postponed) < MAX_POSTPONED or each.row.name in self._postponed:
                postponed = self._postponed.setdefault(each.row.name, Postponed(each.part, {}))
                for series, start_s in cells:
                    add_hits(postponed.hits, series, start_s, cost)

    def _count_postponed(self, now_s: float) -> None:
        """Write what was postponed, as long as the lock can be taken."""
        while self._postponed:
            parts = {name: self._postponed[name].part for name in list(self._postponed)[:POSTPONED_STEP]}
            opened = self._open_rows(parts, now_s, is_counted=True)
            try:
                self._write([self._written(each, (), (), now_s, held=unpack_hits(each.row.held)) for each in opened])
            except HostLocked:
                return

    def _ask(self, opened: Iterable[Opened]) -> None:
        """Have the next cycle look at documents, because of a request that counts nowhere."""
        for each in opened:
            if self._is_shared and not each.row.is_asked:
                self._table.ask(each.row.name, self._monotonic())

    def _written(
        self,
        each: Opened,
        counted: Sequence[Cell],
        sent: Sequence[Cell],
        now_s: float,
        cost: int = 1,
        *,
        held: dict[Series, Frames],
    ) -> Written:
        """Return a row with hits added to the totals, and to those that are to be sent, and with others held."""
        part, row, hits, horizons = each.part, each.row, each.hits, each.horizons
        unsent = unpack_hits(row.unsent)
        for series, start_s in counted:
            add_hits(hits, series, start_s, cost)
        for series, start_s in sent if self._is_shared else ():
            add_hits(unsent, series, start_s, cost)
        if not part.horizons.items() <= horizons.items():
            horizons = extend_horizons(horizons, part.horizons)
        drop_over(hits, horizons, now_s)
        drop_over(held, horizons, now_s)
        if self._is_shared:
            due_s, urgent_s = self._times(each, unsent, now_s)
        else:  # when the row is over; of many rows those go first that were quiet longest
            due_s, urgent_s = self._monotonic() + part.horizon_s + self._interval_s, None
        packed_held = pack(held) if any(held.values()) else None
        packed = pack(hits, horizons), pack(unsent) if unsent else None, due_s, urgent_s, row.taken, packed_held
        return Written(row.name, *packed, row.change)

    def _times(self, each: Opened, unsent: Mapping[Series, Frames], now_s: float) -> tuple[float, float | None]:
        """Return when a row is due with a full cycle, and when it is urgent."""
        part, row, monotonic_s = each.part, each.row, self._monotonic()
        if not unsent:
            return row.due, row.urgent
        contents = each.contents(now_s)
        writer_count, is_read = max(row.writer_count, self._table.max_writer_count), row.writer_count > 0
        urgent_s = row.urgent
        if urgent_s is None or urgent_s > monotonic_s:
            for tier, content in zip(part.tiers, contents, strict=True):
                fresh = sum(unsent.get(tier.series, {}).values())
                known = content.estimate - fresh
                if urgency.must_send(tier, known, fresh, writer_count=writer_count, is_read=is_read):
                    urgent_s = monotonic_s
        due_s = monotonic_s
        may_wait = is_read and row.due > due_s and self._table.waiting_count < MAX_WAITING
        if may_wait and urgency.is_far(part.tiers, contents, writer_count=writer_count):
            due_s += max(0.0, min(urgency.longest_wait_s(part.tiers), self._max_interval_s) - self._interval_s)
            self._table.waiting_count += row.unsent is None
        return min(row.due, due_s), urgent_s


def _stored(username: str | None) -> str | None:
    """Return a username in its storable form. Raises ``TypeError`` if it is neither text nor None."""
    if username is None:
        return None
    if not isinstance(username, str):
        raise TypeError(f"username must be text or None, got {username!r}")
    return storable_name(username)


def _opened(part: Part, row: Row, now_s: float) -> Opened:
    hits, horizons = unpack(row.hits)
    return Opened(part, row, hits, horizons, bring_back(hits, now_s))


def _held(each: Opened, now_s: float) -> HeldRow:
    cells = _cells({tier.series for tier in each.part.tiers}, now_s)
    return HeldRow(each.row.name, each.part, cells)


def _cells(series: Iterable[Series], now_s: float) -> list[Cell]:
    return [(each, int(now_s // each.frame_s) * each.frame_s) for each in series]


def _remove_hit(hits: dict[Series, Frames], series: Series, start_s: int) -> bool:
    """Remove a hit of a frame, and return whether there was one."""
    frames = hits.get(series, {})
    count = frames.get(start_s, 0)
    if count > 1:
        frames[start_s] = count - 1
    elif count:
        del frames[start_s]
    return count > 0


def _checked(opened: Sequence[Opened], now_s: float) -> tuple[tuple[Tier, ...], tuple[Content, ...]]:
    tiers: tuple[Tier, ...] = ()
    contents: tuple[Content, ...] = ()
    for each in opened:
        tiers += each.part.tiers
        contents += each.contents(now_s)
    return tiers, contents
