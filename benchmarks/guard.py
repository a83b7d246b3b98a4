"""Whether anything has become slower: instruction counts against the committed ones.

Not instructions as such, which differ from one build of Python to the next, but how many bare decisions
(``benchmarks.cases.bare``) each case is worth in the same run.
"""

import json
import platform
import statistics
from collections.abc import Mapping
from pathlib import Path

from benchmarks import instructions
from benchmarks.subjects import BASE, OURS

PATH = Path(__file__).with_name("baseline.json")
TOLERATED_RATIO = 1.10
UNIT = "bare"
GUARDED = (
    "ours",
    "ours, many keys",
    "ours, denied",
    "ours, two tiers",
    "ours, client_total",
    "ours, override",
    "ours, trusted",
    "ours, proportional",
    "ours, noted",
    "ours, cycles",
    "ours, cycles of a frame",
    "ours, shared cycles",
)
LAYOUT_COUNT = 6  # over which requests are averaged, see ``instructions.lay_out``
REQUESTS = f"{instructions.REQUEST}{BASE}", f"{instructions.REQUEST}{OURS}"  # of which the difference is guarded


def guard(*, keep: bool) -> int:
    """
    Count, show the table, and return the exit code: 1 if a case has become more than a tenth slower, or is new and has
    no baseline yet; a version of Python without any passes.

    Args:
        keep: Make the counts the new baseline of this version of Python.
    """
    if not instructions.is_available():
        print("valgrind is not installed, which counts the instructions (Debian, Ubuntu: apt-get install valgrind)")
        return 2
    version = ".".join(platform.python_version_tuple()[:2])
    baselines = _read()
    costs = _costs()
    baseline = baselines.get(version, {})
    slower = [name for name in costs if costs[name] > baseline.get(name, costs[name]) * TOLERATED_RATIO]
    unknown = [name for name in costs if name not in baseline]
    print(_table(costs, baseline))
    if keep:
        text = json.dumps({**baselines, version: {name: round(cost, 3) for name, cost in costs.items()}}, indent=2)
        PATH.write_text(text + "\n")
        print(f"kept as the baseline of Python {version}")
        return 0
    if unknown:
        whose = f"of Python {version}" if not baseline else f"of Python {version} for {'; '.join(unknown)}"
        print(f"no baseline {whose} yet: python -m benchmarks --guard --keep makes one")
    if slower:
        print(f"more than {TOLERATED_RATIO - 1:.0%} slower: {'; '.join(slower)}")
    return 1 if slower or (baseline and unknown) else 0


def _costs() -> dict[str, float]:
    layout_counts = {**dict.fromkeys((UNIT, *GUARDED), 1), **dict.fromkeys(REQUESTS, LAYOUT_COUNT)}
    counts = {name: statistics.mean(each) for name, each in instructions.count_by_layout(layout_counts).items()}
    unprotected, ours = (counts.pop(name) * instructions.OPERATIONS_PER_REQUEST for name in REQUESTS)
    counts["added to a request"] = ours - unprotected
    unit = counts.pop(UNIT)
    return {name: count / unit for name, count in counts.items()}


def _read() -> dict[str, dict[str, float]]:
    return dict(json.loads(PATH.read_text())) if PATH.exists() else {}


def _table(costs: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    width = max(map(len, costs))
    lines = [f"{'in bare decisions':<{width}}  baseline      now  change"]
    for name, cost in costs.items():
        known = baseline.get(name)
        change = "" if known is None else f"{cost / known - 1:+.1%}"
        lines.append(f"{name:<{width}}  {'' if known is None else f'{known:.2f}':>8} {cost:>8.2f} {change:>7}")
    return "\n".join(lines)
