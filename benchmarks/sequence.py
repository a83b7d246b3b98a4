"""Small limits on real workers: one client asks again and again, 2 ms apart, each time at a random worker.

``python -m benchmarks.sequence`` prints how many requests gunicorn's workers admit, with MongoDB on the same machine.
The workers have connected before, and no key is known to them.
"""

import statistics

from testbed.mongod import running_mongodb
from testbed.sequence import KEY_COUNT, LIMITS, running_sequence

WORKERS = (2, 3)


def main() -> None:
    """Print the table."""
    print("| workers | limit | admitted: least | median | most |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    with running_mongodb() as mongo_uri:
        for worker_count in WORKERS:
            uri = mongo_uri.replace("/?", f"/oauth_{worker_count}?")
            with running_sequence(uri, worker_count) as sequence:
                for limit in LIMITS:
                    counts = [sequence.admitted(limit, number) for number in range(KEY_COUNT)]
                    low, middle, most = min(counts), statistics.median(counts), max(counts)
                    print(f"| {worker_count} | {limit} | {low} | {middle:g} | {most} |", flush=True)


if __name__ == "__main__":
    main()
