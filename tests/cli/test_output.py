"""Tables on terminals, escaped names, hints about unknown clients."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from oauth_ratelimit import Limiter
from oauth_ratelimit.cli import command
from tests.cli.conftest import WHY, Terminal
from tests.support.limiters import send_hits

ROOT = Path(__file__).parents[2]
UNKNOWN = "No counters, statistics or configuration for"


def test_tables_are_plain_without_rich(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr("oauth_ratelimit.cli.output.is_terminal", lambda: True)
    terminal.ok("mode", "set", "off", *WHY)

    assert "everybody" in terminal.ok("overrides")


def test_tables_on_a_terminal_have_colours(terminal: Terminal) -> None:
    terminal.ok("mode", "set", "dry-run", *WHY)
    program = "from oauth_ratelimit.cli import command; command()"
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--config", str(terminal.config_path), "overrides"],
        cwd=ROOT,
        stdout=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(slave)
    output = read_until_closed(master)

    assert 0 == process.wait(timeout=30)
    assert "\x1b[" in output
    assert "everybody" in output


def read_until_closed(descriptor: int) -> str:
    """Return the output of a pseudo-terminal."""
    chunks = []
    try:
        while chunk := os.read(descriptor, 65_536):
            chunks.append(chunk)
    except OSError:  # Linux reports so that the other end is closed
        pass
    os.close(descriptor)
    return b"".join(chunks).decode()


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
def test_unknown_client_gets_a_suggestion(terminal: Terminal, limiter: Limiter, words: tuple[str, ...]) -> None:
    send_hits(limiter, 1, "web-shop", "alice")
    result = terminal.run(*words, "wbe-shop")

    assert (0, f"{UNKNOWN} 'wbe-shop'; did you mean 'web-shop'?") == (result.exit_code, result.stderr.strip())
    assert "" == terminal.run(*words, "web-shop").stderr


def test_configured_clients_and_patterns_are_not_unknown(terminal: Terminal) -> None:
    assert f"{UNKNOWN} 'unheard-of'." == terminal.run("show", "unheard-of").stderr.strip()
    assert "did you mean 'partner'?" in terminal.run("show", "Partnr").stderr
    for words in (("show", "partner"), ("explain", "mobile-7")):
        assert "" == terminal.run(*words).stderr


def test_hint_is_a_field_of_the_json(terminal: Terminal) -> None:
    result = terminal.run("explain", "partnr", "--json")

    assert f"{UNKNOWN} 'partnr'; did you mean 'partner'?" == json.loads(result.stdout)["hint"]
    assert "" == result.stderr
    assert None is terminal.data("explain", "partner")["hint"]


@pytest.mark.parametrize(("no_color", "has_colours"), [("", True), ("1", False)])
def test_no_color_switches_colours_off_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_color: str, has_colours: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    path = tmp_path / "ratelimit.yaml"
    path.write_text("mode: dry-run\n")
    words = ["check-config", str(path)]

    assert has_colours == ("\x1b[" in CliRunner().invoke(command, words, color=True).output)
    assert "\x1b[" not in CliRunner().invoke(command, words).output
