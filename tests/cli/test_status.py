"""status and show."""

import csv
import io
import json
import re
import sys
import time
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from flask.cli import FlaskGroup

from oauth_ratelimit import Limiter
from oauth_ratelimit.cli import command
from oauth_ratelimit.cli.output import print_table
from oauth_ratelimit.cli.status import INSTANCE_COLUMNS
from oauth_ratelimit.core.statistics import ClientMinute, Denials, Source, Tally, UserLoad
from oauth_ratelimit.observe.events import DenialRecorder
from oauth_ratelimit.operations.format import utc_time
from oauth_ratelimit.operations.status import heartbeat_data
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import Heartbeat, HeartbeatStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import WHY, Terminal, send_heartbeat
from tests.support.limiters import send_hits


def test_empty_database_gives_empty_lists_and_says_so(terminal: Terminal) -> None:
    for words in (("show",), ("show", "app"), ("overrides",), ("limit", "list")):
        assert [] == terminal.data(*words)
    assert "" == terminal.ok("show", "--format", "csv")
    assert "No recent limited requests." in terminal.ok("show")
    assert "No overrides: " in terminal.ok("overrides")
    assert "No overrides and no resets so far." in terminal.ok("overrides", "--history")
    assert "No denial is recorded in the last hour.\n\nNo instance seen in the last 10 min" in terminal.ok("status")


def test_show_sorts_by_used_share_of_the_limit(terminal: Terminal, limiter: Limiter) -> None:
    send_hits(limiter, 5, "app", "alice")
    send_hits(limiter, 3, "app", "alice", grant_type="refresh_token")
    send_hits(limiter, 8, "batch")
    rows = terminal.data("show", "-n", "3")

    assert [("app", "alice", 1.0), ("batch", None, 0.8)] == [
        (row["client_id"], row["username"], row["used_ratio"]) for row in rows[:2]
    ]
    assert {"app"} == {row["client_id"] for row in terminal.data("show", "app")}
    assert {(None, 5.0), ("grant:refresh_token", 3.0)} == {
        (row["scope"], row["estimate"]) for row in terminal.data("show", "app", "alice")
    }
    assert [["app", "alice", "token", "user:", "5/hour", "enforce", "5", "100", "%"]] == [
        line.split()[:9] for line in terminal.ok("show", "-n", "1").splitlines()[1:]
    ]


def test_status_names_whom_a_dry_run_would_deny(terminal: Terminal, connection: Connection) -> None:
    now_s = int(time.time())
    minute_s, own, logins = (now_s - 130) // 60 * 60, Source("client", "client_credentials"), Source("user", "password")

    def minute(client_id: str, source: Source, tally: Tally, policy: str, users: tuple[UserLoad, ...]) -> ClientMinute:
        times = (now_s - 130, now_s - 2) if tally.would_deny > 1 else (now_s - 900, now_s - 800)
        denials = {(policy, source.grant, "would_deny"): Denials(tally.would_deny, *times, 60, 60)}
        denials = denials if tally.would_deny else {}
        return ClientMinute(client_id, minute_s, {source: tally}, users=users, denials=denials)

    mallory = (UserLoad("mallory", 30, would_deny=20), UserLoad("alice", 3))
    minutes = [
        minute("nightly", own, Tally(60, would_deny=120), "client", ()),
        minute("shop", logins, Tally(10, would_deny=20), "user", mallory),
        minute("over", own, Tally(60, would_deny=1), "client", ()),
        minute("fine", own, Tally(60), "client", ()),
    ]
    StatisticsStore(connection).put("one", minutes, keep_s=1e6)
    text = terminal.ok("status")

    since = f"would be denied (dry run) since {utc_time(now_s - 130)} by the limit"
    assert re.search(
        rf"^nightly: (requests )?{re.escape(since)} client \(60/minute\), client_credentials\.$", text, re.M
    )
    assert re.search(rf"^mallory of shop: (requests )?{re.escape(since)} user \(60/minute\), password\.$", text, re.M)
    assert not re.search(r"^(over|fine)\b", text, re.M), "which are not over a limit now"


