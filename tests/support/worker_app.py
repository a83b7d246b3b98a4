"""The demo's server with a rate limit and its metrics, for real worker processes. Answers name the worker."""

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
    sync=dict.fromkeys(("interval", "max_interval"), os.environ.get("WORKER_INTERVAL", "60s")),
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
