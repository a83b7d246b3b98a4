"""A short run of each target of ``python -m tests.fuzz``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds

SEEDS = seeds()
each_target = pytest.mark.parametrize("name", [name for name in TARGETS if name != "guesses"])  # see test_guesses


def mutated(seed: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy that changes a few bytes of a valid input."""
    positions = st.integers(0, len(seed))
    changes = st.lists(st.tuples(positions, st.integers(0, 4), st.binary(max_size=6)), max_size=4)

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = seed
        for position, removed, put in changes:
            data = data[:position] + put + data[position + removed :]
        return data

    return changes.map(apply)


@each_target
def test_target_accepts_its_seeds(name: str) -> None:
    """A target raises where it finds a defect."""
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@each_target
@given(data=st.data())
def test_target_raises_nothing_unexpected(name: str, data: st.DataObject) -> None:
    """Inputs are any bytes, and valid ones with a few bytes changed."""
    TARGETS[name](data.draw(st.binary(max_size=60) | st.one_of(*map(mutated, SEEDS[name]))))
