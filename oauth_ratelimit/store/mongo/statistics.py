"""Statistics in MongoDB: one document per client and minute, written by all instances.

Each process keeps its own growing numbers under a name of its own and writes them with ``$max``, so a repeated or late
write changes nothing. The sum over the processes is exact.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from bson.int64 import Int64
from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.hyperloglog import MAX_RANK, REGISTER_COUNT
from oauth_ratelimit.core.statistics import (
    COUNTS,
    ENDPOINT,
    MINUTE_S,
    NO_REQUESTS,
    ClientMinute,
    Kind,
    Peak,
    Share,
    Source,
    StepSums,
    Tally,
    UserLoad,
)
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.process.yielding import yield_between
from oauth_ratelimit.store.mongo.client import (
    MAX_SCAN_MS,
    STATISTICS,
    Connection,
    Document,
    ensure_expiry,
    ensure_minutes,
    translated_errors,
)
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, date_of, is_text, mapping, whole_number

KINDS: Final[tuple[Kind, ...]] = ("client", "user")
PARTS: Final = ("by", "peaks", "users", "registers", "burst", "lifetimes")
DUPLICATE_KEY = 11000
MAX_LIFETIME_DIGITS = 12
PAGE_SIZE = 1000  # documents per round trip
MAX_PACKED = 20_000  # minutes of clients in one document, whose size is bounded; with the longest ids they take 13 MB


class StatisticsStore:
    """The statistics of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._has_indexes = False

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        """Write the numbers of a process in one bulk. A repeated or late write changes nothing.

        Args:
            writer: A name that no other process ever has: letters, digits, hyphens and underscores.
            shares: The numbers.
            keep_s: Seconds until they expire.

        Returns:
            The positions of the shares that were rejected, because a field of the document has another form.
        """
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            if not self._has_indexes:
                ensure_expiry(collection)
                ensure_minutes(collection)
                self._has_indexes = True
            try:
                collection.bulk_write(
                    [compose(writer, share, keep_s=keep_s) for share in yield_between(shares)], ordered=False
                )
            except BulkWriteError as exc:
                if exc.details["writeConcernErrors"]:
                    raise StoreUnavailable("a majority did not confirm the write") from exc
                if any(error["code"] == DUPLICATE_KEY for error in exc.details["writeErrors"]):
                    raise StoreUnavailable("two processes created the same minute at once") from exc
                return [error["index"] for error in exc.details["writeErrors"]]
        return []

    def minutes(
        self,
        since_s: float,
        until_s: float,
        client_id: str | None = None,
        *,
        parts: Collection[str] = PARTS,
        every: int = 1,
    ) -> Iterator[ClientMinute]:
        """Yield the minutes that begin in a period, in order of time.

        Args:
            since_s: Start of the period, seconds since the epoch.
            until_s: End of the period, exclusive.
            client_id: One client; None for all.
            parts: The fields to read, of ``PARTS``; faster without ``users`` and ``registers``.
            every: 1 for all minutes; 10 for a sample of every tenth since the epoch.
        """
        selected, order = _selection(since_s, until_s, client_id)
        if every > 1:
            selected["_id.minute"] = selected.get("_id.minute", {}) | {"$mod": [every * MINUTE_S, 0]}
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            found = collection.find(selected, dict.fromkeys(parts, 1), batch_size=PAGE_SIZE)
            for document in found.sort(order, ASCENDING).allow_disk_use(True):  # where the index is missing
                minute = parse_minute(document)
                if minute is not None:
                    yield minute

    def sums(
        self,
        since_s: float,
        until_s: float,
        *,
        step_s: int,
        client_id: str | None = None,
        kind: Kind | None = None,
    ) -> Iterator[StepSums]:
        """Yield sums over steps of time, computed by MongoDB: some bytes per client instead of its whole document.

        A step may come in several parts, each with other minutes or clients of it.

        Args:
            since_s: Start of the period, seconds since the epoch.
            until_s: End of the period, exclusive.
            step_s: Length of a step, whole minutes. Steps are aligned to the epoch.
            client_id: One client; None for all.
            kind: Requests with or without a user; None for all.
        """
        kinds = KINDS if kind is None else (kind,)
        for piece_s, end_s, is_packed in self._pieces(since_s, until_s, client_id):
            selected, _ = _selection(piece_s, end_s, client_id)
            pipeline = _sums_pipeline(selected, step_s=step_s, kinds=kinds, is_packed=is_packed)
            with translated_errors():
                found = self._connection.collection(STATISTICS).aggregate(pipeline, batchSize=PAGE_SIZE)
                yield from map(_parse_sums, found)

    def _pieces(self, since_s: float, until_s: float, client_id: str | None) -> Iterator[tuple[float, float, bool]]:
        """Yield periods with a bounded number of documents, or of a minute, and True where the bound is kept."""
        count = self.count(since_s, until_s, client_id)
        middle_s = (since_s + until_s) // 2 // MINUTE_S * MINUTE_S
        if count > MAX_PACKED and since_s < middle_s:
            yield from self._pieces(since_s, middle_s, client_id)
            yield from self._pieces(middle_s, until_s, client_id)
        elif count:
            yield since_s, until_s, count <= MAX_PACKED

    def count(self, since_s: float, until_s: float, client_id: str | None = None) -> int:
        """Return the number of documents that ``minutes`` would read."""
        selected, _ = _selection(since_s, until_s, client_id)
        with translated_errors():
            return self._connection.collection(STATISTICS).count_documents(selected)

    def knows(self, client_id: str) -> bool:
        """Return True if any minute of a client is recorded."""
        selected, _ = _selection(0.0, math.inf, client_id)
        with translated_errors():
            return self._connection.collection(STATISTICS).find_one(selected, {"_id": 1}) is not None

    def clients(self, since_s: float, *, at_most: int) -> set[str]:
        """Return the clients with requests since a time. Reads ``at_most`` documents."""
        selected, _ = _selection(since_s, math.inf, None)
        with translated_errors():
            found = self._connection.collection(STATISTICS).find(selected, {"_id": 1}).limit(at_most)
            names = [document["_id"].get("clientId") for document in found.max_time_ms(MAX_SCAN_MS)]
        return set(filter(is_text, names))


