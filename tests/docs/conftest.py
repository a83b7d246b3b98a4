"""What the pages speak of: the reader's own module, in an empty directory."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.oauth_server.app import create_app


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def myserver(database: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The module with an application and its Authlib server."""
    app = create_app(database)
    module = types.ModuleType("myserver")
    module.__dict__.update(app=app, server=app.extensions["authorization_server"])
    monkeypatch.setitem(sys.modules, "myserver", module)
    yield module
    extension = app.extensions.get("oauth_ratelimit")
    if extension is not None:
        extension.close()
