"""SIGHUP."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.config import ConfigSource
from oauth_ratelimit.flask_authlib.app_config import WatchedFile, reload_on_sighup
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter
from tests.support.helpers import wait_until


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """A handler that was there before, with the signals that it got."""
    seen: list[int] = []
    former = signal.signal(signal.SIGHUP, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGHUP, former)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration file."""
    path = tmp_path / "ratelimit.yaml"
    path.write_text("{mode: dry-run, sync: {interval: 100ms}}")
    return path


def protect(path: Path, *, on_sighup: bool = True) -> AppLimiter:
    """Return the gate of an application with this configuration, started."""
    app = Flask(__name__)
    app.config.update(OAUTH_RATELIMIT_CONFIG=str(path), OAUTH_RATELIMIT_RELOAD_ON_SIGHUP=on_sighup)
    OAuthRateLimit(app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None))
    gate: AppLimiter = app.extensions["oauth_ratelimit"]
    return gate


def test_signal_that_was_asked_for(path: Path, handler: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read although it looks unchanged, what has changed is logged, and the former handler runs, too."""
    monkeypatch.setattr(ConfigSource, "poll", lambda _: None)
    gate = protect(path)
    try:
        assert gate.limiter.check("app").allowed
        path.write_text("{mode: enforce, sync: {interval: 100ms}}")
        with capture_logs() as logs:
            os.kill(os.getpid(), signal.SIGHUP)
            wait_until(lambda: "mode_changed" in [entry["event"] for entry in logs], "the file is read")
    finally:
        gate.close()

    assert [signal.SIGHUP] == handler
    reloaded = next(entry for entry in logs if entry["event"] == "config_reloaded")
    assert ("file", ["mode: dry-run -> enforce"]) == (reloaded["origin"], reloaded["changes"])


def test_signal_that_nobody_asked_for(path: Path, handler: list[int]) -> None:
    """Without the setting the signal stays whose it was."""
    former = signal.getsignal(signal.SIGHUP)
    protect(path, on_sighup=False)

    assert former is signal.getsignal(signal.SIGHUP)


def test_several_applications(path: Path, handler: list[int]) -> None:
    """Each application that asks for the signal gets it."""
    files = [WatchedFile(ConfigSource(path)) for _ in range(2)]
    for file in files:
        file._source.load()
        assert reload_on_sighup(file)
    os.kill(os.getpid(), signal.SIGHUP)
    with capture_logs() as logs:
        for file in files:
            file.poll()

    assert ["reload_requested"] * 2 == [entry["event"] for entry in logs]
    assert [signal.SIGHUP] == handler


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "ignored"])
def test_signal_without_a_handler(path: Path, disposition: signal.Handlers) -> None:
    """A process that asks survives the signal, whatever it would have done before."""
    signal.signal(signal.SIGHUP, disposition)
    file = WatchedFile(ConfigSource(path))
    file._source.load()
    assert reload_on_sighup(file)
    os.kill(os.getpid(), signal.SIGHUP)

    assert file._is_reload_requested


def test_signal_outside_of_the_main_thread(path: Path) -> None:
    """Python takes signals in the main thread only; elsewhere the file is still watched."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(reload_on_sighup(WatchedFile(ConfigSource(path)))))
    thread.start()
    thread.join()

    assert [False] == results


def test_signal_that_the_server_has_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler below Python is left alone, and that is logged."""
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    with capture_logs() as logs:
        protect(path)

    assert ["sighup_not_available"] == [entry["event"] for entry in logs]
