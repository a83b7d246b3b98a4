"""A seeded database, and a guarded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.database import seed
from tests.guard.guarded import Guarded, guard, guarded


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded database."""
    path = tmp_path_factory.mktemp("guard") / "demo.sqlite3"
    seed(path)
    return path


@pytest.fixture(scope="module")
def served(database: Path) -> Iterator[Guarded]:
    """A server that denies guesses."""
    with guarded(database, guard()) as server:
        yield server


@pytest.fixture
def server(served: Guarded) -> Guarded:
    """The same, with nothing known of anybody."""
    served.forget()
    return served
