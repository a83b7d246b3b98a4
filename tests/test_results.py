"""The file of results: entries that a run replaces, and entries that stay."""

from pathlib import Path

from benchmarks.results import Result, load, save


def _kept(path: Path) -> dict[str, float]:
    return {entry["name"]: entry["value"] for entry in load(path)}


def test_run_replaces_the_results_of_its_topic_only(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save([Result("flush/old", 1.0, "us"), Result("memory/one key", 2.0, "bytes")], command="first", path=path)
    save([Result("flush/new", 3.0, "us")], command="second", path=path)
    assert {"flush/new": 3.0, "memory/one key": 2.0} == _kept(path)


def test_run_keeps_results_that_it_could_not_measure(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    save([Result("decision/on Redis/p50", 1.0, "ms"), Result("decision/one key", 2.0, "ns")], command="a", path=path)
    save([Result("decision/one key", 3.0, "ns")], command="b", left_out=("decision/on Redis",), path=path)
    assert {"decision/on Redis/p50": 1.0, "decision/one key": 3.0} == _kept(path)
    assert {"decision/on Redis/p50": "a", "decision/one key": "b"} == {e["name"]: e["command"] for e in load(path)}
