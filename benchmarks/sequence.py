"""Small limits on real workers: one client asks again and again, 2 ms apart, each time at a random worker.

``python -m benchmarks.sequence`` prints how many requests gunicorn's workers admit: those of one host, without MongoDB
and with it on the same machine, and workers that share nothing but MongoDB, as several hosts do. The workers have
connected before, and no key is known to them.
"""

import statistics
from typing import NamedTuple

from testbed.mongod import running_mongodb
from testbed.sequence import KEY_COUNT, LIMITS, running_sequence


class Way(NamedTuple):
    """How workers share a limit; ``host`` as in the configuration."""

    name: str
    host: str
    has_mongodb: bool
    worker_counts: tuple[int, ...]


WAYS = (
    Way("one host, no MongoDB", "auto", False, (2, 4, 8)),
    Way("one host, MongoDB", "auto", True, (2, 4, 8)),
    Way("several hosts, MongoDB", "off", True, (2, 3)),
)


def main() -> None:
    """Print the table."""
    print("| | workers | limit | admitted: least | median | most |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with running_mongodb() as mongo_uri:
        for way in WAYS:
            for worker_count in way.worker_counts:
                database = f"/oauth_{way.host}_{worker_count}?"
                uri = mongo_uri.replace("/?", database) if way.has_mongodb else None
                with running_sequence(uri, worker_count, host=way.host) as sequence:
                    for limit in LIMITS:
                        counts = [sequence.admitted(limit, number) for number in range(KEY_COUNT)]
                        low, middle, most = min(counts), statistics.median(counts), max(counts)
                        print(f"| {way.name} | {worker_count} | {limit} | {low} | {middle:g} | {most} |", flush=True)


if __name__ == "__main__":
    main()
