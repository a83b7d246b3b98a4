"""Statistics in MongoDB: one document per client and minute, written by all instances.

Each process keeps its own growing numbers under a name of its own and writes them with ``$max``, so a repeated or late
write changes nothing. The sum over the processes is exact.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from bson.int64 import Int64
from pymongo import ASCENDING, UpdateOne
from pymongo.errors import BulkWriteError, WriteError

from oauth_ratelimit.core.hyperloglog import MAX_RANK, REGISTER_COUNT
from oauth_ratelimit.core.statistics import (
    COUNTS,
    NO_REQUESTS,
    OVER,
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
from oauth_ratelimit.store.mongo.client import MAX_SCAN_MS, Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, count, date_of, fits, is_text, mapping, whole_number
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection
from oauth_ratelimit.store.mongo.minute_sums import KINDS, MAX_BYTES, PAGE_SIZE, selected_minutes, tally_of
from oauth_ratelimit.store.mongo.rollups import LATE_ID, late_note

PARTS: Final = ("by", "peaks", "denials", "users", "registers", "burst", "lifetimes")
DUPLICATE_KEY = 11000
MAX_LIFETIME_DIGITS = 12


class StatisticsStore(StatisticsCollection):
    """The statistics of all instances."""

    def put(self, writer: str, minutes: Sequence[ClientMinute], *, keep_s: float, now_s: float = 0.0) -> list[int]:
        """Write the numbers of a process in one bulk. A repeated or late write changes nothing.

        No other process may ever have the writer's name, and its counts only grow from one write to the next. Rollups
        of minutes that ended long before ``now_s`` are derived again. Returns the positions of the minutes that were
        rejected, because a field of the document has another form.
        """
        with translated_errors():
            late = late_note({minute.minute_s for minute in minutes}, now_s=now_s, keep_s=keep_s)
            if late is not None:
                with suppress(WriteError):  # the document has another form: those rollups stay as they are
                    self._collection.update_one({"_id": LATE_ID}, late, upsert=True)
            rejected: list[int] = []
            try:
                self._collection.bulk_write(
                    [compose(writer, minute, keep_s=keep_s) for minute in yield_between(minutes)], ordered=False
                )
            except BulkWriteError as exc:
                if exc.details["writeConcernErrors"]:
                    raise StoreUnavailable("a majority did not confirm the write") from None
                if any(error["code"] == DUPLICATE_KEY for error in exc.details["writeErrors"]):
                    raise StoreUnavailable("two processes created the same minute at once") from None
                rejected = [error["index"] for error in exc.details["writeErrors"]]
            self._indexes.ensure(self._collection)
        return rejected

    def minutes(
        self,
        since_s: float,
        until_s: float,
        client_id: str | None = None,
        *,
        parts: Collection[str] = PARTS,
    ) -> Iterator[ClientMinute]:
        """Yield the minutes that begin in a period, in order of time; faster without ``users`` and ``registers``."""
        selected, order = selected_minutes(since_s, until_s, client_id)
        with translated_errors():
            chosen = {**selected, **fits(MAX_BYTES)}
            found = self._collection.find(chosen, dict.fromkeys(parts, 1), batch_size=PAGE_SIZE)
            for document in found.sort(order, ASCENDING).allow_disk_use(True):  # where the index is missing
                minute = parse_minute(document)
                if minute is not None:
                    yield minute

    def count(self, since_s: float, until_s: float, client_id: str | None = None) -> int:
        """Return the number of documents that ``minutes`` would read."""
        selected, _ = selected_minutes(since_s, until_s, client_id)
        with translated_errors():
            return self._collection.count_documents(selected)

    def knows(self, client_id: str) -> bool:
        """Return True if any minute of a client is recorded."""
        selected, _ = selected_minutes(0.0, math.inf, client_id)
        with translated_errors():
            return self._collection.count_documents(selected, limit=1) > 0

    def clients(self, since_s: float, *, at_most: int) -> set[str]:
        """Return the clients with requests since a time. Reads ``at_most`` documents."""
        selected, _ = selected_minutes(since_s, math.inf, None)
        with translated_errors():
            found = self._collection.find({**selected, **fits(MAX_BYTES)}, {"_id": 1})
            names = [document["_id"].get("clientId") for document in found.limit(at_most).max_time_ms(MAX_SCAN_MS)]
        return set(filter(is_text, names))


def compose(writer: str, minute: ClientMinute, *, keep_s: float) -> UpdateOne:
    """Return the update that writes the numbers of a process."""
    maxima: Document = {"burst": minute.burst}
    minima: Document = {}
    for source, tally in minute.tallies.items():
        path = f"by.{writer}.{source.kind}.{_field(source.grant)}"
        for name in COUNTS:
            if getattr(tally, name):
                maxima[f"{path}.{name}"] = getattr(tally, name)
    for lifetime_s, token_count in minute.lifetimes.items():
        maxima[f"lifetimes.{writer}.{lifetime_s}"] = token_count
    for policy, peak in minute.peaks.items():
        maxima[f"peaks.{_field(policy)}"] = list(peak)  # arrays compare number by number, the share first
    for (policy, grant, outcome), denials in minute.denials.items():
        path = f"denials.{_field(policy)}.{_field(grant)}.{outcome}"
        maxima[f"{path}.by.{writer}"] = denials.total
        minima[f"{path}.first"] = denials.first_s
        maxima |= {f"{path}.last": denials.last_s, f"{path}.limit": [denials.limit, denials.window_s]}
    for user in minute.users:
        entry = [user.offered, user.denied, user.would_deny, user.username]
        maxima[f"users.{writer}.{_digest(user.username)}"] = entry
    for register, rank in minute.registers.items():
        maxima[f"registers.{register}"] = rank
    update: Document = {"$max": maxima, "$setOnInsert": {"expire": date_of(minute.minute_s + keep_s)}}
    if minima:
        update["$min"] = minima
    return UpdateOne({"_id": {"clientId": minute.client_id, "minute": Int64(minute.minute_s)}}, update, upsert=True)


def _field(name: str) -> str:
    """Return a name escaped for use in a path: a dot becomes ``%2E``."""
    return "".join(f"%{ord(letter):02X}" if letter in "%.$\0" else letter for letter in name)


def _digest(username: str) -> str:
    """Return a hash of a username for use in a path, where any character may be in a name."""
    return hashlib.blake2b(username.encode(), digest_size=6).hexdigest()


def parse_minute(document: Document) -> ClientMinute | None:
    """Return a document's content as far as it is valid, None if its ``_id`` is not."""
    identity = document["_id"]
    client_id, minute_s = identity.get("clientId"), whole_number(identity.get("minute"), at_most=MAX_EXACT)
    if not is_text(client_id) or minute_s is None:
        return None
    return ClientMinute(
        client_id=client_id,
        minute_s=minute_s,
        tallies=_tallies(mapping(document.get("by")).values()),
        peaks={unquote(name): peak for name, value in mapping(document.get("peaks")).items() if (peak := _peak(value))},
        denials=dict(_denials(mapping(document.get("denials")))),
        users=_users(mapping(document.get("users")).values()),
        registers=_registers(mapping(document.get("registers"))),
        burst=count(document.get("burst")),
        lifetimes=_lifetimes(mapping(document.get("lifetimes")).values()),
    )


