"""Strategies of Hypothesis for documents that anybody could have written, and how they get into a database."""

from contextlib import suppress
from datetime import datetime
from typing import Any

from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.errors import OperationFailure

Content = list[tuple[str, Any, dict[str, Any]]]  # collection, id and fields
NOW_S = 2_000_000_000
FRAME = str(NOW_S - NOW_S % 6)

numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.sampled_from([2**63 - 1, 2**31, -1, 0, 405])
).map(lambda number: Int64(number) if type(number) is int else number)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=10)
names = st.sampled_from(["6", FRAME, "600", "", "$", "a.b", "$x.y", "-6", "6+denied", "somebody", "__proto__"]) | texts
scalars = st.one_of(
    numbers,
    texts,
    st.none(),
    st.binary(max_size=10),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.sampled_from(
        [
            *(
                ObjectId("0" * 24),
                MinKey(),
                MaxKey(),
                Decimal128("NaN"),
                Regex("(a+)+$"),
                Code("while(true);"),
                Timestamp(1, 1),
            ),
            *(Binary(b"x", 4), DatetimeMS(2**62), DatetimeMS(-(2**62))),
        ]
    ),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
frames = st.dictionaries(names, values, max_size=4)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "version": values,
        "expire": values,
        "requestCounters": values | st.dictionaries(names, frames | values, max_size=4),
        "writers": values | frames,
        "horizons": values | frames,
        "seen": values | frames,
        "extra": values,
    },
)

identities = st.one_of(
    st.fixed_dictionaries({"instance": values}),
    st.fixed_dictionaries({"denial": values}),
    st.fixed_dictionaries({"clientId": values, "minute": values | st.integers(NOW_S - 600, NOW_S).map(Int64)}),
    st.fixed_dictionaries({"step": values | st.just(60), "start": values | st.just((NOW_S - 600) // 60 * 60)}),
    st.fixed_dictionaries({"kind": values, "clientId": values}),
    st.sampled_from([{"kind": "mode", "clientId": "app"}, {"kind": "limit", "clientId": "app", "limitKind": "user"}]),
    values,
)
FIELDS = (
    *("active", "by", "reason", "at", "until", "mode", "limits", "history", "version"),
    *("beat_at_s", "started_at_s", "interval_s", "config_rejected_at_s", "lag_s"),
    *("peaks", "users", "registers", "seconds", "sums", "peak", "over", "value", "expire", "stamp"),
    *("at_s", "last_at_s", "suppressed_count", "clients", "offered"),
)
records = st.dictionaries(st.sampled_from(FIELDS) | names, values, max_size=8)


def put_alone(uri: str, content: Content) -> None:
    """Put records into their collections of a database, and nothing else."""
    with MongoClient[dict[str, Any]](uri, datetime_conversion="DATETIME_AUTO") as client:
        database = client.get_default_database()
        for name in ("ratelimits", "ratelimit_failures", "ratelimit_overrides", "ratelimit_stats"):
            database[name].delete_many({})
        for name, identity, record in content:
            with suppress(OperationFailure):  # MongoDB does not take everything as an _id, and nothing twice
                database[name].insert_one({"_id": identity, "active": True, **record})
