"""Denials in MongoDB, so that ``explain --id`` finds each of them for some weeks.

They stand beside the statistics. The id is that of the first denial; those that followed it have the numbers after it,
so the one before or at a number tells about it.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pymongo import DESCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace, decision_id_of
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.mongo.client import Connection, Document, ensure_expiry, translated_errors
from oauth_ratelimit.store.mongo.heartbeats import STATISTICS

MOST_BEHIND = 100_000  # denials of a key that a process may not have reported yet, or never did because it was killed


class DenialStore:
    """The denials that all instances have logged.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._has_index = False

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None:
        """Write records, or bring them up to date. In one bulk; a repeated or late one changes nothing.

        Args:
            records: Which.
            keep_s: How long they are kept.
        """
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            if not self._has_index:
                ensure_expiry(collection)
                self._has_index = True
            try:
                collection.bulk_write([_operation(record, keep_s) for record in records], ordered=False)
            except BulkWriteError as exc:
                raise StoreUnavailable("MongoDB took only a part of the denials") from exc

    def find(self, number: int) -> DenialRecord | None:
        """Return the record that a denial belongs to, None if there is none.

        Args:
            number: The denial's id as a number.
        """
        selected: Document = {"_id": {"$gte": {"denial": ""}, "$lte": {"denial": decision_id_of(number)}}}
        with translated_errors():
            found = list(self._connection.collection(STATISTICS).find(selected).sort("_id", DESCENDING).limit(1))
        if not found:
            return None
        try:
            record = _parse(found[0])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return None  # somebody else's document
        return record if number - record.denial.first_id <= record.suppressed_count + MOST_BEHIND else None


def _operation(record: DenialRecord, keep_s: float) -> UpdateOne:
    denial = record.denial
    fixed = {
        "clientId": denial.client_id,
        "username": denial.username,
        "scope": denial.scope,
        "grant": denial.grant_type,
        "policy": denial.policy,
        "limit": denial.limit,
        "window": denial.window_s,
        "mode": denial.mode,
        "canary": denial.is_canary,
        "retryAfter": denial.retry_after_s,
        "traceId": denial.trace.trace_id,
        "requestId": denial.trace.request_id,
        "instance": record.instance,
        "first": _date(denial.at_s),
        "expire": _date(denial.at_s + keep_s),
    }
    return UpdateOne(
        {"_id": {"denial": decision_id_of(denial.first_id)}},
        {
            "$setOnInsert": {name: value for name, value in fixed.items() if value is not None},
            "$max": {"last": _date(record.last_at_s), "suppressed": record.suppressed_count},
        },
        upsert=True,
    )


def _date(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def _parse(document: Mapping[str, Any]) -> DenialRecord:
    first_at_s = document["first"].timestamp()
    return DenialRecord(
        Denial(
            first_id=int(document["_id"]["denial"], 16),
            at_s=first_at_s,
            client_id=str(document["clientId"]),
            username=document.get("username"),
            scope=document.get("scope"),
            grant_type=document.get("grant"),
            policy=document.get("policy"),
            limit=document.get("limit"),
            window_s=document.get("window"),
            mode=str(document["mode"]),
            is_canary=bool(document["canary"]),
            retry_after_s=float(document.get("retryAfter", math.inf)),
            trace=Trace(document.get("traceId"), document.get("requestId")),
        ),
        instance=str(document["instance"]),
        last_at_s=document["last"].timestamp(),
        suppressed_count=int(document["suppressed"]),
    )
