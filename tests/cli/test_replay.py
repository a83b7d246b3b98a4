"""replay."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from oauth_ratelimit.cli.recording import opened
from oauth_ratelimit.traffic.formats import Recording
from tests.cli.conftest import Terminal, run_command

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
