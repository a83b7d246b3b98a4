"""Limits on token creation at an OAuth 2 token endpoint, per client and user, shared through MongoDB.

A token request goes through::

    flask_authlib/    hooks on Authlib's server, and the response          request
    core/key          client, user and scope: the counter's identity       key
    core/policy       limits that apply to the key, from config/           policy
    limiter           checks a request against them                        decision
    counters/         the table that counts, in memory                     counters
    sync/             background cycle: flush hits, pull totals            flush
    store/            compare-and-set in MongoDB                            MongoDB

CONTRIBUTING.md has the map of all folders.

Import ``oauth_ratelimit.admin``, ``oauth_ratelimit.blueprints`` and ``oauth_ratelimit.testing`` by name.
"""

from oauth_ratelimit.config import Settings, load_config
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError, RateLimitError, StoreError, StoreRejected, StoreUnavailable
from oauth_ratelimit.flask_authlib.extension import OAuthRateLimit
from oauth_ratelimit.flask_authlib.hooks import RateLimitMixin
from oauth_ratelimit.flask_authlib.responses import RateLimited
from oauth_ratelimit.limiter import Limiter

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Decision",
    "Limiter",
    "Mode",
    "OAuthRateLimit",
    "RateLimitError",
    "RateLimitMixin",
    "RateLimited",
    "Settings",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "load_config",
]
