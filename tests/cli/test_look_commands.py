"""Commands that look."""

import csv
import io
import json
import sys
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from tests.cli.conftest import Terminal

WHY = ("--reason", "ticket 4711", "--by", "ann")


def spend(limiter: Limiter, count: int, *key: Any, **place: Any) -> None:
    """Count requests, and send them."""
    for _ in range(count):
        limiter.check(*key, **place)
    limiter.sync()


def test_nobody_was_counted(terminal: Terminal) -> None:
    """On an empty database every command says so."""
    assert [] == terminal.data("top")
    assert [] == terminal.data("show", "app")
    assert [] == terminal.data("overrides")
    assert [] == terminal.data("limit", "list")
    assert "No recent requests." in terminal.ok("top")
    assert "No overrides" in terminal.ok("overrides")
    assert "No overrides and no resets so far." in terminal.ok("overrides", "--history")
    assert "" == terminal.ok("export")
    assert [] == terminal.data("export")


def test_top(terminal: Terminal, limiter: Limiter) -> None:
    """Who has used most of a limit comes first, whatever the limit is."""
    spend(limiter, 5, "app", "alice")
    spend(limiter, 8, "batch")
    spend(limiter, 1, "other")
    rows = terminal.data("top", "-n", "3")

    assert [("app", "alice", "user"), ("batch", None, "client"), ("batch", None, "client_total")] == [
        (row["client_id"], row["username"], row["kind"]) for row in rows
    ]
    assert [(1.0, 0), (0.8, 2)] == [(row["used_ratio"], row["remaining"]) for row in rows[:2]]
    assert rows[0]["retry_after_s"] > 0


def test_top_until_interrupted(terminal: Terminal, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is how a watch ends: that is no failure."""
    spend(limiter, 1, "app", "alice")
    waits = iter([None, KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        if interruption := next(waits):
            raise interruption

    monkeypatch.setattr(sys.modules["oauth_ratelimit.cli.status"], "time", SimpleNamespace(sleep=sleep))

    assert 2 == terminal.ok("top", "--watch", "1").count("alice")


def test_show(terminal: Terminal, limiter: Limiter) -> None:
    """A client's counters are shown, or those of one user of it."""
    spend(limiter, 2, "app", "alice")
    spend(limiter, 1, "app", "bob")
    spend(limiter, 3, "app", "alice", grant_type="refresh_token")
    spend(limiter, 4, "other", "alice")

    assert {("alice", None, 2.0), ("bob", None, 1.0), ("alice", "grant:refresh_token", 3.0)} == {
        (row["username"], row["scope"], row["estimate"]) for row in terminal.data("show", "app") if row["username"]
    }
    assert {None, "grant:refresh_token"} == {row["scope"] for row in terminal.data("show", "app", "alice")}
    assert "alice" in terminal.ok("show", "app", "alice")


def test_explain_a_denied_user(terminal: Terminal, limiter: Limiter) -> None:
    """
    A denied user is told the limit, where it comes from, when the next request is admitted, and who else there is.
    """
    spend(limiter, 6, "app", "alice")
    spend(limiter, 3, "app", "bob")
    spend(limiter, 2, "app")
    data = terminal.data("explain", "app", "alice")

    assert ("denied", "denied: over user for ") == (data["forecast"]["kind"], data["forecast"]["text"][:22])
    assert [("user", 5.0, 0, {"layer": "limits"}), ("client_total", 10.0, 40, {"layer": "limits"})] == [
        (row["policy"], row["estimate"], row["remaining"], row["origin"]) for row in data["limits"]
    ]
    assert ["bob", None] == [row["username"] for row in data["others"]]
    assert 1 == data["instance_count"]
    assert "Other users of the client's total" in terminal.ok("explain", "app", "alice")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("partner",), {"layer": "plans.gold"}),
        (("app", "alice", "--grant", "refresh_token"), {"layer": "grants.refresh_token"}),
        (("app", "alice", "--grant", "password"), {"layer": "limits"}),
    ],
)
def test_explain_which_layer_won(terminal: Terminal, words: tuple[str, ...], expected: dict[str, str]) -> None:
    """The layer of the configuration that a limit comes from is named."""
    assert expected == terminal.data("explain", *words)["limits"][0]["origin"]


def test_explain_an_endpoint_that_is_mistyped(terminal: Terminal) -> None:
    """An endpoint that the configuration does not have is refused: it would look as if nothing were limited there."""
    result = terminal.run("explain", "app", "--endpoint", "revokation")

    assert (2, True) == (result.exit_code, "'revokation', allowed: token" in result.stderr)


