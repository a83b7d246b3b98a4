"""The file of results: entries that a run replaces, and entries that stay."""

from pathlib import Path

from benchmarks.results import Result, load, save


def test_run_replaces_what_it_measured_and_names_what_it_did_not(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    old = {"decision/on Redis": 1.0, "decision/one key": 2.0, "flush/one": 4.0}
    assert [] == save([Result(*each, "ns") for each in old.items()], command="first", path=path)
    assert ["decision/on Redis"] == save([Result("decision/one key", 3.0, "ns")], command="second", path=path)
    assert {"decision/on Redis": (1.0, "first"), "decision/one key": (3.0, "second"), "flush/one": (4.0, "first")} == {
        entry["name"]: (entry["value"], entry["command"]) for entry in load(path)
    }
