"""what-if and report."""

import csv
import io
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from oauth_ratelimit import load_config
from oauth_ratelimit.core.hyperloglog import register_of
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Share, Source, Tally, UserLoad
from oauth_ratelimit.observe.statistics import WRITE_EVERY_S
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from tests.cli.conftest import Terminal, run_command

OWN, LOGIN = Source("client", "client_credentials"), Source("user", "password")


@pytest.fixture
def recorded(mongo_uri: str) -> Iterator[None]:
    """An hour of requests by a client with two users, a trusted one, and one whose name is a formula."""
    now_s = int(time.time() // 60) * 60
    with closing(Connection(mongo_uri)) as connection:
        shares = []
        for start_s in range(now_s - 3600, now_s, 60):
            for client_id, tallies, users in (
                (
                    "shop",
                    {OWN: Tally(20), LOGIN: Tally(9, denied=3)},
                    (UserLoad("alice", 10, denied=3), UserLoad("bob", 2)),
                ),
                ("mobile-app", {OWN: Tally(trusted=500)}, ()),
                ("=1+1", {OWN: Tally(1)}, ()),
            ):
                registers = dict(register_of(user.username) for user in users)
                shares.append(
                    Share(
                        ClientMinute(client_id, start_s, tallies, {}, users, registers, 3, {864_000: 9}),
                        is_complete=True,
                    )
                )
        StatisticsStore(connection).put("one-0", shares, keep_s=86_400.0)
    yield


@pytest.mark.usefixtures("recorded")
def test_what_if_denies_about_half_at_half_the_rate(terminal: Terminal) -> None:
    data = terminal.data("what-if", "--limit", "10/minute", "--last", "2h")

    assert (10, 60, "client", True) == tuple(data[name] for name in ("limit", "window_s", "by", "is_approximate"))
    assert ["shop", "=1+1"] == [each["client_id"] for each in data["bearers"]]
    shop = data["bearers"][0]
    assert (1200, 20) == (shop["offered"], shop["peak_per_minute"])
    assert shop["at_least"] <= shop["denied"] <= shop["at_most"]
    assert 600 == pytest.approx(shop["denied"], rel=0.35)
    assert (2, 1, 1260) == (data["bearer_count"], data["concerned_count"], data["offered"])

    text = terminal.ok("what-if", "--limit", "10/minute")
    assert "10 in 1 min, by client: 1 of 2 over the limit" in text
    assert "An approximation" in text


@pytest.mark.usefixtures("recorded")
def test_what_if_by_user_counts_each_user(terminal: Terminal) -> None:
    data = terminal.data("what-if", "--limit", "2/minute", "--by", "user", "--client", "shop")

    assert [("shop", "alice"), ("shop", "bob")] == [(each["client_id"], each["username"]) for each in data["bearers"]]
    assert data["bearers"][0]["denied"] > 400
    assert 600 == data["bearers"][0]["offered"]
    assert "among the heaviest" in terminal.ok("what-if", "--limit", "2/minute", "--by", "user")


@pytest.mark.usefixtures("recorded")
def test_what_if_by_total_counts_requests_with_and_without_a_user(terminal: Terminal) -> None:
    assert 32 * 60 == terminal.data("what-if", "--limit", "9/minute", "--by", "total")["bearers"][0]["offered"]


@pytest.mark.usefixtures("recorded")
def test_requests_of_unattributed_clients_are_not_judged(terminal: Terminal, mongo_uri: str) -> None:
    minute_s = int(time.time() // 60) * 60 - 600
    with closing(Connection(mongo_uri)) as connection:
        rest = ClientMinute(OTHER_CLIENTS, minute_s, {OWN: Tally(5000)})
        StatisticsStore(connection).put("one-0", [Share(rest, is_complete=True)], keep_s=86_400.0)

    data = terminal.data("what-if", "--limit", "10/minute")
    assert (5000, 1260, 2) == (data["unjudged_count"], data["offered"], data["bearer_count"])
    assert "Not included: 5,000 requests of clients" in terminal.ok("what-if", "--limit", "10/minute")


def test_commands_without_statistics_say_so(terminal: Terminal) -> None:
    assert "No statistics." in terminal.ok("what-if", "--limit", "10/minute")
    assert "No statistics." in terminal.ok("report")
    assert [] == json.loads(terminal.ok("report", "--format", "json"))["clients"]
    assert "" == terminal.ok("report", "--format", "csv").strip()
    assert "No client requested" in terminal.ok("report", "--format", "html")


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (("--limit", "10/second"), "needs a window of whole minutes"),
        (("--limit", "10 per 90 seconds"), "needs a window of whole minutes"),
        (("--limit", "ten"), "is not a single limit"),
        (("--limit", "10/minute", "--last", "fortnight"), "is neither hour, day, week, month, year"),
        (("--limit", "10/minute", "--last", "10s"), "is out of range"),
        (("--limit", "10/minute", "--by", "address"), "is not one of"),
        ((), "Missing option '--limit'"),
    ),
)
def test_invalid_option_is_a_usage_error(terminal: Terminal, words: tuple[str, ...], message: str) -> None:
    result = terminal.run("what-if", *words)

    assert 2 == result.exit_code
    assert message in result.stderr


