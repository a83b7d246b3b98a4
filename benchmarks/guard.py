"""Cost of the guard for a valid token request: ``python -m benchmarks.guard``.

CPU time of a login at the demo's server, without HTTP, with the guard off and on. Passwords there are not hashed.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measuring import Run, take_turns
from benchmarks.subjects import silence_log
from benchmarks.token_request import requests_to
from demo.database import seed
from demo.server import create_app

TURN_COUNT = 40
REQUEST_COUNT = 250  # in a turn
UNLIMITED = {"client": [], "user": []}


def main() -> None:
    """Print microseconds per request."""
    silence_log()
    with ExitStack() as stack:
        database = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "demo.sqlite3"
        seed(database)
        runs: dict[str, Run] = {}
        for mode in ("off", "enforce"):
            app = create_app(database, {"mode": "enforce", "limits": UNLIMITED, "guard": {"mode": mode}})
            stack.callback(app.extensions["oauth_ratelimit"].close)
            request = requests_to(app, "password")

            def run(request: Callable[[], None] = request) -> int:
                for _ in range(REQUEST_COUNT):
                    request()
                return REQUEST_COUNT

            runs[mode] = run
        timings = take_turns(runs, turn_count=TURN_COUNT, clock_ns=time.process_time_ns)
    for mode, timing in timings.items():
        print(f"guard {mode}: {timing.median_ns / 1000:.0f} us per login, +- {timing.spread_ns / 1000:.0f}")
    print(f"difference: {(timings['enforce'].median_ns - timings['off'].median_ns) / 1000:.0f} us")


if __name__ == "__main__":
    main()
