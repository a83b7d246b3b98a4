"""The long form of the fault tests."""

import os

import pytest

IS_LONG = os.environ.get("CHAOS") == "long"


@pytest.fixture
def repetitions() -> int:
    """Return how often a fault is repeated: once in the short version, many times with CHAOS=long."""
    return 100 if IS_LONG else 1
