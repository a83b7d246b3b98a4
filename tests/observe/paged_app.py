"""Application with a rate limit and both pages, for worker processes.

Environment:
    DEMO_DATABASE: A seeded database.
    WORKER_MONGO_URI: Where counters are shared.
"""

import os

from flask import Response

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.blueprints import health_blueprint, metrics_blueprint
from tests.support.sites import config, protect_after

settings = config(
    limit=1000,
    sync={"interval": "100ms"},
    store={"uri": os.environ["WORKER_MONGO_URI"]},
)
app = protect_after(os.environ["DEMO_DATABASE"], settings, OAuthRateLimit())
app.register_blueprint(metrics_blueprint())
app.register_blueprint(health_blueprint())


@app.after_request
def name_worker(response: Response) -> Response:
    """Name the process that answered."""
    response.headers["X-Worker"] = str(os.getpid())
    return response
