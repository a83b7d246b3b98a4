"""docs/performance.md and its appendix: tables and picture show the results that are kept."""

import re

from benchmarks.performance_page import BARS, PANELS, PATH, PICTURE_PATH, RESULTS_PATH, number, with_tables
from benchmarks.results import load

PAGE = PATH.read_text(encoding="utf-8")
TEXT = RESULTS_PATH.read_text(encoding="utf-8")
KEPT = {str(entry["name"]): entry for entry in load()}


def test_tables_are_up_to_date() -> None:
    assert TEXT == with_tables(TEXT, load())


def test_every_table_has_results_and_ends_before_the_next_begins() -> None:
    marks = re.findall(r"<!-- (results: .+|end) -->", TEXT)
    assert ["end"] * len(marks[1::2]) == marks[1::2]
    prefixes = [mark.removeprefix("results: ") for mark in marks[::2]]
    assert len(prefixes) == len(marks[1::2]) and "end" not in prefixes
    assert [] == [prefix for prefix in prefixes if not any(name.startswith(f"{prefix}/") for name in KEPT)]


def test_new_results_replace_a_table_and_nothing_around_it() -> None:
    page = "Before.\n<!-- results: flush -->\n| old |\n<!-- end -->\nAfter.\n"
    entry = {"name": "flush/each", "value": 1234.5, "unit": "us", "spread": 0.25, "goal": "<= 1000", "met": False}
    made = with_tables(page, [entry, {**entry, "name": "flush on/each"}])
    assert made.startswith("Before.\n<!-- results: flush -->\n| what |")
    assert made.endswith("| each | 1,234 us | 0.25 | <= 1000 | **missed** |\n<!-- end -->\nAfter.\n")


def test_page_is_short_and_its_numbers_are_those_of_the_results() -> None:
    assert len(PAGE.split()) <= 2_500
    shown = {
        "soak/p99, ours of unprotected": "{} times",
        "soak, plain secrets/p99, ours of unprotected": "{} times",
        "soak/unprotected, requests": "of {}",
        "soak/ours, requests": "{} of",
        "soak, plain secrets/unprotected, requests": "of {}",
        "soak, plain secrets/ours, requests": "{} of",
        "memory/1,000,000 keys/each, ids included": "{} bytes",
        "start/worker, more": "**{} ms** of CPU",
        "flush/10,000 keys/sync()": "one server **{} us",
        "flush/replica set, 10,000 keys/sync()": "replica set **{} us",
    }
    assert [] == [name for name, form in shown.items() if form.format(number(KEPT[name]["value"])) not in PAGE]


def test_no_goal_is_met_by_leaving_out_mongodb_or_metrics() -> None:
    alone = [entry for name, entry in KEPT.items() if name.startswith(("endpoint/WSGI", "decision/shared store"))]
    assert alone and not any(entry["goal"] for entry in alone)


def test_picture_shows_the_numbers_of_the_results_and_is_small() -> None:
    assert f"(images/{PICTURE_PATH.name})" in PAGE
    assert PICTURE_PATH.stat().st_size < 150_000
    texts = set(re.findall(r"<text [^>]+>([^<]+)</text>", PICTURE_PATH.read_text(encoding="utf-8")))
    assert texts >= {number(KEPT[f"{topic}/{bar}"]["value"]) for topic in PANELS.values() for bar in BARS}
