"""Reload of the configuration file, when it changes and on SIGHUP."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.background.live_settings import REPAIRED
from oauth_ratelimit.config.loader import ConfigFile
from oauth_ratelimit.flask_authlib.app_config import reload_on_sighup
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
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
        wait_until(lambda: REPAIRED in str(logs), "the rest of the file is read")
        write(path, config(limit=2, mode="enforce", sync={"interval": "200ms"}))
        wait_until(lambda: "restart_needed" in [entry["event"] for entry in logs], "the limits are on")

    reloads = [(entry["changes"], entry["restart_needed"]) for entry in logs if entry["event"] == "config_reloaded"]
    assert [["mode: off -> dry-run"], ["mode: dry-run -> enforce"]] == [changes for changes, _ in reloads[:2]]
    off = [line for changes, _ in reloads[2:-1] for line in changes]
    assert (["mode: enforce -> off", REPAIRED], (["mode: off -> enforce"], True)) == (
        sorted(off, reverse=True),
        reloads[-1],
    )
    modes = [(entry["old"], entry["new"]) for entry in logs if entry["event"] == "mode_changed"]
    assert [("off", "dry-run"), ("dry-run", "enforce"), ("enforce", "off"), ("off", "enforce")] == modes


# SIGHUP.


@pytest.fixture
def handled() -> Iterator[list[int]]:
    seen: list[int] = []
    former = signal.signal(signal.SIGHUP, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGHUP, former)


def protect(path: Path, *, on_sighup: bool = True) -> AppLimiter:
    app = make_app(OAUTH_RATELIMIT_CONFIG=str(path), OAUTH_RATELIMIT_RELOAD_ON_SIGHUP=on_sighup)
    OAuthRateLimit(app, make_server(app))
    return app_limiter_of(app)


def test_sighup_reads_a_file_that_looks_unchanged(
    path: Path, handled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is logged, and the former handler runs, too."""
    monkeypatch.setattr("oauth_ratelimit.config.loader.stamp_of", lambda _: (0,))
    app_limiter = protect(path)
    try:
        assert app_limiter.limiter.check("app").allowed
        write(path, {"mode": "enforce", **QUICK})
        with capture_logs() as logs:
            os.kill(os.getpid(), signal.SIGHUP)
            wait_until(lambda: "mode_changed" in [entry["event"] for entry in logs], "the file is read")
    finally:
        app_limiter.close()

    assert [signal.SIGHUP] == handled
    reloaded = next(entry for entry in logs if entry["event"] == "config_reloaded")
    assert ("file", ["mode: dry-run -> enforce"]) == (reloaded["origin"], reloaded["changes"])


def test_sighup_keeps_its_handler_unless_the_setting_is_on(path: Path, handled: list[int]) -> None:
    """The signal may mean something else to the application."""
    former = signal.getsignal(signal.SIGHUP)
    protect(path, on_sighup=False)

    assert former is signal.getsignal(signal.SIGHUP)


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
def test_sighup_reloads_the_file_of_each_application(
    path: Path, handled: list[int], disposition: signal.Handlers
) -> None:
    """The process survives the signal, whatever it would have done before."""
    signal.signal(signal.SIGHUP, disposition)
    files = [ConfigFile(path) for _ in range(2)]
    for file in files:
        file.load()
    assert all(reload_on_sighup(file) for file in files)
    os.kill(os.getpid(), signal.SIGHUP)
    with capture_logs() as logs:
        for file in files:
            file.poll()

    assert ["reload_requested"] * 2 == [entry["event"] for entry in logs]


def test_sighup_that_the_server_handles_below_python_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    with capture_logs() as logs:
        protect(path)

    assert "sighup_not_available" in [entry["event"] for entry in logs]


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
