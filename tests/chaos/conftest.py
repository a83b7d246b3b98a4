"""The table of faults that a chaos run prints at its end."""

import os
from collections.abc import Iterator

import pytest

from tests.chaos.fleet import Books

IS_LONG = os.environ.get("CHAOS") == "long"


@pytest.fixture
def repetitions() -> int:
    """Return how often a fault is repeated: once in the short version, many times with CHAOS=long."""
    return 100 if IS_LONG else 1


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Iterator[list[Books]]:
    """Collects the books of a test's runs, for the table and for the assertion that nothing was lost or doubled."""
    runs: list[Books] = []
    yield runs
    total = Books()
    for books in runs:
        total.add(books)
    row = (len(runs), total.requests, total.lost, total.doubled, total.slowest_ms)
    request.node.user_properties.append(("books", row))  # travel with the report, from another process, too


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    reports = [report for group in terminalreporter.stats.values() for report in group if hasattr(report, "when")]
    ledger = {
        report.nodeid.partition("::")[2].removeprefix("test_"): row
        for report in reports
        for name, row in report.user_properties
        if name == "books" and report.when == "teardown"
    }
    if not ledger:
        return
    terminalreporter.section("chaos")
    terminalreporter.write_line(
        f"{'fault':<58}{'runs':>6}{'requests':>10}{'lost':>6}{'doubled':>9}{'slowest check':>15}"
    )
    for name, (runs, requests, lost, doubled, slowest_ms) in sorted(ledger.items()):
        terminalreporter.write_line(f"{name:<58}{runs:>6}{requests:>10}{lost:>6}{doubled:>9}{slowest_ms:>12.1f} ms")
