"""Coverage-guided fuzzing of everything that parses input from outside: ``python -m tests.fuzz``.

Needs atheris, which is not a test requirement because it does not support every Python::

    pip install atheris
    python -m tests.fuzz                                 # every target for a minute
    python -m tests.fuzz --seconds 600 configuration     # one of them, for longer
    python -m tests.fuzz --only counters crash-0123      # repeat a finding
"""

import argparse
import subprocess
import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["oauth_ratelimit", "yaml"]):
    from tests.fuzz.test_guesses import test_guarded_server_answers_like_a_plain_one_and_checks_no_more_than_the_limits
    from tests.fuzz.test_parsers import (
        test_any_file_is_settings_or_all_its_problems,
        test_any_name_can_be_stored_sent_and_shown,
        test_any_record_is_read_or_reported_as_damaged,
        test_any_text_is_a_duration_or_a_limit_or_refused,
    )
    from tests.store.test_document import test_any_document_gives_valid_numbers

ROOT = Path(__file__).parents[2]
TARGETS = {
    "configuration": test_any_file_is_settings_or_all_its_problems,
    "notation": test_any_text_is_a_duration_or_a_limit_or_refused,
    "counters": test_any_document_gives_valid_numbers,
    "records": test_any_record_is_read_or_reported_as_damaged,
    "names": test_any_name_can_be_stored_sent_and_shown,
    "guesses": test_guarded_server_answers_like_a_plain_one_and_checks_no_more_than_the_limits,
}


def run(name: str, arguments: list[str]) -> None:
    """Fuzz one target in this process, which ends afterwards."""
    atheris.Setup([f"fuzz-{name}", *arguments], TARGETS[name].hypothesis.fuzz_one_input)
    atheris.Fuzz()


def begin(name: str, *, seconds: int) -> int:
    found = ROOT / ".fuzz" / name
    (found / "corpus").mkdir(parents=True, exist_ok=True)
    for seed in range(20):  # an empty input makes no example
        (found / "corpus" / f"seed-{seed}").write_bytes(Random(seed).randbytes(4000))
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={found}/", "-rss_limit_mb=2048", "-timeout=10"]
    command = [sys.executable, "-m", "tests.fuzz", "--only", name, *options, str(found / "corpus")]
    print(f"{name}: {seconds} s", flush=True)  # noqa: T201  # speaks to a person
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
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
