"""Commands when something is broken or missing: the configuration, the store, or a sure hand."""

import json
import time
from contextlib import closing
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from click.testing import CliRunner
from flask import Flask

from oauth_ratelimit import Limiter, OAuthRateLimit
from oauth_ratelimit.cli import command, options
from oauth_ratelimit.core.overrides import OverrideKind
from oauth_ratelimit.observe.denials import DenialQueue, DenialRecorder
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.cli.conftest import WHY, Terminal, run_flask

BROKEN = {
    "bad value": "mode: enforce\nstore:\n  uri: {uri}\nlimits: {{user: 10/second}}\n",
    "not YAML": "mode: [\nstore:\n  # the database\n  uri: {uri}\n\n  timeout: 5s\nlimits: }}\n",
    "bad store": "store: {{uri: '{uri}', timeout: soon, colour: red}}\n",
}


@pytest.fixture(params=BROKEN.values(), ids=BROKEN)
def broken(terminal: Terminal, mongo_uri: str, request: pytest.FixtureRequest) -> Terminal:
    """The command line with a configuration that instances would refuse."""
    terminal.config_path.write_text(request.param.format(uri=mongo_uri))
    return terminal


@pytest.mark.parametrize(
    "words",
    [
        ("mode", "set", "dry-run", *WHY),
        ("mode", "set", "off", "--client", "app", *WHY),
        ("limit", "set", "app", "--user", "10/min", *WHY),
        ("limit", "list"),
        ("trust", "add", "app", *WHY),
        ("trust", "list"),
        ("overrides",),
        ("overrides", "--history"),
        ("mode",),
        ("status",),
        ("reset", "app"),
        ("report",),
        ("what-if", "--limit", "10/min"),
        ("suggest",),
        ("export", "overrides"),
        ("export", "history"),
        ("init-db",),
    ],
    ids=" ".join,
)
def test_command_that_needs_the_store_alone_works_with_a_broken_file(broken: Terminal, words: tuple[str, ...]) -> None:
    """It says that the file is broken, and why."""
    result = broken.run(*words)

    assert 0 == result.exit_code, result.output
    assert f"Broken: {broken.config_path}: " in result.stderr
    assert "Running instances keep the last valid one" in result.stderr


def test_mode_that_is_set_in_an_emergency_is_stored(broken: Terminal, overrides: OverrideStore) -> None:
    assert "unknown: the configuration is broken" in broken.ok("mode")
    assert "unknown: the configuration is broken" in broken.ok("status")
    assert "canary     unknown" in broken.ok("status")
    assert None is broken.data("status")["mode"]

    result = broken.run("mode", "set", "dry-run", *WHY)

    assert "Takes effect on every instance within two sync intervals." in result.stdout
    hint = "If the last valid configuration has mode: off, everything stays off"
    assert hint in result.stderr
    [override] = overrides.read()
    assert (OverrideKind.MODE, "dry-run") == (override.target.kind, override.mode)
    assert hint not in broken.run("mode", "set", "off", *WHY).stderr


@pytest.mark.parametrize(
    ("mode", "known", "shown"),
    [("dry-run", None, "dry-run, unless the last valid configuration has mode: off"), ("off", "off", "off")],
)
def test_overridden_mode_is_known_only_where_no_configuration_beats_it(
    broken: Terminal, mode: str, known: str | None, shown: str
) -> None:
    broken.ok("mode", "set", mode, *WHY)
    status = broken.data("status")

    assert [f"mode       {shown}", "mode from  override by ann: ticket 4711"] == broken.ok("status").splitlines()[:2]
    assert shown == broken.ok("mode").splitlines()[0]
    assert (known, known) == (status["mode"], broken.data("mode")["mode"])
    assert mode == broken.data("mode")["overrides"][0]["mode"]


def test_denial_is_explained_with_a_broken_file(
    broken: Terminal, denials: DenialQueue, limiter: Limiter, mongo_uri: str
) -> None:
    denied = limiter.check("app", cost=11).decision_id
    assert denied
    with closing(Connection(mongo_uri)) as connection:
        DenialRecorder(denials, DenialStore(connection), instance="node", keep_s=lambda: 60.0, clock=time.time).run()

    assert "app" == broken.data("explain", "--id", denied)["client_id"]
    unknown = broken.run("explain", "--id", "0" * 16)
    assert 1 == unknown.exit_code
    assert "older than events.keep_denials, or" in unknown.stderr


@pytest.mark.parametrize(
    "words",
    [("explain", "app"), ("rollout",), ("top",), ("show", "app"), ("reset", "app", "ann"), ("replay", __file__)],
    ids=" ".join,
)
def test_command_that_needs_limits_or_names_says_what_to_do_about_a_broken_file(
    broken: Terminal, words: tuple[str, ...]
) -> None:
    result = broken.run(*words)

    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(f"Error: {broken.config_path}: ")
    assert f"{words[0]} needs a valid configuration: correct it, or name another file with --config" in result.stderr
    assert "Running instances keep the last valid one; new workers do not start." in result.stderr


def test_address_can_be_named_if_the_broken_file_has_none(terminal: Terminal, mongo_uri: str) -> None:
    terminal.config_path.write_text("mode: loud\n")
    for words in (("mode", "set", "dry-run", *WHY), ("limit", "set", "app", "--user", "5/min", *WHY)):
        refused = terminal.run(*words)

        assert 1 == refused.exit_code
        assert "with --mongo-uri this command works all the same" in refused.stderr
    assert 0 == terminal.run("--mongo-uri", mongo_uri, "mode", "set", "dry-run", *WHY).exit_code


