"""Command line on a real MongoDB."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from click.testing import CliRunner, Result
from flask.cli import FlaskGroup

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.cli import command
from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.observe.denials import DenialQueue
from oauth_ratelimit.observe.events import DenialEvents
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.overrides import OverrideStore

WHY = ("--reason", "ticket 4711", "--by", "ann")
CONFIG: dict[str, Any] = {
    "mode": "enforce",
    "limits": {"client": ["10/hour"], "user": ["5/hour"], "client_total": ["50/hour"]},
    "grants": {"refresh_token": {"limits": {"user": ["7/hour"]}}},
    "plans": {"gold": {"limits": {"client": ["1000/hour"]}}},
    "clients": {"partner": {"plan": "gold"}},
    "trusted_clients": ["mobile-*"],
}


def run_command(*words: str, stdin: str | None = None) -> Result:
    """Run a command without an application; an unexpected exception fails the test."""
    return CliRunner().invoke(command, words, input=stdin, catch_exceptions=False)


def run_flask(create_app: Any, *words: str) -> Result:
    """Run ``flask oauth-ratelimit`` for an application."""
    group = FlaskGroup(create_app=create_app, add_default_commands=False)
    group.add_command(command)
    return CliRunner().invoke(group, ["oauth-ratelimit", *words], catch_exceptions=False)


class Terminal:
    """Commands on one configuration file."""

    def __init__(self, config_path: Path, settings: dict[str, Any]) -> None:
        self.config_path = config_path
        self.settings = settings

    def run(self, *words: str) -> Result:
        """Run a command."""
        return run_command("--config", str(self.config_path), *words)

    def ok(self, *words: str) -> str:
        """Run a command that succeeds, and return its output."""
        result = self.run(*words)
        assert 0 == result.exit_code, result.output
        return result.stdout

    def data(self, *words: str) -> Any:
        """Run a command that succeeds, and return its JSON, which is ASCII."""
        text = self.ok(*words, "--json")
        assert text.isascii()
        return json.loads(text)


@pytest.fixture
def terminal(tmp_path: Path, mongo_uri: str) -> Terminal:
    """The command line with an empty database, in a process that has not configured its log."""
    structlog.reset_defaults()
    settings = {**CONFIG, "store": {"uri": mongo_uri}}
    path = tmp_path / "ratelimit.yaml"
    path.write_text(yaml.safe_dump(settings))
    return Terminal(path, settings)


@pytest.fixture
def denials() -> DenialQueue:
    """Denials of the instance that are not recorded yet."""
    return DenialQueue()


@pytest.fixture
def now_s() -> float:
    """The present, at which the clock of the instance stands still. The commands use the real clock."""
    return time.time()


@pytest.fixture
def limiter(terminal: Terminal, denials: DenialQueue, now_s: float) -> Iterator[Limiter]:
    """An instance with the same configuration."""
    events = DenialEvents(300, trace_of=lambda: Trace("4bf92f", None), queue=denials)
    limiter = Limiter(load_config(terminal.settings), clock=lambda: now_s, denial_events=events)
    yield limiter
    limiter.close()


@pytest.fixture
def overrides(connection: Connection) -> OverrideStore:
    """The stored overrides, as instances read them."""
    return OverrideStore(connection)