def test_explain_an_override(terminal: Terminal) -> None:
    """A limit and a mode from operators are named with who and why."""
    terminal.ok("limit", "set", "partner", "--client", "1/hour", *WHY)
    terminal.ok("mode", "set", "dry-run", *WHY)
    data = terminal.data("explain", "partner")
    expected = {"layer": "override", "by": "ann", "reason": "ticket 4711", "until": None}

    assert (expected, "dry-run", expected) == (data["mode_origin"], data["mode"], data["limits"][0]["origin"])
    assert "override by ann: ticket 4711" in terminal.ok("explain", "partner")


def test_explain_a_trusted_client(terminal: Terminal) -> None:
    """A trusted client is admitted, and what trusts it is named."""
    data = terminal.data("explain", "mobile-1", "alice")

    assert ({"layer": "trusted_clients[mobile-*]"}, "admitted: trusted", []) == (
        data["trusted"],
        data["forecast"]["text"],
        data["limits"],
    )


def test_status(terminal: Terminal, mongo_uri: str) -> None:
    """The status shows the mode, and each instance with its conflicts and when it was seen."""
    with closing(Connection(mongo_uri)) as connection:
        for name in ("node-1", "node-2"):
            limiter = Limiter(load_config({**terminal.settings, "instance": name}))
            HealthMonitor(limiter, HeartbeatStore(connection), clock=time.time).beat(override_count=0)
            limiter.close()
    data = terminal.data("status")

    assert ("enforce", {"layer": "mode"}) == (data["mode"], data["mode_origin"])
    assert ["node-1", "node-2"] == [beat["instance"].split(":")[0] for beat in data["instances"]]
    assert all(beat["seen_s"] < 60 for beat in data["instances"])
    assert "node-2" in terminal.ok("status")


def test_status_under_the_emergency_switch(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who looks with the emergency switch pulled is told that it is no instance's."""
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    result = terminal.run("status", "--json")
    told = json.loads(result.stdout)

    assert ("enforce", {"layer": "mode"}) == (told["mode"], told["mode_origin"])
    assert "OAUTH_RATELIMIT_MODE=off" not in result.stderr
    assert "OAUTH_RATELIMIT_MODE=off is set in the environment of this command" in terminal.run("status").stderr


@pytest.mark.parametrize("what", ["counters", "overrides", "history"])
def test_export(terminal: Terminal, limiter: Limiter, what: str) -> None:
    """Everything can be exported, a record a line, as one list or as a table, with the same content."""
    spend(limiter, 2, "app", "alice")
    terminal.ok("mode", "set", "off", *WHY)
    terminal.ok("limit", "set", "app", "--user", "9/hour", *WHY)
    terminal.ok("mode", "unset", *WHY)
    lines = [json.loads(line) for line in terminal.ok("export", what).splitlines()]
    rows = list(csv.DictReader(io.StringIO(terminal.ok("export", what, "--format", "csv"))))

    assert {"counters": 2, "overrides": 1, "history": 3}[what] == len(lines) == len(rows)
    assert [list(line) for line in lines] == [list(row) for row in rows]
    for listed in (terminal.data("export", what), json.loads(terminal.ok("export", what, "--format", "json"))):
        assert [line["client_id"] for line in lines] == [record["client_id"] for record in listed]


def test_export_to_a_spreadsheet(terminal: Terminal, limiter: Limiter) -> None:
    """A client that calls itself a formula is text in a spreadsheet."""
    spend(limiter, 1, "=1+1", "@alice")
    rows = list(csv.DictReader(io.StringIO(terminal.ok("export", "--format", "csv"))))

    assert {("'=1+1", "'@alice"), ("'=1+1", "")} == {(row["client_id"], row["username"]) for row in rows}


@pytest.mark.parametrize("words", [("top",), ("show", "a\x1b[2Jb"), ("explain", "a\x1b[2Jb", "\x07\u202e\x9b")])
def test_names_with_control_characters(terminal: Terminal, limiter: Limiter, words: tuple[str, ...]) -> None:
    """No control character and no change of direction in a name reaches the terminal."""
    spend(limiter, 1, "a\x1b[2Jb", "\x07\u202e\x9b")
    output = terminal.ok(*words)

    assert "a\\x1b[2Jb" in output
    assert "\\x07\\u202e\\x9b" in output
    assert all(letter.isprintable() for letter in output.replace("\n", ""))


def test_history_with_control_characters(terminal: Terminal) -> None:
    """Nor does one in a reason."""
    terminal.ok("mode", "set", "off", "--reason", "\x1b]0;title\x07", "--by", "\x1bann")

    for words in (("overrides",), ("overrides", "--history"), ("mode",), ("status",), ("explain", "app")):
        assert "\x1b" not in terminal.ok(*words)


def test_counters_that_are_not_shared(terminal: Terminal) -> None:
    """Without a database there is nothing to look at, and that is said."""
    terminal.config_path.write_text("mode: dry-run")
    result = terminal.run("top")

    assert 2 == result.exit_code
    assert "no store.uri" in result.stderr


@pytest.mark.parametrize(
    "words", [("top",), ("status",), ("reset", "app"), ("explain", "app"), ("erase", "ann", "--dry-run")]
)
def test_database_that_does_not_answer(terminal: Terminal, words: tuple[str, ...]) -> None:
    """Without MongoDB the exit code is 3, and there is one line about it."""
    result = terminal.run("--mongo-uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", *words)

    assert 3 == result.exit_code
    assert ["Error: MongoDB is unreachable: ServerSelectionTimeoutError (127.0.0.1:1)"] == result.stderr.splitlines()


def test_connection_string_that_cannot_be_used(terminal: Terminal) -> None:
    """A mistake in the connection string is explained, without what may be secret in it."""
    result = terminal.run("--mongo-uri", "mongodb://ann:secret@127.0.0.1:1/?directConnection=maybe", "top")

    assert 3 == result.exit_code
    assert "directconnection" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        ("mongodb://ann:s%40cret@127.0.0.1:1,127.0.0.1:2/oauth", "127.0.0.1:1,127.0.0.1:2"),
        ("mongodb://[::1]:1/", "[::1]:1"),
    ],
    ids=["with a password", "IPv6"],
)
def test_which_database_does_not_answer(terminal: Terminal, uri: str, where: str) -> None:
    """Where MongoDB was looked for is named, and never the user or the password."""
    result = terminal.run("--mongo-uri", f"{uri}?serverSelectionTimeoutMS=50", "top")

    assert [f"Error: MongoDB is unreachable: ServerSelectionTimeoutError ({where})"] == result.stderr.splitlines()