def test_status_lists_mode_and_instances(terminal: Terminal, mongo_uri: str) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    send_heartbeat(terminal, mongo_uri, "node-2")
    data, text = terminal.data("status"), terminal.ok("status")

    assert "2 alone" in text
    assert ("enforce", {"layer": "mode"}) == (data["mode"], data["mode_origin"])
    assert ["node-1", "node-2"] == [instance["instance"].split(":")[0] for instance in data["instances"]]
    assert all(instance["seen_s"] < 60 and not instance["is_lagging"] for instance in data["instances"])
    assert "mode from  the configuration\n" in text
    assert "node-2" in text
    assert "Not yet in mode" not in text

    terminal.ok("mode", "set", "dry-run", *WHY)
    text = terminal.ok("status")
    assert "mode from  override by ann: ticket 4711; the configuration has enforce\n" in text
    assert "Not yet in mode dry-run when last seen: 2 instances." in text


def test_status_has_the_instances_outside_of_a_canary_in_a_dry_run(terminal: Terminal, mongo_uri: str) -> None:
    settings = {**terminal.settings, "mode": "enforce", "canary": {"instances": ["node-1*"]}}
    terminal.config_path.write_text(yaml.safe_dump(settings))
    for name in ("node-1b", "node-2"):
        send_heartbeat(terminal, mongo_uri, name)
    text = terminal.ok("status")

    assert [("node-1b", "enforce"), ("node-2", "dry-run")] == re.findall(r"^worker \d+ on (\S+) +(\S+)", text, re.M)
    assert "Not yet in mode" not in text


