"""Pytest plugin for Canaille's own tests: on its backend in memory alone, and with limits if ``LIMITED`` is set.

The limits admit all that the tests ask for, so each must pass as without them.
"""

import os
from typing import Any

import canaille
import canaille.backends

from oauth_ratelimit import OAuthRateLimit

LIMITS = {"mode": "enforce", "limits": {"client": ["100000/minute"], "user": ["100000/minute"]}}

canaille.backends.available_backends = lambda: {"memory"}  # the fixtures of the others need their servers
create_app = canaille.create_app


def create_limited_app(*args: Any, **kwargs: Any) -> Any:
    from canaille.oidc.provider import authorization

    app = create_app(*args, **kwargs)
    app.config["OAUTH_RATELIMIT_CONFIG"] = LIMITS
    OAuthRateLimit().init_app(app, authorization)
    return app


if os.environ.get("LIMITED"):
    canaille.create_app = create_limited_app
