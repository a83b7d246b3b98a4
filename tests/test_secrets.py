"""Secrets: the database's password, keys of user names and of signatures, client secrets, user passwords, tokens."""

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from click.testing import CliRunner
from flask import Flask

from oauth_ratelimit import ConfigError, Limiter, OAuthRateLimit, Settings, load_config
from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.blueprint import PARTS
from oauth_ratelimit.blueprints import health_blueprint, metrics_blueprint
from oauth_ratelimit.cli import command
from oauth_ratelimit.config import describe_changes
from oauth_ratelimit.config.loader import parse_file
from oauth_ratelimit.core.key import PseudonymKey
from oauth_ratelimit.store.mongo.counters import MongoStore
from testbed.clock import wait_until
from testbed.oauth_server.database import WEB_SHOP
from tests.docs.blocks import ROOT
from tests.support.apps import app_limiter_of
from tests.support.guarded_mongod import PASSWORD, GuardedMongod, guarded, guarded_server
from tests.support.sites import protect_after
from tests.support.stores import everything_in

pytestmark = pytest.mark.mongo

__all__ = ["guarded", "guarded_server"]

NAME_KEY = "key-of-names-that-nobody-may-read-1"
OTHER_KEY = "key-of-names-that-nobody-may-read-2"
SIGNING_KEY = "key-of-signatures-that-nobody-may-read"
HOOK_PATH = "path-of-a-webhook-that-is-a-password"
USER_PASSWORD = "erin-password"
PSEUDONYM = PseudonymKey.of(NAME_KEY.encode())("erin")
COMMANDS = (
    ("status",),
    ("show",),
    ("show", "web-shop"),
    ("explain", "web-shop", "erin"),
    ("overrides", "--history"),
    ("report",),
    ("what-if", "--limit", "1/minute"),
    ("show", "--format", "csv"),
    ("init-db", "--check"),
    ("init-db",),
    ("limit", "set", "web-shop", "--limit", "5/minute", "--kind", "user", "--yes", "--reason", "why"),
    ("reset", "web-shop", "--yes"),
    ("erase", "--user", "bob", "--yes"),
)
PAGES = ("/metrics", "/health", *(f"/ratelimit/part/{name}" for name in PARTS))


def settings_of(uri: str) -> dict[str, Any]:
    return {
        "mode": "enforce",
        "limits": {"user": ["2/hour"]},
        "store": {"uri": uri, "timeout": "5s"},
        "sync": {"interval": "50ms"},
        "guard": {"mode": "enforce"},
        "privacy": {"user_names": "hashed", "keys": [{"env": "NAME_KEY"}]},
    }


hooked: list[str] = []


def broken(*_: Any, **facts: Any) -> None:
    hooked.append(str(facts))
    raise RuntimeError("a hook that is broken")


