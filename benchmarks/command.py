"""Time of ``flask oauth-ratelimit status`` against ``flask routes``: ``python -m benchmarks.command``.

Both load the same application, one after the other, so that load on the machine meets both. Bytecode is cached, as with
an installed package. The exit code is 1 if the median of ``status`` is more than 0.25 s above that of ``routes``.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.mongod import running_mongodb

ROUNDS = 15
GOAL_S = 0.25
COMMANDS = {"routes": ["routes"], "status": ["oauth-ratelimit", "status"]}
APP = """
import os

from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask

from oauth_ratelimit import OAuthRateLimit

app = Flask(__name__)
app.config["OAUTH_RATELIMIT_CONFIG"] = {"mode": "dry-run", "store": {"uri": os.environ["BENCHMARK_MONGO_URI"]}}
server = AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None)
OAuthRateLimit(app, server)
"""


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median of each command in seconds."""
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with running_mongodb() as uri, tempfile.TemporaryDirectory() as folder:
        Path(folder, "measured_app.py").write_text(APP)
        environment = os.environ | {
            "BENCHMARK_MONGO_URI": uri,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join((folder, str(Path(__file__).parents[1]))),
            "PYTHONPYCACHEPREFIX": str(Path(folder, "cache")),
        }
        for round_number in range(rounds + 1):
            for name, words in COMMANDS.items():
                begun_s = time.perf_counter()
                command = [sys.executable, "-m", "flask", "--app", "measured_app", *words]
                subprocess.run(command, env=environment, capture_output=True, check=True)
                if round_number:  # the first one fills the cache
                    took[name].append(time.perf_counter() - begun_s)
    return {name: statistics.median(values) for name, values in took.items()}


def main() -> int:
    """Print the medians, and return 1 if the goal was missed."""
    medians = measure()
    more_s = medians["status"] - medians["routes"]
    print(*(f"flask {' '.join(COMMANDS[name])}: {median_s:.2f} s" for name, median_s in medians.items()), sep="\n")
    print(f"difference: {more_s:.2f} s, goal: at most {GOAL_S} s")
    return 1 if more_s > GOAL_S else 0


if __name__ == "__main__":
    sys.exit(main())
