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
from oauth_ratelimit.store.mongo.fields import date_of, fields_of, fits, well_formed
from oauth_ratelimit.store.mongo.indexes import StatisticsCollection

MAX_BYTES = 2**14  # of a record
PERIOD_S = 60.0  # from the first denial of a record to its last, at most
GUARD = {"scope": {"$in": sorted(FAILURE_SCOPES)}}
TOKEN: Document = {"$or": [{"scope": None}, {"scope": {"$regex": f"^{GRANT_SCOPE}"}}]}
CONDITIONS: dict[Where, Document] = {Where.TOKEN: TOKEN, Where.ENDPOINT: {"$nor": [TOKEN, GUARD]}, Where.GUARD: GUARD}


def of_client(client_id: str) -> Document:
    """Return the condition for records of a client; the guard folds the ids of clients."""
    return {"$or": [{"client_id": storable_name(client_id)}, {**GUARD, "client_id": folded(client_id)}]}


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

        Uses the index on ``at_s``. MongoDB gives up after a few seconds.
        """
        wanted = [fits(MAX_BYTES), *conditions, *([CONDITIONS[where]] if where else [])]
        period = {"at_s": {"$gte": since_s - PERIOD_S, "$lt": until_s}, "last_at_s": {"$gte": since_s}}
        selected = {**period, "$and": wanted}
        with translated_errors():
            newest_first = [("at_s", DESCENDING)]
            found = self._collection.find(selected, sort=newest_first, limit=at_most, max_time_ms=MAX_SCAN_MS)
            return list(well_formed(parse, found))


def _compose(record: DenialRecord, keep_s: float) -> UpdateOne:
    denial = record.denial
    fixed = {**denial._asdict(), **denial.trace._asdict(), "instance": record.instance}
    fixed |= {"expire": date_of(denial.at_s + denial.kept_s(keep_s)), "decision_id": None, "trace": None}
    if math.isinf(denial.retry_after_s):
        fixed["retry_after_s"] = None
    return UpdateOne(
        {"_id": {"denial": denial.decision_id}},
        {
            "$setOnInsert": {name: value for name, value in fixed.items() if value is not None},
            "$max": {"last_at_s": record.last_at_s, "suppressed_count": record.suppressed_count},
        },
        upsert=True,
    )


def parse(document: Mapping[str, Any]) -> DenialRecord:
    """Return the record in a document, or raise one of ``MALFORMED``."""
    found = fields_of(Denial, {**document, "decision_id": document["_id"]["denial"]})
    denial = Denial(**{"retry_after_s": math.inf, **found}, trace=Trace(**fields_of(Trace, document)))
    return DenialRecord(denial, **fields_of(DenialRecord, document))
