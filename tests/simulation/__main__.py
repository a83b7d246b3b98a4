"""Run random histories until so many steps are done: ``python -m tests.simulation --steps 1000000``.

The first history that breaks an invariant is shrunk and printed with its seed, and the exit code is 1.
"""

import argparse
import secrets
import sys

import structlog

from tests.simulation.history import DIMENSIONS, check

STEPS_PER_HISTORY = 400


def main() -> int:
    """Run the histories that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps in all")
    parser.add_argument("--seed", type=int, default=None, help="of the first history; random if left out")
    parser.add_argument("--dimensions", nargs="*", choices=DIMENSIONS, default=list(DIMENSIONS), help="what goes wrong")
    options = parser.parse_args()
    structlog.configure(processors=[_drop])
    first = secrets.randbelow(2**31) if options.seed is None else options.seed
    count = max(1, options.steps // STEPS_PER_HISTORY)
    for number in range(count):
        try:
            check(first + number, steps=STEPS_PER_HISTORY, dimensions=options.dimensions)
        except AssertionError as exc:
            print(exc, *exc.__notes__, sep="\n")  # noqa: T201  # speaks to a person
            return 1
    outcome = f"{count} histories of {STEPS_PER_HISTORY} steps from seed {first} on: nothing lost, nothing doubled"
    print(outcome)  # noqa: T201  # speaks to a person
    return 0


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
