"""
Keys, and limiters that hash names under them.
"""

from dataclasses import replace

from oauth_ratelimit import Limiter
from oauth_ratelimit.config import PrivacySettings
from oauth_ratelimit.core.names import PLAIN, Form, NameKey, Names
from oauth_ratelimit.core.policy import Policy
from oauth_ratelimit.store.base import CounterStore
from tests.helpers import Clock
from tests.limiters import a_policy, some_settings

OLD = NameKey.of(b"the old key, which is long enough for it")
NEW = NameKey.of(b"the new key, which is long enough for it")

ALICE = "alice@example.com"


def stored(name: str, *forms: Form) -> str:
    """
    Return what stands for a user under the first of some forms.
    """
    return str(Names(forms)(name))


def hashing_limiter(
    store: CounterStore | None, clock: Clock, *forms: Form, user: tuple[Policy, ...] | None = None
) -> Limiter:
    """
    Return a limiter that keeps names in the first of some forms and reads the others; by default one that never denies.
    """
    settings = some_settings(user=user if user is not None else (a_policy(name="user"),))
    return Limiter(replace(settings, privacy=PrivacySettings(forms or (PLAIN,))), store, clock=clock)
