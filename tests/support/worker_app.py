"""The demo's server with a rate limit, for real worker processes.

Environment:
    DEMO_DATABASE: A seeded database.
    WORKER_MONGO_URI: Where counters are shared.
    WORKER_INTERVAL: The sync interval.
    WORKER_LIMIT: Tokens in a window.
    WORKER_NEAR_LIMIT: What happens before the last requests of a quota.
    WORKER_GUARD: Mode of the guard.
"""

import os

from oauth_ratelimit import OAuthRateLimit
from tests.support.guarded import LIMITS
from tests.support.sites import config, protect_after

settings = config(
    limit=int(os.environ.get("WORKER_LIMIT", "1000")),
    window=600,
    # No test lives to see it: what arrives in MongoDB was flushed at the end of the process.
    sync={
        "interval": os.environ.get("WORKER_INTERVAL", "60s"),
        "near_limit": os.environ.get("WORKER_NEAR_LIMIT", "flush"),
    },
    store={"uri": os.environ["WORKER_MONGO_URI"]},
    guard={"mode": os.environ.get("WORKER_GUARD", "off"), "limits": LIMITS},
)
app = protect_after(os.environ["DEMO_DATABASE"], settings, OAuthRateLimit())
