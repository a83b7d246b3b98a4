"""Reload of the configuration file when it changes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import wait_until
from tests.support.apps import app_limiter_of, make_app, make_server, protected_app, token_status
from tests.support.sites import config

QUICK = {"sync": {"interval": "100ms"}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ratelimit.yaml"
    write(path, {"mode": "dry-run", **QUICK})
    return path


def write(path: Path, settings: Any) -> None:
    """Replace a file at once, as editors and deployments do."""
    new = path.with_suffix(".new")
    new.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    new.replace(path)


def test_changed_file_applies_while_requests_go_on(path: Path) -> None:
    """Counters stay, a broken file is reported, and the log has what changed."""
    write(path, config(limit=2, mode="off", **QUICK))
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=path) as app:
        assert 200 == token_status(app)
        write(path, config(limit=2, mode="dry-run", **QUICK))
        wait_until(lambda: "mode_changed" in [entry["event"] for entry in logs], "the limits are on")
        assert [200, 200, 200] == [token_status(app) for _ in range(3)]

        write(path, config(limit=2, mode="enforce", **QUICK))
        wait_until(lambda: token_status(app) == 429, "the new mode is enforced")

        write(path, "mode: [")
        wait_until(lambda: "config_rejected" in [entry["event"] for entry in logs], "the broken file is reported")
        assert 429 == token_status(app)

        write(path, config(limit=2, mode="off", sync={"interval": "200ms"}))
        wait_until(lambda: token_status(app) == 200, "the limits are off")
        wait_until(lambda: any(entry.get("restart_needed") for entry in logs), "the rest of the file is read")

    events = [entry for entry in logs if entry["event"] in ("config_reloaded", "mode_changed", "config_rejected")]
    change = ["config_reloaded", "mode_changed"]
    assert [*change, *change, "config_rejected", *change, "config_reloaded"] == [entry["event"] for entry in events]
    assert ["mode: dry-run -> enforce"] == events[2]["changes"]
    assert [[], True] == [events[-1]["changes"], events[-1]["restart_needed"]]
    assert ("dry-run", "enforce") == (events[3]["old"], events[3]["new"])


def test_relative_path_is_in_the_root_or_the_instance_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory comes last: it differs between a server, cron and a terminal."""
    folders = {name: tmp_path / name for name in ("root", "instance", "working")}
    for name, folder in folders.items():
        folder.mkdir()
        write(folder / "ratelimit.yaml", {"instance": name})
    monkeypatch.chdir(folders["working"])
    found = []
    for name in folders:
        app = Flask("some-app", root_path=str(folders["root"]), instance_path=str(folders["instance"]))
        app.config["OAUTH_RATELIMIT_CONFIG"] = "ratelimit.yaml"
        OAuthRateLimit(app, make_server(app))
        found.append(app_limiter_of(app).settings.policies.instance)
        (folders[name] / "ratelimit.yaml").unlink()

    assert list(folders) == found


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("OAUTH_RATELIMIT_CONFG", "did you mean OAUTH_RATELIMIT_CONFIG?"),
        ("OAUTH_RATE_LIMIT_MODE", "did you mean OAUTH_RATELIMIT_MODE?"),
        ("OAUTH_RATELIMIT_INTERVALS", "known: OAUTH_RATELIMIT_CONFIG, OAUTH_RATELIMIT_MONGO_URI"),
        ("OAUTH_LIFETIME", None),
        (7, None),
    ],
)
def test_misspelt_key_of_the_application_is_named_at_the_start(key: Any, hint: str | None) -> None:
    app = make_app()
    app.config[key] = "x"
    with capture_logs() as logs:
        OAuthRateLimit(app, make_server(app))
    found = [(entry["key"], entry["hint"]) for entry in logs if entry["event"] == "app_config_ignored"]

    assert [] == found if hint is None else [(key, True)] == [(name, text.startswith(hint)) for name, text in found]
