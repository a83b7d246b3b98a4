"""What init_app reads, keeps and refuses; what a process starts, and when."""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.background import worker as worker_module
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.support.apps import CLIENT, add_route, app_limiter_of, make_app, make_server, protected_app, token_status
from tests.support.helpers import Clock, wait_until
from tests.support.sites import config


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside; plain HTTP for older Authlib."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    monkeypatch.delenv("OAUTH_RATELIMIT_MODE", raising=False)


# What is read.


def test_without_configuration() -> None:
    """Without any configuration the default limits run dry, in this process only, and the log says so once."""
    with capture_logs() as logs, protected_app() as app:
        assert [200, 200] == [token_status(app), token_status(app)]
        settings = app_limiter_of(app).settings
        decision = app_limiter_of(app).limiter.peek("some-client", "some-user")

    assert Mode.DRY_RUN is settings.policies.mode
    assert settings.store.uri is None
    assert decision.limit is not None
    assert [("running_unconfigured", "dry-run", False)] == [
        (entry["event"], entry["mode"], entry["shared"]) for entry in logs
    ]


def test_configuration_from_a_mapping() -> None:
    """A mapping holds what a file would, and then there is nothing to complain about."""
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=2)) as app:
        assert [200, 200] == [token_status(app), token_status(app)]

    assert [] == logs


@pytest.mark.parametrize("kind", [str, Path])
def test_configuration_from_a_file(tmp_path: Path, kind: Any) -> None:
    """A path names the file."""
    path = tmp_path / "limits.yaml"
    path.write_text(yaml.safe_dump(config(limit=1)))

    with protected_app(OAUTH_RATELIMIT_CONFIG=kind(path)) as app:
        assert [200, 429] == [token_status(app), token_status(app)]


def test_settings_that_override_the_configuration() -> None:
    """Mode and URI of the application win over the file's."""
    settings = {
        "OAUTH_RATELIMIT_CONFIG": config(limit=1, store={"uri": "mongodb://file.example/oauth"}),
        "OAUTH_RATELIMIT_MODE": "dry-run",
        "OAUTH_RATELIMIT_MONGO_URI": "mongodb://app.example/oauth",
    }

    with protected_app(**settings) as app:
        assert Mode.DRY_RUN is app_limiter_of(app).settings.policies.mode
        assert "mongodb://app.example/oauth" == app_limiter_of(app).settings.store.uri


@pytest.mark.parametrize("value", ["off", " OFF "])
def test_emergency_switch(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The environment variable wins over everything, and nothing is started."""
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", value)
    monkeypatch.setattr(worker_module, "Limiter", None)

    settings = {"OAUTH_RATELIMIT_CONFIG": config(limit=1), "OAUTH_RATELIMIT_MODE": "enforce"}
    with capture_logs() as logs, protected_app(**settings) as app:
        assert [200, 200, 200] == [token_status(app) for _ in range(3)]
        assert Mode.OFF is app_limiter_of(app).settings.policies.mode

    assert [] == logs


def test_environment_that_is_not_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but "off" in the environment changes the mode. Whoever has tried something else is told."""
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "dry-run")

    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        assert [200, 429] == [token_status(app), token_status(app)]
    (said,) = [entry for entry in logs if entry["event"] == "environment_ignored"]
    assert ("OAUTH_RATELIMIT_MODE", "dry-run", ["off"]) == (said["variable"], said["value"], said["allowed"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"OAUTH_RATELIMIT_CONFIG": {"limits": {"user": [{"limit": 0, "window": 1}]}}}, "limits.user[0].limit"),
        ({"OAUTH_RATELIMIT_CONFIG": "/no/such/file.yaml"}, "/no/such/file.yaml"),
        ({"OAUTH_RATELIMIT_CONFIG": {}, "OAUTH_RATELIMIT_MODE": "enforced"}, "OAUTH_RATELIMIT_MODE"),
        ({"OAUTH_RATELIMIT_MODE": "enforced"}, "OAUTH_RATELIMIT_MODE"),
    ],
    ids=["bad limit", "no file", "bad mode", "bad mode and no configuration"],
)
def test_configuration_that_cannot_be_used(settings: Any, told: str) -> None:
    """A bad configuration stops the start with the path of what is wrong, and leaves application and server alone."""
    app = make_app(**settings)
    server = make_server(app)

    with pytest.raises(ConfigError) as caught:
        OAuthRateLimit(app, server)

    assert told in str(caught.value)
    assert "oauth_ratelimit" not in app.extensions
    assert "generate_token" not in vars(server)


# Applications and servers.


def test_second_registration() -> None:
    """A second extension on one application is refused."""
    with (
        protected_app(OAUTH_RATELIMIT_CONFIG=config()) as app,
        pytest.raises(RuntimeError, match="has an OAuthRateLimit already"),
    ):
        OAuthRateLimit(app, make_server(make_app()))


