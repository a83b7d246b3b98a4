"""Statistics in MongoDB: one document per client and minute, written by all instances.

Each process keeps its own growing numbers under a name of its own and writes them with ``$max``, so a repeated or late
write changes nothing. The sum over the processes is exact. ``sums``, ``peak`` and ``over`` repeat in few numbers what
the other fields have in detail: rollups are made of them.
"""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import add
from typing import Any, Final
from urllib.parse import unquote

from bson import ObjectId
from bson.int64 import Int64
from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.statistics import (
    COUNTS,
    ENDPOINT,
    GUARD,
    HOUR_S,
    MAX_RANK,
    MINUTE_S,
    NO_REQUESTS,
    OVER,
    REGISTER_COUNT,
    ClientMinute,
    Denials,
    Peak,
    Source,
    Tally,
    UserLoad,
    add_user,
)
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.process.yielding import yield_between
from oauth_ratelimit.store.mongo.client import Document, translated_errors
from oauth_ratelimit.store.mongo.fields import (
    MAX_EXACT,
    NO_LIST,
    checked_number,
    checked_text,
    count,
    date_of,
    fits,
    well_formed,
)
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection

PARTS: Final = ("by", "peaks", "denials", "users", "registers", "seconds", "lifetimes")
DUPLICATE_KEY = 11000
PER_SECOND: Final = struct.Struct(f">{MINUTE_S}H")  # number of requests of each second
MAX_PER_SECOND: Final = 2**16 - 1
PAGE_SIZE = 1000  # documents per round trip
MAX_BYTES = 2**21  # of a minute of a client: some hundred processes, each with its grant types and heaviest users
MAX_NAME_BYTES = 2**12  # of a client's id with what is around it, or of a policy

FIVE_S = 300
MINUTES_KEPT_S = 2 * HOUR_S  # rollups of minutes
CHANGED = "changed"  # first field of the ``_id`` of a note about a step

SUMS: Final = (
    *COUNTS,
    *("endpoint_allowed", "endpoint_denied", "endpoint_would_deny"),
    *("guard_denied", "guard_would_deny"),
)
"""Counts of a client: requests at the token endpoint, at other endpoints, and attempts that the guard denied."""

Step = tuple[int, int]
"""Length and start of a step of time in seconds."""


