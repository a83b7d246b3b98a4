"""What an operator works with: the configuration, the overrides over it, and the database."""

from collections.abc import Callable
from functools import cached_property

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.overrides import Origins, Override, active, apply_overrides
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.pseudonyms import Pseudonyms
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.inspect import Documents
from oauth_ratelimit.store.mongo.overrides import OverrideStore


class OperatorContext:
    """One look at everything. Each thing is looked up when it is first needed, and kept.

    Args:
        load_settings: Returns the configuration, without overrides.
        connect: Returns the way to the database that counters are shared through.
        clock: Tells the time, seconds since the epoch.

    Attributes:
        now_s: The time of this look.
    """

    def __init__(
        self, load_settings: Callable[[], Settings], connect: Callable[[], Connection], *, clock: Callable[[], float]
    ) -> None:
        self._load_settings = load_settings
        self._connect = connect
        self._clock = clock
        self.now_s = clock()

    @cached_property
    def settings(self) -> Settings:
        """The configuration, without overrides."""
        return self._load_settings()

    @cached_property
    def connection(self) -> Connection:
        """The database that counters are shared through."""
        return self._connect()

    @cached_property
    def names(self) -> Pseudonyms:
        """Turns usernames into pseudonyms."""
        return self.settings.privacy.names()

    @cached_property
    def documents(self) -> Documents:
        """The counters."""
        return Documents(self.connection, collection=self.settings.store.collection)

    @cached_property
    def override_store(self) -> OverrideStore:
        """Where overrides are."""
        return OverrideStore(self.connection)

    @cached_property
    def heartbeats(self) -> HeartbeatStore:
        """Where instances tell of themselves."""
        return HeartbeatStore(self.connection)

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        """The overrides in force."""
        return active(self.override_store.read(), self.now_s)

    @cached_property
    def policies(self) -> PolicySet:
        """What instances go by: the configuration with the overrides on top."""
        return apply_overrides(self.settings.policies, self.overrides)

    @cached_property
    def origins(self) -> Origins:
        """Where all that comes from."""
        return Origins(self.settings.policies, self.overrides)

    def refresh(self) -> None:
        """Look at the clock and at the overrides again, for somebody who goes on."""
        self.now_s = self._clock()
        for name in ("overrides", "policies", "origins"):
            self.__dict__.pop(name, None)
