"""With hashed names nothing that leaves the process holds the name of a user."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import structlog
import yaml
from click.testing import CliRunner
from structlog.testing import capture_logs

from demo import server as demo_server
from demo.database import WEB_SHOP, seed
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.admin import admin_blueprint
from oauth_ratelimit.admin.api import QUERIES
from oauth_ratelimit.cli import command
from oauth_ratelimit.core.pseudonyms import PseudonymKey
from tests.support.helpers import wait_until
from tests.support.stores import everything_in

ALICE = "alice"
SECRET = "not to be found anywhere, 32 bytes"
HASH = PseudonymKey.of(SECRET.encode())(ALICE)


class Site:
    """A protected server, and everything that it logged or reported about its users."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.uri = uri
        self.told: list[str] = []
        self.config_path = folder / "ratelimit.yaml"
        settings = {
            "mode": "enforce",
            "limits": {"user": ["2/hour"], "client_total": ["100/hour"]},
            "store": {"uri": uri},
            "sync": {"interval": "50ms"},
            "guard": {"mode": "enforce"},
            "privacy": {"user_names": "hashed", "keys": [{"env": "NAME_KEY"}]},
        }
        self.config_path.write_text(yaml.safe_dump(settings))
        seed(folder / "demo.sqlite3")
        self.app = demo_server.create_app(folder / "demo.sqlite3")
        self.app.config["OAUTH_RATELIMIT_CONFIG"] = str(self.config_path)
        self.app.register_blueprint(admin_blueprint(lambda: "ann"))
        extension = OAuthRateLimit(on_denied=self._hook, on_near_limit=self._hook)
        extension.init_app(self.app, self.app.extensions["authorization_server"])

    def _hook(self, decision: object, **facts: Any) -> None:
        self.told.append(json.dumps(facts))

    def ask(self, password: str = "alice-password") -> int:
        """Ask for a token with a user's password, and return the status."""
        form = {"grant_type": "password", "username": ALICE, "password": password}
        auth = (WEB_SHOP.client_id, WEB_SHOP.client_secret or "")
        return self.app.test_client().post("/token", data=form, auth=auth).status_code

    def paged(self) -> str:
        """Return all that the admin page tells."""
        browser = self.app.test_client()
        return "\n".join(
            browser.get(f"/ratelimit/api/{name}", query_string=question).text
            for name in QUERIES
            for question in ({"id": "web-shop"}, {"id": "web-shop", "user": HASH})
        )

    def command(self, *words: str) -> str:
        """Return what a command prints."""
        result = CliRunner().invoke(command, ["--config", str(self.config_path), *words], catch_exceptions=False)
        assert 0 == result.exit_code, result.output
        return result.output


@pytest.fixture
def site(tmp_path: Path, mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server with a database of its own."""
    structlog.reset_defaults()
    monkeypatch.setenv("NAME_KEY", SECRET)
    site = Site(tmp_path, mongo_uri)
    yield site
    site.app.extensions["oauth_ratelimit"].close()


def test_no_username_leaves_the_process(site: Site) -> None:
    """MongoDB, logs, metrics, hooks and reports have the same hash."""
    with capture_logs() as logs:
        assert [200, 200, 429] == [site.ask() for _ in range(3)]
        assert 400 == site.ask("wrong")
        wait_until(lambda: HASH in site.paged(), "the user's key is listed")
        paged = site.paged()
        site.app.extensions["oauth_ratelimit"].close()
    stored = everything_in(site.uri)
    metrics = prometheus_client.generate_latest().decode()
    printed = "\n".join(
        site.command(*words)
        for words in (
            ("show", "web-shop", "--json"),
            ("top", "--json"),
            ("explain", "web-shop", ALICE, "--json"),
            ("export", "counters"),
            ("check-config", str(site.config_path)),
            ("status",),
            ("report", "--format", "json"),
            ("what-if", "--limit", "1/minute", "--by", "user"),
        )
    )

    for text in (stored, repr(logs), "\n".join(site.told), printed, paged):
        assert HASH in text
        assert ALICE not in text
        assert SECRET not in text
    assert ALICE not in metrics


def test_commands_take_the_name_or_the_hash(site: Site) -> None:
    """Operators know the one, logs have the other."""
    site.ask()
    site.app.extensions["oauth_ratelimit"].close()

    for user in (ALICE, HASH):
        (row,) = json.loads(site.command("show", "web-shop", user, "--json"))
        assert (HASH, 1) == (row["username"], row["remaining"])
        explained = json.loads(site.command("explain", "web-shop", user, "--json"))
        assert [1] == [limit["remaining"] for limit in explained["limits"] if limit["kind"] == "user"]
    assert {"reset_count": 1} == json.loads(site.command("reset", "web-shop", ALICE, "--json"))
    assert [0] == [row["estimate"] for row in json.loads(site.command("show", "web-shop", ALICE, "--json"))]


def test_commands_read_the_current_pseudonym_only(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """``erase`` finds former ones, too."""
    site.ask()
    site.app.extensions["oauth_ratelimit"].close()
    monkeypatch.setenv("NEW_KEY", SECRET[::-1])
    settings = yaml.safe_load(site.config_path.read_text())
    settings["privacy"]["keys"].insert(0, {"env": "NEW_KEY"})
    site.config_path.write_text(yaml.safe_dump(settings))

    for user in (ALICE, HASH):
        assert [] == json.loads(site.command("show", "web-shop", user, "--json"))
        explained = json.loads(site.command("explain", "web-shop", user, "--json"))
        assert [2] == [limit["remaining"] for limit in explained["limits"] if limit["kind"] == "user"]
        assert {"reset_count": 0} == json.loads(site.command("reset", "web-shop", user, "--json"))
    assert 1 == json.loads(site.command("erase", ALICE, "--json"))["removed"]["counters"]
