"""Secrets: the database's password, keys of user names and of signatures, client secrets, user passwords, tokens."""

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import structlog
import yaml
from click.testing import CliRunner
from flask import Flask

from demo import server as demo_server
from demo.database import WEB_SHOP, seed
from oauth_ratelimit import ConfigError, Limiter, OAuthRateLimit, load_config
from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.api import QUERIES
from oauth_ratelimit.blueprints import health_blueprint, metrics_blueprint
from oauth_ratelimit.cli import command
from oauth_ratelimit.config import describe_changes
from oauth_ratelimit.store.mongo.counters import MongoStore
from tests.support.guarded_mongod import PASSWORD, GuardedMongod, guarded, guarded_server
from tests.support.helpers import wait_until
from tests.support.stores import everything_in

pytestmark = pytest.mark.mongo

__all__ = ["guarded", "guarded_server"]

NAME_KEY = "key-of-names-that-nobody-may-read-1"
OTHER_KEY = "key-of-names-that-nobody-may-read-2"
SIGNING_KEY = "key-of-signatures-that-nobody-may-read"
HOOK_PATH = "path-of-a-webhook-that-is-a-password"
USER_PASSWORD = "alice-password"
COMMANDS = (
    ("status",),
    ("top",),
    ("show", "web-shop"),
    ("explain", "web-shop", "alice"),
    ("overrides", "--history"),
    ("report",),
    ("what-if", "--limit", "1/minute"),
    ("export", "counters"),
    ("export", "overrides"),
    ("export", "history"),
    ("db", "status"),
    ("init-db",),
    ("limit", "set", "web-shop", "--user", "5/minute", "--reason", "why"),
    ("reset", "web-shop"),
    ("erase", "bob"),
)
PAGES = ("/metrics", "/health", *(f"/ratelimit/api/{name}" for name in QUERIES))


class Site:
    """A server with every secret that there is, and all that was said about it."""

    def __init__(self, folder: Path, guarded: GuardedMongod) -> None:
        self.guarded = guarded
        self.said: list[str] = []
        self.tokens: list[str] = []
        self.config_path = folder / "ratelimit.yaml"
        self.settings: dict[str, Any] = {
            "mode": "enforce",
            "limits": {"user": ["2/hour"]},
            "store": {"uri": guarded.uri("root"), "timeout": "5s"},
            "sync": {"interval": "50ms"},
            "guard": {"mode": "enforce"},
            "privacy": {"user_names": "hashed", "keys": [{"env": "NAME_KEY"}]},
        }
        self.write(self.settings)
        seed(folder / "demo.sqlite3")
        self.app: Flask = demo_server.create_app(folder / "demo.sqlite3")
        self.app.config["OAUTH_RATELIMIT_CONFIG"] = str(self.config_path)
        self.app.register_blueprint(metrics_blueprint())
        self.app.register_blueprint(health_blueprint())
        self.app.register_blueprint(admin_blueprint(lambda: "ann"))
        extension = OAuthRateLimit(on_denied=_broken_hook)
        extension.init_app(self.app, self.app.extensions["authorization_server"])

    @property
    def app_limiter(self) -> Any:
        """The application's part of the extension."""
        return self.app.extensions["oauth_ratelimit"]

    def write(self, settings: dict[str, Any]) -> None:
        """Write the configuration."""
        self.config_path.write_text(yaml.safe_dump(settings))

    def ask(self, password: str = USER_PASSWORD, secret: str = WEB_SHOP.client_secret or "") -> int:
        """Ask for a token, and return the status."""
        form = {"grant_type": "password", "username": "alice", "password": password}
        answer = self.app.test_client().post("/token", data=form, auth=(WEB_SHOP.client_id, secret))
        self.tokens += [value for name, value in (answer.json or {}).items() if name.endswith("_token")]
        return answer.status_code

    def run(self, *words: str) -> None:
        """Run a command."""
        self.said.append(CliRunner().invoke(command, ["--config", str(self.config_path), *words]).output)

    def stored(self) -> str:
        """Return all that MongoDB holds."""
        return everything_in(self.guarded.uri("root"))


def _broken_hook(*_: Any, **__: Any) -> None:
    raise RuntimeError("a hook that is broken")


