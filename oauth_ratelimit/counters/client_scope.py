"""Client in one scope, and other instances: what its keys have in common."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from oauth_ratelimit.core.tier import Series

NO_HORIZONS: Mapping[Series, int] = {}


@dataclass(slots=True)
class Peers:
    """Other instances that count the same keys.

    Attributes:
        is_shared: Whether there is a store that other instances may use, too.
        reserves: Whether the store is asked before the last requests of a quota (``near_limit: reserve``).
        most_count: The largest number of instances seen on one key, this one included.
    """

    is_shared: bool = True
    reserves: bool = False
    most_count: int = 1


class ClientScope:
    """One client in one scope: what its keys have in common.

    Attributes:
        client_id: The client, in its storable form.
        scope: The scope of the keys, None for the plain token counter.
        horizon_s: Seconds for which a frame can matter, from its start.
        former_horizons: The same by series, as far as former tiers had it: their hits may still be to be sent.
        peers: Other instances.
        lock: Guards the buckets of all keys, and the attributes of ``KeyState`` that say so.
    """

    __slots__ = ("client_id", "former_horizons", "horizon_s", "lock", "peers", "scope")

    def __init__(self, client_id: str, scope: str | None, peers: Peers) -> None:
        self.client_id = client_id
        self.scope = scope
        self.horizon_s = 0
        self.former_horizons = NO_HORIZONS
        self.peers = peers
        self.lock = threading.Lock()
