"""Command line on a real MongoDB."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from flask import Flask
from flask.cli import FlaskGroup

from oauth_ratelimit import Limiter, OAuthRateLimit, load_config
from oauth_ratelimit.background.health import HealthMonitor
from oauth_ratelimit.cli import command
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.observe.events import DenialEvents, DenialRecorder
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from tests.operations.conftest import LIMITS
from tests.support.apps import make_app, make_server

WHY = ("--reason", "ticket 4711", "--operator", "ann")


ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("check-config",): ("{config}",),
    ("denials",): ("app",),
    ("erase",): ("--user", "alice", "--yes"),
    ("explain",): ("app", "alice"),
    ("forget-tokens",): ("app",),
    ("init-db",): (),
    ("limit", "list"): (),
    ("limit", "set"): ("app", "--limit", "9/minute", "--kind", "user", "--yes", *WHY),
    ("limit", "unset"): ("app", *WHY),
    ("mode",): (),
    ("mode", "set"): ("dry-run", *WHY),
    ("mode", "unset"): WHY,
    ("overrides",): (),
    ("replay",): ("{trace}",),
    ("report",): (),
    ("reset",): ("app", "--yes"),
    ("rollout",): (),
    ("show",): ("app",),
    ("status",): (),
    ("suggest",): (),
    ("trust", "add"): ("app", *WHY),
    ("trust", "list"): (),
    ("trust", "remove"): ("app", *WHY),
    ("what-if",): ("--limit", "100/minute"),
}
"""Valid arguments of each command."""


def run_command(*words: str, stdin: str | None = None) -> Result:
    """Run a command without an application; an unexpected exception fails the test."""
    return CliRunner().invoke(command, words, input=stdin, catch_exceptions=False)


def run_flask(create_app: Any, *words: str) -> Result:
    group = FlaskGroup(create_app=create_app, add_default_commands=False)
    group.add_command(command)
    return CliRunner().invoke(group, ["oauth-ratelimit", *words], catch_exceptions=False)


def protected(**config: Any) -> Flask:
    app = make_app(**config)
    OAuthRateLimit(app, make_server(app))
    return app


class Terminal:
    def __init__(self, config_path: Path, settings: dict[str, Any]) -> None:
        self.config_path = config_path
        self.settings = settings

    def run(self, *words: str) -> Result:
        return run_command("--config", str(self.config_path), *words)

    def ok(self, *words: str) -> str:
        result = self.run(*words)
        assert 0 == result.exit_code, result.output
        return result.stdout

    def arguments(self, words: tuple[str, ...]) -> list[str]:
        trace = self.config_path.with_name("trace.csv")
        trace.write_text("time,client\n1,app\n2,app\n")
        return [word.format(config=self.config_path, trace=trace) for word in ARGUMENTS[words]]

    def data(self, *words: str) -> Any:
        """Run a command that succeeds, and return its JSON, which is ASCII."""
        text = self.ok(*words, "--json")
        assert text.isascii()
        return json.loads(text)


def send_heartbeat(terminal: Terminal, mongo_uri: str, name: str) -> None:
    with closing(Connection(mongo_uri)) as connection:
        limiter = Limiter(load_config({**terminal.settings, "instance": name}))
        HealthMonitor(limiter, HeartbeatStore(connection)).beat(override_count=0)
        limiter.close()


@pytest.fixture
def terminal(tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("OAUTH_RATELIMIT_MONGO_URI", raising=False)
    monkeypatch.setattr("oauth_ratelimit.cli.database.sleep", lambda _seconds: None)  # no instance runs
    settings = {**LIMITS, "store": {"uri": mongo_uri}}
    path = tmp_path / "ratelimit.yaml"
    path.write_text(yaml.safe_dump(settings))
    return Terminal(path, settings)


@pytest.fixture
def now_s() -> float:
    """The present, at which the clock of the instance stands still. The commands use the real clock."""
    return time.time()


@pytest.fixture
def denials(connection: Connection, now_s: float) -> DenialRecorder:
    store = DenialStore(connection)
    return DenialRecorder(store, instance=lambda: "node-1", keep_s=lambda: 3600.0, clock=lambda: now_s)


@pytest.fixture
def limiter(terminal: Terminal, denials: DenialRecorder, now_s: float) -> Iterator[Limiter]:
    events = DenialEvents(300, trace_of=lambda: Trace("4bf92f", None), recorder=denials)
    limiter = Limiter(load_config(terminal.settings), clock=lambda: now_s, denial_events=events)
    yield limiter
    limiter.close()


@pytest.fixture
def overrides(connection: Connection) -> OverrideStore:
    return OverrideStore(connection)
