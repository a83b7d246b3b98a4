"""The demo's server with a rate limit, for real worker processes.

Environment:
    DEMO_DATABASE: A seeded database.
    WORKER_MONGO_URI: Where counters are shared.
    WORKER_INTERVAL: The sync interval.
    WORKER_LIMIT: Tokens in a window.
"""

import os

from oauth_ratelimit import OAuthRateLimit
from tests.support.sites import config, protect_after

settings = config(
    limit=int(os.environ.get("WORKER_LIMIT", "1000")),
    window=600,
    # No test lives to see it: what arrives in MongoDB was flushed at the end of the process.
    sync={"interval": os.environ.get("WORKER_INTERVAL", "60s")},
    store={"uri": os.environ["WORKER_MONGO_URI"]},
)
app = protect_after(os.environ["DEMO_DATABASE"], settings, OAuthRateLimit())
