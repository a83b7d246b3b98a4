"""Guards without a server, and guesses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from oauth_ratelimit import load_config
from oauth_ratelimit.core.failed_auth import password_keys, secret_keys
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.counters.host_place import HostPlace
from oauth_ratelimit.guard import Guard, Lockout
from oauth_ratelimit.store.factory import open_stores
from testbed.clock import Clock
from tests.support.guarded import USER_LIMIT, guard

HOME, ELSEWHERE = "192.0.2.7", "192.0.2.8"
Keys = Sequence[Key]


def password(name: str = "alice", *networks: str, client_id: str = "mobile-app") -> Keys:
    """Return the keys of a password through a client without a secret."""
    return password_keys(client_id, name, networks or (HOME,), is_public=True)


def passed_on(name: str = "alice", network: str = HOME, *, client_id: str = "web-shop") -> Keys:
    """Return the keys of a password that a client with a secret passes on."""
    return password_keys(client_id, name, (network,), is_public=False)


def secret(client_id: str = "web-shop", network: str = HOME) -> Keys:
    return secret_keys(client_id, (network,))


@contextmanager
def a_guard(clock: Clock, mongo_uri: str | None = None, place: HostPlace | None = None, **more: Any) -> Iterator[Guard]:
    """Yield the guard of one process, with further settings."""
    store = {} if mongo_uri is None else {"store": {"uri": mongo_uri}}
    settings = load_config({**guard(), **store, **more})
    stores = open_stores(settings.store)
    found = Guard(settings, stores and stores.failures, clock=clock, place=place)
    try:
        yield found
    finally:
        found.close()
        if stores is not None:
            stores.close()


def guess(guard: Guard, keys: Keys, *, is_right: bool = False, **options: Any) -> bool:
    found = guard.reserve(keys, **options)
    if isinstance(found, Lockout):
        return False
    guard.settle(found, is_wrong=not is_right)
    return True


def fail(guard: Guard, keys: Keys, count: int = USER_LIMIT) -> None:
    for _ in range(count):
        guess(guard, keys)


def lockout_of(guard: Guard, keys: Keys) -> Lockout | None:
    found = guard.reserve(keys)
    if isinstance(found, Lockout):
        return found
    guard.settle(found)
    return None
