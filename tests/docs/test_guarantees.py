"""The page about guarantees: each promise has its parts, and each test that it names exists."""

import re

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PROMISES = re.findall(r"^### \d\. .+?(?=^##)", PAGE, re.M | re.S)


def test_each_promise_has_a_mechanism_a_test_and_a_limit() -> None:
    """A promise without a test is a wish."""
    assert 8 == len(PROMISES)
    for promise in PROMISES:
        assert ["Mechanism", "Test", "Limit"] == re.findall(r"^- \*\*(\w+)\.\*\*", promise, re.M), promise
        assert "`tests/" in promise, promise


def test_tests_on_the_page_exist() -> None:
    """Files and folders, and functions by name."""
    paths = re.findall(r"`(tests/[\w./]+)`", PAGE)
    assert len(paths) > 20
    assert [] == [path for path in paths if not (ROOT / path).exists()]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"`(test_\w+)`", PAGE)
    assert [] == [name for name in names if f"def {name}(" not in tests]
