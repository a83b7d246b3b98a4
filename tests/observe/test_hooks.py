"""What an application hears of its decisions, and how a denial is found again in the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from structlog.testing import capture_logs

from demo.authserver import seed
from demo.seeds import BATCH_JOBS, WEB_SHOP
from oauth_ratelimit.core.decision import Decision
from tests.support.flows import password_of, post
from tests.support.sites import Site, config, protected

CLIENT_GRANT = {"grant_type": "client_credentials"}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The demo's seeded database."""
    path = tmp_path / "demo.sqlite3"
    seed(path)
    return path


class Heard:
    """A hook that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Decision, dict[str, Any]]] = []

    def __call__(self, decision: Decision, **ids: Any) -> None:
        """Remember a call."""
        self.calls.append((decision, ids))


@contextmanager
def site(database: Path, *, limit: int, mode: str = "enforce", **hooks: Any) -> Iterator[Site]:
    """Serve the demo's server with hooks."""
    with protected(database, config(limit=limit, mode=mode), **hooks) as served:
        yield served


def ask(served: Site) -> requests.Response:
    """Ask for a token as a client."""
    return post(f"{served.url}/token", BATCH_JOBS, CLIENT_GRANT)


def test_denied_requests(database: Path) -> None:
    """The hook hears of each denial, with the ids and the name that the denial has in its answer."""
    on_denied, on_near_limit = Heard(), Heard()
    with site(database, limit=1, on_denied=on_denied, on_near_limit=on_near_limit) as served:
        answers = [ask(served) for _ in range(3)]

    assert [200, 429, 429] == [answer.status_code for answer in answers]
    expected = {"client_id": "batch-jobs", "username": None, "grant_type": "client_credentials"}
    assert [expected, expected] == [ids for _, ids in on_denied.calls]
    assert [answer.json()["decision_id"] for answer in answers[1:]] == [
        decision.decision_id for decision, _ in on_denied.calls
    ]
    assert [(expected, 0)] == [(ids, decision.remaining) for decision, ids in on_near_limit.calls]


def test_requests_near_the_limit(database: Path) -> None:
    """The hook hears of each request that is admitted in the last fifth of its quota, and of no other."""
    heard = Heard()
    login = {"grant_type": "password", "username": "alice", "password": password_of("alice")}
    with site(database, limit=10, on_near_limit=heard) as served:
        for _ in range(11):
            post(f"{served.url}/token", WEB_SHOP, login)

    assert [1, 0] == [decision.remaining for decision, _ in heard.calls]
    assert {"client_id": "web-shop", "username": "alice", "grant_type": "password"} == heard.calls[0][1]


def test_dry_run(database: Path) -> None:
    """In a dry run nothing is denied, so nobody hears of a denial, and nothing has a name."""
    heard = Heard()
    with capture_logs() as logs, site(database, limit=1, mode="dry-run", on_denied=heard) as served:
        assert [200, 200] == [ask(served).status_code, ask(served).status_code]

    assert [] == heard.calls
    [event] = [entry for entry in logs if entry["event"] == "request_would_be_denied"]
    assert "decision_id" not in event


@pytest.mark.parametrize("hook", ["on_denied", "on_near_limit"])
def test_hook_that_fails(database: Path, hook: str) -> None:
    """What a hook raises changes no answer and is logged once, not with every request."""

    def fail(decision: Decision, **ids: Any) -> None:
        raise LookupError("no such table")

    with capture_logs() as logs, site(database, limit=2, **{hook: fail}) as served:
        answers = [ask(served) for _ in range(5)]

    assert [200, 200, 429, 429, 429] == [answer.status_code for answer in answers]
    [event] = [entry for entry in logs if entry["event"] == "observer_failed"]
    assert "LookupError('no such table')" == event["error"]


def test_denial_in_the_log(database: Path) -> None:
    """
    A denial has the same name in its answer and in the log; the next ones have names of their own, and are not logged.
    """
    with capture_logs() as logs, site(database, limit=1) as served:
        answers = [ask(served) for _ in range(4)]

    names = [answer.json()["decision_id"] for answer in answers[1:]]
    assert 3 == len(set(names))
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)
    assert names[:1] == [entry["decision_id"] for entry in logs if entry["event"] == "request_denied"]
