"""Rollups of the statistics in MongoDB: one document per step of time with the requests of all clients.

A step is a minute, five minutes, an hour or a day, aligned to the epoch. Its document is derived from the minutes of
clients and replaced whole by what was read later; nothing is ever added to it. So any instance may derive it, two at
once or after a lost reply. An instance that writes a minute late notes it before, and its steps are derived again.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pymongo import ASCENDING, UpdateOne

from oauth_ratelimit.core.statistics import MINUTE_S, NO_REQUESTS, OTHER_CLIENTS, OVER, ClientTotal, Tally
from oauth_ratelimit.store.mongo.client import Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, count, date_of, fits, is_text, mapping, whole_number
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection
from oauth_ratelimit.store.mongo.minute_sums import MAX_NAME_BYTES, PAGE_SIZE, SUMS, minute_rows, tallies_of

FIVE_S, HOUR_S, DAY_S = 300, 3600, 86_400
FINER_S: Final = {MINUTE_S: 0, FIVE_S: 0, HOUR_S: FIVE_S, DAY_S: HOUR_S}
"""Lengths of steps, each with the length of those that it is derived from; 0 for minutes of clients."""

LOOK_BACK_S: Final = {MINUTE_S: HOUR_S + FIVE_S, FIVE_S: 7 * HOUR_S, HOUR_S: 7 * DAY_S, DAY_S: 7 * DAY_S}
"""How far back steps that nobody has derived are looked for."""

MINUTES_KEPT_S = 2 * HOUR_S
SETTLED_S = 90  # after the end of a minute; instances write every ten seconds
YOUNG_S = 600  # at the end of a period, minutes of clients are read where no rollup is there yet
LATE_S = 60  # after the end of a minute, a write may miss the rollup
IN_DOUBT_S = 120  # after this a late write has been applied, or will never be
MAX_CLIENTS = 10_000  # in a document; those with fewest requests are counted together
MAX_CLIENTS_BYTES = 2**23  # of them
MAX_OVER = 500  # clients over a limit that are returned at once
MAX_LATE = 24  # periods of five minutes at once
MAX_LATE_BYTES = 2**17  # a week of late minutes has half of that
MAX_ID_BYTES = 100
MAX_STEPS = 10_000  # four times as many as there are in eight days
LATE_ID: Final[Document] = {"rollups": "late"}
IS_NUMBER: Final[Document] = {"$type": ["int", "long", "double"]}

Step = tuple[int, int]
"""Length and start of a step in seconds."""


class Rows(NamedTuple):
    clients: Sequence[ClientTotal]
    together: Sequence[ClientTotal]  # all clients, if some were chosen
    missing: Collection[int]  # starts of steps that are not derived yet, or only in part


class Present(NamedTuple):
    """Requests of the last sixty seconds, as far as instances have written them."""

    total: Tally
    active_count: int  # of clients with requests
    denied_count: int  # of those
    over_count: int  # of those, denied or not
    over: Sequence[ClientTotal]  # those with most requests over a limit if there are many
    denied: Collection[str]  # ids of those that are denied


class RollupStore(StatisticsCollection):
    """The rollups, and what is read from them."""

    def derive_due(self, now_s: float, *, keep_s: float) -> Iterator[Step]:
        """Derive the steps that nobody has derived and those with late minutes, finer ones first. Yield each."""
        with translated_errors():
            oldest_s = self._first_minute_s()
            if oldest_s is None:
                return
            since_s = int(now_s - max(LOOK_BACK_S.values()) - DAY_S)
            known = self._known(since_s, now_s)
            selected = {"_id": LATE_ID, **fits(MAX_LATE_BYTES)}
            noted = mapping(mapping(self._collection.find_one(selected)).get("due"))
        now = date_of(now_s)
        sure = {name for name, at in noted.items() if type(at) is type(now) and at <= now}
        lately = range(since_s // FIVE_S * FIVE_S, int(now_s), FIVE_S)  # there may be other names
        late = list(islice((five_s for five_s in lately if str(five_s) in sure), MAX_LATE))
        due = {(FIVE_S, five_s) for five_s in late}
        due |= {step for five_s in late for step in _steps_around(five_s) if step in known}
        for step_s, look_back_s in LOOK_BACK_S.items():
            first_s = int(max(oldest_s, now_s - look_back_s)) // step_s * step_s
            end_s = int(now_s - SETTLED_S) // step_s * step_s
            due.update({(step_s, start_s) for start_s in range(first_s, end_s, step_s)} - known)
        for step in sorted(due):
            self.derive(step, keep_s=keep_s)
            yield step
        if late:
            paths = [f"due.{five_s}" for five_s in late]
            forgotten = [UpdateOne({"_id": LATE_ID, path: {"$lte": now}}, {"$unset": {path: ""}}) for path in paths]
            with translated_errors():
                self._collection.bulk_write(forgotten, ordered=False)

    def derive(self, step: Step, *, keep_s: float) -> None:
        """Derive the rollup of a step that is over: from finer ones, or from the minutes if one of them is missing."""
        step_s, start_s = step
        end_s, finer_s = start_s + step_s, FINER_S[step_s]
        parts = [(finer_s, at_s) for at_s in range(start_s, end_s, finer_s)] if finer_s else []
        expire = date_of(end_s + (min(keep_s, MINUTES_KEPT_S) if step_s == MINUTE_S else keep_s))
        identity: Document = {"step": step_s, "start": start_s}
        with translated_errors():
            collection = self._collection
            is_known = parts and self._known(start_s, end_s).issuperset(parts)
            rows = _rows_of(parts) if is_known else minute_rows(start_s, end_s)
            collection.aggregate([*rows, *_packed(), *_replacing(identity, expire, into=collection.name)])
            empty = {"$setOnInsert": {"at": date_of(0), "clients": [], "expire": expire}}
            collection.update_one({"_id": identity}, empty, upsert=True)

    def rows(self, since_s: float, until_s: float, *, step_s: int = 0, client_ids: Sequence[str] | None = None) -> Rows:
        """Return the requests of each client in a period that ends lately, where a part of a minute counts in full.

        With ``step_s`` in each of its steps; with ``client_ids`` of these clients, and of all together.
        """
        key: Document = {"id": "$id"}
        if step_s:
            key["start"] = {"$subtract": ["$start", {"$mod": ["$start", step_s]}]}
        with translated_errors():
            steps, young_s, missing = self._cover(since_s, until_s, longest_s=step_s or DAY_S)
            young = minute_rows(young_s, until_s)
            if client_ids is not None:
                ids = {"$filter": {"input": [None, "$id"], "cond": _is_chosen("$$this", client_ids)}}
                young += [{"$set": {"id": ids}}, {"$unwind": "$id"}]
            united = {"$unionWith": {"coll": self._collection.name, "pipeline": young}}
            stages = [
                *_rows_of(steps, client_ids, has_start=step_s > 0),
                united,
                *_grouped(key),
                {"$project": _COLUMNS},
            ]
            clients: list[ClientTotal] = []
            together: list[ClientTotal] = []
            for document in self._collection.aggregate(stages, batchSize=PAGE_SIZE):
                (together if document["id"] is None else clients).append(_row(document))
        return Rows(clients, together, {at_s // step_s * step_s for at_s in missing} if step_s else missing)

    def present(self, now_s: float, changes: Iterable[tuple[str | None, float]] = ()) -> Present:
        """Return the requests of the present minute, and the part of the last one that is within sixty seconds.

        A client is over a limit if it was since the last of the ``changes`` that concern it: each has the only client
        or None, and the time from which it has effect.
        """
        start_s = int(now_s // MINUTE_S) * MINUTE_S
        weight = {"$cond": [{"$eq": ["$start", start_s]}, 1, 1 - (now_s - start_s) / MINUTE_S]}
        known = {"$literal": [{"id": client_id, "at": at_s} for client_id, at_s in changes]}
        is_meant = {"$in": ["$$this.id", [None, "$_id.id"]]}
        changed: Document = {"$map": {"input": known, "in": {"$cond": [is_meant, "$$this.at", 0]}}}
        since = {"$max": [now_s - MINUTE_S, {"$max": changed}]}
        over = {"$add": [f"${name}" for name in SUMS if name.endswith(OVER)]}
        is_named: Document = {"$ne": ["$_id.id", OTHER_CLIENTS]}
        recent: Document = {
            "is_active": is_named,
            "is_denied": {"$and": [is_named, {"$gte": ["$last_denied", since]}]},
            "over": {"$cond": [{"$and": [is_named, {"$gte": ["$last", since]}]}, over, 0]},
        }
        counts = {name: {"$sum": {"$cond": [f"${name}", 1, 0]}} for name in recent}
        most: list[Document] = [
            {"$match": {"over": {"$gt": 0}}},
            {"$sort": {"over": -1, "_id": 1}},
            {"$limit": MAX_OVER},
        ]
        most.append({"$project": {**_COLUMNS, "is_denied": True}})
        stages = [
            *minute_rows(start_s - MINUTE_S, start_s + MINUTE_S),
            {"$set": {name: {"$multiply": [f"${name}", weight]} for name in SUMS}},
            *_grouped({"id": "$id"}),
            {"$set": {name: {"$toLong": {"$ceil": f"${name}"}} for name in SUMS}},
            {"$set": recent},
            {"$facet": {"all": [{"$group": {"_id": None, **_TOTALS, **counts}}], "over": most}},
        ]
        with translated_errors():
            found = next(iter(self._collection.aggregate(stages)))
        counted: Mapping[str, int] = next(iter(found["all"]), {})
        return Present(
            sum(tallies_of(map(counted.get, SUMS)), NO_REQUESTS),
            active_count=counted.get("is_active", 0),
            denied_count=counted.get("is_denied", 0),
            over_count=counted.get("over", 0),
            over=list(map(_row, found["over"])),
            denied={document["id"] for document in found["over"] if document["is_denied"]},
        )

    def _cover(self, since_s: float, until_s: float, *, longest_s: int = DAY_S) -> tuple[list[Step], float, list[int]]:
        """Return the fewest rollups for a period, the start of its rest, and minutes that neither of them has."""
        known = self._known(since_s, until_s)
        lengths = [step_s for step_s in sorted(FINER_S, reverse=True) if step_s <= longest_s]
        at_s = int(since_s) // MINUTE_S * MINUTE_S
        steps: list[Step] = []
        missing: list[int] = []
        while at_s < until_s:
            fitting = (step_s for step_s in lengths if at_s % step_s == 0 and (step_s, at_s) in known)
            step_s = next((step_s for step_s in fitting if at_s + step_s <= until_s), 0)
            if step_s:
                steps.append((step_s, at_s))
            elif at_s >= until_s - YOUNG_S:
                break
            else:
                missing.append(at_s)
            at_s += step_s or MINUTE_S
        if missing:
            oldest_s = self._first_minute_s()
            missing = [] if oldest_s is None else [at_s for at_s in missing if at_s >= oldest_s]
        return steps, at_s, missing

    def _known(self, since_s: float, until_s: float) -> set[Step]:
        """Return the rollups of a period, from the index."""
        ranges: list[Document] = [
            {"_id": {"$gte": {"step": step_s, "start": since_s}, "$lt": {"step": step_s, "start": until_s}}}
            for step_s in FINER_S
        ]
        is_valid = {"_id.step": IS_NUMBER, "_id.start": IS_NUMBER, **fits(MAX_ID_BYTES, "$_id")}
        found = self._collection.find({"$or": ranges, **is_valid}, {"_id": True}).limit(MAX_STEPS)
        return {(document["_id"]["step"], document["_id"]["start"]) for document in found}

    def _first_minute_s(self) -> int | None:
        """Return the start of the first minute of any client, None if there is none."""
        is_time = {"$gte": 0, "$lte": MAX_EXACT, **IS_NUMBER, "$not": {"$type": "array"}}
        fields = {"_id": False, "minute": "$_id.minute"}  # the rest of a planted ``_id`` can be large
        minutes = self._collection.find({"_id.minute": is_time}, fields)
        first = next(iter(minutes.sort("_id.minute", ASCENDING).limit(1)), None)
        return None if first is None else int(first["minute"])


def late_note(minutes: Collection[int], *, now_s: float, keep_s: float) -> Document | None:
    """Return the update that notes minutes about to be written whose rollups may exist; None if there are none."""
    late = [minute_s for minute_s in minutes if minute_s + MINUTE_S + LATE_S <= now_s]
    if not late:
        return None
    due = {f"due.{minute_s // FIVE_S * FIVE_S}": date_of(now_s + IN_DOUBT_S) for minute_s in late}
    return {"$max": {**due, "expire": date_of(now_s + keep_s)}}


def _steps_around(five_s: int) -> Iterator[Step]:
    """Yield the steps that contain five minutes or are contained in them."""
    yield from ((MINUTE_S, at_s) for at_s in range(five_s, five_s + FIVE_S, MINUTE_S))
    yield from ((step_s, five_s // step_s * step_s) for step_s in (HOUR_S, DAY_S))


def _rows_of(
    steps: Sequence[Step], client_ids: Sequence[str] | None = None, *, has_start: bool = False
) -> list[Document]:
    """Return the stages that take the rows of clients out of rollups, of all or of chosen ones; no damaged ones."""
    listed = {"$cond": [{"$isArray": "$clients"}, "$clients", []]}
    chosen = {"$filter": {"input": listed, "cond": _is_chosen("$$this.id", client_ids)}}
    row = {"$mergeObjects": ["$clients", {"start": "$_id.start"}]} if has_start else "$clients"  # for each client
    taken: list[Document] = [{"$project": {"clients": chosen}}, {"$unwind": "$clients"}, {"$replaceWith": row}]
    steps_of = [{"step": step_s, "start": start_s} for step_s, start_s in steps]
    return [{"$match": {"_id": {"$in": steps_of}}}, *taken, {"$match": fits(MAX_NAME_BYTES)}]


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


def _grouped(key: object) -> list[Document]:
    times = {"first": {"$min": "$first"}, "last": {"$max": "$last"}, "last_denied": {"$max": "$last_denied"}}
    return [{"$group": {"_id": key, **_TOTALS, "peak": {"$max": "$peak"}, **times}}]


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
        {"$group": {"_id": None, "clients": {"$push": client}, **_TOTALS}},
    ]


def _replacing(identity: Document, expire: object, *, into: str) -> list[Document]:
    """Return the stages that replace a rollup, unless the present one was read later."""
    document = {
        "_id": {"$literal": identity},
        "at": "$$NOW",
        "expire": {"$literal": expire},
        "clients": {"$concatArrays": [[{"id": None, **{name: f"${name}" for name in SUMS}}], "$clients"]},
    }
    is_newer = {"$gt": ["$$new.at", "$at"]}
    matched = [{"$replaceWith": {"$cond": [is_newer, "$$new", "$$ROOT"]}}]
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
        policy=None if policy is None else unquote(policy),
        denied_from_s=whole_number(document.get("first")),
        denied_until_s=whole_number(document.get("last")),
        start_s=count(document.get("start")),
    )
