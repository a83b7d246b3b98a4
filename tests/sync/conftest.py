"""Stores, and what is logged."""

import pytest

from testbed.clock import Clock
from testbed.memory_store import MemoryStore
from tests.support.faulty_store import FaultyStore
from tests.support.stores import shared, store

__all__ = ["shared", "store"]


@pytest.fixture
def faulty(clock: Clock) -> FaultyStore:
    """A store that fails as ordered. It goes by the same clock as the instances."""
    return FaultyStore(MemoryStore(clock), clock)