@pytest.fixture
def config_path(tmp_path: Path, guarded: GuardedMongod, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OAUTH_RATELIMIT_MONGO_URI", raising=False)
    monkeypatch.setenv("NAME_KEY", NAME_KEY)
    monkeypatch.setenv("OTHER_KEY", OTHER_KEY)
    path = tmp_path / "ratelimit.yaml"
    path.write_text(yaml.safe_dump(settings_of(guarded.uri("root"))))
    return path


@pytest.fixture
def app(config_path: Path, database: Path) -> Iterator[Flask]:
    """A server with every secret that there is, which nobody has asked yet."""
    app = protect_after(database, str(config_path), OAuthRateLimit(on_denied=broken))
    for blueprint in (metrics_blueprint(), health_blueprint(), admin_blueprint(lambda: "ann")):
        app.register_blueprint(blueprint)
    yield app
    app_limiter_of(app).close()


def crash(limiter: Limiter, wrong: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let a cycle and a limiter with a wrong password fail, and return what the latter says of itself."""
    with monkeypatch.context() as patch:
        patch.setattr(MongoStore, "read", broken)
        patch.setattr(MongoStore, "compare_and_set", broken)
        limiter.check("web-shop", "erin")
        assert limiter.sync().error is not None
    other = Limiter(wrong)
    other.check("web-shop", "erin")
    assert other.sync().error is not None
    other.close()
    return repr(vars(other))


def misconfigure(settings: dict[str, Any]) -> Iterator[str]:
    """Put secrets where they were before, and change them; yield what is said of that."""
    for removed in ({"digest": {"url": HOOK_PATH, "secret": SIGNING_KEY}}, {"digest": SIGNING_KEY}):
        found = load_config(removed)
        yield from (repr(found), *found.warnings)
    keys = [{"env": "OTHER_KEY"}, {"env": "NAME_KEY"}]
    old = load_config(settings)
    new = load_config(
        {**settings, "store": {"uri": "mongodb://127.0.0.1"}, "privacy": {"user_names": "hashed", "keys": keys}}
    )
    yield from (repr(old), str(old), *describe_changes(old, new), *describe_changes(new, old))


ADDRESSES = ("mongodb://root:{}@db/oauth", "uri mongodb://{}", "root:{}@db.example/oauth", "https://example.com/{}")
EXAMPLE = yaml.safe_load((ROOT / "config" / "oauth_ratelimit.yaml").read_text())


def everywhere(value: Any, secret: str) -> Iterator[Any]:
    """Yield a value with a secret in place of each of its parts, and as a key beside them."""
    yield from (secret, [secret], {secret: None}, {secret: {secret: [secret]}})
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from ({**value, key: changed} for changed in everywhere(part, secret))
        yield {secret if each is key else each: value[each] for each in value}
    for index, part in enumerate(value) if isinstance(value, list) else ():
        yield from ([*value[:index], changed, *value[index + 1 :]] for changed in everywhere(part, secret))


@pytest.mark.parametrize("address", ADDRESSES)
def test_address_is_in_no_error_wherever_it_stands(address: str) -> None:
    """As a value and as a key, beside another error that names its path, in a file and in a mapping."""
    errors = 0
    for content in everywhere({**EXAMPLE, "mode": "of"}, address.format(PASSWORD)):
        said = [] if isinstance(content, list) else [said_of(load_config, content)]
        if isinstance(content, dict):
            text = json.dumps(content).encode()  # is YAML, too
            said += [
                said_of(parse_file, text),
                said_of(parse_file, text + f"{json.dumps(next(iter(content)))}: 1".encode()),
            ]
        assert PASSWORD not in "".join(said), content
        errors += sum(map(bool, said))
    assert errors > 500


def said_of(load: Callable[..., Settings], content: Any) -> str:
    """Return what an error says of a configuration."""
    try:
        return " ".join(load(content, **({} if load is load_config else {"source": "limits.yaml"})).warnings)
    except ConfigError as exc:
        return "".join(traceback.format_exception(exc))


@pytest.mark.usefixtures("quick_ending")
def test_no_secret_is_ever_said(
    app: Flask,
    config_path: Path,
    guarded: GuardedMongod,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No secret, and no hashed name, stands in a log line, error, hook, command's output, page, metric or document."""
    caplog.set_level(logging.INFO)
    web, app_limiter = app.test_client(), app_limiter_of(app)
    root, wrong = (guarded.uri("root", password=password) for password in (PASSWORD, "wrong"))
    tokens: list[str] = []

    def ask(password: str = USER_PASSWORD, secret: str = WEB_SHOP.client_secret or "") -> int:
        form = {"grant_type": "password", "username": "erin", "password": password}
        answer = web.post("/token", data=form, auth=(WEB_SHOP.client_id, secret))
        tokens.extend(value for name, value in (answer.json or {}).items() if name.endswith("_token"))
        return answer.status_code

    def run(*words: str) -> str:
        return CliRunner().invoke(command, ["--config", str(config_path), *words]).output

    app_limiter.start()
    assert [200, 200, 429] == [ask() for _ in range(3)]
    assert [401, 400] == [ask(secret="wrong"), ask("wrong")]
    stored = ("web-shop", "'beat_at_s'")
    wait_until(lambda: all(map(everything_in(root).__contains__, stored)), "a flush and a heartbeat")
    said = [run(*words) for words in COMMANDS]
    answers = [web.get(path, query_string={"id": "web-shop", "decision": "0123456789abcdef"}) for path in PAGES]
    assert {200} == {answer.status_code for answer in answers}
    said += [f"{answer.headers}{answer.text}" for answer in answers]
    with monkeypatch.context() as patch:
        patch.setattr(app_limiter.limiter, "hold", broken)
        assert 200 == ask()
    said.append(crash(app_limiter.limiter, load_config(settings_of(wrong)), monkeypatch))
    said += misconfigure(settings_of(root))
    said.append(run("--mongo-uri", wrong, "status"))
    said.append(run("--mongo-uri", f"mongodb://{PASSWORD}:{PASSWORD}@127.0.0.1:x/", "status"))
    said += [repr(app_limiter.settings), prometheus_client.generate_latest().decode(), everything_in(root)]
    app_limiter.close()
    printed = capfd.readouterr()
    text = "\n".join([*said, *hooked, printed.out, printed.err, caplog.text])

    events = ("check_failed", "cycle_failed", "flush_failed", "request_denied", "AuthenticationFailed (18)")
    assert [] == [event for event in events if event not in text]
    secrets = (PASSWORD, NAME_KEY, OTHER_KEY, SIGNING_KEY, HOOK_PATH, USER_PASSWORD)
    assert [] == [secret for secret in (*secrets, WEB_SHOP.client_secret or "", *tokens) if secret in text]
    assert "erin" not in text
    for part in (said[1], said[-1], str(hooked), printed.out + printed.err + caplog.text):
        assert PSEUDONYM in part
    assert len(tokens) > 2
