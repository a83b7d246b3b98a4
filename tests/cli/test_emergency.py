"""Commands when something is broken or missing: the configuration, the store, or a sure hand."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from oauth_ratelimit.cli import command, options
from oauth_ratelimit.core.overrides import OverrideKind
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.cli.conftest import ARGUMENTS, WHY, Terminal, protected, run_flask

INVALID = {
    "bad value": "mode: enforce\nstore:\n  uri: {uri}\nlimits: {{user: 10/second}}\n",
    "not YAML": "mode: [\nstore:\n  # the database\n  uri: {uri}\n\n  timeout: 5s\nlimits: }}\n",
    "bad store": "store: {{uri: '{uri}', timeout: soon, colour: red}}\n",
}


@pytest.fixture
def broken(terminal: Terminal, mongo_uri: str) -> Terminal:
    terminal.config_path.write_text(INVALID["bad value"].format(uri=mongo_uri))
    return terminal


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_store_is_read_from_whatever_can_be_read(terminal: Terminal, mongo_uri: str, text: str) -> None:
    terminal.config_path.write_text(text.format(uri=mongo_uri))

    assert [] == terminal.data("limit", "list")


NEEDS_VALID_CONFIG = {"erase", "explain", "replay", "rollout", "show"}


@pytest.mark.parametrize("words", [words for words in ARGUMENTS if words[0] != "check-config"], ids=" ".join)
def test_command_works_with_a_broken_file_or_says_what_to_do_about_it(broken: Terminal, words: tuple[str, ...]) -> None:
    result = broken.run(*words, *broken.arguments(words))

    assert "Running instances keep the last valid one; those that start now have limits off." in result.stderr
    assert r"printf '\nmode: off\n' >> FILE, which takes effect unless app.config has a mode." in result.stderr
    if words[0] in NEEDS_VALID_CONFIG:
        assert (1, "") == (result.exit_code, result.stdout)
        assert result.stderr.startswith(f"Error: {broken.config_path}: ")
        assert f"{words[0]} needs a valid configuration: correct it, or name another file" in result.stderr
    else:
        assert result.stderr.startswith(f"Invalid: {broken.config_path}: ")
        assert (words[-1] in ("unset", "remove")) == result.exit_code, result.output


@pytest.mark.parametrize("words", [("status",), ("mode",), ("mode", "set", "off", *WHY), ("explain", "app")])
def test_commands_say_that_an_appended_line_has_switched_limits_off(terminal: Terminal, words: tuple[str, ...]) -> None:
    """The line makes the file invalid if it has another mode: the operator asks whether it took effect."""
    terminal.config_path.write_text("mode: enforce\nlimits: {client: [10/min]}\n")
    without = terminal.run(*words).stderr
    terminal.config_path.write_text(f"{terminal.config_path.read_text()}mode: off\n")
    result, checked = terminal.run(*words), terminal.run("check-config", str(terminal.config_path))

    assert (1, 1) == (result.exit_code, checked.exit_code)
    for text in (result.stderr, checked.stderr):
        assert 'the key "mode" is there twice' in text
        assert text.rstrip().endswith("It has mode: off, so limits are off on all its instances."), text
    assert "mode: off in it" in without or words[-1] not in WHY, "the way back without a store"


def test_problems_of_the_file_of_an_application_are_shown_once(broken: Terminal, events: list[Any]) -> None:
    result = run_flask(partial(protected, OAUTH_RATELIMIT_CONFIG=str(broken.config_path)), "limit", "list")

    assert (1, []) == (result.stderr.count("limits.user: got"), events)


def test_mode_is_unknown_until_it_is_set(broken: Terminal, overrides: OverrideStore) -> None:
    assert "unknown: the configuration is invalid" in broken.ok("mode")
    assert "canary     unknown" in broken.ok("status")
    assert None is broken.data("status")["mode"]

    result = broken.run("mode", "set", "dry-run", *WHY)
    assert "Takes effect on every instance within two sync intervals." in result.stdout
    assert "If the last valid configuration has mode: off, everything stays off" in result.stderr
    assert [(OverrideKind.MODE, "dry-run")] == [(each.target.kind, each.mode) for each in overrides.read()]
    shown = "dry-run, unless the last valid configuration has mode: off"
    assert [f"mode       {shown}", "mode from  override by ann: ticket 4711"] == broken.ok("status").splitlines()[:2]
    assert (None, shown) == (broken.data("mode")["mode"], broken.ok("mode").splitlines()[0])

    assert "everything stays off" not in broken.run("mode", "set", "off", *WHY).stderr
    assert ["off", "off"] == [broken.data(name)["mode"] for name in ("status", "mode")]


def test_broken_file_that_switches_off_is_named_as_that(broken: Terminal) -> None:
    with broken.config_path.open("a") as file:
        file.write("mode: off\n")
    result = broken.run("mode", "set", "dry-run", *WHY)
    assert (0, 1) == (
        result.exit_code,
        result.stderr.count("It has mode: off, so limits are off on all its instances."),
    )
    assert "Takes effect when the configuration no longer has mode: off." in result.stdout
    assert "last valid" not in result.stderr + broken.run("explain", "app").stderr
    assert "off" == broken.data("status")["mode"]


def test_reset_of_a_user_needs_the_configuration_and_a_denial_does_not(broken: Terminal) -> None:
    assert "older than events.keep_denials, or" in broken.run("explain", "--id", "0" * 16).stderr
    assert "reset needs a valid configuration" in broken.run("reset", "app", "ann", "--yes").stderr


def test_address_can_be_named_if_the_broken_file_has_none(terminal: Terminal, mongo_uri: str) -> None:
    terminal.config_path.write_text("mode: loud\n")
    refused = terminal.run("limit", "set", "app", "--limit", "5/min", "--kind", "user", "--yes", *WHY)

    assert 1 == refused.exit_code
    assert "with --mongo-uri before the command it works all the same" in refused.stderr
    assert 0 == terminal.run("--mongo-uri", mongo_uri, "mode", "set", "dry-run", *WHY).exit_code


@pytest.fixture
def alone(terminal: Terminal) -> Terminal:
    terminal.config_path.write_text("mode: enforce\nlimits: {client: [10/min], client_total: [20/min]}\n")
    return terminal


def test_configuration_without_a_store_is_shown(alone: Terminal) -> None:
    """The counters are in the memory of the host, so their use is unknown."""
    assert "enforce" == alone.ok("mode").splitlines()[0]
    assert {"mode": "enforce", "file_mode": "enforce", "overrides": []} == alone.data("mode")
    status = alone.ok("status")
    assert "hosts      unknown: instances report to MongoDB" in status
    assert "MongoDB    none: nothing is shared with other hosts" in status
    assert (None, []) == (alone.data("status")["mongodb"], alone.data("status")["instances"])
    explanation = alone.ok("explain", "app")
    assert "forecast   unknown" in explanation
    assert "counters   not shared" in alone.ok("rollout")
    assert ["client:", "10/minute", "limits,", "for", "everybody", "enforce", "–"] == (
        next(line for line in explanation.splitlines() if line.startswith("client: ")).split()[:7]
    )


@pytest.mark.parametrize("words", [("mode", "set", "off", *WHY), ("show",), ("erase", "--user", "ann", "--yes")])
def test_change_without_a_store_is_refused(alone: Terminal, words: tuple[str, ...]) -> None:
    result = alone.run(*words)

    assert 2 == result.exit_code
    assert "no store.uri, so there is no database with counters, statistics and overrides" in result.stderr


DANGEROUS = [("reset", "app"), ("reset", "app", "ann"), ("erase", "app", "ann"), ("erase", "--user", "ann")]
HARMLESS = [("erase", "--user", "ann", "--dry-run"), ("trust", "add", "*", *WHY), ("reset", "app", "--yes")]


class Keyboard:
    stdin = SimpleNamespace(isatty=lambda: True)


@pytest.mark.parametrize("words", DANGEROUS, ids=" ".join)
def test_dangerous_command_asks_and_is_refused_without_a_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    script = terminal.run(*words)
    assert (2, True) == (script.exit_code, "There is no terminal to ask on; add --yes to do it." in script.stderr)
    history = terminal.data("overrides", "--history")
    monkeypatch.setattr(options, "sys", Keyboard)
    line = ["--config", str(terminal.config_path), *words]
    answers = [CliRunner().invoke(command, line, input=answer, catch_exceptions=False) for answer in ("n\n", "y\n")]

    assert [(1, True), (0, True)] == [(each.exit_code, "[y/N]" in each.stderr) for each in answers]
    assert len(terminal.data("overrides", "--history")) == len(history) + (words[0] == "reset")
    for harmless in HARMLESS:
        assert "[y/N]" not in terminal.run(*harmless).output


def test_indexes_that_instances_have_made_are_not_pending(terminal: Terminal, mongo_database: Any) -> None:
    assert 1 == terminal.run("init-db", "--check").exit_code
    for name in ("ratelimits", "ratelimit_stats"):
        mongo_database[name].create_index("expire", name="expire", expireAfterSeconds=0)
    assert 1 == terminal.run("init-db", "--check").exit_code
    mongo_database["ratelimit_stats"].create_index("_id.minute", name="minute", sparse=True)
    mongo_database["ratelimit_stats"].create_index("at_s", name="denial", sparse=True)
    result = terminal.run("init-db", "--check", "--json")

    assert 0 == result.exit_code, result.output
    assert [(None, False)] == [(state["applied"], state["is_pending"]) for state in json.loads(result.stdout)]
    assert "by instances" in terminal.ok("init-db", "--check")
    mongo_database["ratelimit_failures"].insert_one({})  # the guard is on, without the right to create the index
    assert 1 == terminal.run("init-db", "--check").exit_code
    terminal.ok("init-db")
    assert "by instances" not in terminal.ok("init-db", "--check")
