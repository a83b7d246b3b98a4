"""Rollups of the statistics in MongoDB: one document per step of time with the requests of all clients.

A step is a minute, five minutes, an hour or a day, aligned to the epoch. Its document is derived from the minutes of
clients and replaced whole; nothing is ever added to it. So any instance may derive it, two at once or after a lost
reply. Counts of a minute only grow, so of two documents the one with more requests was read later.

Each write of a part marks its step as changed, by a note. A step that is over is derived if it is missing or has a
note. After that the next coarser one gets a note, and this one is removed unless somebody has written meanwhile. No
clock of an instance decides whether a write is in time.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pymongo import ASCENDING, DeleteOne, UpdateOne

from oauth_ratelimit.core.failed_auth import ANYONE
from oauth_ratelimit.core.statistics import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    NO_REQUESTS,
    OTHER_CLIENTS,
    OVER,
    ClientTotal,
    Tally,
    full_minute,
)
from oauth_ratelimit.errors import StoreUnavailable, StoreUnreachable
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, NO_LIST, count, fits, is_text, whole_number
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


class Rows(NamedTuple):
    clients: Sequence[ClientTotal]
    together: Sequence[ClientTotal]  # all clients, if some were chosen
    missing: Collection[int]  # starts of steps that are not derived yet, or only in part


class Present(NamedTuple):
    """Requests of the last full minute, and who was over a limit since then or in the last sixty seconds."""

    total: Tally  # of that minute, or of what came since if only then requests were over a limit
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
            oldest_s = self._first_minute_s()
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
        identity, note_id, expire = step_id(ROLLUP, step), step_id(CHANGED, step), expiry_of(step, keep_s)
        with translated_errors():
            collection = self._collection
            note = collection.find_one({"_id": note_id}, {"write": _WRITE})  # before the parts
            known = self._steps(ROLLUP, start_s, end_s)
            if note is None and step in known:
                return
            rows = _rows_of(parts) if parts and known.issuperset(parts) else minute_rows(start_s, end_s)
            # A row of nobody makes one write of it also if there are no requests.
            nobody = [{"$limit": 1}, {"$project": {"_id": False, "id": {"$literal": None}}}]
            united = {"$unionWith": {"coll": collection.name, "pipeline": nobody}}
            collection.aggregate([*rows, united, *_packed(), *_replacing(identity, expire, into=collection.name)])
            finish: list[UpdateOne | DeleteOne] = [change_note(each, keep_s=keep_s) for each in coarser]
            if note is not None:  # last: a process that ends before leaves it to others
                finish.append(DeleteOne({"_id": note_id, "$expr": {"$eq": [_WRITE, note["write"]]}}))
            if finish:
                collection.bulk_write(finish)

    def rows(self, since_s: float, until_s: float, *, step_s: int = 0, client_ids: Sequence[str] | None = None) -> Rows:
        """Return the requests of each client in a period that ends lately, where a part of a minute counts in full.

        With ``step_s`` in each of its steps; with ``client_ids`` of these clients, and of all together.
        """
        key: Document = {"id": "$id"}
        if step_s:
            key["start"] = {"$subtract": ["$start", {"$mod": ["$start", step_s]}]}
        with translated_errors():
            steps, young_s, missing = self._cover(since_s, until_s, step_s or DAY_S)
            young = minute_rows(min(young_s, default=until_s), until_s)
            young.append({"$match": {"start": {"$in": young_s}}})
            if client_ids is not None:
                ids = {"$filter": {"input": [None, "$id"], "cond": _is_chosen("$$this", client_ids)}}
                young += [{"$set": {"id": ids}}, {"$unwind": "$id"}]
            united = {"$unionWith": {"coll": self._collection.name, "pipeline": young}}
            stages = [*_rows_of(steps, client_ids, has_start=step_s > 0), united, *_grouped(key)]
            clients: list[ClientTotal] = []
            together: list[ClientTotal] = []
            for document in self._collection.aggregate([*stages, {"$project": _COLUMNS}], batchSize=PAGE_SIZE):
                (together if document["id"] is None else clients).append(_row(document))
        return Rows(clients, together, {at_s // step_s * step_s for at_s in missing} if step_s else missing)

    def present(self, now_s: float, changes: Iterable[tuple[str | None, float]] = ()) -> Present:
        """Return the requests of the last minute that is over and written, with those since.

        A client is over a limit if it was since the last of the ``changes`` that concern it: each has the only client
        or None, and the time from which it has effect.
        """
        full_s = full_minute(now_s)
        is_full = {"$eq": ["$start", full_s]}
        of_full = {f"full_{name}": {"$sum": {"$cond": [is_full, f"${name}", 0]}} for name in SUMS}
        known = {"$literal": [{"id": client_id, "at": at_s} for client_id, at_s in changes]}
        is_meant = {"$in": ["$$this.id", [None, "$_id.id"]]}
        changed: Document = {"$map": {"input": known, "in": {"$cond": [is_meant, "$$this.at", 0]}}}
        since = {"$max": [now_s - MINUTE_S, {"$max": changed}]}
        over = {"$add": [f"${name}" for name in SUMS if name.endswith(OVER)]}
        is_named: Document = {"$ne": ["$_id.id", OTHER_CLIENTS]}
        recent: Document = {
            "is_active": {"$not": {"$in": ["$_id.id", [OTHER_CLIENTS, ANYONE]]}},
            "is_denied": {"$and": [is_named, {"$gte": ["$last_denied", since]}]},
            "over": {"$cond": [{"$and": [is_named, {"$gte": ["$last", since]}]}, over, 0]},
        }
        counts: Document = {name: {"$sum": {"$cond": [f"${name}", 1, 0]}} for name in recent}
        counts |= {name: {"$sum": f"${name}"} for name in of_full}
        most: list[Document] = [
            {"$match": {"over": {"$gt": 0}}},
            {"$sort": {"over": -1, "_id": 1}},
            {"$limit": MAX_OVER},
        ]
        most.append({"$project": {**_COLUMNS, "is_denied": True}})
        stages = [
            *minute_rows(full_s, now_s),
            *_grouped({"id": "$id"}, **of_full),
            {"$set": recent},
            {"$facet": {"all": [{"$group": {"_id": None, **_TOTALS, **counts}}], "over": most}},
        ]
        with translated_errors():
            found = next(iter(self._collection.aggregate(stages)))
        counted: Mapping[str, int] = next(iter(found["all"]), {})
        full, both = (tallies_of(map(counted.get, names)) for names in (of_full, SUMS))
        later = [whole - part for whole, part in zip(both, full, strict=True)]
        is_new = any(each.over for each in later) and not any(each.over for each in full)
        shown = later if is_new else full
        return Present(
            sum(shown, NO_REQUESTS),
            guard=shown[-1],
            is_full=not is_new,
            since_s=full_s + MINUTE_S if is_new else full_s,
            active_count=counted.get("is_active", 0),
            denied_count=counted.get("is_denied", 0),
            over_count=counted.get("over", 0),
            over=list(map(_row, found["over"])),
            denied={document["id"] for document in found["over"] if document["is_denied"]},
        )

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
            oldest_s = self._first_minute_s()
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

    def _first_minute_s(self) -> int | None:
        is_time = {"$gte": 0, "$lte": MAX_EXACT, "$type": ["int", "long", "double"], **NO_LIST}
        fields = {"_id": False, "minute": "$_id.minute"}  # the rest of a planted ``_id`` can be large
        minutes = self._collection.find({"_id.minute": is_time}, fields)
        first = next(iter(minutes.sort("_id.minute", ASCENDING).limit(1)), None)
        return None if first is None else int(first["minute"])


_WRITE: Final[Document] = {"$cond": [{"$eq": [{"$type": "$write"}, "objectId"]}, "$write", None]}
"""Expression for the last write that a note has; a planted value can be large."""


def _rows_of(
    steps: Sequence[Step], client_ids: Sequence[str] | None = None, *, has_start: bool = False
) -> list[Document]:
    """Return the stages that take the rows of clients out of rollups, of all or of chosen ones; no damaged ones."""
    listed = {"$cond": [{"$isArray": "$clients"}, "$clients", []]}
    chosen = {"$filter": {"input": listed, "cond": _is_chosen("$$this.id", client_ids)}}
    row = {"$mergeObjects": ["$clients", {"start": "$_id.start"}]} if has_start else "$clients"  # for each client
    taken: list[Document] = [{"$project": {"clients": chosen}}, {"$unwind": "$clients"}, {"$replaceWith": row}]
    ids = [step_id(ROLLUP, step) for step in steps]
    return [{"$match": {"_id": {"$in": ids}}}, *taken, {"$match": fits(MAX_NAME_BYTES)}]


def _is_chosen(path: str, client_ids: Sequence[str] | None) -> Document:
    return {"$eq": [{"$type": path}, "string"]} if client_ids is None else {"$in": [path, [None, *client_ids]]}


_TOTALS: Final[Document] = {name: {"$sum": f"${name}"} for name in SUMS}
_COLUMNS: Final[Document] = {
    "_id": False,
    "id": "$_id.id",
    "start": "$_id.start",
    "counts": [f"${name}" for name in SUMS],
    **dict.fromkeys(("peak", "first", "last"), True),
}


def _grouped(key: object, **more: object) -> list[Document]:
    times = {"first": {"$min": "$first"}, "last": {"$max": "$last"}, "last_denied": {"$max": "$last_denied"}}
    return [{"$group": {"_id": key, **_TOTALS, "peak": {"$max": "$peak"}, **times, **more}}]


def _packed() -> list[Document]:
    """Return the stages that put the sums of all clients into one document, with those of few requests together."""
    window = {"documents": ["unbounded", "current"]}
    size = {"$sum": {"$bsonSize": "$$ROOT"}, "window": window}
    rank = {"$setWindowFields": {"sortBy": {"offered": -1}, "output": {"rank": {"$documentNumber": {}}, "size": size}}}
    is_beyond = {"$or": [{"$gt": ["$rank", MAX_CLIENTS]}, {"$gt": ["$size", MAX_CLIENTS_BYTES]}]}
    client: Document = {"id": "$_id"}
    client |= {name: {"$cond": [f"${name}", f"${name}", "$$REMOVE"]} for name in SUMS}  # zeros take room
    client |= {name: {"$ifNull": [f"${name}", "$$REMOVE"]} for name in ("peak", "first", "last")}
    return [
        *_grouped("$id"),
        {"$set": {"offered": {"$add": [f"${name}" for name in SUMS]}}},
        rank,
        {"$set": {"id": {"$cond": [is_beyond, OTHER_CLIENTS, "$_id"]}}},
        *_grouped("$id"),
        {"$group": {"_id": None, "clients": {"$push": {"$cond": ["$_id", client, "$$REMOVE"]}}, **_TOTALS}},
    ]


def _replacing(identity: Document, expire: object, *, into: str) -> list[Document]:
    """Return the stages that replace a rollup, unless the present one was read later: then it has more requests."""
    document = {
        "_id": {"$literal": identity},
        "offered": {"$add": [f"${name}" for name in SUMS]},
        "expire": {"$literal": expire},
        "clients": {"$concatArrays": [[{"id": None, **{name: f"${name}" for name in SUMS}}], "$clients"]},
    }
    is_older = {"$and": [{"$isNumber": "$offered"}, {"$lt": ["$$new.offered", "$offered"]}]}
    matched = [{"$replaceWith": {"$cond": [is_older, "$$ROOT", "$$new"]}}]
    return [{"$project": document}, {"$merge": {"into": into, "whenMatched": matched}}]


def _row(document: Mapping[str, Any]) -> ClientTotal:
    peak = document.get("peak")
    share, policy = peak if isinstance(peak, list) and len(peak) == 2 else (None, None)
    if not isinstance(share, int | float) or not math.isfinite(share) or not is_text(policy):
        share = policy = None
    return ClientTotal(
        document["id"] or OTHER_CLIENTS,
        *tallies_of(document["counts"]),
        highest_use=None if share is None else float(share),
        policy=policy,
        denied_from_s=whole_number(document.get("first")),
        denied_until_s=whole_number(document.get("last")),
        start_s=count(document.get("start")),
    )
