"""Stores, and what is logged."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.store.memory import MemoryStore
from testbed.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.stores import shared, store

__all__ = ["shared", "store"]


@pytest.fixture
def faulty(clock: Clock) -> FaultyStore:
    """A store that fails as ordered. It goes by the same clock as the instances."""
    return FaultyStore(MemoryStore(clock), clock)


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """Logged events."""
    with capture_logs() as captured:
        yield captured