@pytest.mark.parametrize("name_uri_in_app", [False, True])
def test_application_that_refuses_its_file_can_be_named(
    terminal: Terminal, mongo_uri: str, name_uri_in_app: bool
) -> None:
    terminal.config_path.write_text(
        "mode: loud\n" if name_uri_in_app else f"mode: loud\nstore: {{uri: '{mongo_uri}'}}\n"
    )

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["OAUTH_RATELIMIT_CONFIG"] = str(terminal.config_path)
        if name_uri_in_app:
            app.config["OAUTH_RATELIMIT_MONGO_URI"] = mongo_uri
        OAuthRateLimit(app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None))
        return app

    result = run_flask(create_app, "mode", "set", "dry-run", *WHY)

    assert 0 == result.exit_code, result.output
    assert f'Broken: {terminal.config_path}: mode: got "loud"' in result.stderr


@pytest.fixture
def alone(terminal: Terminal) -> Terminal:
    """The command line with a configuration without a store."""
    terminal.config_path.write_text("mode: enforce\nlimits: {client: [10/min], client_total: [20/min]}\n")
    return terminal


def test_configuration_without_a_store_is_shown(alone: Terminal) -> None:
    """The counters are in each process, so their use is unknown."""
    assert "enforce" == alone.ok("mode").splitlines()[0]
    assert {"mode": "enforce", "overrides": []} == alone.data("mode")
    status = alone.ok("status")
    assert "MongoDB    none: each process counts alone" in status
    assert (None, []) == (alone.data("status")["mongodb"], alone.data("status")["instances"])
    explanation = alone.ok("explain", "app")
    assert "forecast    unknown" in explanation
    assert ["client", "limits,", "for", "everybody", "enforce", "unknown", "10", "1", "min"] == (
        next(line for line in explanation.splitlines() if line.startswith("client  ") and "limits" in line).split()[:9]
    )
    data = alone.data("explain", "app")
    assert (None, [None, None]) == (data["forecast"], [each["estimate"] for each in data["limits"]])


def test_rollout_without_a_store_claims_no_numbers_and_no_overrides(alone: Terminal) -> None:
    text = alone.ok("rollout")

    assert "requests, last day" not in text
    assert "mode set" not in text
    assert "# in the configuration file: mode: dry-run" in text
    assert None is alone.data("rollout")["last_day"]


@pytest.mark.parametrize("words", [("mode", "set", "off", *WHY), ("top",), ("erase", "ann")])
def test_change_without_a_store_is_refused(alone: Terminal, words: tuple[str, ...]) -> None:
    result = alone.run(*words)

    assert 2 == result.exit_code
    assert "no store.uri, so there is no database with counters, statistics and overrides" in result.stderr


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone sits at a terminal."""

    class Terminal:
        def isatty(self) -> bool:
            return True

    class System:
        stdin = Terminal()

    monkeypatch.setattr(options, "sys", System)


DANGEROUS = [("reset", "app"), ("reset", "app", "ann"), ("erase", "ann")]


@pytest.mark.parametrize("words", DANGEROUS, ids=" ".join)
@pytest.mark.usefixtures("at_terminal")
def test_dangerous_command_asks_on_a_terminal(terminal: Terminal, words: tuple[str, ...]) -> None:
    def run(*more: str, answer: str | None = None) -> Any:
        line = ["--config", str(terminal.config_path), *words, *more]
        return CliRunner().invoke(command, line, input=answer, catch_exceptions=False)

    assert (1, True) == ((refused := run(answer="n\n")).exit_code, "[y/N]" in refused.stderr)
    assert [] == terminal.data("overrides", "--history")
    assert 0 == run(answer="y\n").exit_code
    assert 0 == (confirmed := run("--yes")).exit_code
    assert "[y/N]" not in confirmed.output


@pytest.mark.parametrize("words", [("erase", "ann", "--dry-run"), ("trust", "add", "*", *WHY)], ids=" ".join)
@pytest.mark.usefixtures("at_terminal")
def test_harmless_command_does_not_ask(terminal: Terminal, words: tuple[str, ...]) -> None:
    assert "[y/N]" not in terminal.run(*words).output


@pytest.mark.parametrize("words", DANGEROUS, ids=" ".join)
def test_script_is_not_asked(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words)

    assert (0, False) == (result.exit_code, "[y/N]" in result.output)


def test_indexes_that_instances_have_made_are_not_pending(terminal: Terminal, mongo_database: Any) -> None:
    assert 1 == terminal.run("db", "status").exit_code
    for name in ("ratelimits", "ratelimit_stats"):
        mongo_database[name].create_index("expire", name="expire", expireAfterSeconds=0)
    assert 1 == terminal.run("db", "status").exit_code
    mongo_database["ratelimit_stats"].create_index("_id.minute", name="minute", sparse=True)
    result = terminal.run("db", "status", "--json")

    assert 0 == result.exit_code, result.output
    assert [(None, False)] * 3 == [(state["applied"], state["is_pending"]) for state in json.loads(result.stdout)]
    assert "by instances" in terminal.ok("db", "status")
    mongo_database["ratelimit_failures"].insert_one({})  # the guard is on, without the right to create the index
    assert 1 == terminal.run("db", "status").exit_code
    terminal.ok("db", "upgrade")
    assert "by instances" not in terminal.ok("db", "status")
