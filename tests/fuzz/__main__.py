"""Coverage-guided fuzzing of everything that parses input from outside: ``python -m tests.fuzz``.

Needs atheris, which is not a test requirement because it does not support every Python::

    pip install atheris
    python -m tests.fuzz                                 # every target for a minute
    python -m tests.fuzz --seconds 600 configuration     # one of them, for longer
    python -m tests.fuzz --only counters crash-0123      # repeat a finding

Findings are written to ``.fuzz/TARGET/``, and the exit code is not 0. The targets are in ``targets.py``;
``test_targets.py`` runs them briefly with hypothesis.
"""

import argparse
import subprocess
import sys

import atheris

with atheris.instrument_imports(include=["oauth_ratelimit", "yaml"]):
    from tests.fuzz.targets import ROOT, TARGETS, seeds

FOUND = ROOT / ".fuzz"


def run(name: str, arguments: list[str]) -> None:
    """Fuzz one target in this process, which ends afterwards."""
    atheris.Setup([f"fuzz-{name}", *arguments], TARGETS[name])
    atheris.Fuzz()


def begin(name: str, *, seconds: int) -> int:
    """Fuzz one target in a process of its own, and return its exit code."""
    corpus = FOUND / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={FOUND / name}/", "-rss_limit_mb=2048", "-timeout=10"]
    command = [sys.executable, "-m", "tests.fuzz", "--only", name, *options, str(corpus)]
    print(f"{name}: {seconds} s", flush=True)  # noqa: T201  # speaks to a person
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Fuzz the targets of the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    chosen = parser.parse_args()
    failed = [name for name in chosen.targets or TARGETS if begin(name, seconds=chosen.seconds)]
    print(f"found something in: {', '.join(failed) or 'none'}")  # noqa: T201
    return len(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        run(sys.argv[2], sys.argv[3:])
    sys.exit(main())
