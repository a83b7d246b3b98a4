"""How far ``what-if`` is off: recorded traffic, minute by minute, against the limits themselves on the same requests.

``python -m benchmarks.what_if [TRACE]`` prints the table of docs/statistics.md. A trace is CSV packed by gzip, without
heading: seconds since the epoch, and the number of a client; without one it is the trace that comes with the demo.
"""

import csv
import gzip
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from benchmarks.subjects import limiter, suppression
from demo import trace
from oauth_ratelimit.core.what_if import Subject, effects

LIMITS = {1: (5, 10, 25), 5: (10, 25, 50), 10: (20, 50, 100), 60: (50, 100, 300)}  # by window in minutes

Rows = Sequence[tuple[float, str]]


def table(rows: Rows) -> Iterator[str]:
    """Yield the lines of the table."""
    load: defaultdict[Subject, Counter[int]] = defaultdict(Counter)
    for at_s, client_id in rows:
        load[Subject(client_id, None)][int(at_s // 60) * 60] += 1
    yield "| limit | denied | what-if | bounds | errors | clients denied | found | wrongly named | within the bounds |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for window_minutes, limits in LIMITS.items():
        for limit in limits:
            denied = _replay(rows, limit=limit, window_minutes=window_minutes)
            told = effects(load, limit=limit, window_minutes=window_minutes)
            named = {effect.subject for effect in told if effect.denied}
            within = sum(effect.at_least <= denied[effect.subject] <= effect.at_most for effect in told)
            shares = [
                sum(counts) / len(rows)
                for counts in (
                    denied.values(),
                    (effect.denied for effect in told),
                    (effect.at_least for effect in told),
                    (effect.at_most for effect in told),
                    (abs(effect.denied - denied[effect.subject]) for effect in told),
                )
            ]
            yield (
                f"| {limit} in {window_minutes} min | {shares[0]:.2%} | {shares[1]:.2%} | {shares[2]:.2%} to "
                f"{shares[3]:.2%} | {shares[4]:.2%} | {len(denied)} | {len(named & denied.keys())} | "
                f"{len(named - denied.keys())} | {within / len(told):.1%} |"
            )


def _replay(rows: Rows, *, limit: int, window_minutes: int) -> Counter[Subject]:
    """Return whom the limit itself denies, and how often."""
    now_s = [0.0]
    limits = {"client": [{"limit": limit, "window": 60 * window_minutes}]}
    tested = limiter({"mode": "enforce", "limits": limits}, clock=lambda: now_s[0])
    denied: Counter[Subject] = Counter()
    for at_s, client_id in rows:
        now_s[0] = at_s
        if not tested.check(client_id).allowed:
            denied[Subject(client_id, None)] += 1
    return denied


def _read(path: Path) -> Iterator[tuple[float, str]]:
    """Yield time and client of each request; those of a second are spread over it."""
    with gzip.open(path, "rt", encoding="ascii", newline="") as text:
        for second, group in groupby(csv.reader(text), key=itemgetter(0)):
            clients = [client_id for _, client_id in group]
            for position, client_id in enumerate(clients):
                yield int(second) + (position + 0.5) / len(clients), client_id


def _main(arguments: Sequence[str]) -> None:
    suppression()
    recorded = _read(Path(arguments[0])) if arguments else ((hit.at_s, str(hit.host)) for hit in trace.hits())
    for line in table(list(recorded)):
        print(line)


if __name__ == "__main__":
    _main(sys.argv[1:])
