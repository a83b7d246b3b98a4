"""Both halves of the migration page, on the same server."""

import sys
import types
from pathlib import Path

import pytest
import requests
from flask import Flask

from demo.database import BATCH_JOBS, seed
from demo.server import create_app
from tests.docs.blocks import ROOT, the_block
from tests.support.flows import TIMEOUT_S, post
from tests.support.serving import serving

PAGE = ROOT / "docs" / "migrating-from-flask-limiter.md"
FORM = {"grant_type": "client_credentials"}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flask:
    """The reader's application, importable as on the page."""
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "demo.sqlite3"
    seed(database)
    app = create_app(database)
    server = app.extensions["authorization_server"]
    monkeypatch.setitem(sys.modules, "myserver", types.SimpleNamespace(app=app, server=server))
    return app


def statuses(url: str, count: int) -> list[int]:
    """Return the answers to requests of a client that is who it says it is."""
    return [post(f"{url}/token", BATCH_JOBS, FORM).status_code for _ in range(count)]


def pretend(url: str) -> int:
    """Send the client's name with a wrong secret."""
    auth = (BATCH_JOBS.client_id, "wrong")
    return requests.post(f"{url}/token", data=FORM, auth=auth, timeout=TIMEOUT_S).status_code


def test_flask_limiter_denies_the_eleventh_token(app: Flask) -> None:
    """Flask-Limiter denies the eleventh token, and a stranger uses up none."""
    exec(compile(the_block(PAGE, "python", "# before.py"), "before.py", "exec"), {})
    with serving(app) as url:
        assert {401} == {pretend(url) for _ in range(10)}
        assert [200] * 10 == statuses(url, 10)
        answer = post(f"{url}/token", BATCH_JOBS, FORM)
    assert 429 == answer.status_code
    assert "temporarily_unavailable" == answer.json()["error"]


def test_extension_denies_the_eleventh_token(app: Flask, tmp_path: Path) -> None:
    (tmp_path / "ratelimit.yaml").write_text(the_block(PAGE, "yaml", "# ratelimit.yaml"))
    exec(compile(the_block(PAGE, "python", "# after.py"), "after.py", "exec"), {})
    with serving(app) as url:
        assert {401} == {pretend(url) for _ in range(10)}
        assert [200] * 10 + [429] == statuses(url, 11)
        denied = post(f"{url}/token", BATCH_JOBS, FORM)
    app.extensions["oauth_ratelimit"].close()
    assert "temporarily_unavailable" == denied.json()["error"]
    assert int(denied.headers["Retry-After"]) >= 1
