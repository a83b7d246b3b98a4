"""The benchmarks, their results that are kept, and the pages on accuracy and performance that show them."""

import importlib
from pathlib import Path

import pytest

from benchmarks import accuracy_page, performance_page
from benchmarks.__main__ import TOPICS
from benchmarks.instructions import compare
from benchmarks.results import load


@pytest.mark.parametrize("topic", TOPICS)
def test_topic_fits_the_package(topic: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{topic}").run)


def test_tables_of_accuracy_are_up_to_date() -> None:
    text = accuracy_page.PATH.read_text(encoding="utf-8")
    assert text == accuracy_page.with_tables(text, accuracy_page.Kept(load()))


def test_table_of_performance_is_up_to_date() -> None:
    text = performance_page.PATH.read_text(encoding="utf-8")
    assert text == performance_page.with_table(text, load())


@pytest.mark.parametrize(("factor", "status"), [(0.5, 0), (1.09, 0), (1.11, 1)], ids=["faster", "9 %", "11 %"])
def test_more_than_a_tenth_more_instructions_than_the_baseline_fail(tmp_path: Path, factor: float, status: int) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("{}")
    assert 0 == compare({"ours": 2.0, "ours, two tiers": 3.0}, keep=True, path=path)
    assert status == compare({"ours": 2.0, "ours, two tiers": 3.0 * factor}, keep=False, path=path)
    assert 1 == compare({"new": 1.0}, keep=False, path=path)
