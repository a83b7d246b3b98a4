"""Run random histories until so many steps are done: ``python -m tests.simulation --steps 1000000``.

The first history that breaks an invariant is shrunk and printed with its seed, and the exit code is 1. A seed of the
tests does the same here, unless ``--length`` says otherwise.
"""

import argparse
import secrets
import sys

import structlog

from tests.simulation.history import DIMENSIONS, STEPS, check, dimensions_of, failure_of, plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps in all")
    parser.add_argument("--length", type=int, default=STEPS, help="steps of a history")
    parser.add_argument("--seed", type=int, default=None, help="of the first history; random if left out")
    parser.add_argument("--dimensions", nargs="*", choices=DIMENSIONS, help="what goes wrong; the seed chooses")
    parser.add_argument("--count", action="store_true", help="run all of them, and print how many break an invariant")
    options = parser.parse_args()
    structlog.configure(processors=[_drop])
    first = secrets.randbelow(2**31) if options.seed is None else options.seed
    count = max(1, options.steps // options.length)
    seeds = range(first, first + count)
    if options.count:
        planned = (
            plan(seed, steps=options.length, dimensions=options.dimensions or dimensions_of(seed)) for seed in seeds
        )
        print(sum(failure_of(steps) is not None for steps in planned))  # noqa: T201  # speaks to a person
        return 0
    for seed in seeds:
        try:
            check(seed, steps=options.length, dimensions=options.dimensions)
        except AssertionError as exc:
            print(exc, *exc.__notes__, sep="\n")  # noqa: T201  # speaks to a person
            return 1
    outcome = f"{count} histories of {options.length} steps from seed {first} on: nothing lost, nothing doubled"
    print(outcome)  # noqa: T201  # speaks to a person
    return 0


def _drop(_logger: object, _method: str, _event: object) -> str:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