@pytest.mark.parametrize("missing", ["app", "server"])
def test_half_of_the_arguments(missing: str) -> None:
    """Application without server, or the other way round, is refused: it would protect nothing."""
    app = make_app()
    arguments = {"app": app, "server": make_server(app)} | {missing: None}

    with pytest.raises(TypeError, match="needs both"):
        OAuthRateLimit(**arguments)


def test_several_applications_in_one_process() -> None:
    """One extension object and one server serve several applications; each has limits and counters of its own."""
    extension = OAuthRateLimit(clock=Clock())
    first, second = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)), make_app(OAUTH_RATELIMIT_CONFIG=config(limit=2))
    server = make_server(first)
    add_route(second, server)
    before = dict(vars(extension))
    extension.init_app(first, server)
    extension.init_app(second, server)

    assert [200, 429] == [token_status(first) for _ in range(2)]
    assert [200, 200, 429] == [token_status(second) for _ in range(3)]
    assert before == vars(extension)
    app_limiter_of(first).close()
    app_limiter_of(second).close()


def test_application_that_was_not_registered() -> None:
    """A server that is attached to for one application answers for another as if nothing had happened."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        other = make_app()
        server = make_server(other)
        gate = app_limiter_of(app)
        OAuthRateLimit(make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)), server)

        assert [200, 200, 200] == [token_status(other) for _ in range(3)]
        assert gate is app_limiter_of(app)


# What a process starts.


class CountedScheduler:
    """Stands for the background cycle and counts."""

    started: list["CountedScheduler"]
    hold: Callable[[], object] = staticmethod(lambda: None)  # until when a start takes

    def __init__(self, limiter: Any, **_options: Any) -> None:
        self.hold()

    def start(self) -> None:
        """Start."""
        self.started.append(self)

    def stop(self) -> None:
        """Stop."""
        self.started.remove(self)


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> list[CountedScheduler]:
    """The background cycles that run."""
    started: list[CountedScheduler] = []
    monkeypatch.setattr(CountedScheduler, "started", started, raising=False)
    monkeypatch.setattr(worker_module, "SyncScheduler", CountedScheduler)
    return started


def test_nothing_runs_before_the_first_request(schedulers: list[CountedScheduler]) -> None:
    """The background cycle starts with the first token request and ends with close."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config()) as app:
        assert 0 == len(schedulers)
        token_status(app)
        token_status(app)
        assert 1 == len(schedulers)

    assert 0 == len(schedulers)


def test_first_requests_that_race(schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that meet at the first request start one background cycle and one limiter."""
    begun: list[None] = []
    hold = staticmethod(lambda: wait_until(lambda: len(begun) == 8, "all requests have begun"))
    monkeypatch.setattr(CountedScheduler, "hold", hold)
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=3)) as app:
        app.before_request(lambda: begun.append(None))
        together = threading.Barrier(8)
        statuses: list[int] = []

        def first_request() -> None:
            together.wait(timeout=60)
            statuses.append(token_status(app))

        threads = [threading.Thread(target=first_request) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert 1 == len(schedulers)
        assert [200] * 3 + [429] * 5 == sorted(statuses)


def test_process_that_was_forked(schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process starts for itself, and leaves alone what its parent has started."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        parents = app_limiter_of(app).limiter
        parent_pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent_pid + 1)

        assert 200 == token_status(app)
        assert parents is not app_limiter_of(app).limiter
        assert 2 == len(schedulers)

        app_limiter_of(app).close()
        assert 1 == len(schedulers)
        schedulers.clear()
        parents.close()
        monkeypatch.undo()


def test_exit_in_a_process_that_started_nothing(
    schedulers: list[CountedScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit handler that a fork inherits stops nothing of its parent's."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        token_status(app)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            app_limiter_of(app).at_exit()
        assert 1 == len(schedulers)

        app_limiter_of(app).at_exit()
        assert 0 == len(schedulers)


def test_start_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot start its background cycle issues tokens all the same and says so."""

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(worker_module, "SyncScheduler", fail)
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        assert [200, 200] == [token_status(app), token_status(app)]

    assert ["check_failed"] == [entry["event"] for entry in logs]


class Waiting:
    """Holds every other thread that asks MongoDB for something, and remembers who has asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: set[threading.Thread] = set()
        self.is_over = threading.Event()
        self.has_lasted = False  # whether one was held until its patience ended
        monkeypatch.setattr(MongoStore, "_open", self._held(MongoStore._open))
        monkeypatch.setattr(Connection, "client", property(self._held(vars(Connection)["client"].fget)))

    def _held(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def held(owner: object) -> Any:
            self.threads.add(threading.current_thread())
            if threading.current_thread() is not threading.main_thread() and not self.is_over.wait(30.0):
                self.has_lasted = True
            return function(owner)

        return held


@pytest.mark.usefixtures("quick_reconnect")
def test_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits neither for a MongoDB that accepts connections and says nothing, nor for a thread that does."""
    waiting = Waiting(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/?serverSelectionTimeoutMS=100&connectTimeoutMS=100"
        with (
            capture_logs(),
            protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=2), OAUTH_RATELIMIT_MONGO_URI=uri) as app,
        ):
            statuses = [token_status(app)]
            wait_until(lambda: waiting.threads, "somebody asks")
            statuses += [token_status(app), token_status(app)]
            threads = set(waiting.threads)
            waiting.is_over.set()

    assert [200, 200, 429] == statuses
    assert threading.main_thread() not in threads
    assert not waiting.has_lasted


