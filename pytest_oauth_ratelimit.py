"""A plugin for pytest: fixtures for tests of a limited server.

pytest loads this module in every test run, wherever the package is installed. It is outside of the package, whose
import loads Flask, Authlib and pymongo, and imports nothing before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from oauth_ratelimit.testing import FrozenClock, FrozenRateLimit


@pytest.fixture
def ratelimit_clock() -> FrozenClock:
    """Clock of ``oauth_ratelimit``, which stands still until ``advance(seconds)``."""
    from oauth_ratelimit.testing import FrozenClock

    return FrozenClock()


@pytest.fixture
def ratelimit_options() -> dict[str, Any]:
    """Further arguments of OAuthRateLimit, such as username_of. Override this fixture to set them."""
    return {}


@pytest.fixture
def oauth_ratelimit(ratelimit_clock: FrozenClock, ratelimit_options: dict[str, Any]) -> Iterator[FrozenRateLimit]:
    """OAuthRateLimit on ratelimit_clock, counting in memory. ``init_app(app, server)`` protects a server."""
    from oauth_ratelimit.testing import FrozenRateLimit

    with FrozenRateLimit(ratelimit_clock, **ratelimit_options) as extension:
        yield extension


@pytest.fixture
def ratelimit(oauth_ratelimit: FrozenRateLimit) -> FrozenRateLimit:
    """The former name of ``oauth_ratelimit``. It goes with version 1.0."""
    return oauth_ratelimit
