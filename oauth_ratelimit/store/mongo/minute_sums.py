"""Sums over the minutes of clients, computed by MongoDB: some bytes per client instead of its whole document."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from oauth_ratelimit.core.statistics import COUNTS, ENDPOINT, GUARD, MINUTE_S, NO_REQUESTS, NOT_TOKEN, OVER, Kind, Tally
from oauth_ratelimit.store.mongo.client import Document
from oauth_ratelimit.store.mongo.fields import MAX_EXACT, NO_LIST, count, fits

KINDS: Final[tuple[Kind, ...]] = ("client", "user")
PAGE_SIZE = 1000  # documents per round trip
MAX_BYTES = 2**21  # of a minute of a client: some hundred processes, each with its grant types and heaviest users
MAX_NAME_BYTES = 2**12  # of a client's id with what is around it, or of a policy
MAX_PARTS = 2000  # processes or policies in a document
CHUNK = 45  # of them: the server joins lists in quadratic time, so they are joined in two steps


def selected_minutes(since_s: float, until_s: float, client_id: str | None) -> tuple[Document, str]:
    """Return the filter for the minutes that begin in a period, and the field to sort by."""
    first_s = int(-(-since_s // MINUTE_S) * MINUTE_S)
    if client_id is None:
        return {"_id.minute": {"$gte": first_s, "$lt": until_s}}, "_id.minute"
    lowest, end = ({"clientId": client_id, "minute": limit_s} for limit_s in (first_s, until_s))
    return {"_id": {"$gte": lowest, "$lt": end}}, "_id"


def tally_of(counts: Mapping[str, Any]) -> Tally:
    """Return the requests in counts by name. What is no count is 0."""
    return Tally(*(count(counts.get(name)) for name in COUNTS))


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

    Each result has the client's ``id``, the ``start`` of the minute, the counts of ``SUMS``, the highest share of a
    limit with its policy as ``peak``, and the times of the ``first`` and ``last`` request over a limit and of the
    ``last_denied`` one.
    """
    selected, _ = selected_minutes(since_s, until_s, None)
    of_kinds: Document = {"$concatArrays": [fields_of(f"$$this.v.{kind}") for kind in KINDS]}
    share: Document = {"$arrayElemAt": [{"$cond": [{"$isArray": "$$this.v"}, "$$this.v", []]}, 0]}
    is_short: Document = {"$lte": [{"$strLenBytes": "$$this.k"}, MAX_NAME_BYTES]}
    is_share: Document = {"$and": [{"$isNumber": share}, {"$gte": [share, 0]}, {"$lt": [share, math.inf]}, is_short]}
    peak: Document = {"$cond": [is_share, [share, "$$this.k"], None]}
    return [
        {"$match": selected},
        {"$match": {"_id.clientId": {"$type": "string", **NO_LIST}}},
        {"$match": {"_id.minute": {"$type": ["int", "long", "double"], **NO_LIST}}},
        {"$match": fits(MAX_BYTES)},
        {"$match": fits(MAX_NAME_BYTES, "$_id")},
        {
            "$project": {
                "_id": False,
                "id": "$_id.clientId",
                "start": "$_id.minute",
                "tallies": _flat(fields_of("$by"), of_kinds),
                "peak": {"$max": {"$map": {"input": fields_of("$peaks"), "in": peak}}},
                "denials": _flat(fields_of("$denials"), fields_of("$$this.v")),
            }
        },
        {
            "$set": {
                "token": _tallies({"$not": {"$or": [_begins(prefix) for prefix in NOT_TOKEN]}}),
                "endpoint": _tallies(_begins(ENDPOINT)),
                "guard": _tallies(_begins(GUARD)),
            }
        },
        {"$project": {"id": 1, "start": 1, "peak": 1, **_TIMES, **_SUMS_OF_MINUTE}},
    ]


def _flat(entries: Document, parts: Document) -> Document:
    """Return the expression for the parts of all entries in one list; ``$$this`` is the entry."""
    chunk = _joined({"$slice": ["$$entries", "$$this", CHUNK]}, parts)
    chunks = _joined({"$range": [0, {"$size": "$$entries"}, CHUNK]}, chunk)
    return {"$let": {"vars": {"entries": {"$slice": [entries, MAX_PARTS]}}, "in": chunks}}


def _joined(lists: Document, each: Document) -> Document:
    return {"$reduce": {"input": lists, "initialValue": [], "in": {"$concatArrays": ["$$value", each]}}}


def _begins(prefix: str) -> Document:
    return {"$eq": [{"$indexOfBytes": ["$$this.k", prefix]}, 0]}


def _tallies(condition: Document) -> Document:
    return {"$filter": {"input": "$tallies", "as": "this", "cond": condition}}


def _sum_of(*paths: str) -> Document:
    """Return the expression for a sum; 0 if it is no count, which a damaged document can have."""
    in_range = {"$and": [{"$gte": ["$$sum", 0]}, {"$lte": ["$$sum", MAX_EXACT]}]}
    total: Document = {"$add": [{"$sum": path} for path in paths]}
    return {"$let": {"vars": {"sum": total}, "in": {"$cond": [in_range, "$$sum", 0]}}}


def fields_of(path: str) -> Document:
    """Return the expression for the fields of a mapping; none for anything else."""
    return {"$cond": [{"$eq": [{"$type": path}, "object"]}, {"$objectToArray": path}, []]}


_TIMES: Final[Document] = {
    "first": {"$min": {"$concatArrays": [f"$denials.v.{outcome}.first" for outcome in OVER]}},
    "last": {"$max": {"$concatArrays": [f"$denials.v.{outcome}.last" for outcome in OVER]}},
    "last_denied": {"$max": "$denials.v.denied.last"},
}
_SUMS_OF_MINUTE: Final[Document] = {name: _sum_of(f"$token.v.{name}") for name in COUNTS} | {
    "endpoint_allowed": _sum_of("$endpoint.v.allowed", "$endpoint.v.trusted"),
    "endpoint_denied": _sum_of("$endpoint.v.denied"),
    "endpoint_would_deny": _sum_of("$endpoint.v.would_deny"),
    "guard_denied": _sum_of("$guard.v.denied"),
    "guard_would_deny": _sum_of("$guard.v.would_deny"),
}
SUMS: Final = tuple(_SUMS_OF_MINUTE)
"""Counts of a client: requests at the token endpoint, at other endpoints, and attempts that the guard denied."""
