"""Runs benchmarks: ``python -m benchmarks [topic...] [--short]``."""

import argparse
import importlib
import platform
import sys

from benchmarks import subjects
from benchmarks.results import PATH, Result, line, save

TOPICS = ("decision", "endpoint", "flush", "memory", "replays", "reuse", "scaling", "sharing", "start", "suggest")


def main() -> int:
    """Run the topics, show and keep their results, and return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures what oauth_ratelimit costs.")
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"some of {', '.join(TOPICS)}; all by default")
    parser.add_argument("--short", action="store_true", help="fewer repetitions, nothing is kept")
    options = parser.parse_args()
    unknown = set(options.topics) - set(TOPICS)
    if unknown:
        parser.error(f"no topic {', '.join(sorted(unknown))}; expected {', '.join(TOPICS)}")
    subjects.silence_log()
    print(f"Python {platform.python_version()} on {platform.platform()}")
    missed = 0
    for topic in options.topics or TOPICS:
        print(f"\n{topic}", flush=True)
        results: list[Result] = []
        module = importlib.import_module(f"benchmarks.{topic}")
        for result in module.run(short=options.short):
            results.append(result)
            print(line(result), flush=True)
        missed += sum(result.met is False for result in results)
        if not options.short:
            for name in save(results, command=f"python -m benchmarks {topic}"):
                print(f"not measured, so kept as before: {name}")
    if not options.short:
        print(f"\nkept in {PATH.name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