# Reloading.


def write(path: Path, settings: Any) -> None:
    """Replace a file at once, as editors and deployments do."""
    new = path.with_suffix(".new")
    new.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    new.replace(path)


def test_file_that_changes(tmp_path: Path) -> None:
    """A changed file is taken over while requests go on, counters stay, and the log tells what changed."""
    path = tmp_path / "limits.yaml"
    quick = {"sync": {"interval": "250ms"}}
    write(path, config(limit=2, mode="dry-run", **quick))
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
        assert [200, 200, 200] == [token_status(app) for _ in range(3)]

        write(path, config(limit=2, mode="enforce", **quick))
        wait_until(lambda: token_status(app) == 429, "the new mode is enforced")

        write(path, "mode: [")
        wait_until(lambda: "config_rejected" in [entry["event"] for entry in logs], "the broken file is reported")
        assert 429 == token_status(app)

        write(path, config(limit=2, mode="off", **quick))
        wait_until(lambda: token_status(app) == 200, "the limits are off")

    events = [entry for entry in logs if entry["event"] in ("config_reloaded", "mode_changed", "config_rejected")]
    assert ["config_reloaded", "mode_changed", "config_rejected", "config_reloaded", "mode_changed"] == [
        entry["event"] for entry in events
    ]
    assert ["mode: dry-run -> enforce"] == events[0]["changes"]
    assert events[0]["restart_needed"] is False
    assert ("dry-run", "enforce") == (events[1]["old"], events[1]["new"])


def test_pinned_mode_survives_a_reload(tmp_path: Path) -> None:
    """A mode that the application sets stays, whatever the file turns to."""
    path = tmp_path / "limits.yaml"
    quick = {"sync": {"interval": "250ms"}}
    write(path, config(limit=1, mode="enforce", **quick))
    settings = {"OAUTH_RATELIMIT_CONFIG": str(path), "OAUTH_RATELIMIT_MODE": "dry-run"}
    with capture_logs() as logs, protected_app(**settings) as app:
        assert [200, 200] == [token_status(app), token_status(app)]

        write(path, config(limit=3, mode="enforce", **quick))
        wait_until(lambda: app_limiter_of(app).settings.policies.limits.client[0].limit == 3, "the limit is taken over")
        assert Mode.DRY_RUN is app_limiter_of(app).settings.policies.mode

    assert "mode_changed" not in [entry["event"] for entry in logs]


def test_file_switched_off_at_start(tmp_path: Path) -> None:
    """A file that starts with off is watched like any other."""
    path = tmp_path / "limits.yaml"
    quick = {"sync": {"interval": "250ms"}}
    write(path, config(limit=1, mode="off", **quick))
    with capture_logs(), protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
        assert [200, 200] == [token_status(app), token_status(app)]

        write(path, config(limit=1, mode="enforce", **quick))
        wait_until(lambda: token_status(app) == 429, "the limit is enforced")


def test_reload_that_needs_a_restart(tmp_path: Path) -> None:
    """A changed interval or store is reported as one that a restart will take over."""
    path = tmp_path / "limits.yaml"
    write(path, config(limit=1, sync={"interval": "250ms"}))
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=str(path)) as app:
        token_status(app)
        write(path, config(limit=1, sync={"interval": "500ms"}))
        wait_until(lambda: "config_reloaded" in [entry["event"] for entry in logs], "the file is taken over")

    assert [True] == [entry["restart_needed"] for entry in logs if entry["event"] == "config_reloaded"]


def test_settings_are_taken_over_whole() -> None:
    """A decision and the answer to it come from one set of settings, not half old and half new."""
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        gate = app_limiter_of(app)
        token_status(app)
        live = gate._live
        live.current = replace(live.current, denial=replace(live.current.denial, headers=()))

        auth = (CLIENT.client_id, CLIENT.client_secret)
        denied = app.test_client().post("/token", data={"grant_type": "client_credentials"}, auth=auth)

    assert 429 == denied.status_code
    assert "RateLimit" not in denied.headers
    assert "Retry-After" in denied.headers
