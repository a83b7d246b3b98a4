"""Runs benchmarks: ``python -m benchmarks [topic...] [--short]``, or ``python -m benchmarks --guard``."""

import argparse
import importlib
import platform
import sys

from benchmarks import accuracy_page, subjects, traces
from benchmarks.charts import pictures
from benchmarks.guard import guard
from benchmarks.results import PATH, Result, save, table

TOPICS = (
    "decision",
    "flush",
    "pull",
    "memory",
    "endpoint",
    "salesforce",
    "scale",
    "accuracy",
    "ways",
    "stores",
    "replays",
)


def main() -> int:
    """Run the topics asked for, show and keep the results; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What oauth_ratelimit costs.")
    parser.add_argument(
        "topics", nargs="*", metavar="topic", help=f"one or more of {', '.join(TOPICS)}; all by default"
    )
    parser.add_argument("--short", action="store_true", help="fewer repetitions, nothing is kept")
    parser.add_argument("--guard", action="store_true", help="only compare instruction counts with the committed ones")
    parser.add_argument("--page", action="store_true", help="then write docs/accuracy.md and draw its pictures")
    parser.add_argument("--keep", action="store_true", help="with --guard: commit to what is counted now")
    options = parser.parse_args()
    if options.guard:
        return guard(keep=options.keep)
    unknown = set(options.topics) - set(TOPICS)
    if unknown:
        parser.error(f"no topic {', '.join(sorted(unknown))}; there are {', '.join(TOPICS)}")
    subjects.suppression()
    print(f"Python {platform.python_version()} on {platform.platform()}")
    missed = 0
    topics = options.topics or (() if options.page else TOPICS)
    for topic in topics:
        print(f"\n{topic}", flush=True)
        results: list[Result] = []
        module = importlib.import_module(f"benchmarks.{topic}")
        for result in module.run(short=options.short):
            results.append(result)
            print(table([result]), flush=True)
        missed += sum(result.met is False for result in results)
        if not options.short:
            left_out = module.left_out() if hasattr(module, "left_out") else traces.left_out(topic)
            if left_out:
                print(f"left out, and kept as it was: {', '.join(left_out)}")
            command = f"{traces.environment(topic)}python -m benchmarks {topic}"
            save(results, command=command, left_out=left_out)
    if not options.short:
        print(f"\nkept in {PATH.name}")
        pictures.draw(topics)
    if options.page:
        accuracy_page.write()
        accuracy_page.draw_all()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