def _selection(since_s: float, until_s: float, client_id: str | None) -> tuple[Document, str]:
    """Return the filter for the minutes that begin in a period, and the field to sort by."""
    first_s = int(-(-since_s // MINUTE_S) * MINUTE_S)
    if client_id is None:
        return {"_id.minute": {"$gte": first_s, "$lt": until_s}}, "_id.minute"
    lowest, end = ({"clientId": client_id, "minute": limit_s} for limit_s in (first_s, until_s))
    return {"_id": {"$gte": lowest, "$lt": end}}, "_id"


def _sums_pipeline(selected: Document, *, step_s: int, kinds: Sequence[Kind], is_packed: bool) -> list[Document]:
    """Return the pipeline of ``sums``. It leaves out damaged fields, as ``parse_minute`` does."""
    counts = {name: {"$sum": f"$tallies.v.{name}"} for name in COUNTS}
    by_kind: Document = {"$concatArrays": [_fields_of(f"$$this.v.{kind}") for kind in kinds]}
    is_endpoint = {"$eq": [{"$substrBytes": ["$$tally.k", 0, len(ENDPOINT)]}, ENDPOINT]}
    is_peak = {
        "$and": [{"$isArray": "$$this.v"}, {"$isNumber": {"$arrayElemAt": [_array("$$this.v"), 0]}}],
    }
    peak = {"$cond": [is_peak, [{"$arrayElemAt": [_array("$$this.v"), 0]}, "$$this.k"], None]}
    stages: list[Document] = [
        {"$match": selected},
        {"$match": {"_id.clientId": {"$type": "string"}, "_id.minute": {"$type": ["int", "long", "double"]}}},
        {
            "$project": {
                "_id": {
                    "client": "$_id.clientId",
                    "start": {"$subtract": ["$_id.minute", {"$mod": ["$_id.minute", step_s]}]},
                },
                "tallies": {
                    "$filter": {
                        "input": {
                            "$reduce": {
                                "input": _fields_of("$by"),
                                "initialValue": [],
                                "in": {"$concatArrays": ["$$value", by_kind]},
                            }
                        },
                        "as": "tally",
                        "cond": {"$not": is_endpoint},
                    }
                },
                "peak": {"$max": {"$map": {"input": _fields_of("$peaks"), "as": "this", "in": peak}}},
            }
        },
        {"$project": {"peak": True, **counts}},
    ]
    if step_s > MINUTE_S:
        sums = {name: {"$sum": f"${name}"} for name in COUNTS}
        stages.append({"$group": {"_id": "$_id", "peak": {"$max": "$peak"}, **sums}})
    columns = {"clients": "$_id.client", "peaks": {"$ifNull": ["$peak", None]}} | {name: f"${name}" for name in COUNTS}
    if is_packed:
        pushed = {name: {"$push": column} for name, column in columns.items()}
        return [*stages, {"$group": {"_id": "$_id.start", **pushed}}]
    return [*stages, {"$project": {"_id": "$_id.start", **{name: [column] for name, column in columns.items()}}}]


def _fields_of(path: str) -> Document:
    """Return the expression for the fields of a mapping; none for anything else."""
    return {"$cond": [{"$eq": [{"$type": path}, "object"]}, {"$objectToArray": path}, []]}


def _array(path: str) -> Document:
    return {"$cond": [{"$isArray": path}, path, []]}


def _parse_sums(document: Document) -> StepSums:
    return StepSums(
        int(document["_id"]),
        document["clients"],
        [[count if type(count) is int else _count(count) or 0 for count in document[name]] for name in COUNTS],
        [peak and _highest(peak) for peak in document["peaks"]],
    )


def _highest(peak: list[Any]) -> tuple[float, str] | None:
    share, policy = peak
    is_number = isinstance(share, int | float) and math.isfinite(share)
    return (float(share), unquote(policy)) if is_number else None


def compose(writer: str, share: Share, *, keep_s: float) -> UpdateOne:
    """Return the update that writes the numbers of a process."""
    minute = share.minute
    maxima: Document = {"burst": minute.burst}
    for source, tally in minute.tallies.items():
        path = f"by.{writer}.{source.kind}.{_field(source.grant)}"
        for name in COUNTS:
            count = getattr(tally, name)
            if count:
                maxima[f"{path}.{name}"] = count
    for lifetime_s, count in minute.lifetimes.items():
        maxima[f"lifetimes.{writer}.{lifetime_s}"] = count
    for policy, peak in minute.peaks.items():
        maxima[f"peaks.{_field(policy)}"] = list(peak)  # arrays compare number by number, the share first
    if share.is_complete:
        for user in minute.users:
            maxima[f"users.{writer}.{_digest(user.username)}"] = [
                user.offered,
                user.denied,
                user.would_deny,
                user.username,
            ]
        for register, rank in minute.registers.items():
            maxima[f"registers.{register}"] = rank
    return UpdateOne(
        {"_id": {"clientId": minute.client_id, "minute": Int64(minute.minute_s)}},
        {"$max": maxima, "$setOnInsert": {"expire": date_of(minute.minute_s + keep_s)}},
        upsert=True,
    )


def _field(name: str) -> str:
    """Return a name escaped for use in a path: a dot becomes ``%2E``."""
    return "".join(f"%{ord(letter):02X}" if letter in "%.$\0" else letter for letter in name)


def _digest(username: str) -> str:
    """Return a hash of a username for use in a path, where any character may be in a name."""
    return hashlib.blake2b(username.encode(), digest_size=6).hexdigest()


def parse_minute(document: Document) -> ClientMinute | None:
    """Return a document's content as far as it is valid, None if its ``_id`` is not."""
    identity = document["_id"]
    client_id, minute_s = identity.get("clientId"), _count(identity.get("minute"))
    if not is_text(client_id) or minute_s is None:
        return None
    burst = _count(document.get("burst"))
    return ClientMinute(
        client_id=client_id,
        minute_s=minute_s,
        tallies=_tallies(mapping(document.get("by")).values()),
        peaks={unquote(name): peak for name, value in mapping(document.get("peaks")).items() if (peak := _peak(value))},
        users=_users(mapping(document.get("users")).values()),
        registers=_registers(mapping(document.get("registers"))),
        burst=burst or 0,
        lifetimes=_lifetimes(mapping(document.get("lifetimes")).values()),
    )


def _tallies(shares: Iterable[object]) -> dict[Source, Tally]:
    """Return the sums over the processes."""
    tallies: dict[Source, Tally] = {}
    for share in shares:
        for kind in KINDS:
            for grant, counts in mapping(mapping(share).get(kind)).items():
                counts = mapping(counts)
                source = Source(kind, unquote(grant))
                tally = Tally(*[_count(counts.get(name)) or 0 for name in COUNTS])
                tallies[source] = tallies.get(source, NO_REQUESTS) + tally
    return tallies


def _users(shares: Iterable[object]) -> tuple[UserLoad, ...]:
    """Return the sums over the processes, the heaviest user first."""
    users: dict[str, UserLoad] = {}
    for share in shares:
        for value in mapping(share).values():
            if not isinstance(value, list) or len(value) != 4 or not is_text(value[3]):
                continue
            offered, denied, would_deny = (_count(count) or 0 for count in value[:3])
            user = UserLoad(value[3], offered, denied, would_deny)
            known = users.get(user.username)
            users[user.username] = known.plus(user) if known else user
    return tuple(sorted(users.values(), key=lambda user: -user.offered))


def _lifetimes(shares: Iterable[object]) -> dict[int, int]:
    """Return the sums over the processes."""
    lifetimes: dict[int, int] = {}
    for share in shares:
        for name, value in mapping(share).items():
            count = _count(value)
            if count and name.isascii() and name.isdecimal() and 0 < len(name) <= MAX_LIFETIME_DIGITS:
                lifetimes[int(name)] = lifetimes.get(int(name), 0) + count
    lifetimes.pop(0, None)
    return lifetimes


def _peak(value: object) -> Peak | None:
    if not isinstance(value, list) or len(value) != 4:
        return None
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in value):
        return None
    share, used, limit, window_s = value
    return Peak(float(share), float(used), int(limit), int(window_s))


def _registers(value: Mapping[str, Any]) -> dict[int, int]:
    registers = {}
    for name, rank in value.items():
        if name.isascii() and name.isdecimal() and len(name) < 6 and int(name) < REGISTER_COUNT:
            valid_rank = whole_number(rank, at_most=MAX_RANK)
            if valid_rank:
                registers[int(name)] = valid_rank
    return registers


def _count(value: object) -> int | None:
    return whole_number(value, at_most=MAX_EXACT)
