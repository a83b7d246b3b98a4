"""The demo's server with a guard, for real worker processes.

Environment:
    DEMO_DATABASE: A seeded database.
    WORKER_MONGO_URI: Where failures are shared.
"""

import os

from oauth_ratelimit import OAuthRateLimit
from tests.support.guarded import guard
from tests.support.sites import protect_after

settings = {**guard(), "sync": {"interval": "100ms"}, "store": {"uri": os.environ["WORKER_MONGO_URI"]}}
app = protect_after(os.environ["DEMO_DATABASE"], settings, OAuthRateLimit())
