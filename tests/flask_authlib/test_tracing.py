"""Trace and request ids in the log and the record of a denial."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.flask_authlib.tracing import trace_id_of, trace_of_request
from tests.support.guarded import guard, guarded

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
HEADERS = {"traceparent": TRACEPARENT, "X-Request-ID": "r-4711", "X-Correlation-ID": "c-1"}


def trace_of(headers: dict[str, str], header: str | None = "X-Request-ID") -> Trace:
    with Flask(__name__).test_request_context(headers=headers):
        return trace_of_request(header)


@pytest.mark.parametrize(
    ("header", "expected"), [("X-Request-ID", "r-4711"), ("X-Correlation-ID", "c-1"), ("X-Other", None), (None, None)]
)
def test_ids_are_those_of_the_headers(header: str | None, expected: str | None) -> None:
    """The trace is in the form of W3C Trace Context, and the other header is configurable."""
    assert (TRACE_ID, expected) == trace_of(HEADERS, header)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (TRACE_ID, "r-4711")),
        ({"trace_id": 17}, ("17", "r-4711")),
        ({"trace_id": "\xe9" * 200, "request_id": "r-4712"}, ("\xe9" * 128, "r-4712")),
    ],
    ids=["none", "a number", "long"],
)
def test_values_bound_by_the_application_win_over_headers(values: dict[str, Any], expected: tuple[str, str]) -> None:
    with structlog.contextvars.bound_contextvars(**values):
        assert expected == trace_of(HEADERS)


def test_background_thread_has_no_trace_but_what_is_bound() -> None:
    """Values that are not Unicode are made storable."""
    assert (None, None) == trace_of_request("X-Request-ID") == trace_of({})
    with structlog.contextvars.bound_contextvars(request_id="r-\ud800"):
        found = trace_of_request(None).request_id
    assert found is not None
    assert found.encode().startswith(b"r-?~")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (TRACEPARENT, TRACE_ID),
        (f"01-{TRACE_ID}-00f067aa0ba902b7-01-more", TRACE_ID),
        (f"00-{TRACE_ID}-00f067aa0ba902b7-01-more", None),
        (f"ff-{TRACE_ID}-00f067aa0ba902b7-01", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE_ID}-{'0' * 16}-01", None),
        (f"00-{TRACE_ID.upper()}-00f067aa0ba902b7-01", None),
        (f"{TRACEPARENT}\n", None),
        ("", None),
        ("00-" * 10_000, None),
    ],
    ids=["good", "later version", "too long", "forbidden", "no trace", "no span", "capitals", "line", "empty", "huge"],
)
def test_malformed_traceparent_is_ignored(header: str, expected: str | None) -> None:
    assert expected == trace_id_of(header)


@pytest.mark.parametrize("value", ["a" * 129, "a b", "a\x1b[2J", "é", ""], ids=repr)
def test_malformed_request_id_is_ignored(value: str) -> None:
    """A client cannot write anything it likes into the log."""
    assert trace_of({"X-Request-ID": value}).request_id is None


def test_event_and_record_of_a_denial_have_the_trace(database: Path, mongo_uri: str, mongo_database: Any) -> None:
    """Of a token and of a guess. The record is found by the id in the answer, which repeats carry, too."""
    limits = {"client": ["1/hour"]}
    settings = {**guard(limits={"passed_on": ["1/hour"]}), "limits": limits, "store": {"uri": mongo_uri}}
    with capture_logs() as logs, guarded(database, settings) as server:
        jobs = [server.job(headers=HEADERS) for _ in range(3)]
        logins = [server.login(headers=HEADERS) for _ in range(3)]

    assert [200, 429, 429, 400, 429, 429] == [answer.status_code for answer in (*jobs, *logins)]
    events = [entry for entry in logs if entry["event"] == "request_denied"]
    ids = [answers[1].json["decision_id"] for answers in (jobs, logins)]
    assert [(each, TRACE_ID, "r-4711") for each in ids] == [
        tuple(event[name] for name in ("decision_id", "trace_id", "request_id")) for event in events
    ]
    for decision_id, policy in zip(ids, ("client", "failures-passed_on"), strict=True):
        record = mongo_database["ratelimit_stats"].find_one({"_id": {"denial": decision_id}})
        assert ("web-shop", policy, 1, TRACE_ID, "r-4711") == tuple(
            record[name] for name in ("client_id", "policy", "suppressed_count", "trace_id", "request_id")
        )
