"""rollout."""

import time

from oauth_ratelimit.core.statistics import ClientMinute, Share, Source, Tally
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import WHY, Terminal

OWN = Source("client", "client_credentials")
HOUR_S = 3600


def record(connection: Connection, *, hours: int, over: int) -> None:
    """Record a minute in each of the last hours."""
    now_s = int(time.time() // 60) * 60
    shares = [
        Share(ClientMinute(client_id, now_s - 60 - HOUR_S * hour, {OWN: tally}), is_complete=True)
        for hour in range(hours)
        for client_id, tally in (("calm", Tally(1000)), ("wasteful", Tally(10, would_deny=over)))
    ]
    StatisticsStore(connection).put("one-0", shares, keep_s=5 * 86_400.0)


def beat(connection: Connection, *, mode: str, lag_s: float = 1.0) -> None:
    """Store the heartbeat of an instance."""
    now_s = time.time()
    HeartbeatStore(connection).put(
        Heartbeat(
            instance="node-1:1:aa", beat_at_s=now_s, started_at_s=now_s - 60, version="1", mode=mode, interval_s=1.0,
            lag_s=lag_s, override_count=0, flushed_count=0, conflict_count=0, failure_count=0, clock_offset_s=0.0,
        )
    )  # fmt: skip


def test_quiet_day_with_healthy_instances_lets_the_next_step_follow(terminal: Terminal, connection: Connection) -> None:
    terminal.ok("mode", "set", "dry-run", *WHY)
    record(connection, hours=40, over=2)
    beat(connection, mode="dry-run")
    data = terminal.data("rollout")
    assert ("dry run", True, []) == (data["step"], data["may_go_on"], data["problems"])
    assert [{"client_id": "wasteful", "over": 48}] == data["last_day"]["clients"]
    text = terminal.ok("rollout")
    assert "[dry run] > canary > enforce for some clients > enforce" in text
    assert "wasteful (48)" in text
    assert "Nothing speaks against the next step:" in text
    assert "flask oauth-ratelimit mode set enforce" in text


def test_dry_run_of_an_operator_is_a_dry_run_for_clients_that_are_enforced(terminal: Terminal) -> None:
    terminal.ok("mode", "set", "dry-run", *WHY)
    terminal.ok("mode", "set", "enforce", "--client", "shop", *WHY)
    assert "dry run" == terminal.data("rollout")["step"]
    terminal.ok("mode", "set", "enforce", *WHY)
    assert "enforce" == terminal.data("rollout")["step"]


def test_few_statistics_many_denials_and_lag_are_reasons_to_wait(terminal: Terminal, connection: Connection) -> None:
    record(connection, hours=3, over=900)
    beat(connection, mode="dry-run", lag_s=60.0)
    text = terminal.ok("rollout")
    for words in (
        "dry run > canary > enforce for some clients > [enforce]",
        "Less than a day of statistics",
        "of the requests are over a limit",
        "1 instance behind with the synchronisation",
        "1 instance not in mode enforce",
        "Note: ",
        'mode set dry-run --reason "too many complaints"',
    ):
        assert words in text, text


def test_rise_over_the_day_before_is_a_reason_to_wait(terminal: Terminal, connection: Connection) -> None:
    record(connection, hours=40, over=1)
    record(connection, hours=20, over=5)
    assert any("the day before" in problem for problem in terminal.data("rollout")["problems"])


def test_empty_database_has_no_statistics_and_no_instances(terminal: Terminal) -> None:
    problems = terminal.data("rollout")["problems"]
    assert ["No instance seen in the last 10 minutes.", "No statistics of the last day."] == problems
