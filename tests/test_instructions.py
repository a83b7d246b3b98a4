"""The comparison of instruction counts with the committed ones."""

import json
from pathlib import Path

import pytest

from benchmarks.instructions import CASES, PATH, compare

COSTS = {"ours": 2.0, "ours, two tiers": 3.0}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the baseline of one version of Python, which runs."""
    monkeypatch.setattr("platform.python_version_tuple", lambda: ("9", "9", "0"))
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"9.9": COSTS}))
    return path


@pytest.mark.parametrize(("factor", "status"), [(0.5, 0), (1.09, 0), (1.11, 1)], ids=["faster", "9 %", "11 %"])
def test_case_that_is_more_than_a_tenth_slower_fails(
    path: Path, capsys: pytest.CaptureFixture[str], factor: float, status: int
) -> None:
    assert status == compare({**COSTS, "ours, two tiers": 3.0 * factor}, keep=False, path=path)
    output = capsys.readouterr().out
    assert f"{factor - 1:+.1%}" in output
    assert (status == 1) == ("more than 10% slower: ours, two tiers\n" in output)


def test_case_without_a_baseline_fails(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == compare({**COSTS, "new": 1.0}, keep=False, path=path)
    assert "no baseline of Python 9.9 for new yet" in capsys.readouterr().out
    assert 0 == compare({**COSTS, "new": 1.0}, keep=True, path=path)
    assert 0 == compare({**COSTS, "new": 1.0}, keep=False, path=path)


def test_python_without_a_baseline_passes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("{}")
    assert 0 == compare(COSTS, keep=False, path=path)
    assert "no baseline of Python 9.9 yet" in capsys.readouterr().out


def test_every_committed_baseline_has_all_cases() -> None:
    assert {frozenset(CASES)} == {frozenset(costs) for costs in json.loads(PATH.read_text()).values()}
