"""Commands about recorded requests: report, suggest, what-if, replay."""

import csv
import gzip
import io
import json
import re
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from oauth_ratelimit import load_config
from oauth_ratelimit.cli.recording import opened
from oauth_ratelimit.cli.statistics import configuration_text
from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally, UserLoad, register_of
from oauth_ratelimit.observe.statistics import WRITE_EVERY_S
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from oauth_ratelimit.traffic.formats import Recording
from tests.cli.conftest import Terminal, run_command

OWN, LOGIN = Source("client", "client_credentials"), Source("user", "password")


@pytest.fixture
def recorded(mongo_uri: str) -> None:
    """An hour of requests by a client with two users, a trusted one, one whose name is a formula, and the rest."""
    now_s = int(time.time() // 60) * 60
    with closing(Connection(mongo_uri)) as connection:
        shares = []
        for start_s in range(now_s - 3600, now_s, 60):
            for client_id, tallies, users in (
                (
                    "shop",
                    {OWN: Tally(15, would_deny=5, would_reuse=4), LOGIN: Tally(9, denied=3)},
                    (UserLoad("alice", 10, denied=3), UserLoad("bob", 2)),
                ),
                ("mobile-app", {OWN: Tally(trusted=500)}, ()),
                ("=1+1", {OWN: Tally(1)}, ()),
                (OTHER_CLIENTS, {OWN: Tally(10)}, ()),
            ):
                registers = dict(register_of(user.username) for user in users)
                shares.append(ClientMinute(client_id, start_s, tallies, {}, users, registers, [], {864_000: 9}))
        StatisticsStore(connection).put("one-0", shares, keep_s=86_400.0)


@pytest.mark.usefixtures("recorded")
def test_what_if_estimates_denials_by_client_and_by_user(terminal: Terminal) -> None:
    data = terminal.data("what-if", "--limit", "10/minute", "--last", "2h")
    users = terminal.data("what-if", "--limit", "2/minute", "--kind", "user", "--client", "shop")["subjects"]
    text = terminal.ok("what-if", "--limit", "10/minute")

    assert (10, 60, "client", True, 600) == tuple(
        data[name] for name in ("limit", "window_s", "kind", "is_approximate", "unjudged_count")
    )
    assert ["shop", "=1+1"] == [each["client_id"] for each in data["subjects"]]
    shop, rest = data["subjects"]
    assert shop["at_least"] <= 600 <= shop["at_most"]
    assert 600 == pytest.approx(shop["denied"], rel=0.1)
    assert (round(shop["denied"] * 4 / 5), None) == (shop["spared"], rest["spared"])
    sums = f"about {data['denied']:,} of 1,260 requests denied, reuse would spare {data['spared']:,}\n"
    assert sums in text
    assert f" {round(100 * shop['denied'] / shop['offered'])} % " in text
    assert [("alice", 600), ("bob", 120)] == [(each["username"], each["offered"]) for each in users]
    for words in (
        "1 min, client: 1 of 2 clients over the limit",
        "An approximation",
        "trust the bounds alone for 1 client.",
        "Not included: 600 requests of",
    ):
        assert words in text
    assert "among the heaviest" in terminal.ok("what-if", "--limit", "2/minute", "--kind", "user")


@pytest.mark.usefixtures("recorded")
def test_what_if_of_users_through_all_clients_is_about_users(terminal: Terminal) -> None:
    words = ("what-if", "--limit", "2/minute", "--kind", "user_total")
    text = terminal.ok(*words)
    assert "2 of 2 users over the limit" in text
    assert "among the heaviest" in text
    assert "user_total takes no CLIENT" in terminal.run(*words, "--client", "shop").stderr


def test_commands_without_statistics_say_so(terminal: Terminal, tmp_path: Path) -> None:
    assert "No such requests are recorded." in terminal.ok("what-if", "--limit", "10/minute")
    assert "No such requests are recorded." in terminal.ok("report")
    assert [] == json.loads(terminal.ok("report", "--format", "json"))["clients"]
    assert "" == terminal.ok("report", "--format", "csv").strip()
    assert "No client requests more" in terminal.ok("report", "--format", "text")
    assert "No requests, so there is nothing to propose" in terminal.ok("suggest")
    (tmp_path / "empty.csv").write_text("time,client\n")
    empty = terminal.run("report", "--file", str(tmp_path / "empty.csv"))
    assert empty.stdout.endswith("left out  1 header\nNo such requests are recorded.\n")
    assert "no requests" in empty.stderr


@pytest.mark.usefixtures("recorded")
def test_report_has_clients_in_every_format(terminal: Terminal) -> None:
    names = ["mobile-app", "shop", "=1+1"]
    clients = json.loads(terminal.ok("report", "--format", "json", "--last", "2h"))["clients"]
    assert names == [each["client_id"] for each in clients]
    assert "logs-in-again" in clients[1]["faults"]
    (shop,) = terminal.data("report", "--token-lifetime", "20s", "--client", "shop")["clients"]
    assert "logs-in-again" not in shop["faults"]
    linked = terminal.data("report", "--page", "https://auth.example/ratelimit/")["clients"]
    assert "https://auth.example/ratelimit/client?id=%3D1%2B1" in linked[2]["page"]
    assert "&at=" in linked[1]["page"]
    rows = list(csv.DictReader(io.StringIO(terminal.ok("report", "--format", "csv"))))
    assert ["mobile-app", "shop", "'=1+1"] == [row["client_id"] for row in rows]
    table = terminal.ok("report")
    assert all(words in table for words in (*names, "over its limits", "Letters to the owners: --format text"))
    (row,) = (line for line in table.splitlines() if line.startswith("shop"))
    assert "over its limits, logs-in-again, token-per-call " in row
    assert ["300", "240", "2"] == row.split()[-3:]
    assert "users (about)" in table
    letters = terminal.ok("report", "--format", "text")
    assert letters.startswith("Your client mobile-app requests too many access tokens\n\nHello")


@pytest.mark.usefixtures("recorded")
def test_limits_are_proposed_from_statistics_with_evidence_and_yaml(terminal: Terminal) -> None:
    data = terminal.data("suggest")
    assert [("client", 10), ("user", 3)] == [(one["kind"], one["limit"]) for one in data["suggestions"]]

    result = terminal.run("suggest", "--window", "10m")
    basis = "1,980 requests within 1 h"
    assert f"Proposed limits in 10 min, from {basis}" in result.stdout
    assert "Not included: 600 requests of" in result.stderr
    _, warning, configuration = result.stdout.partition(
        f"# From {basis}: too little to enforce. Fit again after a week.\n"
    )
    assert warning
    assert load_config({"mode": "dry-run", **yaml.safe_load(configuration)})


@pytest.mark.parametrize("words", [("report",), ("suggest",), ("rollout",), ("what-if", "--limit", "1/minute")])
def test_lag_of_the_statistics_is_stated_where_people_read(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert 10.0 == WRITE_EVERY_S
    assert "Instances send statistics every ten seconds" in terminal.run(*words).stderr
    assert "" == terminal.run(*words, "--json").stderr


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Five calm clients for days, and a client with a token for each call."""
    path = tmp_path / "traffic.csv"
    calm = [f"{1_700_000_000 + 3600 * n},calm-{n % 5}," for n in range(200)]
    wasteful = [f"{1_700_000_000 + 30 * n},12345," for n in range(2000)]
    path.write_text("\n".join(["time,client,user", *calm, *wasteful, "rubbish"]))
    return str(path)


def test_file_is_read_instead_of_mongodb(file: str) -> None:
    """Without a database and a configuration."""
    report = json.loads(run_command("report", "--file", file, "--json").stdout)
    what_if = json.loads(run_command("what-if", "12345", "--limit", "60/hour", "--file", file, "--json").stdout)
    suggest = json.loads(run_command("suggest", file, "--json").stdout)

    assert [2200] * 3 == [found["recording"]["requests"] for found in (report, what_if, suggest)]
    assert [("12345", ["token-per-call"])] == [(each["client_id"], each["faults"]) for each in report["clients"][:1]]
    assert ["12345"] == [each["client_id"] for each in what_if["subjects"]]
    assert 1000 == pytest.approx(what_if["denied"], rel=0.02)
    assert 0.9 < suggest["suggestions"][0]["stopped_ratio"]
    assert ("2023-11-14T22:13:20Z", "2023-11-23T05:13:20Z") == (report["since"], report["until"])
    assert ("2023-11-14T22:13:20Z", "2023-11-23T05:13:20Z") == (what_if["since"], what_if["until"])


@pytest.mark.parametrize("words", [("report",), ("suggest",), ("what-if", "--limit", "1/minute")])
def test_facts_of_a_file_come_before_the_table(file: str, words: tuple[str, ...]) -> None:
    result = run_command(*words, "--file", file)

    assert result.stdout.startswith(f"file      {file}, csv\nrequests  2,200\n")
    assert "line 2202: no column for the client" in result.stderr
    assert "limits.user does not" in result.stderr
    assert (words[0] != "what-if") is ("--token-lifetime" in result.stderr)
    assert "Instances send" not in result.stderr


LIMITED = ("--limit", "3/minute")  # needs no configuration


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Thirty requests of a client within three seconds, and a few of another one."""
    path = tmp_path / "traffic.csv"
    burst = [f"{1_700_000_000 + n / 10},busy,ann" for n in range(30)]
    path.write_text("\n".join(["time,client,user", *burst, *(f"{1_700_000_100 + n}.5,calm," for n in range(5))]))
    return path


def under(config: object, tmp_path: Path) -> Terminal:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(yaml.safe_dump(config))
    return Terminal(path, {})


def test_answer_names_clients_users_limits_and_the_minute(recording: Path, tmp_path: Path) -> None:
    terminal = under({"mode": "dry-run", "limits": {"user": ["10/minute"]}}, tmp_path)
    found, text = terminal.data("replay", str(recording)), terminal.ok("replay", str(recording))

    assert (0, 20, 1, 1) == tuple(found[name] for name in ("denied", "over", "client_count", "user_count"))
    assert ("2023-11-14T22:13:00Z", 20) == (found["busiest_minute"], found["busiest_minute_over"])
    assert [{"client_id": "busy", "requests": 30, "over": 20, "user_count": 1}] == found["clients"]
    assert [{"client_id": "busy", "username": "ann", "over": 20}] == found["users"]
    assert [{"policy": "user", "limit": 10, "window_s": 60, "over": 20}] == found["by_limit"]
    assert (
        "denied    0 of 20 requests over a limit, of 1 client and 1 user; most in a minute 20, at 2023-11-14T22" in text
    )
    assert "user: 10 in 1 min       20" in text
    assert re.search(r"^busy +30 +20 +67 % +1$", text, re.M), "its users are counted, not estimated"


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("1700000000,busy\n", "limits.user does not"),
        (
            '192.0.2.7 - - [01/Aug/1995:00:00:07 -0400] "POST /token HTTP/1.1" 200 1\n',
            "3 requests without a client: the address is taken for the client",
        ),
    ],
)
def test_missing_users_and_clients_are_announced(tmp_path: Path, line: str, note: str) -> None:
    path = tmp_path / "traffic"
    path.write_text(line * 3)
    terminal = under({"mode": "enforce", "limits": {"client": ["1/minute"], "user": ["1/minute"]}}, tmp_path)
    result = terminal.run("replay", str(path))

    assert note in result.stderr
    assert any(note in each for each in terminal.data("replay", str(path))["notes"])
    assert "denied    2 of 2 requests over a limit" in result.stdout


