"""Commands about the file, the help, and the way to the application."""

import builtins
import configparser
import importlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from click.testing import CliRunner
from flask import Flask
from flask.cli import FlaskGroup

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.cli import command
from oauth_ratelimit.config.reference import config_schema
from oauth_ratelimit.core.pseudonyms import PseudonymKey
from tests.cli.conftest import Terminal

ROOT = Path(__file__).parents[2]
WHY = ("--reason", "a test", "--by", "ann")

JSON_WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("check-config",): ("{config}",),
    ("db", "status"): (),
    ("db", "upgrade"): (),
    ("erase",): ("alice",),
    ("explain",): ("app", "alice"),
    ("export",): (),
    ("init-db",): (),
    ("limit", "list"): (),
    ("limit", "set"): ("app", "--user", "9/minute", *WHY),
    ("limit", "unset"): ("app", *WHY),
    ("mode",): (),
    ("mode", "set"): ("dry-run", *WHY),
    ("mode", "unset"): WHY,
    ("overrides",): (),
    ("replay",): ("{trace}", "--limit", "100/minute"),
    ("report",): (),
    ("reset",): ("app",),
    ("schema",): (),
    ("show",): ("app",),
    ("status",): (),
    ("top",): (),
    ("trust", "add"): ("app", *WHY),
    ("trust", "list"): (),
    ("trust", "remove"): ("app", *WHY),
    ("what-if",): ("--limit", "100/minute"),
}
"""What each command is called with, to have something to say."""


def run(*words: str) -> Any:
    """Run a command without an application and a configuration."""
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_good_file() -> None:
    """A valid file gives exit code 0."""
    path = str(ROOT / "config" / "oauth_ratelimit.yaml")

    assert "valid" in run("check-config", path).stdout
    assert {"file": path, "ok": True, "problems": []} == json.loads(run("check-config", path, "--json").stdout)


def test_bad_file(tmp_path: Path) -> None:
    """A bad file gives exit code 1 and all its problems at once."""
    path = tmp_path / "bad.yaml"
    path.write_text('mode: "lo\\tud"\nmax_keys: 0\n')
    result = run("check-config", str(path))

    assert 1 == result.exit_code
    assert 'mode: got "lo\\tud", allowed' in result.stderr
    assert "max_keys: got 0" in result.stderr
    data = json.loads(run("check-config", str(path), "--json").stdout)
    assert (False, 2) == (data["ok"], len(data["problems"]))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("mongodb://db.example:99999/oauth", "store.uri: Port must be an integer between 0 and 65535"),
        ("mongodb://op:p@ss@db.example/oauth", "store.uri: Username and password must be escaped"),
        ("mongodb://db.example:27017/oauth?tlsCAFile=/not/here/ca.pem", None),
        ("mongodb+srv://db.example/oauth", None),
    ],
    ids=("port", "escapes", "file of another machine", "srv"),
)
def test_connection_string(tmp_path: Path, uri: str, expected: str | None) -> None:
    """
    A mistyped connection string is a problem, without its password; what only the server's machine can tell is none.
    """
    path = tmp_path / "config.yaml"
    path.write_text(f"store: {{uri: '{uri}'}}\n")
    result = run("check-config", str(path))

    assert (expected is not None) == result.exit_code
    assert expected is None or result.stderr.startswith(expected)
    assert "p@ss" not in result.output


@pytest.mark.parametrize(
    ("user_names", "summary"),
    [("hashed", "user names hashed under 49b6a2, former keys {new}"), ("plain", "former keys 49b6a2, {new}")],
)
def test_check_config_prints_labels_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_names: str, summary: str
) -> None:
    """The label shows which key made a hash in a log line."""
    secrets = {"ONE": "the old key, which is long enough for it", "TWO": "t" * 32}
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    path = tmp_path / "config.yaml"
    path.write_text(f"privacy: {{user_names: {user_names}, keys: [{{env: ONE}}, {{env: TWO}}]}}\n")
    result = run("check-config", str(path))

    assert summary.format(new=PseudonymKey.of(b"t" * 32)) in result.stdout


def test_file_that_is_not_there() -> None:
    """A file that cannot be read is a problem like any other."""
    result = run("check-config", "/nowhere/\x1b[31m.yaml")

    assert 1 == result.exit_code
    assert "cannot be read" in result.stderr
    assert "\x1b" not in result.stderr


def test_schema() -> None:
    """The schema is that of the models."""
    assert config_schema() == json.loads(run("schema").stdout) == json.loads(run("schema", "--json").stdout)


