"""Small limits on real workers: one request after another, each to a random worker."""

import statistics

import pytest

from testbed.sequence import running_sequence

pytestmark = pytest.mark.slow


def test_workers_together_admit_a_small_limit_and_little_more(mongo_uri: str) -> None:
    """
    Never fewer than the limit, and only what comes within some milliseconds more. Workers that do not share their
    counts admit the limit each. The bound leaves room for a busy machine; ``python -m benchmarks.sequence`` prints the
    counts.
    """
    with running_sequence(mongo_uri, 3) as sequence:
        counts = [sequence.admitted(10, number) for number in range(9)]
    assert min(counts) >= 10
    assert statistics.median(counts) <= 8 * 3


@pytest.mark.parametrize("is_shared", [False, True], ids=["without a database", "with MongoDB"])
def test_workers_of_a_host_admit_exactly_a_small_limit(is_shared: bool, mongo_uri: str) -> None:
    with running_sequence(mongo_uri if is_shared else None, 4, host="auto") as sequence:
        found = {limit: [sequence.admitted(limit, number) for number in range(3)] for limit in (3, 10)}
    assert {3: [3] * 3, 10: [10] * 3} == found
