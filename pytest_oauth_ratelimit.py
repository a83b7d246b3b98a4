"""A plugin for pytest: fixtures to test what limits do to a server's clients.

pytest loads this module at each start, wherever the package is installed. So it stands outside of the package, whose
import takes Flask, Authlib and pymongo along, and imports nothing before a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from oauth_ratelimit.testing import FrozenClock, FrozenRateLimit


@pytest.fixture
def ratelimit_clock() -> FrozenClock:
    """The time that limits go by. It stands still until ``advance(seconds)``."""
    from oauth_ratelimit.testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def ratelimit_options() -> dict[str, Any]:
    """Further arguments for OAuthRateLimit, such as username_of. To be overridden."""
    return {}


@pytest.fixture
def ratelimit(ratelimit_clock: FrozenClock, ratelimit_options: dict[str, Any]) -> Iterator[FrozenRateLimit]:
    """
    An OAuthRateLimit that goes by ratelimit_clock and counts in memory. ``init_app(app, server)`` protects a server.
    """
    from oauth_ratelimit.testing import FrozenRateLimit

    with FrozenRateLimit(ratelimit_clock, **ratelimit_options) as extension:
        yield extension