def _tallies(shares: Iterable[object]) -> dict[Source, Tally]:
    tallies: dict[Source, Tally] = {}
    for share in shares:
        for kind in KINDS:
            for grant, counts in mapping(mapping(share).get(kind)).items():
                source = Source(kind, unquote(grant))
                tallies[source] = tallies.get(source, NO_REQUESTS) + tally_of(mapping(counts))
    return tallies


def _denials(policies: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], Denials]]:
    for policy, grants in policies.items():
        for grant, outcomes in mapping(grants).items():
            for outcome in OVER:
                value = mapping(mapping(outcomes).get(outcome))
                total = sum(map(count, mapping(value.get("by")).values()))
                first_s, last_s, pair = count(value.get("first")), count(value.get("last")), value.get("limit")
                limit, window_s = map(count, pair if isinstance(pair, list) and len(pair) == 2 else (0, 0))
                if total and first_s and last_s:
                    yield (unquote(policy), unquote(grant), outcome), Denials(total, first_s, last_s, limit, window_s)


def _users(shares: Iterable[object]) -> tuple[UserLoad, ...]:
    users: dict[str, UserLoad] = {}
    for share in shares:
        for value in mapping(share).values():
            if not isinstance(value, list) or len(value) != 4 or not is_text(value[3]):
                continue
            add_user(users, UserLoad(value[3], *map(count, value[:3])))
    return tuple(sorted(users.values(), key=lambda user: -user.offered))


def _lifetimes(shares: Iterable[object]) -> dict[int, int]:
    lifetimes: dict[int, int] = {}
    for share in shares:
        for name, value in mapping(share).items():
            if count(value) and name.isascii() and name.isdecimal() and len(name) <= MAX_LIFETIME_DIGITS:
                lifetimes[int(name)] = lifetimes.get(int(name), 0) + count(value)
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
