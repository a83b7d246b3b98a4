"""
The form of a client's minute in MongoDB.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from bson.int64 import Int64
from pymongo import UpdateOne

from oauth_ratelimit.core.hyperloglog import MAX_RANK, REGISTER_COUNT
from oauth_ratelimit.core.statistics import (
    COUNTS,
    NO_REQUESTS,
    ClientMinute,
    Kind,
    Peak,
    Share,
    Source,
    Tally,
    UserLoad,
)
from oauth_ratelimit.store.mongo.client import Document

KINDS: Final[tuple[Kind, ...]] = ("client", "user")
MAX_COUNT = 2**53  # no process counts so far; a larger number is damage


def compose_update(writer: str, share: Share, keep_s: float) -> UpdateOne:
    """
    Return the write of what a process has counted.
    """
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
    """
    Return a name that may stand in a path: dots and what else has a meaning there as ``%2E``.
    """
    return "".join(f"%{ord(letter):02X}" if letter in "%.$\0" else letter for letter in name)


def _digest(username: str) -> str:
    """
    Return what tells users apart in a path: names never stand there, because they may hold anything.
    """
    return hashlib.blake2b(username.encode(), digest_size=6).hexdigest()


def parse_minute(document: Document) -> ClientMinute | None:
    """
    Return a document's content as far as it is of our form, None if its ``_id`` is not.
    """
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
    """
    Return the sums over the processes.
    """
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
    """
    Return the sums over the processes, the heaviest first.
    """
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
    """
    Return a whole number that is not negative, None for anything else. Old shells write every number as a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value) if value == int(value) else None