@pytest.mark.usefixtures("recorded")
def test_report_ranks_clients_in_every_format(terminal: Terminal, tmp_path: Path) -> None:
    clients = json.loads(terminal.ok("report", "--format", "json", "--last", "2h"))["clients"]
    assert [("mobile-app", True), ("shop", False), ("=1+1", False)] == [
        (each["client_id"], each["is_trusted"]) for each in clients
    ]
    assert (1920, 180) == (clients[1]["requests"], clients[1]["denied"])
    assert "logs-in-again" in clients[1]["faults"]

    table = terminal.ok("report")
    assert "over its limits" in table
    assert "Letters to the owners: --format html" in table
    (shop,) = (line for line in table.splitlines() if line.startswith("shop"))
    assert "10 days" in shop
    assert [864_000, 864_000] == clients[1]["token_lifetime_s"]
    rows = list(csv.DictReader(io.StringIO(terminal.ok("report", "--format", "csv"))))
    assert ["mobile-app", "shop", "'=1+1"] == [row["client_id"] for row in rows]

    path = tmp_path / "report.html"
    assert "" == terminal.ok("report", "--format", "html", "-o", str(path))
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert terminal.ok("report", "--format", "html").startswith("<!doctype html>")


@pytest.mark.usefixtures("recorded")
def test_report_uses_the_token_lifetime(terminal: Terminal) -> None:
    words = ("report", "--format", "json", "--token-lifetime", "20s", "--client", "shop")
    (shop,) = json.loads(terminal.ok(*words))["clients"]

    assert "logs-in-again" not in shop["faults"]
    assert 2 == terminal.run("report", "--token-lifetime", "soon").exit_code


def test_report_to_an_unwritable_file_exits_with_one(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("report", "-o", str(tmp_path / "missing" / "report.html"))

    assert 1 == result.exit_code
    assert "No such file or directory" in result.stderr


@pytest.mark.usefixtures("recorded")
def test_limits_are_proposed_from_statistics_with_evidence_and_yaml(terminal: Terminal) -> None:
    data = terminal.data("suggest")
    assert [("client", None, 10), ("user", None, 3)] == [
        (one["kind"], one["client_id"], one["limit"]) for one in data["suggestions"]
    ]
    assert data["configuration"]["limits"]["client"][0]["window"] == "1h"
    result = terminal.run("suggest", "--window", "10m")
    assert "Proposed limits in 10 min, from 1,980 requests within 1 h" in result.stdout
    configuration = yaml.safe_load(result.stdout.partition("# From")[2].partition("\n")[2])
    assert load_config({"mode": "dry-run", **configuration})


@pytest.mark.usefixtures("recorded")
def test_proposal_from_too_little_traffic_says_so_everywhere(terminal: Terminal) -> None:
    result, data = terminal.run("suggest"), terminal.data("suggest")

    assert (1980, False) == (data["request_count"], data["is_enough"])
    assert 3600 <= data["span_s"] <= 3900, "in bins of five minutes"
    assert data["basis"].startswith("1,980 requests within 1 h")
    assert f"Too little traffic, only {data['basis']}: do not enforce these limits." in result.stderr
    assert f"# From {data['basis']}: too little to enforce." in result.stdout


@pytest.mark.parametrize("words", [("report",), ("suggest",), ("rollout",), ("what-if", "--limit", "1/minute")])
def test_lag_of_the_statistics_is_stated_where_people_read(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert 10.0 == WRITE_EVERY_S
    assert "Instances send statistics every ten seconds" in terminal.run(*words).stderr
    assert "" == terminal.run(*words, "--json").stderr


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("words", [("report",), ("what-if", "--limit", "1/minute")])
def test_unknown_client_is_named(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert "No counters, statistics or configuration for 'shopp'" in terminal.run(*words, "--client", "shopp").stderr
    assert "No counters" not in terminal.run(*words, "--client", "shop").stderr


def test_limits_are_proposed_from_recorded_traffic(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    calm = [f"{1_700_000_000 + 3600 * n},calm-{n % 5}," for n in range(200)]
    wasteful = [f"{1_700_000_000 + 30 * n},12345," for n in range(2000)]
    path.write_text("\n".join(["time,client,user", *calm, *wasteful]))
    result = run_command("suggest", str(path), "--token-lifetime", "12h")
    assert 0 == result.exit_code
    assert "the next wasteful one, 12345, reaches 1" in result.stdout
    assert "limits.user does not" in result.stderr
    found = json.loads(run_command("suggest", str(path), "--json").stdout)
    assert found["suggestions"][0]["stopped_ratio"] > 0.9
    assert 2 == run_command("suggest", str(path), "--window", "90s").exit_code


def test_without_statistics_nothing_is_proposed(terminal: Terminal) -> None:
    assert "No requests, so there is nothing to propose" in terminal.ok("suggest")
