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

from oauth_ratelimit.core.statistics import MINUTE_S, OTHER_CLIENTS, OVER, ClientTotal, Tally
from oauth_ratelimit.store.mongo.client import Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, date_of, fits, is_text, mapping, whole_number
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection
from oauth_ratelimit.store.mongo.minute_sums import MAX_NAME_BYTES, PAGE_SIZE, SUMS, TIMES, minute_entries, tallies_of

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


class Totals(NamedTuple):
    clients: Sequence[ClientTotal]
    is_complete: bool  # False if some of the time is not derived yet


class Present(NamedTuple):
    """Requests of the last sixty seconds, as far as instances have written them."""

    total: Tally
    active_count: int  # of clients with requests
    denied_count: int  # of those
    over_count: int  # of those, denied or not
    over: Sequence[ClientTotal]  # those with most requests over a limit if there are many
    denied: Collection[str]  # ids of those that are denied


class Lines(NamedTuple):
    """Requests at all endpoints by the start of a step, of all clients and of chosen ones by id."""

    total: Mapping[int, Tally]
    clients: Mapping[str, Mapping[int, Tally]]
    missing: Collection[int]  # starts of steps that are not derived yet, or only in part


class RollupStore(StatisticsCollection):
    """The rollups, and what is read from them."""

    def due(self, now_s: float) -> list[Step]:
        """Return steps to derive, finer ones first: those that nobody has derived, and those with late minutes."""
        with translated_errors():
            oldest_s = self._first_minute_s()
            if oldest_s is None:
                return []
            since_s = int(now_s - max(LOOK_BACK_S.values()) - DAY_S)
            known = self._known(since_s, now_s)
            selected = {"_id": LATE_ID, **fits(MAX_LATE_BYTES)}
            late = mapping(mapping(self._collection.find_one(selected)).get("due"))
        now = date_of(now_s)
        late_s = {name for name, at in late.items() if type(at) is type(now) and at <= now}
        lately = range(since_s // FIVE_S * FIVE_S, int(now_s), FIVE_S)  # there may be other names
        found = set(islice(((FIVE_S, five_s) for five_s in lately if str(five_s) in late_s), MAX_LATE))
        found |= {step for _, five_s in list(found) for step in _steps_around(five_s) if step in known}
        for step_s, look_back_s in LOOK_BACK_S.items():
            first_s = int(max(oldest_s, now_s - look_back_s)) // step_s * step_s
            end_s = int(now_s - SETTLED_S) // step_s * step_s
            found.update({(step_s, start_s) for start_s in range(first_s, end_s, step_s)} - known)
        return sorted(found)

    def derive(self, step: Step, *, keep_s: float) -> None:
        """Derive the rollup of a step that is over, and the finer ones that it is derived from if they are missing."""
        step_s, start_s = step
        end_s, finer_s = start_s + step_s, FINER_S[step_s]
        parts = [(finer_s, at_s) for at_s in range(start_s, end_s, finer_s)] if finer_s else []
        with translated_errors():
            first_s = self._first_minute_s(start_s) if parts else None
            known = self._known(start_s, end_s) if first_s is not None and first_s < end_s else set(parts)
        for part in parts:
            if part not in known:
                self.derive(part, keep_s=keep_s)
        entries = _entries(parts) if parts else minute_entries(start_s, end_s)
        expire = date_of(end_s + (min(keep_s, MINUTES_KEPT_S) if step_s == MINUTE_S else keep_s))
        identity: Document = {"step": step_s, "start": start_s}
        with translated_errors():
            collection = self._collection
            collection.aggregate([*entries, *_packed(), *_replacing(identity, expire, into=collection.name)])
            empty = {"$setOnInsert": {"at": date_of(0), "clients": [], "total": {}, "expire": expire}}
            collection.update_one({"_id": identity}, empty, upsert=True)

    def forget_late(self, steps: Collection[Step], *, now_s: float) -> None:
        """Forget the late minutes of steps that ``due`` returned and that have been derived again."""
        due = [f"due.{start_s}" for step_s, start_s in steps if step_s == FIVE_S]
        if due:
            updates = [
                UpdateOne({"_id": LATE_ID, path: {"$lte": date_of(now_s)}}, {"$unset": {path: ""}}) for path in due
            ]
            with translated_errors():
                self._collection.bulk_write(updates, ordered=False)

    def totals(self, since_s: float, until_s: float) -> Totals:
        """Return the requests of each client in a period that ends lately. A part of a minute counts in full."""
        columns = {"$project": {"counts": [f"${name}" for name in SUMS], "peak": 1, "first": 1, "last": 1}}
        with translated_errors():
            steps, young_s, missing = self._cover(since_s, until_s)
            collection = self._collection
            young = {"$unionWith": {"coll": collection.name, "pipeline": minute_entries(young_s, until_s)}}
            found = collection.aggregate([*_entries(steps), young, *_grouped("$id"), columns], batchSize=PAGE_SIZE)
            return Totals([_client(document) for document in found if is_text(document["_id"])], not missing)

    def present(self, now_s: float, changes: Iterable[tuple[str | None, float]] = ()) -> Present:
        """Return the requests of the present minute, and the part of the last one that is within sixty seconds.

        A client is over a limit if it was since the last of the ``changes`` that concern it: each has the only client
        or None, and the time from which it has effect.
        """
        start_s = int(now_s // MINUTE_S) * MINUTE_S
        weight = {"$cond": [{"$eq": ["$start", start_s]}, 1, 1 - (now_s - start_s) / MINUTE_S]}
        known = {"$literal": [{"id": client_id, "at": at_s} for client_id, at_s in changes]}
        is_meant = {"$in": ["$$this.id", [None, "$_id"]]}
        changed: Document = {"$map": {"input": known, "in": {"$cond": [is_meant, "$$this.at", 0]}}}
        since = {"$max": [now_s - MINUTE_S, {"$max": changed}]}
        over = {"$add": [f"${name}" for name in SUMS if name.endswith(OVER)]}
        recent: Document = {
            "over": {"$cond": [{"$gte": ["$last", since]}, over, 0]},
            "denied": {"$gte": ["$last_denied", since]},
        }
        is_named: Document = {"_id": {"$ne": OTHER_CLIENTS}}
        clients = {f"{name}_count": {"$sum": {"$cond": [f"$recent.{name}", 1, 0]}} for name in recent}
        columns = {
            "counts": [f"${name}" for name in SUMS],
            "peak": 1,
            "first": 1,
            "last": 1,
            "denied": "$recent.denied",
        }
        parts = {
            "total": [{"$group": {"_id": None, **_TOTALS}}],
            "clients": [{"$match": is_named}, {"$group": {"_id": None, "active_count": {"$sum": 1}, **clients}}],
            "over": [
                {"$match": {**is_named, "recent.over": {"$gt": 0}}},
                {"$sort": {"recent.over": -1, "_id": 1}},
                {"$limit": MAX_OVER},
                {"$project": columns},
            ],
        }
        stages = [
            *minute_entries(start_s - MINUTE_S, start_s + MINUTE_S),
            {"$set": {name: {"$multiply": [f"${name}", weight]} for name in SUMS}},
            *_grouped("$id"),
            {"$set": {name: {"$toLong": {"$ceil": f"${name}"}} for name in SUMS}},
            {"$set": {"recent": recent}},
            {"$facet": parts},
        ]
        with translated_errors():
            found = next(iter(self._collection.aggregate(stages)))
        counts: Mapping[str, Any] = next(iter(found["clients"]), {})
        return Present(
            sum(tallies_of(next(iter(found["total"]), {})), Tally()),
            **{name: counts.get(name, 0) for name in ("active_count", "denied_count", "over_count")},
            over=[_client(document) for document in found["over"] if is_text(document["_id"])],
            denied={document["_id"] for document in found["over"] if document["denied"]},
        )

    def lines(self, since_s: float, until_s: float, *, step_s: int, client_ids: Collection[str] = ()) -> Lines:
        """Return the requests in each step of a period that ends lately, of all clients and of chosen ones."""
        chosen = list(client_ids)
        total: dict[int, Tally] = {}
        clients: dict[str, dict[int, Tally]] = {client_id: {} for client_id in chosen}

        def add(line: dict[int, Tally], at_s: int, counts: object) -> None:
            start_s = at_s // step_s * step_s
            line[start_s] = line.get(start_s, Tally()) + sum(tallies_of(mapping(counts)), Tally())

        with translated_errors():
            steps, young_s, missing = self._cover(since_s, until_s, longest_s=step_s)
            listed = {"$cond": [{"$isArray": "$clients"}, "$clients", []]}
            is_chosen = {"$filter": {"input": listed, "cond": {"$in": ["$$this.id", chosen]}}}
            chosen_only = {"$project": {"total": 1, "clients": is_chosen}}
            for document in self._collection.aggregate([_selected(steps), chosen_only]):
                at_s = document["_id"]["start"]
                add(total, at_s, document.get("total"))
                for client in document["clients"]:
                    add(clients[client["id"]], at_s, client)
            key = {"start": "$start", "id": {"$cond": [{"$in": ["$id", chosen]}, "$id", None]}}
            for document in self._collection.aggregate([*minute_entries(young_s, until_s), *_grouped(key)]):
                at_s, client_id = int(document["_id"]["start"]), document["_id"]["id"]
                add(total, at_s, document)
                if client_id is not None:
                    add(clients[client_id], at_s, document)
        return Lines(total, clients, {at_s // step_s * step_s for at_s in missing})

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

    def _first_minute_s(self, since_s: float = 0.0) -> int | None:
        """Return the start of the first minute of any client since a time, None if there is none."""
        is_time = {"$gte": since_s, "$lte": MAX_EXACT, **IS_NUMBER, "$not": {"$type": "array"}}
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


def _selected(steps: Sequence[Step]) -> Document:
    return {"$match": {"_id": {"$in": [{"step": step_s, "start": start_s} for step_s, start_s in steps]}}}


def _entries(steps: Sequence[Step]) -> list[Document]:
    """Return the stages that take the clients out of rollups. They leave out damaged ones."""
    is_client = {"$and": [{"$eq": [{"$type": "$clients"}, "object"]}, {"$eq": [{"$type": "$clients.id"}, "string"]}]}
    clients: list[Document] = [{"$match": {"$expr": is_client}}, {"$replaceWith": "$clients"}]
    return [_selected(steps), {"$unwind": "$clients"}, *clients, {"$match": fits(MAX_NAME_BYTES)}]


_TOTALS: Final[Document] = {name: {"$sum": f"${name}"} for name in SUMS}


def _grouped(key: object) -> list[Document]:
    times = {name: {"$min" if name == "first" else "$max": f"${name}"} for name in TIMES}
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
        "clients": True,
        "total": {name: f"${name}" for name in SUMS},
    }
    is_newer = {"$gt": ["$$new.at", "$at"]}
    matched = [{"$replaceWith": {"$cond": [is_newer, "$$new", "$$ROOT"]}}]
    return [{"$project": document}, {"$merge": {"into": into, "whenMatched": matched}}]


def _client(document: Mapping[str, Any]) -> ClientTotal:
    peak = document.get("peak")
    share, policy = peak if isinstance(peak, list) and len(peak) == 2 else (None, None)
    if not isinstance(share, int | float) or not math.isfinite(share) or not is_text(policy):
        share = policy = None
    return ClientTotal(
        document["_id"],
        *tallies_of(dict(zip(SUMS, document["counts"], strict=True))),
        highest_use=None if share is None else float(share),
        policy=None if policy is None else unquote(policy),
        denied_from_s=whole_number(document.get("first"), at_most=MAX_EXACT),
        denied_until_s=whole_number(document.get("last"), at_most=MAX_EXACT),
    )
