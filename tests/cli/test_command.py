"""The command group: configuration, errors, exit codes, help, JSON of every command."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner
from flask import Flask

from oauth_ratelimit import Mode, OAuthRateLimit
from oauth_ratelimit.cli import command
from oauth_ratelimit.errors import StoreUnreachable
from oauth_ratelimit.store.mongo import client
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from testbed.clock import wait_until
from tests.cli.conftest import ARGUMENTS, WHY, Terminal, protected, run_command, run_flask

SET = ("limit", "set", "app", "--limit", "1/second", "--kind", "user", "--yes")


def every_command(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, found in group.commands.items():
        yield (*names, name), found
        if isinstance(found, click.Group):
            yield from every_command(found, *names, name)


def test_every_command_has_two_examples_of_its_own_and_the_same_words_as_the_others() -> None:
    """Of 80 columns. CLIENT and USER are an argument or an option, a kind of limits and a person have one option."""
    for words, found in every_command(command):
        assert words in ARGUMENTS or isinstance(found, click.Group), "or the tests with every command leave it out"
        usage = run_command(*words, "--help").stdout
        assert 80 >= max(map(len, usage.splitlines())), usage
        examples = usage.partition("Examples:\n")[2].split("\n\n")[0].splitlines()
        assert [words, words] == [tuple(example.split()[: len(words)]) for example in examples], usage
        assert {"--by", "--per", "--client-total"}.isdisjoint(usage.split())
        options = {option for parameter in found.params for option in parameter.opts}
        for word in ("CLIENT", "USER"):
            assert f"[{word}]" not in usage or f"--{word.lower()}" in options, usage


@pytest.mark.parametrize("words", ARGUMENTS, ids=" ".join)
def test_every_command_prints_one_json_value(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words, *terminal.arguments(words), "--json")

    assert result.exit_code in (0, 1), result.stderr
    assert isinstance(json.loads(result.stdout), dict | list)


def test_command_waits_for_no_thread_of_the_driver(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atexit.unregister", unregister := Mock())
    terminal.ok("show")
    assert "pymongo.synchronous.monitor" == unregister.call_args.args[0].__module__


@pytest.mark.parametrize("environment_mode", [None, "off"])
def test_flask_uses_the_application_configuration_without_the_emergency_switch(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, environment_mode: str | None
) -> None:
    if environment_mode:
        monkeypatch.setenv("OAUTH_RATELIMIT_MODE", environment_mode)
    create_app = partial(protected, OAUTH_RATELIMIT_CONFIG=str(terminal.config_path), OAUTH_RATELIMIT_MODE="dry-run")

    assert "dry-run" == json.loads(run_flask(create_app, "status", "--json").stdout)["mode"]


def test_override_is_not_taken_for_configuration_by_an_application_that_has_started(terminal: Terminal) -> None:
    terminal.ok("mode", "set", "off", *WHY)
    made = []

    def create_app() -> Flask:
        app = protected(OAUTH_RATELIMIT_CONFIG=str(terminal.config_path))
        OAuthRateLimit.start(app)
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


def test_application_that_is_missing_or_fails_is_a_usage_error_that_names_the_way_without_one(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no OAuthRateLimit: with --app name the module" in run_flask(lambda: Flask(__name__), "show").stderr
    monkeypatch.chdir(tmp_path)
    result = run_flask(None, "show")

    assert 2 == result.exit_code
    assert "Could not locate a Flask application" in result.stderr
    assert "Without the application: root oauth-ratelimit --config FILE" in result.stderr
    assert 0 == run_flask(None, "--config", str(terminal.config_path), "show").exit_code
    result = run_flask(Mock(side_effect=RuntimeError("its secret is missing\nfor whatever reason")), "show")
    words = "Error: The application cannot be loaded (RuntimeError: its secret is missing). Without the"
    assert (2, True) == (result.exit_code, words in result.stderr)


UNREACHABLE = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50"


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("status",),
        ("reset", "app", "--yes"),
        ("explain", "app"),
        ("erase", "--user", "ann", "--dry-run"),
        ("mode",),
        ("mode", "set", "dry-run", *WHY),
        ("mode", "set", "dry-run", "app", *WHY),
        ("trust", "add", "app", *WHY),
        ("denials",),
    ],
)
def test_unreachable_mongodb_exits_with_three_and_what_works(
    terminal: Terminal, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a server once: seconds count in an emergency."""
    waits = Mock()

    class Noted(StoreUnreachable):
        def __init__(self, *words: str, **more: str) -> None:
            waits()
            super().__init__(*words, **more)

    monkeypatch.setattr(client, "StoreUnreachable", Noted)
    result = terminal.run("--mongo-uri", UNREACHABLE, *words)
    error, *more = result.stderr.splitlines()
    assert 1 == waits.call_count

    assert (3, "Error: MongoDB is unreachable: ServerSelectionTimeoutError (127.0.0.1:1)") == (result.exit_code, error)
    assert [True] == ["mode: off in the file of each instance takes effect within seconds" in text for text in more]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("mongodb://ann:s%40cret@127.0.0.1:1,[::1]:1/oauth?", "ServerSelectionTimeoutError (127.0.0.1:1,[::1]:1)"),
        ("mongodb://ann:s%40cret@127.0.0.1:1/?directConnection=maybe&", "directconnection"),
    ],
    ids=["two servers", "invalid"],
)
def test_error_names_servers_but_neither_user_nor_password(terminal: Terminal, uri: str, message: str) -> None:
    result = terminal.run("--mongo-uri", f"{uri}serverSelectionTimeoutMS=50", "show")

    assert (3, True) == (result.exit_code, message in result.stderr), result.stderr
    assert "cret" not in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show",), "name a configuration file with --config"),
        (("status", "--config", "x.yaml"), "--config goes before the command: oauth-ratelimit --config FILE status"),
        (("limit", "list", "--mongo-uri=mongodb://db/"), "--mongo-uri URI limit list"),
        (("status", "--colour"), "No such option '--colour'"),
        (("report", "--format", "pdf"), "'pdf' is not one of 'table', 'json', 'jsonl', 'csv', 'text'"),
        (("overrides", "--format", "csv", "--json"), "name either --json or --format"),
        (("denials", "--from", "0001-01-01"), "'0001-01-01' is no time such as 14:05 or 2026-12-01T14:05:00Z"),
        (("denials", "--from", "2026-12-01", "--to", "2026-11-01"), "--from is not before --to"),
        (("check-config",), "name either a FILE or --schema"),
        (("explain",), "name either a CLIENT or a denial"),
        (("explain", "app", "--id", "0" * 16), "name either a CLIENT or a denial"),
        (("replay", __file__, "--limit", "10/second; 100/hour"), "not a single limit"),
        (("replay", __file__, "--limit", "0/minute"), "out of range"),
        (("replay", __file__, "--client-pattern", "("), "not a regular expression"),
        (("replay", __file__, "--client-pattern", "x"), "no group"),
        (("replay", __file__, "--column", "date=x"), "is not NAME=FIELD with one of time, client"),
        (("replay", __file__), "name a configuration file with --config"),
        (("replay",), "name a FILE"),
        (("suggest", __file__, "--file", "x"), "name FILE once, as an argument or with --file"),
        (("report", "--column", "time=ts"), "--column is about a file; name it with --file FILE"),
        (
            ("what-if", "--limit", "1/minute", "--file", "x", "--last", "day"),
            "--last is about the statistics in MongoDB",
        ),
        (("suggest", __file__, "--window", "90s"), "needs a window of whole minutes"),
        (("what-if",), "Missing option '--limit'"),
        (("what-if", "--limit", "10/minute", "--last", "fortnight"), "is neither hour, day, week, month, year"),
        (("what-if", "--limit", "10/minute", "--last", "0s"), "is out of range"),
        (("limit", "set", "app", "--kind", "user", *WHY), "Missing option '--limit'"),
        (("reset", "app", "--client", "app"), "name CLIENT once, as an argument or with --client"),
        (("trust", "add", *WHY), "name a CLIENT"),
        (("forget-tokens", ""), "name a CLIENT"),
        (("limit", "set", "--limit", "1/second", "--kind", "user", "--yes", *WHY), "either a CLIENT or --everybody"),
        ((*SET, "--everybody", *WHY), "either a CLIENT or --everybody"),
        (("limit", "set", "", "--limit", "1/second", "--kind", "user", "--yes", *WHY), "1 to 1024 characters"),
        (("mode", "set", "off", "--reason", " "), "Invalid value for '--reason': ' ' is empty"),
        (("mode", "set", "off", "--reason", "x" * 1001), "up to 1000 characters"),
        (("mode", "unset"), "Missing option '--reason'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_explained(words: tuple[str, ...], message: str) -> None:
    result = run_command(*words)

    assert (2, True) == (result.exit_code, message in " ".join(result.stderr.split())), result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SET, "--limit", "0/minute"), 'limits.user[1]: got "0/minute", allowed: 1 to 2^53'),
        ((*SET, "--for", "soon"), "Invalid value for --for: allowed: seconds"),
    ],
)
def test_invalid_limit_or_end_changes_nothing(
    terminal: Terminal, overrides: OverrideStore, words: tuple[str, ...], message: str
) -> None:
    result = terminal.run(*words, *WHY)

    assert (2, True, ()) == (result.exit_code, message in result.stderr, overrides.read()), result.stderr


@pytest.mark.parametrize("has_context", [True, False], ids=["current application", "none"])
def test_command_of_another_program_uses_its_application_and_prints_its_name(has_context: bool) -> None:
    app = protected(OAUTH_RATELIMIT_CONFIG={"mode": "enforce", "limits": {"client": ["7/minute"]}})

    @click.group(name="idp")
    def program() -> None:
        if has_context:
            click.get_current_context().with_resource(app.app_context())

    program.add_command(command)
    result = CliRunner().invoke(program, ["oauth-ratelimit", "explain", "app"])
    assert ("limits, for everybody" in result.stdout) is has_context
    assert "idp oauth-ratelimit" in CliRunner().invoke(program, ["oauth-ratelimit", "bogus"]).stderr
