"""status, top, show and export."""

import csv
import io
import json
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from tests.cli.conftest import WHY, Terminal
from tests.support.limiters import send_hits


def test_empty_database_gives_empty_lists_and_says_so(terminal: Terminal) -> None:
    for words in (("top",), ("show", "app"), ("overrides",), ("limit", "list"), ("export",)):
        assert [] == terminal.data(*words)
    assert "" == terminal.ok("export")
    assert "No recent requests." in terminal.ok("top")
    assert "No overrides: " in terminal.ok("overrides")
    assert "No overrides and no resets so far." in terminal.ok("overrides", "--history")
    assert "No instance seen in the last 10 minutes" in terminal.ok("status")


def test_top_sorts_by_used_share_of_the_limit(terminal: Terminal, limiter: Limiter) -> None:
    send_hits(limiter, 5, "app", "alice")
    send_hits(limiter, 8, "batch")
    send_hits(limiter, 1, "other")
    rows = terminal.data("top", "-n", "3")

    assert [("app", "alice", "user"), ("batch", None, "client"), ("batch", None, "client_total")] == [
        (row["client_id"], row["username"], row["kind"]) for row in rows
    ]
    assert [(1.0, 0), (0.8, 2)] == [(row["used_ratio"], row["remaining"]) for row in rows[:2]]
    assert rows[0]["retry_after_s"] > 0


def test_top_watches_until_interrupted(terminal: Terminal, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    send_hits(limiter, 1, "app", "alice")
    waits = iter([None, KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        if interruption := next(waits):
            raise interruption

    monkeypatch.setattr(sys.modules["oauth_ratelimit.cli.status"], "time", SimpleNamespace(sleep=sleep))

    assert 2 == terminal.ok("top", "--watch", "1").count("alice")


def test_show_lists_a_client_or_one_of_its_users(terminal: Terminal, limiter: Limiter) -> None:
    send_hits(limiter, 2, "app", "alice")
    send_hits(limiter, 1, "app", "bob")
    send_hits(limiter, 3, "app", "alice", grant_type="refresh_token")
    send_hits(limiter, 4, "other", "alice")

    assert {("alice", None, 2.0), ("bob", None, 1.0), ("alice", "grant:refresh_token", 3.0)} == {
        (row["username"], row["scope"], row["estimate"]) for row in terminal.data("show", "app") if row["username"]
    }
    assert {None, "grant:refresh_token"} == {row["scope"] for row in terminal.data("show", "app", "alice")}
    assert "alice" in terminal.ok("show", "app", "alice")


def send_heartbeat(terminal: Terminal, mongo_uri: str, name: str) -> None:
    """Store a heartbeat as an instance does."""
    with closing(Connection(mongo_uri)) as connection:
        limiter = Limiter(load_config({**terminal.settings, "instance": name}))
        HealthMonitor(limiter, HeartbeatStore(connection), clock=time.time).beat(override_count=0)
        limiter.close()


def test_status_lists_mode_and_instances(terminal: Terminal, mongo_uri: str) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    send_heartbeat(terminal, mongo_uri, "node-2")
    data = terminal.data("status")

    assert ("enforce", {"layer": "mode"}) == (data["mode"], data["mode_origin"])
    assert ["node-1", "node-2"] == [instance["instance"].split(":")[0] for instance in data["instances"]]
    assert all(instance["seen_s"] < 60 for instance in data["instances"])
    assert "node-2" in terminal.ok("status")


def test_status_names_the_origin_of_the_mode(terminal: Terminal) -> None:
    assert "mode from  the configuration\n" in terminal.ok("status")

    terminal.ok("mode", "set", "dry-run", *WHY)
    assert "mode from  override by ann: ticket 4711\n" in terminal.ok("status")


def test_status_names_instances_that_have_not_changed_mode_yet(terminal: Terminal, mongo_uri: str) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    assert "Not yet in mode" not in terminal.ok("status")

    terminal.ok("mode", "set", "dry-run", *WHY)
    assert "Not yet in mode dry-run when last seen: 1 instance." in terminal.ok("status")


def test_status_ignores_the_emergency_switch_of_its_environment_with_a_warning(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    result = terminal.run("status", "--json")

    assert ("enforce", "") == (json.loads(result.stdout)["mode"], result.stderr)
    assert "OAUTH_RATELIMIT_MODE=off is set in the environment of this command" in terminal.run("status").stderr


@pytest.mark.parametrize(("what", "count"), [("counters", 2), ("overrides", 1), ("history", 3)])
def test_export_has_the_same_records_in_every_format(
    terminal: Terminal, limiter: Limiter, what: str, count: int
) -> None:
    send_hits(limiter, 2, "app", "alice")
    terminal.ok("mode", "set", "off", *WHY)
    terminal.ok("limit", "set", "app", "--user", "9/hour", *WHY)
    terminal.ok("mode", "unset", *WHY)
    lines = [json.loads(line) for line in terminal.ok("export", what).splitlines()]
    rows = list(csv.DictReader(io.StringIO(terminal.ok("export", what, "--format", "csv"))))

    assert count == len(lines) == len(rows)
    assert [list(line) for line in lines] == [list(row) for row in rows]
    for records in (terminal.data("export", what), json.loads(terminal.ok("export", what, "--format", "json"))):
        assert [line["client_id"] for line in lines] == [record["client_id"] for record in records]
