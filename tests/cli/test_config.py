"""check-config."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from flask import Flask

from oauth_ratelimit.core.key import PseudonymKey
from tests.cli.conftest import Terminal, protected, run_command, run_flask, send_heartbeat

SHIPPED = Path(__file__).parents[2] / "config" / "oauth_ratelimit.yaml"

Check = Callable[..., tuple[Result, Any]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Checks a text, also for an application. Returns the output for people, and the JSON."""
    path = tmp_path / "ratelimit.yaml"

    def run(text: str, create_app: Callable[[], Flask] | None = None) -> tuple[Result, Any]:
        path.write_text(text)
        words = ("check-config", str(path))
        results = [run_flask(create_app, *words, *more) for more in ((), ("--json",))]
        assert results[0].exit_code == results[1].exit_code
        return results[0], json.loads(results[1].stdout)

    return run


def test_shipped_file_is_valid(check: Check) -> None:
    result, data = check(SHIPPED.read_text())

    assert (0, True, [], []) == (result.exit_code, data["ok"], data["problems"], data["warnings"])
    assert "valid (mode dry-run)" in result.stdout
    assert "dry-run" == data["summary"]["mode"]


def test_removed_key_and_guard_without_a_ceiling_are_warnings(check: Check) -> None:
    guard = "guard: {mode: enforce, limits: {client: [20/minute]}}"
    result, data = check(f"sync: {{near_limit: reserve}}\n{guard}\n")

    assert (0, 2) == (result.exit_code, len(data["warnings"]))
    assert "Warning: sync.near_limit" in result.stderr
    assert "Warning: guard.limits.passed_on_total" in result.stderr


def test_invalid_file_exits_with_one_and_lists_all_problems(check: Check) -> None:
    result, data = check('mode: "lo\\tud"\nmax_keys: 0\n')

    assert (1, False, 2) == (result.exit_code, data["ok"], len(data["problems"]))
    assert 'mode: got "lo\\tud", allowed' in result.stderr
    assert "max_keys: got 0" in result.stderr


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("mongodb://op:p@ss@db.example/oauth", "store.uri: Username and password must be escaped"),
        ("mongodb://db.example:27017/oauth?tlsCAFile=/not/here/ca.pem", None),  # a file of the server's machine
        ("mongodb+srv://db.example/oauth", None),
    ],
)
def test_connection_string_is_checked_without_printing_the_password(
    check: Check, uri: str, problem: str | None
) -> None:
    result, data = check(f"store: {{uri: '{uri}'}}\n")

    assert (problem is not None) == result.exit_code
    assert problem is None or data["problems"][0].startswith(problem)
    assert "p@ss" not in result.output


def test_summary_says_what_applies(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "the old key, which is long enough for it")
    monkeypatch.setenv("TWO", "t" * 32)
    privacy = "privacy: {user_names: hashed, keys: [{env: ONE}, {env: TWO}]}"
    result, _ = check(
        f"mode: enforce\nhost: off\nlimits: {{user: [10/second]}}\ntrusted_clients: [our-own-app]\n{privacy}\n"
    )

    lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()[1:]]
    assert [["mode", "enforce"], ["canary", "none"], ["limit", "of", "client        no limit"]] == lines[:3]
    assert ["trusted", "clients", "our-own-app"] in lines
    assert ["host", "off:", "each process counts alone"] in lines
    assert ["grants", "none", "with own rules"] in lines
    assert ["user", "names", "hashed under 49b6a2"] in lines
    assert ["former", "keys", str(PseudonymKey.of(b"t" * 32))] in lines
    assert "Warning: limits are enforced with host: off" in result.stderr


MISSPELT = "clients: {app: {grants: {client_credential5: {mode: off}}}}\nendpoints: {tokens: {limits: {}}}\n"


def test_names_that_the_application_does_not_have_are_warnings(check: Check) -> None:
    result, data = check(MISSPELT, partial(protected, OAUTH_RATELIMIT_CONFIG={}))

    assert (0, 2) == (result.exit_code, len(data["warnings"]))
    assert "Warning: grant type client_credential5: its rules never apply; the application has" in result.stderr
    assert "; did you mean client_credentials?" in result.stderr
    assert "Warning: endpoint tokens: its rules never apply; the application has" in result.stderr
    corrected = MISSPELT.replace("credential5", "credentials").replace("tokens", "static")
    assert [] == check(corrected, partial(protected, OAUTH_RATELIMIT_CONFIG={}))[1]["warnings"]


