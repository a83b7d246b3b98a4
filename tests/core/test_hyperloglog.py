"""Estimate of the number of distinct names."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.statistics import REGISTER_COUNT, estimate_distinct, merge_into, register_of


def registers(names: list[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for name in names:
        merge_into(found, dict([register_of(name)]))
    return found


@pytest.mark.parametrize("count", (1, 10, 100, 700, 5_000, 20_000))
def test_estimate_has_the_standard_error_of_the_algorithm(count: int) -> None:
    errors = []
    for salt in range(5):
        estimate = estimate_distinct(registers([f"user {salt} {number}" for number in range(count)]))
        errors.append(estimate / count - 1)

    assert max(map(abs, errors)) < 3.5 * 0.065
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.1


@given(st.lists(st.text(), max_size=30), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_change_the_registers(names: list[str], rng: random.Random) -> None:
    """Nor does the number of processes that share the names."""
    shuffled = [*names, *names]
    rng.shuffle(shuffled)
    cut = rng.randrange(len(shuffled) + 1)

    union = registers(shuffled[cut:])
    merge_into(union, registers(shuffled[:cut]))
    assert registers(names) == union
    assert all(0 <= register < REGISTER_COUNT for register in registers(names))


def test_register_of_a_name_never_changes() -> None:
    assert {"alice": (77, 1), "bob": (116, 1)} == {name: register_of(name) for name in ("alice", "bob")}