def test_single_limit_replaces_those_of_the_configuration(recording: Path, tmp_path: Path) -> None:
    terminal = under({"mode": "off", "limits": {"user": ["1/minute"]}}, tmp_path)
    one = terminal.data("replay", str(recording), "--limit", "10/minute")
    total = terminal.data("replay", str(recording), "--limit", "10/minute", "--kind", "client_total")

    assert 20 == one["denied"]
    assert ["client_total"] == [each["policy"] for each in total["by_limit"]]
    assert "mode off" in terminal.ok("replay", str(recording))


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "has_bar"), [(TerminalStream(), True), (io.StringIO(), False)])
def test_large_file_shows_progress_on_a_terminal(
    recording: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, has_bar: bool
) -> None:
    monkeypatch.setattr("oauth_ratelimit.cli.recording.MIN_BAR_BYTES", 1)
    monkeypatch.setattr(sys, "stderr", stream)
    with opened(Recording(str(recording))) as facts:
        assert 35 == len(list(facts.read()))
    assert has_bar is ("100%" in stream.getvalue()) is bool(stream.getvalue())


def test_options_choose_what_is_read_of_an_access_log(tmp_path: Path) -> None:
    path = tmp_path / "access.log.1"
    line = '1.2.3.4 - - [01/Aug/1995:00:00:0{} -0400] "POST {}?client_id=app{} HTTP/1.1" {} 5 "-" "x"\n'
    text = "".join(line.format(n, path, n % 2, 200) for n in range(8) for path in ("/token", "/own"))
    path.write_bytes(gzip.compress((text + line.format(9, "/token", 1, 401)).encode()))
    options = (*LIMITED, "--client-pattern", r"client_id=(?P<client>\w+)", "--file-format", "access-log")
    shown = run_command("replay", str(path), *options).stdout.splitlines()
    unknown = run_command("replay", "--file", str(path), *options, "--path", "/other")

    facts = ["requests  8", "path      /token", "left out  8 at another path, 1 answered with 401"]
    assert [*facts, "denied    2 of 2 requests over a limit, of 2 clients"] == [*shown[1:4], shown[7].partition(";")[0]]
    assert (1, True) == (unknown.exit_code, "the path of the token endpoint: 9 /token, 8 /own. Name" in unknown.stderr)