def test_store_and_mode_that_the_application_names_apply(check: Check) -> None:
    named = {"OAUTH_RATELIMIT_MONGO_URI": "mongodb://db.example/oauth", "OAUTH_RATELIMIT_MODE": "enforce"}
    result, data = check("mode: dry-run\n", partial(protected, OAUTH_RATELIMIT_CONFIG={}, **named))

    assert ("db.example/oauth, collection ratelimits", "enforce") == (data["summary"]["store"], data["summary"]["mode"])
    assert "" == result.stderr


def test_file_is_checked_although_the_application_cannot_be_loaded(check: Check) -> None:
    result, data = check(MISSPELT, partial(protected, OAUTH_RATELIMIT_CONFIG={"mode": "loud"}))

    assert (0, 1) == (result.exit_code, len(data["warnings"]))
    assert "Warning: the application cannot be loaded (ConfigError: " in result.stderr


@pytest.mark.parametrize("create_app", [lambda: Flask("plain"), None], ids=["not protected", "no application"])
def test_file_is_checked_without_a_protected_application(check: Check, create_app: Any) -> None:
    result, _ = check(MISSPELT, create_app)

    assert (0, "") == (result.exit_code, result.stderr)


def test_schema_is_printed_with_and_without_json_option() -> None:
    schema = json.loads((SHIPPED.parents[1] / "oauth_ratelimit" / "config.schema.json").read_text())
    for words in ((), ("--json",)):
        assert schema == json.loads(run_command("check-config", "--schema", *words).stdout)


def test_what_running_instances_need_a_restart_for_is_said_before_the_file_is_replaced(
    terminal: Terminal, mongo_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new user needs none, and off never does. The database is that of --config, else of the file."""
    monkeypatch.setenv("KEY", "k" * 32)
    path = terminal.config_path.with_name("new.yaml")

    def running(*options: str, **changed: Any) -> str:
        path.write_text(yaml.safe_dump({**terminal.settings, **changed}))
        result = run_command(*options, "check-config", str(path), "--running", "--json")
        assert 0 == result.exit_code
        return str(json.loads(result.stdout)["running"])

    assert running().startswith("no instance was seen in the last 10 minutes in 127.0.0.1:")
    for name in ("node-1", "node-2"):
        send_heartbeat(terminal, mongo_uri, name)
    other_user = {"uri": f"{mongo_uri}&appname=secret"}
    assert "no restart needed by 2 instances" == running(store=other_user, mode="dry-run")
    hashed = {"user_names": "hashed", "keys": [{"env": "KEY"}]}
    text = running(sync={"interval": "2s"}, privacy=hashed)
    start = "restart needed on 2 of 2 instances: sync.interval: 1.0 -> 2.0, privacy.user_names: plain -> hashed"
    assert text.startswith(start)
    assert "limits of users begin anew" in text
    assert "Every limit" not in text
    assert text.endswith(" A process that ends still sends what it has counted, to the former place")
    config = ("--config", str(terminal.config_path))
    elsewhere = {"store": {"uri": "mongodb://kim:secret@127.0.0.1:1/other"}}
    text = running(*config, **elsewhere)
    assert re.search(r": store.database: test_\w+ -> other. Every limit begins anew then: ", text)
    assert "secret" not in text
    both = running(*config, **elsewhere, privacy=hashed)
    assert "Every limit begins anew" in both and "limits of users begin anew" in both
    assert "no restart needed by 2 instances" == running(*config, **elsewhere, mode="off")
    path.write_text(yaml.safe_dump({**terminal.settings, **elsewhere}))
    assert text in run_command(*config, "check-config", str(path), "--running").stdout
    result = run_command("check-config", str(path), "--running")
    assert (3, True) == (result.exit_code, f"{path}: valid (mode enforce)" in result.stdout)
    result = run_command("check-config", str(path), "--running", "--json")
    assert (3, True, None) == (result.exit_code, *(json.loads(result.stdout)[name] for name in ("ok", "running")))
