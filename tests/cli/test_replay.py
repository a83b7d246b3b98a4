"""replay."""

import gzip
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from oauth_ratelimit.cli.recording import opened
from oauth_ratelimit.core.window import Estimator
from oauth_ratelimit.replay.run import COMMON
from oauth_ratelimit.replay.source import Recording
from tests.cli.conftest import run_command

SHIPPED = Path(__file__).parents[2] / "demo" / "nasa19950801.csv.gz"


def run(*words: str, stdin: str | None = None) -> Result:
    """Run the command without an application, a configuration or a database."""
    return run_command("replay", *words, stdin=stdin)


def data(*words: str) -> Any:
    """Run the command and return its JSON."""
    return parsed(run(*words, "--json"))


def compare(*words: str) -> Any:
    """Compare algorithms and return the JSON."""
    return data(*words, "--compare")


def parsed(result: Result) -> Any:
    """Return the JSON of a command that succeeded."""
    assert 0 == result.exit_code, result.output
    assert result.stdout.isascii()
    return json.loads(result.stdout)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Thirty requests of a client within three seconds, and a few of another one."""
    path = tmp_path / "traffic.csv"
    burst = [f"{1_700_000_000 + n / 10},busy,ann" for n in range(30)]
    path.write_text("\n".join(["time,client,user", *burst, *(f"{1_700_000_100 + n}.5,calm," for n in range(5))]))
    return path


def under(config: Mapping[str, object], path: Path, *words: str) -> tuple[Result, Any]:
    """Replay a file under a configuration. Return the output for people, and the JSON."""
    config_path = path.parent / "ratelimit.yaml"
    config_path.write_text(yaml.safe_dump(config))
    command = ("--config", str(config_path), "replay", str(path), *words)
    return run_command(*command), parsed(run_command(*command, "--json"))


def test_answer_names_clients_users_limits_and_the_minute(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    rows = [f"{1_700_000_040 + n};busy;ann" for n in range(30)] + [f"{1_700_000_100 + n};calm;bob" for n in range(5)]
    path.write_text("\n".join(["time;client;user", *rows]))
    result, found = under({"mode": "dry-run", "limits": {"user": ["10/minute"]}}, path)
    assert [(1, 0, 20, 1, 1), (3, 0, 20, 1, 1)] == [
        tuple(one[name] for name in ("instances", "denied", "over", "client_count", "user_count"))
        for one in found["replays"]
    ]
    assert ("2023-11-14T22:14:00Z", 20) == tuple(
        found["replays"][0][name] for name in ("busiest_minute", "busiest_minute_over")
    )
    assert [{"client_id": "busy", "requests": 30, "over": 20, "user_count": 1}] == found["clients"]
    assert [{"client_id": "busy", "username": "ann", "over": 20}] == found["users"]
    assert [{"policy": "user", "limit": 10, "window_s": 60, "over": 20}] == found["by_limit"]
    assert [] == found["notes"]
    assert "denies 0; would deny 20 requests over a limit, of 1 client" in result.stdout
    assert "" == result.stderr


def test_clients_without_a_user_column_are_said_to_be_limited_as_such(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    path.write_text("".join(f"{1_700_000_000 + n}\tbusy\n" for n in range(30)))
    result, found = under({"mode": "enforce", "limits": {"client": ["10/minute"], "user": ["1/minute"]}}, path)
    assert "limits.user does not" in result.stderr
    assert (1, 20) == (len(found["notes"]), found["replays"][0]["denied"])
    assert "denies 20 requests over a limit" in result.stdout


def test_addresses_that_stand_for_clients_are_announced(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text('192.0.2.7 - - [01/Aug/1995:00:00:07 -0400] "POST /token HTTP/1.1" 200 1\n' * 3)
    result, found = under({"limits": {"client": ["1/minute"]}}, path)
    assert "3 requests without a client: the address is taken for the client" in result.stderr
    assert (3, "192.0.2.7") == (found["address_count"], found["clients"][0]["client_id"])


def test_single_limit_needs_no_configuration(recording: Path) -> None:
    alone, shared = data(str(recording), "--limit", "10/minute")["replays"]
    assert 20 == alone["denied"]
    assert 10 <= shared["denied"] <= 20
    assert [20] == [
        one["denied"] for one in data(str(recording), "--limit", "10/minute", "--instances", "1")["replays"]
    ]
    total = data(str(recording), "--limit", "10/minute", "--per", "client", "--interval", "200ms")
    assert ["client_total"] == [one["policy"] for one in total["by_limit"]]


def test_nothing_is_denied_while_the_mode_is_off(recording: Path) -> None:
    result, found = under({"mode": "off", "limits": {"user": ["1/minute"]}}, recording)
    assert "the mode is off" in result.stdout
    assert [0, 0] == [one["over"] for one in found["replays"]]


def test_missing_column_ends_with_the_columns_found(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    path.write_text("when;app;who\n5;a;u\n")
    result = run(str(path), "--limit", "3/minute")
    assert 1 == result.exit_code
    assert "no column for the time; found: when, app, who" in result.stderr


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_large_file_shows_progress_on_a_terminal(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.cli.recording.MIN_BAR_BYTES", 1)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with opened(Recording(str(recording))) as (_, rows):
        assert 35 == sum(map(len, rows.batches()))
    assert "100%" in terminal.getvalue()
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with opened(Recording(str(recording))) as (_, rows):
        list(rows.batches())
    assert "" == sys.stderr.getvalue()


def test_recorded_traffic_of_the_demo_gives_the_documented_numbers() -> None:
    found = compare(str(SHIPPED), "--limit", "10/minute", "--frames", "1,10")
    assert (30_969, "csv", True, 0) == tuple(found[name] for name in ("requests", "format", "is_spread", "bad_lines"))
    by_name = {(one["algorithm"], one["frames"]): one for one in found["contenders"]}
    assert len(COMMON) + 2 * len(Estimator) == len(by_name)
    fixed, ours, strict = by_name["fixed-window", None], by_name["sliding", 10], by_name["strict", 10]
    assert (2.125, 2.0) == (fixed["wrongly_allowed_percent"], fixed["peak_over_limit"])
    assert (14, 60, 12) == (ours["wrongly_allowed"], ours["wrongly_denied"], ours["peak"])
    assert (0, 117, 10) == (strict["wrongly_allowed"], strict["wrongly_denied"], strict["peak"])


def test_results_are_a_table(recording: Path) -> None:
    result = run(str(recording), "--limit", "10/minute", "--compare")
    assert 0 == result.exit_code
    lines = result.stdout.splitlines()
    assert any(line.split()[:1] == ["exact-log"] and "57.143 %" in line for line in lines)  # 20 of 35
    assert "10 in 1 min" in result.stdout
    assert "" == result.stderr


def test_most_denied_clients_are_listed_with_their_users(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    users = ("busy,ann", "busy,bob", "busy,cat", "calm,ann", "rude\x1b,ann")
    counts = (30, 20, 5, 5, 12)
    rows = [f"{1_700_000_000 + n / 100},{who}" for who, count in zip(users, counts, strict=True) for n in range(count)]
    path.write_text("\n".join(["time,client,user", *rows]))

    assert [
        {"client_id": "busy", "denied": 30, "user_count": 2},
        {"client_id": "rude\x1b", "denied": 2, "user_count": 1},
    ] == compare(str(path), "--limit", "10/minute")["most_denied"]
    lines = run(str(path), "--limit", "10/minute", "--compare").stdout.splitlines()
    assert [["busy", "30", "94%", "2"], ["rude\\x1b", "2", "6%", "1"]] == [line.split() for line in lines[-2:]]
    assert [] == compare(str(path), "--limit", "100/minute")["most_denied"]
    assert "Most denied" not in run(str(path), "--limit", "100/minute", "--compare").stdout


def test_instances_share_counts_in_each_chosen_way(recording: Path) -> None:
    found = compare(
        str(recording), "--limit", "10/minute", "--instances", "3", "--interval", "200ms",
        "--near-limit", "flush", "--near-limit", "reserve", "--algorithm", "sliding", "--algorithm", "gcra",
    )  # fmt: skip
    shared = [(one["algorithm"], one["instances"], one["near_limit"]) for one in found["contenders"]]
    assert [
        ("exact-log", None, None),
        ("gcra", None, None),
        ("sliding", None, None),
        ("sliding", 3, "flush"),
        ("sliding", 3, "reserve"),
    ] == shared
    assert 35 == found["contenders"][1]["waits"]
    assert 0.2 == found["contenders"][3]["interval_s"]
    assert found["contenders"][3]["operations"] > 0
    assert "each request" in run(str(recording), "--limit", "10/minute", "--instances", "3", "--compare").stdout


def test_limit_is_per_user_or_per_client(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text("".join(json.dumps({"ts": n, "app": "a", "who": str(n)}) + "\n" for n in range(9)))
    columns = ("--column", "time=ts", "--column", "client=app", "--column", "user=who")
    assert 9 == compare(str(path), "--limit", "5/minute", *columns)["contenders"][0]["admitted"]
    assert 5 == compare(str(path), "--limit", "5/minute", *columns, "--per", "client")["contenders"][0]["admitted"]


def test_access_log_is_filtered_by_path_and_pattern(tmp_path: Path) -> None:
    path = tmp_path / "access.log.1"
    line = '1.2.3.4 - - [01/Aug/1995:00:00:0{} -0400] "POST {}?client_id=app{} HTTP/1.1" 200 5 "-" "x"\n'
    text = "".join(line.format(n, path, n % 2) for n in range(8) for path in ("/token", "/other"))
    path.write_bytes(gzip.compress(text.encode()))
    found = compare(
        str(path), "--limit", "3/minute", "--path", "/token", "--client-pattern", r"client_id=(?P<client>\w+)"
    )
    assert ("access-log", 8, 8) == (found["format"], found["requests"], found["left_out_lines"])
    assert 6 == found["contenders"][0]["admitted"]


def test_invalid_lines_are_reported_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    path.write_text("5,a\n\x1b[31mnever,a\n6,b\n")
    result = run(str(path), "--limit", "3/minute")
    assert 0 == result.exit_code
    assert "line 2: not a time: " in result.stderr
    assert "expected seconds since the epoch, 2026-12-01T00:00:00Z or 01/Dec/2026:00:00:00 +0000" in result.stderr
    assert "1 line not understood" in result.stderr
    assert "\x1b[31mn" not in result.stderr
    assert [{"line_number": 2}] == [
        {"line_number": one["line_number"]} for one in compare(str(path), "--limit", "3/minute")["problems"]
    ]


@pytest.mark.parametrize(
    "content",
    (b"", b"\n\n", b"\x1f\x8b broken"),
    ids=("empty", "blank", "packed"),
)
def test_file_without_requests_exits_with_one(tmp_path: Path, content: bytes) -> None:
    path, picture = tmp_path / "traffic", tmp_path / "picture.svg"
    path.write_bytes(content)
    result = run(str(path), "--limit", "3/minute", "--picture", str(picture))
    assert 1 == result.exit_code
    assert "no requests" in result.stderr
    assert not picture.exists()


def test_unreadable_file_exits_with_one(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x00\xff\xfe binary \x00")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "binary"):
        result = run(str(path), "--limit", "3/minute")
        assert 1 == result.exit_code
        assert result.stderr.startswith("Error: ")


def test_standard_input_is_read() -> None:
    result = run("-", "--limit", "3/minute", "--json", stdin="5.5,a\n6,a\n")
    assert 2 == json.loads(result.stdout)["requests"]


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (["--limit", "many"], "not a single limit"),
        (["--limit", "10/second; 100/hour"], "not a single limit"),
        (["--limit", "0/minute"], "out of range"),
        (["--limit", "1/minute", "--frames", "7"], "7 frames do not divide a window of 60 s"),
        (["--limit", "1/minute", "--frames", "x"], "not a list"),
        (["--limit", "1/minute", "--interval", "1ms"], "out of range"),
        (["--limit", "1/minute", "--interval", "soon"], "not a duration"),
        (["--limit", "1/minute", "--client-pattern", "("], "not a regular expression"),
        (["--limit", "1/minute", "--client-pattern", "x"], "no group"),
        (["--limit", "1/minute", "--column", "date=x"], "is not time=FIELD"),
        (["--limit", "1/minute", "--picture", "x.gif"], ".svg or .png"),
        (["--compare"], "--limit 100/minute"),
        ([], "--config"),
    ),
)
def test_invalid_option_is_a_usage_error(recording: Path, words: list[str], message: str) -> None:
    result = run(str(recording), *words)
    assert 2 == result.exit_code
    assert message in " ".join(result.stderr.split())


def test_picture_shows_the_busiest_stretch(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    assert 0 == run(str(recording), "--limit", "10/minute", "--picture", str(path)).exit_code
    assert "limit 10" in path.read_text()


def test_picture_needs_a_file_and_no_pipe() -> None:
    assert "read twice" in run("-", "--limit", "10/minute", "--picture", "x.svg", stdin="").stderr


def test_unwritable_picture_exits_with_one(recording: Path, tmp_path: Path) -> None:
    result = run(str(recording), "--limit", "10/minute", "--picture", str(tmp_path / "missing" / "x.svg"))
    assert 1 == result.exit_code
    assert "x.svg: No such file" in result.stderr


def test_picture_without_matplotlib_names_the_extra(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(str(recording), "--limit", "10/minute", "--picture", "x.svg")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "oauth_ratelimit[charts]" in result.stderr
    assert 0 == run(str(recording), "--limit", "10/minute").exit_code
