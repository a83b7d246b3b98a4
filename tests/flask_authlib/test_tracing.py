"""Traces of other systems in what is said about a denial."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import structlog
from pymongo import MongoClient
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, WEB_SHOP, seed
from oauth_ratelimit.flask_authlib.tracing import trace_id_of, trace_of_request
from tests.support.flows import TIMEOUT_S
from tests.support.sites import Site, config, protected

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The demo's seeded database."""
    path = tmp_path / "demo.sqlite3"
    seed(path)
    return path


@pytest.fixture
def bound() -> Iterator[None]:
    """Leave nothing bound behind."""
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


def test_headers(database: Path) -> None:
    """The trace of W3C Trace Context and the request's id are in the event."""
    with protected(database, config()) as site:
        event = deny(site, traceparent=TRACEPARENT, X_Request_ID="r-4711")

    assert (TRACE_ID, "r-4711") == (event["trace_id"], event["request_id"])


def test_no_headers(database: Path) -> None:
    """Without them the event has no such keys."""
    with protected(database, config()) as site:
        assert {"trace_id", "request_id"}.isdisjoint(deny(site))


@pytest.mark.parametrize(("header", "expected"), [("X-Correlation-ID", "c-1"), (None, None)], ids=["other", "none"])
def test_configured_header(database: Path, header: str | None, expected: str | None) -> None:
    """Which header names the request is a choice, and so is none."""
    with protected(database, config(events={"request_id_header": header})) as site:
        event = deny(site, X_Request_ID="r-4711", X_Correlation_ID="c-1")

    assert expected == event.get("request_id")


def test_what_the_application_has_bound(database: Path, bound: None) -> None:
    """What the application has bound to structlog's context comes before the headers."""
    with protected(database, config()) as site:

        @site.app.before_request
        def bind() -> None:
            structlog.contextvars.bind_contextvars(trace_id=17)

        event = deny(site, traceparent=TRACEPARENT, X_Request_ID="r-4711")

    assert ("17", "r-4711") == (event["trace_id"], event["request_id"])


def test_record_of_the_denial(database: Path, mongo_uri: str) -> None:
    """The record in MongoDB carries the trace, too, and is there when the process has ended."""
    with protected(database, config(store={"uri": mongo_uri})) as site:
        event = deny(site, traceparent=TRACEPARENT, X_Request_ID="r-4711")
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        [document] = client.get_default_database()["ratelimit_stats"].find({"_id.denial": event["decision_id"]})

    assert (TRACE_ID, "r-4711", "client_credentials", "batch-jobs") == tuple(
        document[name] for name in ("traceId", "requestId", "grant", "clientId")
    )


def test_denial_of_the_guard(database: Path, mongo_uri: str) -> None:
    """A denial of the guard is found by its id, too."""
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
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        [document] = client.get_default_database()["ratelimit_stats"].find({"_id.denial": {"$exists": True}})

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
def test_traceparent(header: str, expected: str | None) -> None:
    """A header that the standard calls invalid is as good as none."""
    assert expected == trace_id_of(header)


@pytest.mark.parametrize("value", ["a" * 129, "a b", "a\x1b[2J", "é", ""], ids=repr)
def test_request_id_that_is_none(database: Path, value: str) -> None:
    """Somebody who chooses his own request id cannot write into the log what he likes."""
    with protected(database, config()) as site, site.app.test_request_context(headers=[("X-Request-ID", value)]):
        assert trace_of_request("X-Request-ID").request_id is None


def test_bound_id_that_is_not_unicode(bound: None) -> None:
    """What the application has bound can be stored, whatever it is."""
    structlog.contextvars.bind_contextvars(request_id="r-\ud800", trace_id="é" * 200)
    trace_id, request_id = trace_of_request(None)

    assert "é" * 128 == trace_id
    assert request_id is not None
    assert request_id.encode().startswith(b"r-?~")


def test_outside_of_a_request() -> None:
    """Where there is no request there is no trace."""
    assert (None, None) == trace_of_request("X-Request-ID")
