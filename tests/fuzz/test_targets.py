"""What ``python -m tests.fuzz`` fuzzes for as long as one likes, for a moment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds

SEEDS = seeds()
each_target = pytest.mark.parametrize("name", TARGETS)


def mutated(seed: bytes) -> st.SearchStrategy[bytes]:
    """Return strategies that change a few bytes of something that is in order."""
    positions = st.integers(0, len(seed))
    changes = st.lists(st.tuples(positions, st.integers(0, 4), st.binary(max_size=6)), max_size=4)

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        data = seed
        for position, removed, put in changes:
            data = data[:position] + put + data[position + removed :]
        return data

    return changes.map(apply)


@each_target
def test_what_is_in_order(name: str) -> None:
    """What mutations start from is taken."""
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@each_target
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    """Any bytes, and what is in order but for a few of them, raise nothing unexpected."""
    TARGETS[name](data.draw(st.binary(max_size=60) | st.one_of(*map(mutated, SEEDS[name]))))
