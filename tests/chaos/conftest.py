"""
The table of faults that a chaos run prints at its end.
"""

import os
from collections.abc import Iterator

import pytest

from tests.chaos.fleet import Books

_ledger: dict[str, tuple[int, Books]] = {}

IS_LONG = os.environ.get("CHAOS") == "long"


@pytest.fixture
def repetitions() -> int:
    """
    How often a fault is repeated: once in the short version, many times with CHAOS=long.
    """
    return 100 if IS_LONG else 1


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Iterator[list[Books]]:
    """
    Collects the books of a test's runs, for the table and for the assertion that nothing was lost or doubled.
    """
    runs: list[Books] = []
    yield runs
    total = Books()
    for books in runs:
        total.add(books)
    _ledger[request.node.name.removeprefix("test_")] = (len(runs), total)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """
    Print the table.
    """
    if not _ledger:
        return
    terminalreporter.section("chaos")
    terminalreporter.write_line(
        f"{'fault':<58}{'runs':>6}{'requests':>10}{'lost':>6}{'doubled':>9}{'slowest check':>15}"
    )
    for name, (runs, books) in _ledger.items():
        terminalreporter.write_line(
            f"{name:<58}{runs:>6}{books.requests:>10}{books.lost:>6}{books.doubled:>9}{books.slowest_ms:>12.1f} ms"
        )
