"""Denials that are over, found by the id in their answers."""

from contextlib import closing

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.observe.denials import DenialQueue, DenialRecorder
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from tests.cli.conftest import Terminal


@pytest.fixture
def ids(limiter: Limiter, denials: DenialQueue, now_s: float, mongo_uri: str) -> list[str]:
    """The ids of four denials of one user, of which the first was logged."""
    with closing(Connection(mongo_uri)) as connection:
        recorder = DenialRecorder(
            denials, DenialStore(connection), instance="node-1", keep_s=lambda: 3600.0, clock=lambda: now_s
        )
        decisions = [limiter.check("app", "alice", grant_type="refresh_token") for _ in range(11)]
        recorder.close()
    return [decision.decision_id for decision in decisions if decision.decision_id]


def test_logged_denial(terminal: Terminal, ids: list[str]) -> None:
    """The id that is in the log leads to all that was known."""
    data = terminal.data("explain", "--id", ids[0])

    assert data["first_at"] == data["last_at"]
    assert {
        "decision_id": ids[0],
        "logged_decision_id": ids[0],
        "position": 0,
        "is_recorded": True,
        "client_id": "app",
        "username": "alice",
        "scope": "grant:refresh_token",
        "grant_type": "refresh_token",
        "policy": "user",
        "limit": 7,
        "window_s": 3600,
        "mode": "enforce",
        "canary": False,
        "suppressed_count": 3,
        "instance": "node-1",
        "trace_id": "4bf92f",
        "request_id": None,
    } == {name: value for name, value in data.items() if name not in ("first_at", "last_at", "retry_after_s")}
    assert 0 < data["retry_after_s"] <= 7200


def test_denial_that_was_not_logged(terminal: Terminal, ids: list[str]) -> None:
    """The id of a denial that followed leads to the same record, and says which it is."""
    assert [(ids[0], position) for position in range(4)] == [
        (data["logged_decision_id"], data["position"])
        for data in (terminal.data("explain", "--id", name) for name in ids)
    ]
    output = terminal.ok("explain", "--id", ids[2])
    assert f"number 2 of 3 after the first denial, {ids[0]}" in output
    assert "4bf92f, of the first denial" in output


def test_denial_that_is_not_counted_yet(terminal: Terminal, ids: list[str]) -> None:
    """A denial that its process has not told of yet is found, and that is said."""
    name = f"{int(ids[0], 16) + 10:016x}"

    assert not terminal.data("explain", "--id", name)["is_recorded"]
    assert "has reported 3 more so far" in terminal.ok("explain", "--id", name)


def test_denial_for_people(terminal: Terminal, ids: list[str]) -> None:
    """People read the limit and the user, however the id was copied."""
    output = terminal.ok("explain", "--id", f" {ids[0].upper()} ")

    for text in ("7 in 1 h", "alice", "grant:refresh_token", "4bf92f", "3 more within a minute"):
        assert text in output


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["for people", "as JSON"])
def test_unknown_denial(terminal: Terminal, ids: list[str], words: tuple[str, ...]) -> None:
    """An id that nothing is kept of is the exit code 1 and a sentence why that may be."""
    unknown = f"{(int(ids[0], 16) - 1) % 2**64:016x}"
    result = terminal.run("explain", "--id", unknown, *words)

    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(f"No denial with the id {unknown} is recorded.")
    assert "(30 d)" in result.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--id", "4711"), "a decision id is 16 hexadecimal digits"),
        (("--id", "0x00000000000abc"), "a decision id is 16 hexadecimal digits"),
        (("app", "--id", "0" * 16), "name either a CLIENT or a denial"),
        ((), "name either a CLIENT or a denial"),
    ],
)
def test_bad_words(terminal: Terminal, words: tuple[str, ...], reason: str) -> None:
    """What is no id, or not one question, is refused with the exit code 2."""
    result = terminal.run("explain", *words)

    assert 2 == result.exit_code
    assert reason in result.stderr
