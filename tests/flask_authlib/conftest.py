"""A seeded database, plain HTTP, and a guarded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.database import seed
from tests.support.guarded import Guarded, guard, guarded


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded database. Codes and tokens are random, so tests can share it."""
    path = tmp_path_factory.mktemp("authserver") / "demo.sqlite3"
    seed(path)
    return path


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside; older Authlib and oauthlib accept http://."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    monkeypatch.delenv("OAUTH_RATELIMIT_MODE", raising=False)


@pytest.fixture(scope="module")
def served(database: Path) -> Iterator[Guarded]:
    """A server that denies guesses."""
    with guarded(database, guard()) as server:
        yield server


@pytest.fixture
def server(served: Guarded) -> Guarded:
    """The guarded server without any failure."""
    served.forget()
    return served
