"""Records of denials in MongoDB, so that ``explain --id`` finds each denial for some weeks."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymongo import DESCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from oauth_ratelimit.core.denial_record import Denial, DenialRecord, Trace, Where
from oauth_ratelimit.core.failed_auth import FAILURE_SCOPES, NAMING_SCOPES, folded
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.policy import GRANT_SCOPE
from oauth_ratelimit.errors import StoreUnavailable
from oauth_ratelimit.store.mongo.client import MAX_SCAN_MS, Document, translated_errors
from oauth_ratelimit.store.mongo.fields import checked_number, checked_text, date_of, fits, well_formed
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection

MAX_BYTES = 2**14  # of a record
TEXTS = {"username": "username", "scope": "scope", "policy": "policy", "grant": "grant_type"}  # attributes by field
NUMBERS = {"limit": "limit", "window": "window_s"}
PERIOD_S = 60.0  # from the first denial of a record to its last, at most
GUARD = {"scope": {"$in": sorted(FAILURE_SCOPES)}}
TOKEN: Document = {"$or": [{"scope": None}, {"scope": {"$regex": f"^{GRANT_SCOPE}"}}]}
CONDITIONS: dict[Where, Document] = {Where.TOKEN: TOKEN, Where.ENDPOINT: {"$nor": [TOKEN, GUARD]}, Where.GUARD: GUARD}


def of_client(client_id: str) -> Document:
    """Return the condition for records of a client; the guard folds the ids of clients."""
    return {"$or": [{"clientId": storable_name(client_id)}, {**GUARD, "clientId": folded(client_id)}]}


def of_user(names: Iterable[str], failed_auth_names: Iterable[str]) -> Document:
    """Return the condition for records of a user, by the names in counters and by those of the guard."""
    by_guard = {"scope": {"$in": NAMING_SCOPES}, **claimed_by(failed_auth_names)}
    return {"$or": [{"username": {"$in": list(names)}}, by_guard]}


def claimed_by(names: Iterable[str], path: str = "username") -> Document:
    """Return the condition for names in the guard's keys: an address, then one of these."""
    pattern = f"^[^ ]+ (?:{'|'.join(map(re.escape, names))})$"
    return {path: {"$regex": pattern.replace("\0", r"\x00")}}  # BSON allows no NUL in a pattern


class DenialStore(StatisticsCollection):
    """The records of denials of all instances."""

    def put(self, records: Sequence[DenialRecord], *, keep_s: float) -> None:
        """Write or update records that expire after ``keep_s`` at most. A repeated or late write changes nothing."""
        with translated_errors():
            try:
                self._collection.bulk_write([_compose(record, keep_s) for record in records], ordered=False)
            except BulkWriteError:
                raise StoreUnavailable("MongoDB wrote only a part of the denials") from None
            self._indexes.ensure(self._collection)

    def find(self, decision_id: str) -> DenialRecord | None:
        with translated_errors():
            found = self._collection.find_one({"_id": {"denial": decision_id}, **fits(MAX_BYTES)})
        return next(well_formed(parse, [found] if found else []), None)

    def between(
        self, since_s: float, until_s: float, *conditions: Document, where: Where | None = None, at_most: int
    ) -> list[DenialRecord]:
        """Return the records of a period that meet the conditions, the latest first, up to ``at_most``; all for 0.

        Uses the index on ``first``. MongoDB gives up after a few seconds.
        """
        first = {"$gte": date_of(since_s - PERIOD_S), "$lt": date_of(until_s)}
        wanted = [*conditions, *([CONDITIONS[where]] if where else [])]
        selected = {"first": first, "last": {"$gte": date_of(since_s)}, "$and": [fits(MAX_BYTES), *wanted]}
        with translated_errors():
            newest_first = [("first", DESCENDING)]
            found = self._collection.find(selected, sort=newest_first, limit=at_most, max_time_ms=MAX_SCAN_MS)
            return list(well_formed(parse, found))


def _compose(record: DenialRecord, keep_s: float) -> UpdateOne:
    denial = record.denial
    fixed = {
        **{name: getattr(denial, attribute) for name, attribute in (TEXTS | NUMBERS).items()},
        "clientId": denial.client_id,
        "mode": denial.mode,
        "canary": denial.is_canary,
        "retryAfter": denial.retry_after_s,
        "traceId": denial.trace.trace_id,
        "requestId": denial.trace.request_id,
        "instance": record.instance,
        "first": date_of(denial.at_s),
        "expire": date_of(denial.at_s + denial.kept_s(keep_s)),
    }
    return UpdateOne(
        {"_id": {"denial": denial.decision_id}},
        {
            "$setOnInsert": {name: value for name, value in fixed.items() if value is not None},
            "$max": {"last": date_of(record.last_at_s), "suppressed": record.suppressed_count},
        },
        upsert=True,
    )


def parse(document: Mapping[str, Any]) -> DenialRecord:
    """Return the record in a document, or raise one of ``MALFORMED``."""

    def read(name: str) -> Any:
        check = checked_number if name in NUMBERS else checked_text
        return None if document.get(name) is None else check(document[name])

    return DenialRecord(
        Denial(
            decision_id=str(document["_id"]["denial"]),
            at_s=document["first"].timestamp(),
            client_id=checked_text(document["clientId"]),
            **{attribute: read(name) for name, attribute in (TEXTS | NUMBERS).items()},
            mode=checked_text(document["mode"]),
            is_canary=bool(document["canary"]),
            retry_after_s=float(document.get("retryAfter", math.inf)),
            trace=Trace(read("traceId"), read("requestId")),
        ),
        instance=checked_text(document["instance"]),
        last_at_s=document["last"].timestamp(),
        suppressed_count=checked_number(document["suppressed"]),
    )
