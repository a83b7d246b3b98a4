"""Small limits on real workers: one client asks again and again, 2 ms apart, each time at a random worker.

``python -m benchmarks.sequence`` prints how many requests gunicorn's workers admit, with MongoDB on the same machine.
The workers have connected before, and no key is known to them.
"""

import statistics
from collections.abc import Iterator

from tests.support.mongod import running_mongodb
from tests.support.sequence import KEY_COUNT, LIMITS, running_sequence

WORKERS = (2, 3)


def rows(mongo_uri: str) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| near_limit | workers | limit | admitted: least | median | most |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for near_limit in ("flush", "reserve"):
        for worker_count in WORKERS:
            database = f"oauth_{near_limit}_{worker_count}"
            uri = mongo_uri.replace("/?", f"/{database}?")
            with running_sequence(uri, worker_count, near_limit=near_limit) as sequence:
                for limit in LIMITS:
                    counts = [sequence.admitted(limit, number) for number in range(KEY_COUNT)]
                    low, middle, most = min(counts), statistics.median(counts), max(counts)
                    yield f"| {near_limit} | {worker_count} | {limit} | {low} | {middle:g} | {most} |"


def main() -> None:
    """Print the table."""
    with running_mongodb() as mongo_uri:
        for line in rows(mongo_uri):
            print(line, flush=True)


if __name__ == "__main__":
    main()
