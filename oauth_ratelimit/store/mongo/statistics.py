"""Statistics in MongoDB: one document per client and minute, written by all instances.

Exactly once without a protocol: each process keeps its own growing numbers under a name of its own and writes them with
``$max``, so that a write that is repeated, late or doubled changes nothing. The sum over the processes is the truth.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import structlog
from bson.int64 import Int64
from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from oauth_ratelimit.core.hyperloglog import MAX_RANK, REGISTER_COUNT
from oauth_ratelimit.core.statistics import (
    COUNTS,
    MINUTE_S,
    NO_REQUESTS,
    ClientMinute,
    Kind,
    Peak,
    Share,
    Source,
    Tally,
    UserLoad,
)
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.process.yielding import gently
from oauth_ratelimit.store.mongo.client import (
    AUTHENTICATION_FAILED,
    Connection,
    Document,
    ensure_expiry,
    translated_errors,
)
from oauth_ratelimit.store.mongo.heartbeats import STATISTICS

KINDS: Final[tuple[Kind, ...]] = ("client", "user")
MAX_COUNT = 2**53  # no process counts so far; a larger number is damage


def compose_update(writer: str, share: Share, keep_s: float) -> UpdateOne:
    """Return the write of what a process has counted."""
    minute = share.minute
    most: Document = {"burst": minute.burst}
    for source, tally in minute.tallies.items():
        path = f"by.{writer}.{source.kind}.{_field(source.grant)}"
        for name in COUNTS:
            count = getattr(tally, name)
            if count:
                most[f"{path}.{name}"] = count
    for policy, peak in minute.peaks.items():
        most[f"peaks.{_field(policy)}"] = list(peak)  # arrays compare number by number, the share first
    if share.is_complete:
        for user in minute.users:
            most[f"users.{writer}.{_digest(user.username)}"] = [
                user.offered,
                user.denied,
                user.would_deny,
                user.username,
            ]
        for register, rank in minute.registers.items():
            most[f"registers.{register}"] = rank
    expire = datetime.fromtimestamp(minute.minute_s + keep_s, UTC)
    return UpdateOne(
        {"_id": {"clientId": minute.client_id, "minute": Int64(minute.minute_s)}},
        {"$max": most, "$setOnInsert": {"expire": expire}},
        upsert=True,
    )


def _field(name: str) -> str:
    """Return a name that may stand in a path: dots and what else has a meaning there as ``%2E``."""
    return "".join(f"%{ord(letter):02X}" if letter in "%.$\0" else letter for letter in name)


def _digest(username: str) -> str:
    """Return what tells users apart in a path: names never stand there, because they may hold anything."""
    return hashlib.blake2b(username.encode(), digest_size=6).hexdigest()


def parse_minute(document: Document) -> ClientMinute | None:
    """Return a document's content as far as it is of our form, None if its ``_id`` is not."""
    identity = document["_id"]
    client_id, minute_s = identity.get("clientId"), _whole(identity.get("minute"))
    if not isinstance(client_id, str) or minute_s is None:
        return None
    burst = _whole(document.get("burst"))
    return ClientMinute(
        client_id=client_id,
        minute_s=minute_s,
        tallies=_tallies(_mapping(document.get("by")).values()),
        peaks={
            unquote(name): peak for name, value in _mapping(document.get("peaks")).items() if (peak := _peak(value))
        },
        users=_users(_mapping(document.get("users")).values()),
        registers=_registers(_mapping(document.get("registers"))),
        burst=burst or 0,
    )


def _tallies(shares: Iterable[object]) -> dict[Source, Tally]:
    """Return the sums over the processes."""
    tallies: dict[Source, Tally] = {}
    for share in shares:
        for kind in KINDS:
            for grant, counts in _mapping(_mapping(share).get(kind)).items():
                counts = _mapping(counts)
                source = Source(kind, unquote(grant))
                tally = Tally(*[_whole(counts.get(name)) or 0 for name in COUNTS])
                tallies[source] = tallies.get(source, NO_REQUESTS) + tally
    return tallies