@pytest.mark.parametrize(
    ("words", "before"),
    [
        (("status", "--config", "x.yaml"), "--config FILE status"),
        (("limit", "list", "--mongo-uri=mongodb://db/"), "--mongo-uri URI limit list"),
    ],
)
def test_common_option_after_the_command(terminal: Terminal, words: tuple[str, ...], before: str) -> None:
    """Somebody who names the configuration behind the command is told where it belongs."""
    result = terminal.run(*words)

    assert 2 == result.exit_code
    assert "goes before the command: " in result.stderr
    assert before in result.stderr


def test_option_that_nothing_has(terminal: Terminal) -> None:
    """Any other option that does not exist is refused as ever."""
    assert "No such option '--colour'" in terminal.run("status", "--colour").stderr


def test_status_right_after_a_change(terminal: Terminal, mongo_uri: str) -> None:
    """An instance that has not told of the new mode yet is not passed off as being in it."""
    with closing(Connection(mongo_uri)) as connection:
        limiter = Limiter(load_config(terminal.settings))
        HealthMonitor(limiter, HeartbeatStore(connection), clock=time.time).beat(override_count=0)
        limiter.close()
    assert "Not yet in mode" not in terminal.ok("status")

    terminal.ok("mode", "set", "dry-run", *WHY)
    assert "Not yet in mode dry-run when last seen: 1 instance." in terminal.ok("status")


STRANGE = "No counters, statistics or configuration for"


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("explain",),
        ("reset",),
        ("limit", "set", "--user", "9/hour", *WHY),
        ("mode", "set", "off", *WHY, "--client"),
        ("trust", "add", *WHY),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_client_that_is_mistyped(terminal: Terminal, limiter: Limiter, words: tuple[str, ...]) -> None:
    """Every command that is about a client says if nothing is known of it, and which one may be meant."""
    spend(limiter, 1, "web-shop", "alice")
    result = terminal.run(*words, "wbe-shop")

    assert (0, f"{STRANGE} 'wbe-shop'; did you mean 'web-shop'?") == (result.exit_code, result.stderr.strip())
    assert "" == terminal.run(*words, "web-shop").stderr


def test_client_that_is_strange_but_not_mistyped(terminal: Terminal) -> None:
    """Nothing is suggested where nothing is similar, and a name in the configuration or a pattern is not strange."""
    assert f"{STRANGE} 'unheard-of'." == terminal.run("show", "unheard-of").stderr.strip()
    assert "did you mean 'partner'?" in terminal.run("show", "Partnr").stderr
    assert "" == terminal.run("show", "partner").stderr
    assert "" == terminal.run("explain", "mobile-7").stderr
    assert "" == terminal.run("trust", "add", "any-*", *WHY).stderr


def test_hint_for_programs(terminal: Terminal) -> None:
    """Programs get the hint as a field where there is one record, and nothing on the standard error."""
    result = terminal.run("explain", "partnr", "--json")

    assert f"{STRANGE} 'partnr'; did you mean 'partner'?" == json.loads(result.stdout)["hint"]
    assert "" == result.stderr
    assert None is terminal.data("explain", "partner")["hint"]