@pytest.mark.parametrize(
    ("seen_s", "words", "name"),
    [
        (9.0, "9 s", "worker 4711 on ip-10-…"),
        (31.0, "late 31 s", "worker 4711 on i…"),
        (599.0, "late 9 min 59 s", "worker 471…"),
    ],
)
def test_killed_instance_is_marked_late_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seen_s: float, words: str, name: str
) -> None:
    beat = Heartbeat("ip-10-0-12-34.eu-west-1.compute.internal:4711:9f3a", 1e9, 9e8, "1.2", "enforce", 1.0, lag_s=12.5)
    beat = beat._replace(failure_count=1234, over_admitted_count=1234, clock_offset_s=-12.5)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(INSTANCE_COLUMNS, [heartbeat_data(beat, 1e9 + seen_s)])
    text = click.unstyle(capsys.readouterr().out)

    assert 80 >= max(map(len, text.splitlines())), text
    assert f"  {words}  " in text
    assert f"\n{name} " in text, "as the page names it"


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("show",), 2),
        (("denials",), 1),
        (("overrides",), 2),
        (("overrides", "--history"), 2),
        (("limit", "list"), 1),
        (("trust", "list"), 1),
        (("status",), 1),
        (("report",), 1),
        (("what-if", "--limit", "1/minute"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_list_has_the_same_records_in_each_format(
    terminal: Terminal,
    limiter: Limiter,
    denials: DenialRecorder,
    connection: Connection,
    mongo_uri: str,
    words: tuple[str, ...],
    count: int,
) -> None:
    limiter.check("app", "alice", cost=5)
    limiter.check("app", "alice")
    limiter.sync()
    denials.close(Deadline())
    send_heartbeat(terminal, mongo_uri, "node-1")
    minute = ClientMinute("app", int(time.time()) // 60 * 60 - 60, tallies={Source("client", "none"): Tally(allowed=2)})
    StatisticsStore(connection).put("one-0", [minute], keep_s=3600.0)
    terminal.ok("limit", "set", "app", "--limit", "9/hour", "--kind", "user", "--yes", *WHY)
    terminal.ok("trust", "add", "batch", *WHY)
    whole = terminal.data(*words)
    lines = [json.loads(line) for line in terminal.ok(*words, "--format", "jsonl").splitlines()]
    rows = list(csv.DictReader(io.StringIO(terminal.ok(*words, "--format", "csv"))))
    records = whole if isinstance(whole, list) else next(value for value in whole.values() if isinstance(value, list))

    assert count == len(records) == len(lines) == len(rows)
    assert [list(record) for record in records] == [list(line) for line in lines] == [list(row) for row in rows]
    assert len(terminal.ok(*words, "--format", "table").splitlines()) > count


def test_status_says_that_planted_heartbeats_may_hide_instances(
    terminal: Terminal, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    assert "may be missing" not in terminal.ok("status") + terminal.ok(
        "check-config", str(terminal.config_path), "--running"
    )
    monkeypatch.setattr("oauth_ratelimit.store.mongo.heartbeats.MAX_INSTANCES", 0)
    for words in (("status",), ("check-config", str(terminal.config_path), "--running")):
        assert "there are more than 2,000 heartbeats, so instances may be missing here" in terminal.ok(*words)


def test_rollout_shows_step_problems_and_commands(terminal: Terminal, mongo_uri: str) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    text = terminal.ok("rollout")

    assert "dry run > canary > [enforce]" in text
    assert "instances             1\n" in text
    assert "Note: No statistics of the last day." in text
    assert "reuse would spare     0 of 0\n" in text
    assert re.search(r"guard \(its own mode\)  \S+: 0 denied, 0 would be denied\n", text)
    given = f"oauth-ratelimit --config {terminal.config_path}"
    assert f'  {given} mode set dry-run --reason "too many complaints"' in text
    terminal.ok("mode", "set", "dry-run", *WHY)
    after = terminal.ok("rollout")
    assert f"Next, in spite of that:\n  {given} mode unset --reason" in after
    assert re.search(r"last change           \S+Z: mode dry-run for everybody \(ann\)\n", after)


def test_rollout_prints_commands_for_the_application_that_it_was_given(tmp_path: Path, mongo_uri: str) -> None:
    path, settings = tmp_path / "own server.py", {"mode": "enforce", "store": {"uri": mongo_uri}}
    path.write_text(f"from tests.cli.conftest import protected\napp = protected(OAUTH_RATELIMIT_CONFIG={settings})\n")
    group = FlaskGroup(add_default_commands=False)
    group.add_command(command)
    words = ["--app", f"{path}:app", "oauth-ratelimit", "rollout"]
    text = CliRunner().invoke(group, words, prog_name="flask", catch_exceptions=False).stdout
    assert f"  flask --app '{path}:app' oauth-ratelimit mode set dry-run --reason" in text


def test_rollout_names_the_worst_clients_and_counts_the_others(terminal: Terminal, connection: Connection) -> None:
    minute_s, source = int(time.time()) // 60 * 60 - 60, Source("client", "client_credentials")
    tallies = ((f"app-{number}", {source: Tally(9, number)}) for number in range(1, 8))
    store, minutes = StatisticsStore(connection), [ClientMinute(name, minute_s, tally) for name, tally in tallies]
    store.put("one-0", minutes[2:], keep_s=1e6)
    worst = "app-7 (7), app-6 (6), app-5 (5), app-4 (4), app-3 (3)"

    assert f"clients over a limit  5: {worst}\n" in terminal.ok("rollout")
    store.put("one-1", minutes[:2], keep_s=1e6)
    assert f"clients over a limit  7: {worst}, … and 2 more\n" in terminal.ok("rollout")


def test_rollout_does_not_call_limits_enforced_that_have_a_dry_run_of_their_own(terminal: Terminal) -> None:
    assert "\nAll limits are enforced. Keep the alerts.\n" in terminal.ok("rollout")
    terminal.ok("mode", "set", "dry-run", "nightly", *WHY)
    trial = {"name": "trial", "limit": 3, "window": "1d", "mode": "dry-run"}
    grants = {"password": {"mode": "off"}}
    clients = {"shop": {"mode": "enforce", "limits": {"user": [{**trial}]}, "grants": grants}}
    settings = {**terminal.settings, "limits": {"user": ["5/hour", trial]}, "clients": clients}
    terminal.config_path.write_text(yaml.safe_dump(settings))

    trials = "grant password of shop (off), limit trial of shop (dry-run), nightly (dry-run), limit trial (dry-run)"
    assert f"\nLimits are enforced, but not for {trials}. Keep the alerts.\n" in terminal.ok("rollout")
    terminal.config_path.write_text(yaml.safe_dump({**settings, "mode": "dry-run"}))
    terminal.ok("mode", "set", "enforce", "--canary", "100", "--yes", *WHY)
    said = f"\nLimits are enforced, but not for {trials}. An override says so; to have the configuration say it:\n"
    assert said in terminal.ok("rollout")


def test_rollout_folds_what_is_not_to_be_copied(
    terminal: Terminal, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute_s, source = int(time.time()) // 60 * 60 - 60, Source("client", "client_credentials")
    minutes = [ClientMinute("app", minute_s, {source: Tally(9, would_deny=336, would_reuse=328)})]
    StatisticsStore(connection).put("one-0", minutes, keep_s=1e6)
    terminal.config_path.write_text(yaml.safe_dump({**terminal.settings, "mode": "dry-run"}))
    monkeypatch.setattr("oauth_ratelimit.cli.output._terminal_width", lambda _stream: 80)
    text = terminal.ok("rollout")

    assert "token again           0\n" in text
    in_file = "  # in the configuration file: on_limit: reuse in limits of kind client (spares\n    328 of 336"
    assert in_file in text
    assert 80 >= max(len(line) for line in text.splitlines() if " --reason " not in line)


@pytest.mark.parametrize("mode", ["off", "enforce"])
def test_status_says_what_a_rejected_file_does(
    terminal: Terminal, mongo_uri: str, connection: Connection, mode: str
) -> None:
    """Where all limits are off, an operator may have appended just that."""
    send_heartbeat(terminal, mongo_uri, "node-1")
    (beat,) = HeartbeatStore(connection).read(time.time())
    HeartbeatStore(connection).put(beat._replace(config_rejected_at_s=1.8e9, mode=mode))
    assert (mode != "off") == ("on others the last valid file applies" in terminal.ok("status"))


def test_status_lists_what_needs_a_restart_a_right_and_who_does_not_use_the_new_address(
    terminal: Terminal, mongo_uri: str, connection: Connection
) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    text = terminal.ok("status")
    assert "1 alone" in text
    assert "restart" not in text
    assert "store.uri" not in text

    (beat,) = HeartbeatStore(connection).read(time.time())
    behind = beat._replace(instance="node-2", connection_problem="AuthenticationFailed (18)", host="a1b2")
    HeartbeatStore(connection).put(
        behind._replace(fixed_values=f"{beat.fixed_values} sync.preload=5", refused="find on ratelimit_overrides")
    )
    for name, rejected_at_s in ((beat.instance, 1.8e9), ("node-3", 1.8e9 + 1)):
        HeartbeatStore(connection).put(
            beat._replace(instance=name, config_rejected_at_s=rejected_at_s, config_file="/etc/limits.yaml")
        )
    text = terminal.ok("status")
    assert "1 host with 1 instance, 2 alone" in text
    assert "node-3 since 2027-01-15T08:00:00Z: the configuration file /etc/limits.yaml. Limits are off on" in text
    assert (1, False) == (text.count("Rejected by"), "other rejected file" in text)
    assert "Refused by MongoDB to 1 instance, which lack a right: find on ratelimit_overrides." in text
    assert "The new store.uri is not used yet on 1 instance (AuthenticationFailed (18))" in text
    assert "The file asks for changes: restart needed on 1 of 3 instances: sync.preload: 5 -> 1000. A process" in text


def test_status_says_how_many_rejected_files_it_does_not_name(
    terminal: Terminal, mongo_uri: str, connection: Connection
) -> None:
    send_heartbeat(terminal, mongo_uri, "node-1")
    store = HeartbeatStore(connection)
    (beat,) = store.read(time.time())
    for number in range(7):
        name = f"/etc/limits-{number}.yaml"
        store.put(beat._replace(instance=f"node-{number}", config_rejected_at_s=1.8e9, config_file=name))
    text = terminal.ok("status")
    assert 5 == text.count("Rejected by")
    assert "And 2 other rejected files: status --json lists them." in text
