"""Rollups of the statistics in MongoDB: one document per step of time with the requests of all clients.

A step is a minute, five minutes, an hour or a day, aligned to the epoch. Its document is derived from the minutes of
clients and replaced whole; nothing is ever added to it. So any instance may derive it, two at once or after a lost
reply. Counts of a minute only grow, so of two documents the one with more requests was read later.

Each write of a part marks its step as changed, by a note. A step that is over is derived if it is missing or has a
note. After that the next coarser one gets a note, and this one is removed unless somebody has written meanwhile. No
clock of an instance decides whether a write is in time.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from bson import encode
from pymongo import ASCENDING, DeleteOne, UpdateOne
from pymongo.errors import DuplicateKeyError

from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, MINUTE_S, OTHER_CLIENTS, ClientTotal, Tally, full_minute
from oauth_ratelimit.errors import StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.yielding import yield_between
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MALFORMED, MAX_EXACT, NO_LIST, fits, is_text, whole_number
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection
from oauth_ratelimit.store.mongo.statistics import (
    CHANGED,
    FIVE_S,
    MAX_NAME_BYTES,
    PAGE_SIZE,
    SUMS,
    Step,
    change_note,
    expiry_of,
    minute_rows,
    step_id,
    tallies_of,
)

FINER_S: Final = {MINUTE_S: 0, FIVE_S: 0, HOUR_S: FIVE_S, DAY_S: HOUR_S}
"""Lengths of steps, each with the length of those that it is derived from; 0 for minutes of clients."""

ROLLUP = "rollup"  # first field of the ``_id`` of a step

LOOK_BACK_S: Final = {MINUTE_S: HOUR_S + FIVE_S, FIVE_S: 7 * HOUR_S, HOUR_S: 7 * DAY_S, DAY_S: 7 * DAY_S}
"""How far back missing steps are looked for."""

NOTES_READ_S = 8 * DAY_S  # longer than the longest period that is shown
SETTLED_S = 90  # after the end of a minute; instances write every ten seconds
YOUNG_S = 900  # at the end of a period, minutes of clients are read where there is no rollup yet
MAX_CLIENTS = 10_000  # in a document; those with fewest requests are counted together
MAX_CLIENTS_BYTES = 2**23  # of them
MAX_OVER = 500  # clients over a limit that are returned at once

NO_TIMES: Final[Document] = dict.fromkeys(("peak", "first", "last", "last_denied"))
NO_ROW: Final[Document] = {"counts": [0] * len(SUMS), **NO_TIMES}
Key = TypeVar("Key", bound=Hashable)


class Rows(NamedTuple):
    clients: Sequence[ClientTotal]
    together: Sequence[ClientTotal]  # all clients, if some were chosen
    missing: Collection[int]  # starts of steps that are not derived yet, or only in part


class Present(NamedTuple):
    """Requests of the last full minute, and who was over a limit since then or in the last sixty seconds."""

    total: Tally  # of that minute, or of what came since if only then requests were denied, over a limit, or made
    guard: Tally  # those of it that the guard denied, or would have denied
    is_full: bool  # True if it is of the full minute
    since_s: int  # start of the minute, or of what came since
    active_count: int  # of clients with requests
    denied_count: int  # of those
    over_count: int  # of those, denied or not
    over: Sequence[ClientTotal]  # those with most requests over a limit if there are many
    denied: Collection[str]  # ids of those that are denied


class RollupStore(StatisticsCollection):
    """The rollups, and what is read from them."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._failed: set[Step] = set()  # steps that could not be derived when they were tried last

    def derive_due(self, now_s: float, *, keep_s: float) -> Iterator[Step]:
        """Derive the steps that are over and missing or changed, finer ones first. Yield each.

        One that fails stops no other, and comes last from then on. Its error is raised after all others.
        """
        failure: StoreUnavailable | None = None
        with translated_errors():
            oldest_s = self.first_minute_s()
            if oldest_s is None:
                return
            oldest_s = max(oldest_s, int(now_s - NOTES_READ_S))
            known = self._steps(ROLLUP, oldest_s - DAY_S, now_s)
        for step_s, look_back_s in LOOK_BACK_S.items():
            first_s = max(oldest_s, int(now_s - look_back_s)) // step_s * step_s
            end_s = int(now_s - SETTLED_S) // step_s * step_s
            missing = {(step_s, at_s) for at_s in range(first_s, end_s, step_s)} - known
            with translated_errors():
                changed = self._steps(CHANGED, oldest_s - step_s, end_s, (step_s,))  # also by the steps before
            # The oldest first: younger ones can be read from the minutes.
            for step in sorted(missing | changed, key=lambda step: (step in self._failed, step)):
                try:
                    self.derive(step, keep_s=keep_s)
                    self._failed.discard(step)
                except StoreUnreachable:
                    raise
                except StoreUnavailable as exc:
                    self._failed.add(step)
                    failure = exc
                yield step
        if failure is not None:
            raise failure

    def derive(self, step: Step, *, keep_s: float) -> None:
        """Derive a step from finer ones, or from the minutes if one of them is missing; nothing if it is up to date."""
        step_s, start_s = step
        end_s, finer_s = start_s + step_s, FINER_S[step_s]
        parts = [(finer_s, at_s) for at_s in range(start_s, end_s, finer_s)] if finer_s else []
        coarser = [(length_s, start_s // length_s * length_s) for length_s in FINER_S if FINER_S[length_s] == step_s]
        note_id = step_id(CHANGED, step)
        with translated_errors():
            collection = self._collection
            note = collection.find_one({"_id": note_id}, {"write": _WRITE})  # before the parts
            known = self._steps(ROLLUP, start_s, end_s)
            if note is None and step in known:
                return
            stages = _rows_of(parts) if parts and known.issuperset(parts) else minute_rows(start_s, end_s)
            self._replace(step, _summed(self._read(stages), key=lambda row: row["id"]), keep_s=keep_s)
            finish: list[UpdateOne | DeleteOne] = [change_note(each, keep_s=keep_s) for each in coarser]
            if note is not None:  # last: a process that ends before leaves it to others
                finish.append(DeleteOne({"_id": note_id, "$expr": {"$eq": [_WRITE, note["write"]]}}))
            if finish:
                collection.bulk_write(finish)

    def rows(self, since_s: float, until_s: float, *, step_s: int = 0, client_ids: Sequence[str] | None = None) -> Rows:
        """Return the requests of each client in a period that ends lately, where a part of a minute counts in full.

        With ``step_s`` in each of its steps; with ``client_ids`` of these clients, and of all together.
        """
        with translated_errors():
            steps, young_s, missing = self._cover(since_s, until_s, step_s or DAY_S)
            found = list(self._read(_rows_of(steps, client_ids)))
            for row in self._read(minute_rows(min(young_s), until_s)) if young_s else ():
                if row["start"] in young_s:
                    found += [row] if client_ids is None else [{**row, "id": None}]
                    found += [row] if client_ids is not None and row["id"] in client_ids else []
        sums = _summed(found, key=lambda row: (row["id"], row["start"] // step_s * step_s if step_s else 0))
        totals = [(name is None, _total(name, total, at_s)) for (name, at_s), total in sums.items()]
        together, clients = ([total for is_of_all, total in totals if is_of_all is each] for each in (True, False))
        return Rows(clients, together, {at_s // step_s * step_s for at_s in missing} if step_s else missing)

    def present(self, now_s: float, changes: Iterable[tuple[str | None, float]] = ()) -> Present:
        """Return the requests of the last minute that is over and written, with those since.

        A client is over a limit if it was since the last of the ``changes`` that concern it: each has the only client
        or None, and the time from which it has effect.
        """
        full_s, changes = full_minute(now_s), list(changes)
        with translated_errors():
            rows = list(self._read(minute_rows(full_s, now_s)))
        halves = _summed(rows, key=lambda row: row["start"] == full_s)
        full, later = (_total(OTHER_CLIENTS, halves.get(is_full, NO_ROW)) for is_full in (True, False))
        names = "denied", "over", "offered"
        is_new = any(not getattr(full.all, name) and getattr(later.all, name) for name in names)
        shown = later if is_new else full
        clients = _summed((row for row in rows if row["id"] != OTHER_CLIENTS), key=lambda row: row["id"])
        over, denied = list[ClientTotal](), set[str]()
        for client_id, total in clients.items():
            changed_s = [at_s for concerned, at_s in changes if concerned in (None, client_id)]
            since_s = max([now_s - MINUTE_S, *changed_s])
            if (total["last_denied"] or 0) >= since_s:
                denied.add(client_id)
            if (total["last"] or 0) >= since_s:
                over.append(_total(client_id, total))
        over.sort(key=lambda each: (-each.all.denied - each.all.would_deny, each.client_id))
        return Present(
            shown.all,
            guard=shown.guard,
            is_full=not is_new,
            since_s=full_s + MINUTE_S if is_new else full_s,
            active_count=len(clients.keys() - {ANYONE}),
            denied_count=len(denied),
            over_count=len(over),
            over=over[:MAX_OVER],
            denied=denied,
        )

    def _read(self, stages: Sequence[Document]) -> Iterator[Document]:
        return yield_between(self._collection.aggregate(stages, batchSize=PAGE_SIZE))

    def _replace(self, step: Step, sums: Mapping[str, Document], *, keep_s: float) -> None:
        """Write a rollup, unless the present one was read later: then it has more requests.

        Of very many clients, those with few requests are counted together.
        """
        kept, others, size = list[Document](), list[Document](), 0
        for client_id, total in sorted(sums.items(), key=lambda each: -sum(each[1]["counts"])):
            row = _row(client_id, total)
            size += len(encode(row))
            has_room = len(kept) < MAX_CLIENTS and size <= MAX_CLIENTS_BYTES and client_id != OTHER_CLIENTS
            (kept if has_room else others).append(row if has_room else total)
        rest = [_row(OTHER_CLIENTS, total) for total in _summed(others, key=bool).values()]
        together = _row(None, _summed(sums.values(), key=bool).get(True, NO_ROW))
        offered = sum(together["counts"])
        document = {"offered": offered, "expire": expiry_of(step, keep_s), "clients": [together, *kept, *rest]}
        has_more = {"offered": {"$gt": offered, "$type": "number", **NO_LIST}}
        with suppress(DuplicateKeyError):
            self._collection.replace_one({"_id": step_id(ROLLUP, step), "$nor": [has_more]}, document, upsert=True)

    def _cover(self, since_s: float, until_s: float, longest_s: int) -> tuple[list[Step], list[int], list[int]]:
        """Return the fewest rollups for a period, and minutes without one: the young, and the missing.

        A rollup is used even if its minutes have more by now. So no total falls while they get older.
        """
        at_s = int(since_s) // MINUTE_S * MINUTE_S
        known = self._steps(ROLLUP, at_s, until_s)
        lengths = [step_s for step_s in sorted(FINER_S, reverse=True) if step_s <= longest_s]
        steps, young, missing = list[Step](), list[int](), list[int]()
        while at_s < until_s:
            fitting = (step_s for step_s in lengths if at_s % step_s == 0 and (step_s, at_s) in known)
            step_s = next((step_s for step_s in fitting if at_s + step_s <= until_s), 0)
            if step_s:
                steps.append((step_s, at_s))
            else:
                (young if at_s >= until_s - YOUNG_S else missing).append(at_s)
            at_s += step_s or MINUTE_S
        if missing:
            oldest_s = self.first_minute_s()
            missing = [] if oldest_s is None else [at_s for at_s in missing if at_s >= oldest_s]
        return steps, young, missing

    def _steps(self, kind: str, since_s: float, until_s: float, lengths_s: Iterable[int] = FINER_S) -> set[Step]:
        """Return the steps of a period with a rollup, or with a note, from the index alone. Others are left out."""
        ranges: list[Document] = [
            {"_id": {"$gte": step_id(kind, (step_s, since_s)), "$lt": step_id(kind, (step_s, until_s))}}
            for step_s in lengths_s
        ]
        length, start = f"$_id.{kind}", "$_id.start"
        is_exact = {"$eq": ["$_id", {kind: length, "start": start}]}
        is_step = {"$and": [is_exact, {"$isNumber": start}, {"$eq": [{"$mod": [start, length]}, 0]}]}
        step = {"$cond": [is_step, {"length": {"$toLong": length}, "start": {"$toLong": start}}, None]}
        found = self._collection.aggregate([{"$match": {"$or": ranges}}, {"$group": {"_id": step}}])
        return {(each["_id"]["length"], each["_id"]["start"]) for each in found if each["_id"]}

    def first_minute_s(self) -> int | None:
        """Return the start of the first minute that is recorded; None without any."""
        is_time = {"$gte": 0, "$lte": MAX_EXACT, "$type": ["int", "long", "double"], **NO_LIST}
        fields = {"_id": False, "minute": "$_id.minute"}  # the rest of a planted ``_id`` can be large
        minutes = self._collection.find({"_id.minute": is_time}, fields)
        with translated_errors():
            first = next(iter(minutes.sort("_id.minute", ASCENDING).limit(1)), None)
        return None if first is None else int(first["minute"])


_WRITE: Final[Document] = {"$cond": [{"$eq": [{"$type": "$write"}, "objectId"]}, "$write", None]}
"""Expression for the last write that a note has; a planted value can be large."""


def _rows_of(steps: Sequence[Step], client_ids: Sequence[str] | None = None) -> list[Document]:
    """Return the stages that take the rows out of rollups, of all clients or of chosen ones and all together."""
    listed = {"$cond": [{"$isArray": "$clients"}, "$clients", []]}
    is_text = {"$eq": [{"$type": "$$this.id"}, "string"]}
    is_chosen = is_text if client_ids is None else {"$in": ["$$this.id", {"$literal": [None, *client_ids]}]}
    return [
        {"$match": {"_id": {"$in": [step_id(ROLLUP, step) for step in steps]}}},
        {"$project": {"clients": {"$filter": {"input": listed, "cond": is_chosen}}}},
        {"$unwind": "$clients"},
        {"$replaceWith": {"$mergeObjects": [NO_TIMES, "$clients", {"start": "$_id.start"}]}},
        {"$match": fits(MAX_NAME_BYTES)},
    ]


def _summed(rows: Iterable[Document], *, key: Callable[[Document], Key]) -> dict[Key, Document]:
    """Return the sums of rows by their keys. Damaged rows are left out."""
    sums: dict[Key, Document] = {}
    for row in rows:
        name = key(row)
        total = sums.get(name, NO_ROW)
        try:
            sums[name] = {
                "counts": [one + other for one, other in zip(total["counts"], row["counts"], strict=True)],
                **{
                    part: choose(filter(None, (total[part], row[part])), default=None)
                    for part, choose in (("peak", max), ("first", min), ("last", max), ("last_denied", max))
                },
            }
        except MALFORMED:
            continue
    return sums


def _row(client_id: str | None, total: Document) -> Document:
    counts = [min(count, MAX_EXACT) for count in total["counts"]]  # a planted one may be larger than any in BSON
    return {"id": client_id, **{part: total[part] for part in NO_TIMES if total[part] is not None}, "counts": counts}


def _total(client_id: str | None, row: Document, start_s: int = 0) -> ClientTotal:
    peak = row["peak"]
    share, policy = peak if isinstance(peak, list) and len(peak) == 2 else (None, None)
    if not isinstance(share, int | float) or not math.isfinite(share) or not is_text(policy):
        share = policy = None
    return ClientTotal(
        client_id or OTHER_CLIENTS,
        *tallies_of(row["counts"]),
        highest_use=None if share is None else float(share),
        policy=policy,
        denied_from_s=whole_number(row["first"]),
        denied_until_s=whole_number(row["last"]),
        start_s=start_s,
    )
