"""Fuzz targets: functions that accept any bytes and raise only what their callers expect."""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bson import CodecOptions, Int64, decode, encode
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError

from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.loader import parse_settings
from oauth_ratelimit.config.notation import parse_duration, parse_rates
from oauth_ratelimit.config.settings import Settings
from oauth_ratelimit.core.failed_auth import claimed_name, folded, networks_of
from oauth_ratelimit.core.key import MAX_NAME_LENGTH, storable_name, visible_name
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.flask_authlib.tracing import trace_of_request
from oauth_ratelimit.store.mongo import denials, heartbeats, overrides
from oauth_ratelimit.store.mongo.document import UNUSABLE_VERSION, parse_all
from oauth_ratelimit.store.mongo.fields import MALFORMED
from oauth_ratelimit.store.mongo.statistics import parse_minute
from tests.fuzz.grammar import a_session
from tests.fuzz.guessing import servers

ROOT = Path(__file__).parents[2]
NOW = datetime.fromtimestamp(2_000_000_000, UTC)
# As the driver's clients of the package decode, see ``LENIENT_DECODING`` in ``store.mongo.client``.
OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True, unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


def fuzz_configuration(data: bytes) -> None:
    """Parse a file into settings, or an error with one line for each problem."""
    try:
        settings = parse_settings(parse_yaml(data, source="file"), source="file")
    except ConfigError as exc:
        assert exc.problems
        assert all(len(problem.splitlines()) == 1 for problem in exc.problems)
    else:
        assert isinstance(settings, Settings)


def fuzz_notation(data: bytes) -> None:
    """Parse durations and limits; anything else is a ValueError."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(ValueError):
        assert parse_duration(text) >= 0
    with suppress(ValueError):
        assert all(type(limit) is int and type(window_s) is int for limit, window_s in parse_rates(text))


def fuzz_counters(data: bytes) -> None:
    """Parse a counter document into a valid snapshot."""
    document = a_document(data)
    identities = ({"clientId": "app", "username": None}, document)
    for key, snapshot in parse_all([{**document, "_id": identity} for identity in identities]):
        hash(key)
        version = snapshot.version
        assert version >= 0 or version == UNUSABLE_VERSION
        assert all(count >= 0 for frames in snapshot.hits.values() for count in frames.values())


def fuzz_override(data: bytes) -> None:
    """Parse a document into a usable override, or report it as damaged."""
    document = a_document(data)
    identity = document.get("_id", {"kind": "limit", "clientId": "app", "limitKind": "user"})
    with suppress(*MALFORMED):
        override = overrides.parse_override(identity, document)
        assert all(policy.limit >= 1 and policy.name.isascii() for policy in override.policies)


def fuzz_statistics(data: bytes) -> None:
    """Read the valid parts of a statistics document; report damaged heartbeats and denials."""
    document = a_document(data)
    identity = document.get("_id")
    minute = parse_minute({**document, "_id": identity if isinstance(identity, dict) else {}})
    assert minute is None or minute.burst >= 0
    for parse in (heartbeats.parse, denials.parse):
        with suppress(*MALFORMED):
            parse(document)


def fuzz_names(data: bytes) -> None:
    """Turn any name into one that can be stored, sent and shown."""
    name = data[: len(data) // 2 * 2].decode("utf-16-le", "surrogatepass")
    kept = storable_name(name)
    assert len(kept.encode()) <= 4 * MAX_NAME_LENGTH
    assert visible_name(kept).isprintable()
    claim = folded(name)
    assert claimed_name(f"192.0.2.7 {claim}") == claim
    networks_of(name)
    assert folded(claim) == claim
    trace_of_request(name)


def fuzz_guesses(data: bytes) -> None:
    """Answer the requests of one who guesses as a plain server does, but for denials."""
    servers().send(data)


def a_document(data: bytes) -> dict[str, Any]:
    """Return the document whose fields are these bytes; an empty one if they are not BSON."""
    try:
        return decode(struct.pack("<i", len(data) + 5) + data + b"\0", OPTIONS)
    except (BSONError, RecursionError):
        return {}


def fields_of(document: Mapping[str, Any]) -> bytes:
    """Return the fields of a document as bytes."""
    return encode(document)[4:-1]


def seeds() -> dict[str, list[bytes]]:
    """Return valid inputs by target. Mutations start from them."""
    limit = {"name": "user", "limit": Int64(5), "window": 60, "frames": 10, "estimator": "sliding", "mode": None}
    beat = {"version": "1", "mode": "off", "interval": 1.0, "clockOffset": 0.0}
    numbers = dict.fromkeys(("overrides", "flushed", "conflicts", "failures"), 1)
    minute = {"clientId": "app", "minute": Int64(2_000_000_040)}
    denial = {"clientId": "app", "mode": "enforce", "canary": False, "instance": "a", "first": NOW, "last": NOW}
    return {
        "configuration": [(ROOT / "config/oauth_ratelimit.yaml").read_bytes(), b"{}", b"guard: {mode: enforce}"],
        "notation": [b"500ms", b"1.5h", b"5 per 10 second; 100/hour", b"10/minute"],
        "counters": [
            fields_of({"version": Int64(5), "requestCounters": {"6": {"2000000004": 2}}, "writers": {"ab": Int64(7)}})
        ],
        "override": [
            fields_of({"by": "a", "reason": "r", "at": NOW, "until": None, "mode": None, "limits": [limit]}),
            fields_of({"_id": {"kind": "mode", "clientId": None}, "by": "a", "reason": "r", "at": NOW, "until": NOW})
            + fields_of({"mode": "enforce", "limits": []}),
        ],
        "statistics": [
            fields_of({"_id": minute, "burst": 5, "by": {"w": {"user": {"password": {"allowed": 5}}}}})
            + fields_of({"peaks": {"user": [0.5, 5, 10, 60]}, "users": {"w": {"d": [5, 0, 0, "alice"]}}})
            + fields_of({"registers": {"7": 3}}),
            fields_of({"_id": {"instance": "a"}, "beat": NOW, "started": NOW, **beat, **numbers}),
            fields_of({"_id": {"denial": "00" * 8}, **denial, "suppressed": 5}),
        ],
        "names": [
            name.encode("utf-16-le", "surrogatepass")
            for name in ("alice", "\u202e\ufdfa", "\ud800", "2001:db8::1", "\0\r\n\x1b[2J", "x" * 600)
        ],
        "guesses": [a_session(number) for number in range(60)],
    }


TARGETS: dict[str, Callable[[bytes], None]] = {
    "configuration": fuzz_configuration,
    "notation": fuzz_notation,
    "counters": fuzz_counters,
    "override": fuzz_override,
    "statistics": fuzz_statistics,
    "names": fuzz_names,
    "guesses": fuzz_guesses,
}