class StatisticsStore(StatisticsCollection):
    """The statistics of all instances."""

    def put(self, writer: str, minutes: Sequence[ClientMinute], *, keep_s: float) -> list[int]:
        """Write the numbers of a process in one bulk. A repeated or late write changes nothing.

        No other process may ever have the writer's name, and its counts only grow from one write to the next. Returns
        the positions of the minutes that were rejected, because a field of the document has another form.
        """
        starts_s = {minute.minute_s for minute in minutes}
        steps = {(step_s, at_s // step_s * step_s) for step_s in (MINUTE_S, FIVE_S) for at_s in starts_s}
        writes = [compose(writer, minute, keep_s=keep_s) for minute in yield_between(minutes)]
        # In one command with what they note and after it, so that nothing comes between: no end, stop or lost reply.
        notes = [change_note(step, keep_s=keep_s) for step in sorted(steps)]
        with translated_errors():
            rejected: list[int] = []
            try:
                self._collection.bulk_write([*writes, *notes], ordered=False)
            except BulkWriteError as exc:
                if exc.details["writeConcernErrors"]:
                    raise StoreUnavailable("a majority did not confirm the write") from None
                if any(error["code"] == DUPLICATE_KEY for error in exc.details["writeErrors"]):
                    raise StoreUnavailable("two processes created the same minute at once") from None
                positions = (error["index"] for error in exc.details["writeErrors"])
                rejected = [position for position in positions if position < len(minutes)]
            self._indexes.ensure(self._collection)
        return rejected

    def minutes(
        self, since_s: float, until_s: float, client_id: str | None = None, *, parts: Collection[str] = PARTS
    ) -> Iterator[ClientMinute]:
        """Yield the minutes that begin in a period, in order of time; faster without ``users`` and ``registers``."""
        selected, order = selected_minutes(since_s, until_s, client_id)
        with translated_errors():
            chosen = {**selected, **fits(MAX_BYTES)}
            found = self._collection.find(chosen, dict.fromkeys(parts, 1), batch_size=PAGE_SIZE)
            found = found.sort(order, ASCENDING).allow_disk_use(True)  # where the index is missing
            yield from well_formed(parse_minute, found)

    def count(self, since_s: float, until_s: float, client_id: str | None = None) -> int:
        """Return the number of documents that ``minutes`` would read."""
        selected, _ = selected_minutes(since_s, until_s, client_id)
        with translated_errors():
            return self._collection.count_documents(selected)


def change_note(step: Step, *, keep_s: float) -> UpdateOne:
    """Return the update that notes that a part of a step has changed."""
    # Whole: a planted one may be too large.
    note = {"_id": "$_id", "write": ObjectId(), "expire": expiry_of(step, keep_s)}
    return UpdateOne({"_id": step_id(CHANGED, step)}, [{"$replaceWith": note}], upsert=True)


def step_id(kind: str, step: tuple[int, float]) -> Document:
    return {kind: step[0], "start": step[1]}


def expiry_of(step: Step, keep_s: float) -> datetime:
    step_s, start_s = step
    return date_of(start_s + step_s + (min(keep_s, MINUTES_KEPT_S) if step_s == MINUTE_S else keep_s))


def compose(writer: str, minute: ClientMinute, *, keep_s: float) -> UpdateOne:
    """Return the update that writes the numbers of a process."""
    maxima: Document = {f"sums.{writer}": _sums(minute.tallies)}
    minima: Document = {}
    if minute.seconds:
        maxima[f"seconds.{writer}"] = _packed(minute.seconds)
    for source, tally in minute.tallies.items():
        maxima[f"by.{writer}.{source.kind}.{_field(source.grant)}"] = list(tally)
    for lifetime_s, token_count in minute.lifetimes.items():
        maxima[f"lifetimes.{writer}.{lifetime_s}"] = token_count
    for policy, peak in minute.peaks.items():
        maxima[f"peaks.{_field(policy)}"] = list(peak)  # arrays compare number by number, the share first
        maxima["peak"] = max([peak.share, policy], maxima.get("peak", []))
    for (policy, grant, outcome), denials in minute.denials.items():
        path = f"denials.{_field(policy)}.{_field(grant)}.{outcome}"
        maxima[f"{path}.by.{writer}"] = denials.total
        maxima |= {f"{path}.last": denials.last_s, f"{path}.limit": [denials.limit, denials.window_s]}
        minima[f"{path}.first"] = denials.first_s
        minima["over.first"] = min(denials.first_s, minima.get("over.first", math.inf))
        for last in ("over.last", "over.last_denied") if outcome == "denied" else ("over.last",):
            maxima[last] = max(denials.last_s, maxima.get(last, 0))
    for user in minute.users:
        entry = [user.offered, user.denied, user.would_deny, user.username]
        maxima[f"{user_path(user.username)}.{writer}"] = entry
    for register, rank in minute.registers.items():
        maxima[f"registers.{register}"] = rank
    update: Document = {"$max": maxima, "$setOnInsert": {"expire": date_of(minute.minute_s + keep_s)}}
    if minima:
        update["$min"] = minima
    return UpdateOne({"_id": {"clientId": minute.client_id, "minute": Int64(minute.minute_s)}}, update, upsert=True)


def _sums(tallies: Mapping[Source, Tally]) -> list[int]:
    """Return the counts of ``SUMS``, which only grow, so that later lists are the greater ones."""
    endpoint, guard = (
        sum((tally for source, tally in tallies.items() if source.grant.startswith(prefix)), NO_REQUESTS)
        for prefix in (ENDPOINT, GUARD)
    )
    token = sum((tally for source, tally in tallies.items() if source.is_token), NO_REQUESTS)
    elsewhere = (endpoint.allowed + endpoint.trusted, endpoint.denied, endpoint.would_deny)
    return [*token, *elsewhere, guard.denied, guard.would_deny]


def _field(name: str) -> str:
    """Return a name escaped for use in a path: a dot becomes ``%2E``."""
    return "".join(f"%{ord(letter):02X}" if letter in "%.$\0" else letter for letter in name)


def _packed(seconds: Sequence[int]) -> bytes:
    """Return the requests by second, so that later bytes of a process are the greater ones.

    MongoDB compares the lengths first, then byte by byte. Fewer requests than numbers take a byte each, their second.
    """
    if sum(seconds) < PER_SECOND.size:
        return bytes(second for second, count in enumerate(seconds) for _ in range(count))
    return PER_SECOND.pack(*(min(count, MAX_PER_SECOND) for count in seconds))


def user_path(username: str) -> str:
    """Return the path of a user's numbers. It has a hash, because any character may be in a name."""
    return f"users.{hashlib.blake2b(username.encode(), digest_size=6).hexdigest()}"


def parse_minute(document: Document) -> ClientMinute:
    """Return the content of a document, or raise ``MALFORMED``. A number that is no count is 0."""
    tallies: dict[Source, Tally] = {}
    for kind, grants in _shares(document, "by"):
        for grant, counts in grants.items():
            source = Source(kind, unquote(grant))
            tallies[source] = tallies.get(source, NO_REQUESTS) + Tally(*map(count, counts))
    users: dict[str, UserLoad] = {}
    for _, (*counts, username) in _shares(document, "users"):
        add_user(users, UserLoad(checked_text(username), *map(count, counts)))
    lifetimes = Counter[int]()
    for seconds, token_count in _shares(document, "lifetimes"):
        lifetimes[checked_number(int(seconds))] += count(token_count)
    return ClientMinute(
        client_id=checked_text(document["_id"]["clientId"]),
        minute_s=checked_number(document["_id"]["minute"]),
        tallies=tallies,
        peaks={unquote(name): _peak(*value) for name, value in document.get("peaks", {}).items()},
        denials={
            (unquote(policy), unquote(grant), outcome): _denials(outcomes[outcome])
            for policy, grants in document.get("denials", {}).items()
            for grant, outcomes in grants.items()
            for outcome in OVER
            if outcome in outcomes
        },
        users=tuple(sorted(users.values(), key=lambda user: -user.offered)),
        registers={
            checked_number(int(register), at_most=REGISTER_COUNT - 1): checked_number(rank, at_most=MAX_RANK)
            for register, rank in document.get("registers", {}).items()
        },
        seconds=_seconds(document.get("seconds", {}).values()),
        lifetimes={seconds: number for seconds, number in lifetimes.items() if seconds and number},
    )


def _shares(document: Document, part: str) -> Iterator[tuple[Any, Any]]:
    return chain.from_iterable(share.items() for share in document.get(part, {}).values())


def _seconds(shares: Iterable[Any]) -> tuple[int, ...]:
    total = [0] * MINUTE_S
    for share in shares:
        if isinstance(share, bytes) and len(share) == PER_SECOND.size:
            total = [*map(add, total, PER_SECOND.unpack(share))]
        elif isinstance(share, bytes) and len(share) < PER_SECOND.size and max(share, default=0) < MINUTE_S:
            for second in share:
                total[second] += 1
    return tuple(total) if any(total) else ()


def _denials(value: Mapping[str, Any]) -> Denials:
    first_s, last_s = (checked_number(value[name]) for name in ("first", "last"))
    limit, window_s = map(count, value["limit"])
    return Denials(sum(map(count, value["by"].values())), first_s, last_s, limit, window_s)


def _peak(share: float, used: float, limit: float, window_s: float) -> Peak:
    if not math.isfinite(share + used):
        raise ValueError("out of range")
    return Peak(float(share), float(used), int(limit), int(window_s))


def selected_minutes(since_s: float, until_s: float, client_id: str | None) -> tuple[Document, str]:
    """Return the filter for the minutes that begin in a period, and the field to sort by."""
    first_s = int(-(-since_s // MINUTE_S) * MINUTE_S)
    if client_id is None:
        return {"_id.minute": {"$gte": first_s, "$lt": until_s}}, "_id.minute"
    lowest, end = ({"clientId": client_id, "minute": limit_s} for limit_s in (first_s, until_s))
    return {"_id": {"$gte": lowest, "$lt": end}}, "_id"


def tallies_of(sums: Iterable[object]) -> tuple[Tally, Tally, Tally]:
    """Return the requests in the numbers of ``SUMS``: at the token endpoint, at others, and by the guard."""
    counts = list(map(count, sums))
    token, elsewhere, guard = counts[: len(COUNTS)], counts[len(COUNTS) : -2], [0, *counts[-2:]]
    return (
        Tally(*token),
        Tally(*elsewhere) if any(elsewhere) else NO_REQUESTS,
        Tally(*guard) if any(guard) else NO_REQUESTS,
    )


def minute_rows(since_s: float, until_s: float) -> list[Document]:
    """Return the stages that sum up each client's minutes of a period. They leave out damaged fields.

    Each result has the client's ``id``, the ``start`` of the minute, the ``counts`` of ``SUMS``, the highest share of a
    limit with its policy as ``peak``, and the times of the ``first`` and ``last`` request over a limit and of the
    ``last_denied`` one.
    """
    selected, _ = selected_minutes(since_s, until_s, None)
    is_map = {"$eq": [{"$type": "$sums"}, "object"]}
    shares = {"$cond": [is_map, {"$objectToArray": "$sums"}, []]}
    share = {"$cond": [{"$isArray": "$$this.v"}, "$$this.v", []]}
    is_small = {"$lte": [{"$bsonSize": {"peak": "$peak"}}, MAX_NAME_BYTES]}
    times = {name: f"$over.{name}" for name in ("first", "last", "last_denied")}
    return [
        {"$match": selected},
        {"$match": {"_id.clientId": {"$type": "string", **NO_LIST}}},
        {"$match": {"_id.minute": {"$type": ["int", "long", "double"], **NO_LIST}}},
        {"$match": fits(MAX_BYTES)},
        {"$match": fits(MAX_NAME_BYTES, "$_id")},
        {"$set": {"sums": {"$map": {"input": shares, "in": share}}}},
        {
            "$project": {
                "_id": False,
                "id": "$_id.clientId",
                "start": "$_id.minute",
                "counts": [_sum_at(place) for place in range(len(SUMS))],
                "peak": {"$cond": [is_small, {"$ifNull": ["$peak", None]}, None]},
                **{name: {"$cond": [{"$isNumber": time}, time, None]} for name, time in times.items()},
            }
        },
    ]


def _sum_at(place: int) -> Document:
    """Return the expression for a sum over processes; 0 if it is no count, which a damaged document can have."""
    total = {"$sum": {"$map": {"input": "$sums", "in": {"$arrayElemAt": ["$$this", place]}}}}
    in_range = {"$and": [{"$gte": ["$$total", 0]}, {"$lte": ["$$total", MAX_EXACT]}]}
    return {"$let": {"vars": {"total": total}, "in": {"$cond": [in_range, "$$total", 0]}}}