def every(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command below a group, whatever it is called by, that does something."""
    for name, found in group.commands.items():
        if not isinstance(found, click.Group) or found.invoke_without_command:
            yield (*names, name), found
        if isinstance(found, click.Group):
            yield from every(found, *names, name)


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words, _ in every(command)])
def test_json(terminal: Terminal, words: tuple[str, ...]) -> None:
    """Every command prints one JSON value for programs; none is added without one."""
    assert words in JSON_WORDS
    trace = terminal.config_path.with_name("trace.csv")
    trace.write_text("time,client\n1,app\n2,app\n")
    more = [word.format(config=terminal.config_path, trace=trace) for word in JSON_WORDS[words]]
    result = terminal.run(*words, *more, "--json")

    assert result.exit_code in (0, 1), result.stderr
    assert isinstance(json.loads(result.stdout), dict | list)


def test_json_and_another_format(terminal: Terminal) -> None:
    """Where a command has formats, --json is the short way to one of them, and contradicts the others."""
    for name in ("export", "report"):
        assert "name either --json or --format" in terminal.run(name, "--format", "csv", "--json").stderr
    assert [] == terminal.data("export") == json.loads(terminal.ok("export", "--format", "json"))
    assert terminal.data("report").keys() == json.loads(terminal.ok("report", "--format", "json")).keys()


@pytest.mark.parametrize("name", sorted(command.commands))
def test_help(name: str) -> None:
    """Every command has a help that needs no configuration, and a first line short enough for the list."""
    found = command.commands[name]

    assert 0 == run(name, "--help").exit_code
    assert len((found.help or "").split("\n")[0]) <= 45
    assert name in run("--help").stdout


def test_help_without_rich(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    """Nothing needs the extra: without rich tables are plain."""
    real_import = builtins.__import__

    def without_rich(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setattr("oauth_ratelimit.cli.output.is_terminal", lambda: True)
    terminal.ok("mode", "set", "off", "--reason", "a test", "--by", "ann")

    assert 0 == run("--help").exit_code
    assert "everybody" in terminal.ok("overrides")


def test_command_without_a_configuration() -> None:
    """Outside of Flask a configuration has to be named."""
    result = run("top")

    assert 2 == result.exit_code
    assert "--config" in result.stderr


def test_file_that_is_broken(terminal: Terminal) -> None:
    """A command on a broken configuration says what is wrong with it, exit code 1."""
    terminal.config_path.write_text("mode: loud")
    result = terminal.run("top")

    assert 1 == result.exit_code
    assert ['Error: mode: got "loud", allowed: off, dry-run or enforce'] == result.stderr.splitlines()


def flask(create_app: Any, *words: str) -> Any:
    """Run ``flask oauth-ratelimit`` for an application."""
    group = FlaskGroup(create_app=create_app, add_default_commands=False)
    group.add_command(command)
    return CliRunner().invoke(group, ["oauth-ratelimit", *words], catch_exceptions=False)


def test_application_with_the_extension(terminal: Terminal) -> None:
    """Under Flask the configuration is the application's."""

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["OAUTH_RATELIMIT_CONFIG"] = terminal.settings
        OAuthRateLimit(app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None))
        return app

    assert "enforce\n" in flask(create_app, "mode").stdout


def test_application_under_the_emergency_switch(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch in the environment of a command does not change what it says about instances."""

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["OAUTH_RATELIMIT_CONFIG"] = str(terminal.config_path)
        app.config["OAUTH_RATELIMIT_MODE"] = "dry-run"
        OAuthRateLimit(app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None))
        return app

    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")

    assert "dry-run" == json.loads(flask(create_app, "status", "--json").stdout)["mode"]


def test_application_without_the_extension() -> None:
    """An application without the extension is told so."""
    result = flask(lambda: Flask(__name__), "top")

    assert 2 == result.exit_code
    assert "has no OAuthRateLimit" in result.stderr


def test_entry_point() -> None:
    """Flask finds the command where the package's metadata says it is."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    name, _, target = metadata["options.entry_points"]["flask.commands"].strip().partition(" = ")
    module, _, attribute = target.partition(":")

    assert "oauth-ratelimit" == name
    assert command is getattr(importlib.import_module(module), attribute)


def test_output_on_a_terminal(terminal: Terminal) -> None:
    """On a terminal tables have colours, and everything that was drawn is in them."""
    terminal.ok("mode", "set", "dry-run", "--reason", "a test", "--by", "ann")
    program = "from oauth_ratelimit.cli import command; command()"
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--config", str(terminal.config_path), "overrides"],
        cwd=ROOT,
        stdout=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(slave)
    output = _read_all(master)

    assert 0 == process.wait(timeout=30)
    assert "\x1b[" in output
    assert "everybody" in output


def _read_all(descriptor: int) -> str:
    """Return what is written to a pseudo-terminal until its other end is closed."""
    chunks = []
    try:
        while chunk := os.read(descriptor, 65_536):
            chunks.append(chunk)
    except OSError:  # how Linux says that nobody holds the other end any more
        pass
    os.close(descriptor)
    return b"".join(chunks).decode()


def test_one_of_each(tmp_path: Path) -> None:
    """One client is not called clients."""
    path = tmp_path / "ratelimit.yaml"
    path.write_text("clients: {a: {mode: enforce}}\nendpoints: {revocation: {limits: {client: [600/minute]}}}")
    result = run("check-config", str(path))

    assert "(mode dry-run, 1 client, 0 trusted, 1 other endpoint)" in result.stdout
