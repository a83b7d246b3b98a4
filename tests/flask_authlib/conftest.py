"""Plain HTTP, and a guarded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guarded import Guarded, guard, guarded


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside; older Authlib and oauthlib accept http://."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    monkeypatch.delenv("OAUTH_RATELIMIT_MODE", raising=False)


@pytest.fixture(scope="module")
def served(database: Path) -> Iterator[Guarded]:
    with guarded(database, guard()) as server:
        yield server


@pytest.fixture
def server(served: Guarded) -> Guarded:
    served.forget()
    return served
