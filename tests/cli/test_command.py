"""The command group: configuration, errors, exit codes, help, JSON of every command."""

import configparser
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask

from oauth_ratelimit import Mode, OAuthRateLimit
from oauth_ratelimit.cli import command
from tests.cli.conftest import WHY, Terminal, run_command, run_flask
from tests.support.helpers import wait_until

ROOT = Path(__file__).parents[2]

ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
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
    ("rollout",): (),
    ("schema",): (),
    ("show",): ("app",),
    ("status",): (),
    ("suggest",): (),
    ("top",): (),
    ("trust", "add"): ("app", *WHY),
    ("trust", "list"): (),
    ("trust", "remove"): ("app", *WHY),
    ("what-if",): ("--limit", "100/minute"),
}
"""Valid arguments of each command."""


def all_commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of each command below a group."""
    for name, found in group.commands.items():
        if not isinstance(found, click.Group) or found.invoke_without_command:
            yield (*names, name)
        if isinstance(found, click.Group):
            yield from all_commands(found, *names, name)


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in all_commands(command)])
def test_every_command_prints_one_json_value(terminal: Terminal, words: tuple[str, ...]) -> None:
    trace = terminal.config_path.with_name("trace.csv")
    trace.write_text("time,client\n1,app\n2,app\n")
    arguments = [word.format(config=terminal.config_path, trace=trace) for word in ARGUMENTS[words]]
    result = terminal.run(*words, *arguments, "--json")

    assert result.exit_code in (0, 1), result.stderr
    assert isinstance(json.loads(result.stdout), dict | list)


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_command_has_help_without_a_configuration(name: str) -> None:
    summary = (command.commands[name].help or "").split("\n")[0]

    assert 0 == run_command(name, "--help").exit_code
    assert 0 < len(summary) <= 45, "it fits into the list of commands"
    assert name in run_command("--help").stdout


def test_json_option_contradicts_other_formats(terminal: Terminal) -> None:
    for name in ("export", "report"):
        assert "name either --json or --format" in terminal.run(name, "--format", "csv", "--json").stderr
    assert [] == terminal.data("export") == json.loads(terminal.ok("export", "--format", "json"))
    assert terminal.data("report").keys() == json.loads(terminal.ok("report", "--format", "json")).keys()


def test_configuration_must_be_named_outside_of_flask() -> None:
    result = run_command("top")

    assert 2 == result.exit_code
    assert "--config" in result.stderr


def test_invalid_configuration_exits_with_one(terminal: Terminal) -> None:
    terminal.config_path.write_text("mode: loud")
    result = terminal.run("top")

    assert 1 == result.exit_code
    problem = 'mode: got "loud", allowed: off, dry-run or enforce; for example mode: dry-run (line 1)'
    assert [
        f"Error: {terminal.config_path}: {problem}",
        "top needs a valid configuration: correct it, or name another file with --config FILE before the command. "
        "Running instances keep the last valid one; new workers do not start.",
    ] == result.stderr.splitlines()


@pytest.mark.parametrize("environment_mode", [None, "off"])
def test_flask_uses_the_application_configuration_without_the_emergency_switch(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, environment_mode: str | None
) -> None:
    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["OAUTH_RATELIMIT_CONFIG"] = str(terminal.config_path)
        app.config["OAUTH_RATELIMIT_MODE"] = "dry-run"
        OAuthRateLimit(app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None))
        return app

    if environment_mode:
        monkeypatch.setenv("OAUTH_RATELIMIT_MODE", environment_mode)

    assert "dry-run" == json.loads(run_flask(create_app, "status", "--json").stdout)["mode"]


def test_override_is_not_taken_for_configuration_by_an_application_that_has_started(terminal: Terminal) -> None:
    terminal.ok("mode", "set", "off", *WHY)
    made = []

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["OAUTH_RATELIMIT_CONFIG"] = str(terminal.config_path)
        ratelimit = OAuthRateLimit(
            app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None)
        )
        ratelimit.start(app)
        limiter = app.extensions["oauth_ratelimit"]
        made.append(limiter)
        wait_until(lambda: limiter.settings.policies.mode is Mode.OFF, "the override")
        terminal.ok("mode", "unset", *WHY)
        return app

    try:
        assert "enforce" == json.loads(run_flask(create_app, "status", "--json").stdout)["mode"]
    finally:
        for limiter in made:
            limiter.close()


def test_application_without_the_extension_is_a_usage_error() -> None:
    result = run_flask(lambda: Flask(__name__), "top")

    assert 2 == result.exit_code
    assert "has no OAuthRateLimit" in result.stderr


def test_missing_application_is_a_usage_error_that_names_the_way_without_one(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_flask(None, "top")

    assert 2 == result.exit_code
    assert "Could not locate a Flask application" in result.stderr
    assert "Without the application: flask oauth-ratelimit --config FILE" in result.stderr
    assert 0 == run_flask(None, "--config", str(terminal.config_path), "top").exit_code


def test_flask_finds_the_command_by_its_entry_point() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    name, _, target = metadata["options.entry_points"]["flask.commands"].strip().partition(" = ")
    module, _, attribute = target.partition(":")

    assert "oauth-ratelimit" == name
    assert command is getattr(importlib.import_module(module), attribute)


def test_configuration_without_a_shared_store_is_a_usage_error(terminal: Terminal) -> None:
    terminal.config_path.write_text("mode: dry-run")
    result = terminal.run("top")

    assert 2 == result.exit_code
    assert "no store.uri" in result.stderr


@pytest.mark.parametrize(
    "words", [("top",), ("status",), ("reset", "app"), ("explain", "app"), ("erase", "ann", "--dry-run")]
)
def test_unreachable_mongodb_exits_with_three_and_one_line(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run("--mongo-uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", *words)

    assert 3 == result.exit_code
    assert ["Error: MongoDB is unreachable: ServerSelectionTimeoutError (127.0.0.1:1)"] == result.stderr.splitlines()


def test_mode_says_what_works_without_mongodb(terminal: Terminal) -> None:
    result = terminal.run(
        "--mongo-uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", "mode", "set", "off", *WHY
    )

    assert 3 == result.exit_code
    assert "mode: off in the file of each instance takes effect within seconds, whatever overrides say" in result.stderr


@pytest.mark.parametrize(
    ("uri", "servers"),
    [
        ("mongodb://ann:s%40cret@127.0.0.1:1,127.0.0.1:2/oauth", "127.0.0.1:1,127.0.0.1:2"),
        ("mongodb://[::1]:1/", "[::1]:1"),
    ],
    ids=["with a password", "IPv6"],
)
def test_error_names_servers_but_neither_user_nor_password(terminal: Terminal, uri: str, servers: str) -> None:
    result = terminal.run("--mongo-uri", f"{uri}?serverSelectionTimeoutMS=50", "top")

    assert [f"Error: MongoDB is unreachable: ServerSelectionTimeoutError ({servers})"] == result.stderr.splitlines()


def test_invalid_connection_string_is_explained_without_secrets(terminal: Terminal) -> None:
    result = terminal.run("--mongo-uri", "mongodb://ann:secret@127.0.0.1:1/?directConnection=maybe", "top")

    assert 3 == result.exit_code
    assert "directconnection" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("status", "--config", "x.yaml"), "--config goes before the command: oauth-ratelimit --config FILE status"),
        (("limit", "list", "--mongo-uri=mongodb://db/"), "--mongo-uri URI limit list"),
        (("status", "--colour"), "No such option '--colour'"),
    ],
)
def test_unknown_option_of_a_command_is_a_usage_error(terminal: Terminal, words: tuple[str, ...], message: str) -> None:
    result = terminal.run(*words)

    assert 2 == result.exit_code
    assert message in result.stderr
