"""Trace and request ids in the log and the record of a denial."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import structlog
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, WEB_SHOP
from oauth_ratelimit.flask_authlib.tracing import trace_id_of, trace_of_request
from tests.support.flows import TIMEOUT_S
from tests.support.sites import Site, config, protected

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


@pytest.fixture
def bound() -> Iterator[None]:
    """Clear structlog's context after a test."""
    yield
    structlog.contextvars.clear_contextvars()


def deny(site: Site, **headers: str) -> dict[str, Any]:
    """Have a request with these headers denied, and return the event about it."""
    with capture_logs() as logs:
        for _ in range(2):
            form = {"grant_type": "client_credentials"}
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = requests.post(
                f"{site.url}/token",
                data=form,
                auth=(BATCH_JOBS.client_id, BATCH_JOBS.client_secret or ""),
                headers=names,
                timeout=TIMEOUT_S,
            )
    assert 429 == answer.status_code, answer.text
    [event] = [entry for entry in logs if entry["event"] == "request_denied"]
    return dict(event)


def test_trace_and_request_id_of_the_headers_are_logged(database: Path) -> None:
    """The trace is in the form of W3C Trace Context."""
    with protected(database, config()) as site:
        event = deny(site, traceparent=TRACEPARENT, X_Request_ID="r-4711")

    assert (TRACE_ID, "r-4711") == (event["trace_id"], event["request_id"])


def test_event_without_headers_has_no_trace(database: Path) -> None:
    with protected(database, config()) as site:
        assert {"trace_id", "request_id"}.isdisjoint(deny(site))


@pytest.mark.parametrize(("header", "expected"), [("X-Correlation-ID", "c-1"), (None, None)], ids=["other", "none"])
def test_header_of_the_request_id_is_configurable(database: Path, header: str | None, expected: str | None) -> None:
    with protected(database, config(events={"request_id_header": header})) as site:
        event = deny(site, X_Request_ID="r-4711", X_Correlation_ID="c-1")

    assert expected == event.get("request_id")


def test_values_bound_by_the_application_win_over_headers(database: Path, bound: None) -> None:
    with protected(database, config()) as site:

        @site.app.before_request
        def bind() -> None:
            structlog.contextvars.bind_contextvars(trace_id=17)

        event = deny(site, traceparent=TRACEPARENT, X_Request_ID="r-4711")

    assert ("17", "r-4711") == (event["trace_id"], event["request_id"])


def test_recorded_denial_has_the_trace(database: Path, mongo_uri: str, mongo_database: Any) -> None:
    """It is in MongoDB when the process has ended."""
    with protected(database, config(store={"uri": mongo_uri})) as site:
        event = deny(site, traceparent=TRACEPARENT, X_Request_ID="r-4711")
    [document] = mongo_database["ratelimit_stats"].find({"_id.denial": event["decision_id"]})

    assert (TRACE_ID, "r-4711", "client_credentials", "batch-jobs") == tuple(
        document[name] for name in ("traceId", "requestId", "grant", "clientId")
    )


def test_recorded_denial_of_the_guard_has_the_trace(database: Path, mongo_uri: str, mongo_database: Any) -> None:
    """It is found by its decision id, too."""
    guard = {"mode": "enforce", "limits": {"passed_on": ["1/minute"]}}
    login = {"grant_type": "password", "username": "alice", "password": "wrong"}
    with protected(database, config(store={"uri": mongo_uri}, guard=guard)) as site:
        answers = [
            requests.post(
                f"{site.url}/token",
                data=login,
                auth=(WEB_SHOP.client_id, WEB_SHOP.client_secret or ""),
                headers={"traceparent": TRACEPARENT},
                timeout=TIMEOUT_S,
            )
            for _ in range(3)
        ]
    [document] = mongo_database["ratelimit_stats"].find({"_id.denial": {"$exists": True}})

    assert [400, 429, 429] == [answer.status_code for answer in answers]
    assert answers[1].json()["decision_id"] == document["_id"]["denial"]
    assert ("web-shop", "failures-passed_on", 1, TRACE_ID) == tuple(
        document[name] for name in ("clientId", "policy", "suppressed", "traceId")
    )


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
    ids=[
        "good",
        "later version",
        "too long",
        "forbidden version",
        "no trace",
        "no span",
        "capitals",
        "line",
        "empty",
        "huge",
    ],
)
def test_malformed_traceparent_is_ignored(header: str, expected: str | None) -> None:
    assert expected == trace_id_of(header)


@pytest.mark.parametrize("value", ["a" * 129, "a b", "a\x1b[2J", "é", ""], ids=repr)
def test_malformed_request_id_is_ignored(database: Path, value: str) -> None:
    """A client cannot write anything it likes into the log."""
    with protected(database, config()) as site, site.app.test_request_context(headers=[("X-Request-ID", value)]):
        assert trace_of_request("X-Request-ID").request_id is None


def test_bound_values_are_made_storable(bound: None) -> None:
    """They may be long or not Unicode."""
    structlog.contextvars.bind_contextvars(request_id="r-\ud800", trace_id="é" * 200)
    trace_id, request_id = trace_of_request(None)

    assert "é" * 128 == trace_id
    assert request_id is not None
    assert request_id.encode().startswith(b"r-?~")


def test_there_is_no_trace_outside_of_a_request() -> None:
    """A background thread may ask for it."""
    assert (None, None) == trace_of_request("X-Request-ID")
