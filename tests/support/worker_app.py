"""The demo's server with a rate limit and its metrics, for real worker processes. Answers name the worker.

Environment:
    DEMO_DATABASE: A seeded database.
    WORKER_MONGO_URI: Where counters are shared.
    WORKER_INTERVAL: The sync interval.
    WORKER_LIMIT: Tokens in a window.
    WORKER_ON_LIMIT: What to do above it, for grants without a user.
    WORKER_GUARD: Mode of the guard.
"""

import os

from flask import Response

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.blueprints import metrics_blueprint
from tests.support.guarded import LIMITS
from tests.support.sites import config, protect_after

settings = config(
    limit=int(os.environ.get("WORKER_LIMIT", "1000")),
    window=600,
    # No test lives to see it: what arrives in MongoDB was flushed at the end of the process.
    sync={"interval": os.environ.get("WORKER_INTERVAL", "60s")},
    store={"uri": os.environ["WORKER_MONGO_URI"]},
    guard={"mode": os.environ.get("WORKER_GUARD", "off"), "limits": LIMITS},
)
for limit in settings["limits"]["client"]:
    limit["on_limit"] = os.environ.get("WORKER_ON_LIMIT", "deny")
app = protect_after(os.environ["DEMO_DATABASE"], settings, OAuthRateLimit())
app.register_blueprint(metrics_blueprint())


@app.after_request
def name_worker(response: Response) -> Response:
    response.headers["X-Worker"] = str(os.getpid())
    return response
