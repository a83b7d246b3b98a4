"""Tables of ``docs/performance-results.md``, and pictures of it and of ``docs/performance.md``.

``python -m benchmarks.performance_page`` writes them from results.json. A table stands between
``<!-- results: flush -->``, which names a prefix of its results, and ``<!-- end -->``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import Bars, Lines, Picture, number
from benchmarks.results import load

DOCS = Path(__file__).parents[1] / "docs"
PATH = DOCS / "performance.md"
RESULTS_PATH = DOCS / "performance-results.md"
IMAGES = DOCS / "images"
PHONE_WIDTH = 5.2  # inches; letters stay legible where a phone shrinks the picture to its width

LIBRARIES = ("limits sliding", "limits moving", "throttled-py", "pyrate-limiter")
KEY_COUNTS = ("1,000", "10,000", "100,000")
CONFLICTS = {"none": "", "1 %": ", 1 % conflicts", "10 %": ", 10 % conflicts", "50 %": ", 50 % conflicts"}
QUANTILES = ("p50", "p99", "p99.9", "longest")

_TABLE = re.compile(r"<!-- results: (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def main() -> None:
    """Write the tables and the pictures."""
    entries = load()
    RESULTS_PATH.write_text(with_tables(RESULTS_PATH.read_text(), entries))
    kept = {str(entry["name"]): entry for entry in entries}
    for name, picture in PICTURES.items():
        picture.draw(path_of(name), kept)


def path_of(name: str) -> Path:
    """Return the file of a picture."""
    return IMAGES / f"performance-{name}.svg"


def with_tables(page: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with new tables."""

    def table_of(found: re.Match[str]) -> str:
        chosen = [entry for entry in entries if entry["name"].startswith(found[1] + "/")]
        return f"<!-- results: {found[1]} -->\n{_markdown(chosen, len(found[1]) + 1)}<!-- end -->"

    return _TABLE.sub(table_of, page)


def _markdown(entries: Iterable[Mapping[str, Any]], prefix_length: int) -> str:
    met = {True: "met", False: "**missed**", None: ""}
    rows = [
        f"| {entry['name'][prefix_length:]} | {number(entry['value'])} {entry['unit']} | {_spread(entry['spread'])} "
        f"| {entry['goal'] or ''} | {met[entry['met']]} |\n"
        for entry in entries
    ]
    return "".join(["| what | value | ± | goal | |\n| --- | ---: | ---: | --- | --- |\n", *rows])


def _spread(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _decision(title: str, group: str, ours: Mapping[str, str], others: Iterable[str]) -> Bars:
    rows = {label: f"decision/{name}" for label, name in ours.items()}
    rows |= {name: f"decision/{group}/{name}" for name in others}
    return Bars(title, "ns per decision, log scale; lower is better", rows, is_log=True)


def _endpoint(grant: str) -> Bars:
    prefix = f"endpoint/WSGI, {grant}/added by "
    rows = {"ours": f"{prefix}ours"}
    rows |= {name: f"{prefix}{name}" for name in ("Flask-Limiter moving", "Flask-Limiter sliding")}
    return Bars(f"Added to a request: {grant}", "us of CPU; lower is better", rows)


def _load(secrets: str, suffix: str) -> Bars:
    names = ("unprotected", "ours")
    rows = {
        f"{name}, {percentile}": f"soak{suffix}/{name}, {percentile}" for percentile in ("p50", "p99") for name in names
    }
    return Bars(f"At saturation, {secrets} secrets", "ms of latency; lower is better", rows)


def _flush(title: str, servers: str = "") -> Lines:
    groups = [f"flush/{servers}{count} keys" for count in KEY_COUNTS]
    ways = ("sync()", "one bulk_write", "bulk_writes of 500")
    lines = {way: [f"{group}/{way}" for group in groups] for way in ways}
    return Lines(title, "us per key; lower is better", "keys", KEY_COUNTS, lines)


PICTURES: Mapping[str, Picture] = {
    "decision": Picture(
        [
            _decision(
                "One key",
                "one key",
                {"ours": "one key/ours", "ours, denied": "one key/ours, denied"},
                ("limits fixed", "limits sliding, denied", *LIBRARIES),
            ),
            _decision(
                "100,000 keys in random order",
                "100,000 keys",
                {
                    "ours": "100,000 keys/ours",
                    "ours, after a cycle": "100,000 keys/ours, first since the last cycle",
                    "ours, in a new frame": "100,000 keys/ours, first in a frame",
                },
                LIBRARIES,
            ),
            _decision("One key, 4 threads", "4 threads", {"ours": "4 threads/ours"}, LIBRARIES),
            _decision(
                "Shared store: ours decides in memory",
                "shared store",
                {"ours, on one key": "one key/ours"},
                ("limits on Redis", "limits on MongoDB"),
            ),
        ],
        columns=1,
        size=(PHONE_WIDTH, 10),
    ),
    "load": Picture([_load("hashed", ""), _load("plain", ", plain secrets")], columns=1, size=(PHONE_WIDTH, 3.6)),
    "endpoint": Picture([_endpoint("client_credentials"), _endpoint("password")], columns=1, size=(PHONE_WIDTH, 4)),
    "flush": Picture(
        [_flush("One server"), _flush("Replica set", "replica set, ")], columns=1, size=(PHONE_WIDTH, 6.4)
    ),
    "conflicts": Picture(
        [
            Lines(
                "A cycle with conflicts",
                "times one bulk_write; lower is better",
                "keys that another instance has written meanwhile",
                list(CONFLICTS),
                {
                    group: [f"flush/{group}{share}/against one bulk_write" for share in CONFLICTS.values()]
                    for group in ("1,000 keys", "10,000 keys", "replica set, 10,000 keys")
                },
            )
        ],
        columns=1,
        size=(PHONE_WIDTH, 3.6),
    ),
    "stall": Picture(
        [
            Lines(
                "Requests while another thread flushes 100,000 keys",
                "ms, log scale; lower is better",
                "latency of requests",
                QUANTILES,
                {
                    way: [f"flush/stall, {way}/{quantile}" for quantile in QUANTILES]
                    for way in ("batches of 500", "bare bulk_write of 500")
                },
                is_log=True,
            )
        ],
        columns=1,
        size=(PHONE_WIDTH, 3.6),
    ),
}
"""The pictures by the last part of their files' names."""

if __name__ == "__main__":
    main()
