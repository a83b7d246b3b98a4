"""Records of denials in MongoDB, so that ``explain --id`` finds each denial for some weeks.

A record has the id of its first denial. Those that follow have the next numbers, so the last record at or before a
number is the one of that denial.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import DESCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace, decision_id_of
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, Document, ensure_expiry, translated_errors
from oauth_ratelimit.store.mongo.fields import MALFORMED, date_of

MAX_UNREPORTED = 100_000  # denials of a key that its process has not reported yet, or never will


class DenialStore:
    """The records of denials of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._has_index = False

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None:
        """Write or update records in one bulk. A repeated or late write changes nothing.

        Args:
            records: The records.
            keep_s: Seconds until they expire.
        """
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            if not self._has_index:
                ensure_expiry(collection)
                self._has_index = True
            try:
                collection.bulk_write([_compose(record, keep_s) for record in records], ordered=False)
            except BulkWriteError as exc:
                raise StoreUnavailable("MongoDB wrote only a part of the denials") from exc

    def find(self, number: int) -> DenialRecord | None:
        """Return the record of the denial with an id, None if there is none."""
        selected: Document = {"_id": {"$gte": {"denial": ""}, "$lte": {"denial": decision_id_of(number)}}}
        with translated_errors():
            found = list(self._connection.collection(STATISTICS).find(selected).sort("_id", DESCENDING).limit(1))
        if not found:
            return None
        try:
            record = parse(found[0])
        except MALFORMED:
            return None
        return record if number - record.denial.first_id <= record.suppressed_count + MAX_UNREPORTED else None


def _compose(record: DenialRecord, keep_s: float) -> UpdateOne:
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
        "first": date_of(denial.at_s),
        "expire": date_of(denial.at_s + keep_s),
    }
    return UpdateOne(
        {"_id": {"denial": decision_id_of(denial.first_id)}},
        {
            "$setOnInsert": {name: value for name, value in fixed.items() if value is not None},
            "$max": {"last": date_of(record.last_at_s), "suppressed": record.suppressed_count},
        },
        upsert=True,
    )


def parse(document: Mapping[str, Any]) -> DenialRecord:
    """Return the record in a document, or raise one of ``MALFORMED``."""
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
