"""The guard against slowdowns: it holds now, and it finds one."""

import subprocess
import sys
import textwrap

import pytest

from benchmarks import guard as guard_module
from benchmarks import instructions


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The instructions that each case is said to take, at first as the baseline of this version of Python has it."""
    unit_count = 3_000.0
    baselines = guard_module._read()
    monkeypatch.setattr(guard_module, "_read", lambda: {"9.9": baselines["3.11"]})
    monkeypatch.setattr("platform.python_version_tuple", lambda: ("9", "9", "0"))
    monkeypatch.setattr(instructions, "is_available", lambda: True)
    counts = {guard_module.UNIT: unit_count, **{name: cost * unit_count for name, cost in baselines["3.11"].items()}}
    unprotected, ours = guard_module.REQUESTS
    counts[unprotected] = 12.0 * unit_count
    counts[ours] = counts[unprotected] + counts.pop("added to a request") / instructions.OPERATIONS_PER_REQUEST
    monkeypatch.setattr(instructions, "count_by_layout", lambda names: {name: [counts[name]] for name in names})
    return counts


@pytest.mark.parametrize(("factor", "status"), [(0.5, 0), (1.09, 0), (1.11, 1)], ids=["faster", "9 %", "11 %"])
def test_one_case_changes(
    counted: dict[str, float], capsys: pytest.CaptureFixture[str], factor: float, status: int
) -> None:
    """One case that is more than a tenth slower fails the run, and the table names it."""
    counted["ours, two tiers"] *= factor
    assert status == guard_module.guard(keep=False)
    output = capsys.readouterr().out
    assert f"{factor - 1:+.1%}" in output
    assert (status == 1) == ("more than 10% slower: ours, two tiers\n" in output)


def test_request_becomes_slower(counted: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    """What is added to a request is guarded, however little of the whole request it is."""
    unprotected, ours = guard_module.REQUESTS
    counted[ours] += 0.11 * (counted[ours] - counted[unprotected])
    assert 1 == guard_module.guard(keep=False)
    assert "more than 10% slower: added to a request\n" in capsys.readouterr().out


def test_case_without_a_baseline(
    counted: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A case that is new fails until it has a baseline: nothing is guarded without one."""
    baseline = guard_module._read()["9.9"]
    monkeypatch.setattr(guard_module, "_read", lambda: {"9.9": {k: v for k, v in baseline.items() if "two" not in k}})
    assert 1 == guard_module.guard(keep=False)
    assert "no baseline of Python 9.9 for ours, two tiers yet" in capsys.readouterr().out


def test_slower_python(counted: dict[str, float]) -> None:
    """A build of Python that takes more instructions for everything is no slowdown of ours."""
    for name in counted:
        counted[name] *= 1.3
    assert 0 == guard_module.guard(keep=False)


def test_python_without_a_baseline(
    counted: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version of Python that nobody has counted on passes, and that is said."""
    monkeypatch.setattr(guard_module, "_read", dict)
    assert 0 == guard_module.guard(keep=False)
    assert "no baseline of Python 9.9 yet" in capsys.readouterr().out


def test_layouts_differ() -> None:
    """
    Each layout gives the types of a process places in another order, so that a mean over layouts is one over chance.
    """
    script = """
        import flask, werkzeug
        from benchmarks import instructions

        def has_place(each):
            return bool(each.__flags__ & 1 << 19)  # Py_TPFLAGS_VALID_VERSION_TAG

        for layout in (0, 1):
            instructions.lay_out(layout)
            types = instructions._changeable_types()
            print(len(types) > 1000, all(map(has_place, types)))
        drawn = [instructions._order(layout)[:50] for layout in (0, 0, 1)]
        print(drawn[0] == drawn[1], drawn[1] == drawn[2])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"] * 4 + ["True", "False"], done.stderr
