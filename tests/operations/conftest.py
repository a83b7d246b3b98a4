"""Operator contexts on a real MongoDB, and without a store."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.store.factory import Stores, open_stores
from testbed.clock import Clock

LIMITS: dict[str, Any] = {
    "mode": "enforce",
    "limits": {"client": ["10/hour"], "user": ["5/hour"], "client_total": ["50/hour"]},
    "grants": {"refresh_token": {"limits": {"user": ["7/hour"]}}},
    "plans": {"gold": {"limits": {"client": ["1000/hour"]}}},
    "clients": {"partner": {"plan": "gold"}},
    "trusted_clients": ["mobile-*"],
}

ContextOf = Callable[[Mapping[str, Any]], OperatorContext]


@pytest.fixture
def context_of(mongo_uri: str, clock: Clock) -> Iterator[ContextOf]:
    with ExitStack() as stack:

        def make(config: Mapping[str, Any]) -> OperatorContext:
            settings = load_config({**config, "store": {"uri": mongo_uri}})

            def open_them() -> Stores:
                stores = open_stores(settings.store)
                assert stores is not None
                stack.callback(stores.close)
                return stores

            return OperatorContext(lambda: settings, open_them, clock=clock)

        yield make


class Alone(OperatorContext):
    is_shared = False


def alone(config: Mapping[str, Any]) -> OperatorContext:
    return Alone(lambda: load_config(config), lambda: pytest.fail("there is no store"), clock=lambda: 1_700_000_000.0)
