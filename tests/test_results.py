"""The file of results: what a run replaces in it, and what stays."""

from pathlib import Path

from benchmarks.results import Result, load, save


def _kept(path: Path) -> dict[str, float]:
    return {entry["name"]: entry["value"] for entry in load(path)}


def test_run_replaces_its_topic(tmp_path: Path) -> None:
    """What a topic no longer measures goes with its next run; other topics stay."""
    path = tmp_path / "results.json"
    save([Result("flush/old", 1.0, "us"), Result("memory/one key", 2.0, "bytes")], command="first", path=path)
    save([Result("flush/new", 3.0, "us")], command="second", path=path)
    assert {"flush/new": 3.0, "memory/one key": 2.0} == _kept(path)


def test_run_without_a_program(tmp_path: Path) -> None:
    """What could not be measured on this machine stays as another one has measured it."""
    path = tmp_path / "results.json"
    save([Result("decision/on Redis/p50", 1.0, "ms"), Result("decision/one key", 2.0, "ns")], command="a", path=path)
    save([Result("decision/one key", 3.0, "ns")], command="b", left_out=("decision/on Redis",), path=path)
    assert {"decision/on Redis/p50": 1.0, "decision/one key": 3.0} == _kept(path)
    assert {"decision/on Redis/p50": "a", "decision/one key": "b"} == {e["name"]: e["command"] for e in load(path)}
