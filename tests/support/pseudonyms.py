"""Keys, and limiters that hash usernames under them."""

from dataclasses import replace

from oauth_ratelimit import Limiter
from oauth_ratelimit.config import PrivacySettings
from oauth_ratelimit.core.key import PseudonymKey
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.store.base import CounterStore
from testbed.clock import Clock
from tests.support.limiters import a_policy, some_settings

OLD = PseudonymKey.of(b"the old key, which is long enough for it")
NEW = PseudonymKey.of(b"the new key, which is long enough for it")

ALICE = "alice@example.com"

PLAIN = PrivacySettings()


def hashed(*keys: PseudonymKey) -> PrivacySettings:
    return PrivacySettings("hashed", keys)


def limiter_with(
    privacy: PrivacySettings, store: CounterStore | None, clock: Clock, *, user: tuple[Policy, ...] | None = None
) -> Limiter:
    settings = some_settings(user=user if user is not None else (a_policy(name="user"),))
    return Limiter(replace(settings, privacy=privacy), store, clock=clock, monotonic=clock)