@pytest.fixture
def site(tmp_path: Path, guarded: GuardedMongod, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that nobody has asked yet."""
    structlog.reset_defaults()
    monkeypatch.setenv("NAME_KEY", NAME_KEY)
    monkeypatch.setenv("OTHER_KEY", OTHER_KEY)
    site = Site(tmp_path, guarded)
    yield site
    site.app_limiter.close()


def _crash(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything break that may: a decision, a cycle, the database."""
    with monkeypatch.context() as patch:
        patch.setattr(site.app_limiter.limiter, "check", _broken_hook)
        assert 200 == site.ask()
    with monkeypatch.context() as patch:
        patch.setattr(MongoStore, "read", _broken_hook)
        patch.setattr(MongoStore, "compare_and_set", _broken_hook)
        site.app_limiter.limiter.check("web-shop", "alice")
        assert site.app_limiter.limiter.sync().error is not None
    limiter = Limiter(load_config({**site.settings, "store": {"uri": site.guarded.uri("root", password="wrong")}}))
    limiter.check("web-shop", "alice")
    assert limiter.sync().error is not None
    site.said.append(repr(vars(limiter)))
    limiter.close()


def _misconfigure(site: Site) -> None:
    """Put secrets where they do not belong, and change them."""
    wrong: tuple[dict[str, Any], ...] = (
        {"store": PASSWORD},
        {"store": {"uri": f"mongo://root:{PASSWORD}@127.0.0.1"}},
        {"store": {"url": f"mongodb://root:{PASSWORD}@127.0.0.1"}},
        {"privacy": NAME_KEY},
        {"privacy": {"keys": NAME_KEY}},
        {"privacy": {"keys": [NAME_KEY]}},
        {"privacy": {"keys": [{"env": NAME_KEY}, {"file": NAME_KEY}, {"key": NAME_KEY}, {"file": f"/{NAME_KEY}"}]}},
        {"privacy": {"keys": [{"env": "NAME_KEY"}, {"env": "NAME_KEY"}]}},
        {"digest": {"url": HOOK_PATH, "secret": SIGNING_KEY}},
        {"digest": SIGNING_KEY},
    )
    for settings in wrong:
        site.write(settings)
        site.run("check-config", str(site.config_path))
        with pytest.raises(ConfigError) as caught:
            load_config(settings)
        site.said += traceback.format_exception(caught.value)
    old = load_config(site.settings)
    changed = {**site.settings, "store": {"uri": "mongodb://127.0.0.1"}}
    changed["privacy"] = {"user_names": "hashed", "keys": [{"env": "OTHER_KEY"}, {"env": "NAME_KEY"}]}
    site.said += [repr(old), str(old), *describe_changes(old, load_config(changed))]
    site.said += describe_changes(load_config(changed), old)
    site.write(site.settings)


@pytest.mark.usefixtures("quick_ending")
def test_no_secret_is_ever_said(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No secret stands in any log line, error, traceback, command's output, page, metric, or document in MongoDB."""
    caplog.set_level(logging.INFO)
    assert [200, 200, 429] == [site.ask() for _ in range(3)]
    assert [401, 400] == [site.ask(secret="wrong"), site.ask("wrong")]
    wait_until(lambda: "web-shop" in site.stored() and "'beat'" in site.stored(), "a flush and a heartbeat")
    for words in COMMANDS:
        site.run(*words)
    pages = site.app.test_client()
    answers = [pages.get(path, query_string={"id": "web-shop", "decision": "0123456789abcdef"}) for path in PAGES]
    assert {200} == {answer.status_code for answer in answers}
    site.said += [f"{answer.headers}{answer.text}" for answer in answers]
    _crash(site, monkeypatch)
    _misconfigure(site)
    site.run("--mongo-uri", site.guarded.uri("root", password="wrong"), "status")
    site.run("--mongo-uri", f"mongodb://{PASSWORD}:{PASSWORD}@127.0.0.1:x/", "status")
    site.said += [repr(site.app_limiter.settings), prometheus_client.generate_latest().decode(), site.stored()]
    site.app_limiter.close()
    printed = capfd.readouterr()
    site.said += [printed.out, printed.err, caplog.text]

    text = "\n".join(site.said)
    events = ("check_failed", "cycle_failed", "flush_failed", "request_denied", "Authentication failed")
    assert [] == [event for event in events if event not in text]
    secrets = (PASSWORD, NAME_KEY, OTHER_KEY, SIGNING_KEY, HOOK_PATH, USER_PASSWORD)
    assert [] == [secret for secret in (*secrets, WEB_SHOP.client_secret or "", *site.tokens) if secret in text]
    assert len(site.tokens) > 2
