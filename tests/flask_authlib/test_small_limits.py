"""Small limits on real workers: one request after another, each to a random worker."""

import statistics

from testbed.sequence import running_sequence


def test_workers_together_admit_a_small_limit_and_little_more(mongo_uri: str) -> None:
    """
    Never fewer than the limit, and only what comes within some milliseconds more. Workers that do not share their
    counts admit the limit each. The bound leaves room for a busy machine; ``python -m benchmarks.sequence`` prints the
    counts.
    """
    with running_sequence(mongo_uri, 3) as sequence:
        counts = [sequence.admitted(10, number) for number in range(12)]
    assert min(counts) >= 10
    assert statistics.median(counts) <= 8 * 3
