"""The table of ``docs/performance.md``, between ``<!-- results -->`` and ``<!-- end -->``, from results.json.

``python -m benchmarks.performance_page`` writes it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import load

PATH = Path(__file__).parents[1] / "docs" / "performance.md"

_TABLE = re.compile(r"(<!-- results -->\n).*?(<!-- end -->)", re.DOTALL)
_DEPLOYED = "endpoint/as deployed, password, 2,000 users, 200 requests/s/added by "
# The rows: what is measured, and its name in results.json.
ROWS = {
    "CPU time added to a token request, plain secrets, shared": f"{_DEPLOYED}ours shared through MongoDB",
    "the same in memory": f"{_DEPLOYED}ours",
    "the same, Flask-Limiter in memory": f"{_DEPLOYED}Flask-Limiter in memory",
    "the same, Flask-Limiter on Redis": f"{_DEPLOYED}Flask-Limiter on Redis",
    "the same, Flask-Limiter on MongoDB": f"{_DEPLOYED}Flask-Limiter on MongoDB",
    "p99 at saturation, plain secrets, in times of unprotected": "soak, plain secrets/p99, ours of unprotected",
    "a flushed key, in times of one `bulk_write` of 10,000": "flush/10,000 keys/against one bulk_write",
    "p99.9 of requests during such a flush": "flush/stall, batches of 250/p99.9",
    "start of a worker, pymongo included": "start/worker, more",
    "a decision in memory": "decision/one key/ours",
    "the same, denied": "decision/one key/ours, denied",
    "the same, `limits`, sliding window in memory": "decision/one key/limits sliding",
    "`limits` in memory, in times of ours": "decision/one key/faster than limits sliding",
    "the same, 100,000 keys": "decision/100,000 keys/ours: faster than limits sliding",
    "the same, four threads": "decision/4 threads/faster than limits sliding",
    "`limits` on Redis, in times of ours": "decision/shared store/faster than limits on Redis",
    "`limits` on MongoDB, in times of ours": "decision/shared store/faster than limits on MongoDB",
    "limits of user and whole client, more than one limit": "decision/one key/client_total, more",
}


def main() -> None:
    """Write the table into the page."""
    PATH.write_text(with_table(PATH.read_text(), load()))


def with_table(page: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with a new table."""
    found = {entry["name"]: entry for entry in entries}
    met = {True: "met", False: "**missed**", None: ""}
    table = "| number | value | goal | | measured by |\n| --- | ---: | --- | --- | --- |\n"
    former = ""
    for words, name in ROWS.items():
        entry = found[name]
        command, former = "" if entry["command"] == former else f"`{entry['command']}`", entry["command"]
        value = f"{_number(entry['value'])} {entry['unit'].removesuffix(' of CPU per request')}"
        table += f"| {words} | {value} | {entry['goal'] or ''} | {met[entry['met']]} | {command} |\n"
    return _TABLE.sub(lambda match: match[1] + table + match[2], page)


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