def _users(shares: Iterable[object]) -> tuple[UserLoad, ...]:
    """Return the sums over the processes, the heaviest first."""
    users: dict[str, UserLoad] = {}
    for share in shares:
        for value in _mapping(share).values():
            if not isinstance(value, list) or len(value) != 4 or not isinstance(value[3], str):
                continue
            offered, denied, would_deny = (_whole(count) or 0 for count in value[:3])
            user = UserLoad(value[3], offered, denied, would_deny)
            known = users.get(user.username)
            users[user.username] = known.plus(user) if known else user
    return tuple(sorted(users.values(), key=lambda user: -user.offered))


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
        if name.isascii() and name.isdecimal() and int(name) < REGISTER_COUNT:
            seen = _whole(rank)
            if seen is not None and 1 <= seen <= MAX_RANK:
                registers[int(name)] = seen
    return registers


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    """Return a whole number that is not negative, None for anything else. Old shells write every number as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value) if value == int(value) else None


log = structlog.get_logger(__name__)

PARTS: Final = ("by", "peaks", "users", "registers", "burst")
DUPLICATE_KEY = 11000
PAGE = 1000  # documents that the server sends at once
LONGEST_LOOK_MS = 2000  # where the index is missing, MongoDB would look through everything


class StatisticsStore:
    """The statistics of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._has_indexes = False

    def put(self, writer: str, shares: Sequence[Share], *, keep_s: float) -> list[int]:
        """Write what a process has counted, in one bulk. A repeated or late write changes nothing.

        Args:
            writer: Names the process for ever: letters, digits, hyphens and underscores.
            shares: Its numbers.
            keep_s: How long they are kept.

        Returns:
            The positions of those that were refused, because something else is in their place in the document.
        """
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            if not self._has_indexes:
                ensure_expiry(collection)
                self._ensure_minutes()
                self._has_indexes = True
            try:
                collection.bulk_write(
                    [compose_update(writer, share, keep_s) for share in gently(shares)], ordered=False
                )
            except BulkWriteError as exc:
                if exc.details["writeConcernErrors"]:
                    raise StoreUnavailable("a majority did not confirm the write") from exc
                if any(error["code"] == DUPLICATE_KEY for error in exc.details["writeErrors"]):
                    raise StoreUnavailable("two processes began the same minute at once") from exc
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
        """Yield the minutes that begin in a time, of all clients or of one, in order of time.

        Args:
            since_s: Seconds since the epoch.
            until_s: Where the time ends; what begins then is not in it.
            client_id: The client, None for all of them.
            parts: What is needed of ``PARTS``: without ``users`` and ``registers`` it goes faster.
            every: 1 for all minutes; 10 for every tenth since the epoch, a sample.
        """
        selected, order = _selection(since_s, until_s, client_id)
        if every > 1:
            selected["_id.minute"] = selected.get("_id.minute", {}) | {"$mod": [every * MINUTE_S, 0]}
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            found = collection.find(selected, dict.fromkeys(parts, 1), batch_size=PAGE)
            for document in found.sort(order, ASCENDING).allow_disk_use(True):  # where the index is missing
                minute = parse_minute(document)
                if minute is not None:
                    yield minute

    def count(self, since_s: float, until_s: float, client_id: str | None = None) -> int:
        """Return how many ``minutes`` would yield."""
        selected, _ = _selection(since_s, until_s, client_id)
        with translated_errors():
            return self._connection.collection(STATISTICS).count_documents(selected)

    def knows(self, client_id: str) -> bool:
        """Return whether there is any minute of a client."""
        selected, _ = _selection(0.0, math.inf, client_id)
        with translated_errors():
            return self._connection.collection(STATISTICS).find_one(selected, {"_id": 1}) is not None

    def clients(self, since_s: float, *, at_most: int) -> set[str]:
        """Return who has asked since a time; looks at so many minutes of clients at most."""
        selected, _ = _selection(since_s, math.inf, None)
        with translated_errors():
            found = self._connection.collection(STATISTICS).find(selected, {"_id": 1}).limit(at_most)
            names = {document["_id"].get("clientId") for document in found.max_time_ms(LONGEST_LOOK_MS)}
        return {name for name in names if isinstance(name, str)}

    def _ensure_minutes(self) -> None:
        """Create the index on the minute where rights allow. Without it reading takes longer."""
        collection = self._connection.collection(STATISTICS)
        try:
            collection.create_index("_id.minute", name="minute", sparse=True)
        except OperationFailure as exc:
            if exc.code == AUTHENTICATION_FAILED:
                raise
            log.warning(
                "minute_index_missing", collection=collection.name, reason=exc.details and exc.details["errmsg"]
            )


def _selection(since_s: float, until_s: float, client_id: str | None) -> tuple[Document, str]:
    """Return the filter for the minutes that begin in a time, and the field that orders them by it."""
    first_s = int(-(-since_s // MINUTE_S) * MINUTE_S)
    if client_id is None:
        return {"_id.minute": {"$gte": first_s, "$lt": until_s}}, "_id.minute"
    lowest, end = ({"clientId": client_id, "minute": limit_s} for limit_s in (first_s, until_s))
    return {"_id": {"$gte": lowest, "$lt": end}}, "_id"
