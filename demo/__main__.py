"""``python -m demo``: see the limiter work, with real servers, a real MongoDB and recorded traffic.

Exit status: 0 if everything was as promised, 1 if not, 2 if there is no MongoDB or the demo is not installed.
"""

import argparse
import sys

from oauth_ratelimit.errors import RateLimitError


def main() -> int:
    """Run the demo and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Shows oauth_ratelimit at work.")
    parser.add_argument("--requests", type=int, default=3000, metavar="N", help="length of the replay (%(default)s)")
    parser.add_argument(
        "--speed", type=float, default=300, metavar="X", help="times faster than recorded (%(default)s)"
    )
    options = parser.parse_args()
    if options.requests < 1 or options.speed <= 0:
        parser.error("--requests and --speed must be above zero")
    try:
        from demo.display import Display
        from demo.stage import end_on_sigterm
        from demo.story import Story
        from tests.support.mongod_program import MongodUnavailable
    except ModuleNotFoundError as exc:
        print(f"{exc.name} is missing. The demo needs: pip install -r requirements/demo.txt", file=sys.stderr)
        return 2
    end_on_sigterm()
    try:
        story = Story(Display(), request_count=options.requests, speed=options.speed)
        if not story.tell():
            return 1
        print("\nTo look at such traffic in a browser, with charts and overrides: make serve")
        return 0
    except MongodUnavailable as exc:
        print(exc, file=sys.stderr)
        return 2
    except RateLimitError as exc:
        print(exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; nothing is left behind.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
