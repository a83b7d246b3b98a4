"""check-config and schema."""

import json
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.config.reference import config_schema
from oauth_ratelimit.core.pseudonyms import PseudonymKey
from tests.cli.conftest import run_command, run_flask
from tests.support.apps import make_app, make_server

SHIPPED = Path(__file__).parents[2] / "config" / "oauth_ratelimit.yaml"


def test_valid_file_exits_with_zero() -> None:
    assert "valid" in run_command("check-config", str(SHIPPED)).stdout
    data = json.loads(run_command("check-config", str(SHIPPED), "--json").stdout)
    assert (str(SHIPPED), True, [], []) == (data["file"], data["ok"], data["problems"], data["warnings"])
    assert "dry-run" == data["summary"]["mode"]


@pytest.mark.parametrize(
    ("guard", "is_warned"),
    [
        ("{mode: enforce, limits: {client: [20/minute]}}", True),
        ("{mode: dry-run, limits: {passed_on_total: []}}", True),
        ("{mode: enforce}", False),
        ("{mode: enforce, limits: {passed_on_total: [1000/hour]}}", False),
        ("{mode: off, limits: {client: [20/minute]}}", False),
    ],
)
def test_guard_without_a_ceiling_for_a_stolen_secret_is_a_warning(tmp_path: Path, guard: str, is_warned: bool) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"store: {{uri: 'mongodb://localhost/oauth'}}\nguard: {guard}\n")
    result = run_command("check-config", str(path))

    assert 0 == result.exit_code
    assert is_warned is ("Warning: guard.limits.passed_on_total" in result.stderr)
    assert is_warned is bool(json.loads(run_command("check-config", str(path), "--json").stdout)["warnings"])


def test_invalid_file_exits_with_one_and_lists_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text('mode: "lo\\tud"\nmax_keys: 0\n')
    result = run_command("check-config", str(path))

    assert 1 == result.exit_code
    assert 'mode: got "lo\\tud", allowed' in result.stderr
    assert "max_keys: got 0" in result.stderr
    data = json.loads(run_command("check-config", str(path), "--json").stdout)
    assert (False, 2) == (data["ok"], len(data["problems"]))


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("mongodb://db.example:99999/oauth", "store.uri: Port must be an integer between 0 and 65535"),
        ("mongodb://op:p@ss@db.example/oauth", "store.uri: Username and password must be escaped"),
        ("mongodb://db.example:27017/oauth?tlsCAFile=/not/here/ca.pem", None),
        ("mongodb+srv://db.example/oauth", None),
    ],
    ids=("port", "password not escaped", "file of the server's machine", "srv"),
)
def test_connection_string_is_checked_without_printing_the_password(
    tmp_path: Path, uri: str, problem: str | None
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"store: {{uri: '{uri}'}}\n")
    result = run_command("check-config", str(path))

    assert (problem is not None) == result.exit_code
    assert problem is None or result.stderr.startswith(f"{path}: {problem}")
    assert "p@ss" not in result.output


@pytest.mark.parametrize(
    ("user_names", "summary"),
    [("hashed", "hashed under 49b6a2, former keys {new}"), ("plain", "plain, former keys 49b6a2, {new}")],
)
def test_summary_has_labels_of_pseudonym_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_names: str, summary: str
) -> None:
    secrets = {"ONE": "the old key, which is long enough for it", "TWO": "t" * 32}
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)
    path = tmp_path / "config.yaml"
    path.write_text(f"privacy: {{user_names: {user_names}, keys: [{{env: ONE}}, {{env: TWO}}]}}\n")

    assert summary.format(new=PseudonymKey.of(b"t" * 32)) in run_command("check-config", str(path)).stdout


def test_summary_says_what_applies(tmp_path: Path) -> None:
    """A kind without a limit is named."""
    path = tmp_path / "ratelimit.yaml"
    path.write_text(
        "mode: enforce\nlimits: {user: [10/second, {limit: 50, window: 10s, mode: dry-run}]}\n"
        "trusted_clients: [our-own-app]\nclients: {partner: {mode: dry-run}}\n"
        "endpoints: {revocation: {limits: {client: [600/minute]}}}\n"
    )
    result = run_command("check-config", str(path))

    assert [
        f"{path}: valid (mode enforce)",
        "mode                   enforce",
        "canary                 none",
        "limit of client        no limit",
        "limit of user          10/second, 50/10s (dry-run)",
        "limit of client_total  no limit",
        "store                  none: each process counts alone",
        "trusted clients        our-own-app",
        "clients                partner",
        "grants                 none with own rules",
        "endpoints              revocation",
        "guard                  off",
        "user names             plain",
    ] == result.stdout.splitlines()
    assert "Warning: limits are enforced without store.uri" in result.stderr


MISSPELT = "clients: {app: {grants: {client_credential5: {mode: off}}}}\nendpoints: {tokens: {limits: {}}}\n"


def test_names_that_the_application_does_not_have_are_warnings(tmp_path: Path) -> None:
    def create_app() -> Flask:
        app = make_app(OAUTH_RATELIMIT_CONFIG={})
        OAuthRateLimit(app, make_server(app))
        return app

    path = tmp_path / "ratelimit.yaml"
    path.write_text(MISSPELT)
    result = run_flask(create_app, "check-config", str(path))

    assert 0 == result.exit_code
    assert "Warning: grant type client_credential5: did you mean client_credentials? its rules never" in result.stderr
    assert "Warning: endpoint tokens: did you mean token? its rules never apply" in result.stderr
    assert 2 == len(json.loads(run_flask(create_app, "check-config", str(path), "--json").stdout)["warnings"])
    path.write_text(MISSPELT.replace("credential5", "credentials").replace("tokens", "static"))
    assert [] == json.loads(run_flask(create_app, "check-config", str(path), "--json").stdout)["warnings"]


def test_file_is_checked_although_the_application_cannot_be_loaded(tmp_path: Path) -> None:
    def create_app() -> Flask:
        app = make_app(OAUTH_RATELIMIT_CONFIG={"mode": "loud"})
        OAuthRateLimit(app, make_server(app))
        return app

    path = tmp_path / "ratelimit.yaml"
    path.write_text(MISSPELT)
    result = run_flask(create_app, "check-config", str(path))

    assert (0, 1) == (result.exit_code, result.stderr.count("Warning: "))
    assert "Warning: the application cannot be loaded (ConfigError: " in result.stderr
    assert 'mode: got "loud"' in result.stderr
    path.write_text("mode: loud\n")
    assert 1 == run_flask(create_app, "check-config", str(path)).exit_code


@pytest.mark.parametrize("create_app", [lambda: Flask("plain"), None], ids=["not protected", "no application"])
def test_file_is_checked_without_a_protected_application(tmp_path: Path, create_app: Any) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(MISSPELT)
    result = run_flask(create_app, "check-config", str(path))

    assert (0, "") == (result.exit_code, result.stderr)


def test_missing_file_is_a_problem_and_its_name_is_escaped() -> None:
    result = run_command("check-config", "/nowhere/\x1b[31m.yaml")

    assert 1 == result.exit_code
    assert "cannot be read" in result.stderr
    assert "\x1b" not in result.stderr


def test_schema_is_printed_with_and_without_json_option() -> None:
    texts = run_command("schema").stdout, run_command("schema", "--json").stdout
    assert [config_schema()] * 2 == list(map(json.loads, texts))
