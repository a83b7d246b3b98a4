"""Small limits on real workers: one request after another, each to a random worker."""

import statistics

import pytest

from tests.support.sequence import running_sequence


@pytest.mark.parametrize("worker_count", [2, 3])
def test_workers_together_admit_a_small_limit_and_little_more(mongo_uri: str, worker_count: int) -> None:
    """
    Never fewer than the limit, and only what comes within some milliseconds more. Workers that do not share their
    counts admit the limit each. The bound leaves room for a busy machine; ``python -m benchmarks.sequence`` prints the
    counts.
    """
    with running_sequence(mongo_uri, worker_count) as sequence:
        counts = [sequence.admitted(10, number) for number in range(12)]
    assert min(counts) >= 10
    assert statistics.median(counts) <= 8 * worker_count