def test_proposal_is_a_configuration_whatever_clients_are_called() -> None:
    """YAML has several versions of what a number is."""
    names = ["2e10", "1.5e3", "12e5", ".5e1", "+7E-3", "010", "1_000", "1:30", "0x1f", ".inf", "-1", "2024-01-01"]
    names += ["null", "off", "~", "=", "<<", "a: b", "# c", "- d", "é", "\x85", "\u2028", "x " * 300 + "x"]
    text = configuration_text({"clients": {name: {"limits": {"client": ["5/hour"]}} for name in names}})

    assert set(names) == load_config(parse_yaml(text.encode(), source="")).policies.clients.keys()


@pytest.mark.parametrize("config", ["trusted_clients: [busy]\nmode: enforce\n", None])
def test_trusted_client_leaves_no_proposal(recording: Path, tmp_path: Path, config: str | None) -> None:
    file = tmp_path / "ratelimit.yaml"
    file.write_text(config or "")
    result = run_command(*(["--config", str(file)] if config else []), "suggest", str(recording))

    assert (config is None) == ("user" in result.stdout.partition("Proposed")[2])
    assert (config is not None) == ("30 requests left out" in result.stdout)
    assert (config is None) == ("No configuration, so no client is taken" in result.stderr)


@pytest.mark.parametrize(
    ("content", "messages", "code"),
    [
        ("5,a\n\x1b[31mnever,a\n6,b\n", ("line 2: not a time: ", "1 line not understood"), 0),
        ("\n\n", ("no requests",), 1),
        ("when,app,who\n5,a,u\n", ("no column for the time; found: when, app, who",), 1),
        (None, ("No such file or directory",), 1),
    ],
    ids=["invalid line", "blank", "other columns", "missing"],
)
def test_problems_of_a_file_are_named(
    tmp_path: Path, content: str | None, messages: tuple[str, ...], code: int
) -> None:
    path = tmp_path / "traffic"
    if content is not None:
        path.write_text(content)
    result = run_command("replay", str(path), *LIMITED)

    assert code == result.exit_code
    assert all(message in result.stderr for message in messages)
    assert "\x1b[31mn" not in result.stderr


def test_standard_input_is_read_once() -> None:
    assert 2 == json.loads(run_command("replay", "-", *LIMITED, "--json", stdin="5.5,a\n6,a\n").stdout)["requests"]
