"""
The demo's server with a rate limit, for real worker processes.

Environment:
    DEMO_DATABASE: A seeded database.
    WORKER_MONGO_URI: Where counters are shared.
"""

import os

from oauth_ratelimit import OAuthRateLimit
from tests.edge.protected import config, protect_after

# An interval that no test lives to see: what arrives in MongoDB was flushed at the end of the process.
settings = config(limit=1000, sync={"interval": "60s"}, store={"uri": os.environ["WORKER_MONGO_URI"]})
app = protect_after(os.environ["DEMO_DATABASE"], settings, OAuthRateLimit())
