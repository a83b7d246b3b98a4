"""Dependencies of operator commands: configuration, overrides and stores."""

from collections.abc import Callable
from functools import cached_property

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.overrides import Origins, Override, active, apply_overrides
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.pseudonyms import Pseudonyms
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.denials import DenialStore
from oauth_ratelimit.store.mongo.heartbeats import HeartbeatStore
from oauth_ratelimit.store.mongo.inspect import Documents
from oauth_ratelimit.store.mongo.migrations import Migrations
from oauth_ratelimit.store.mongo.overrides import OverrideStore
from oauth_ratelimit.store.mongo.statistics import StatisticsStore


class OperatorContext:
    """Configuration, overrides and stores at one moment. Each is loaded at first use and kept.

    Args:
        load_settings: Returns the configuration without overrides.
        connect: Returns the connection to the shared database.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        now_s: The moment, in seconds since the epoch.
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
        """The configuration without overrides."""
        return self._load_settings()

    @cached_property
    def connection(self) -> Connection:
        """The connection to the shared database."""
        return self._connect()

    @cached_property
    def pseudonyms(self) -> Pseudonyms:
        """Conversion of usernames to pseudonyms."""
        return self.settings.privacy.names()

    @cached_property
    def documents(self) -> Documents:
        """The counter documents."""
        return Documents(self.connection, collection=self.settings.store.collection)

    @cached_property
    def override_store(self) -> OverrideStore:
        """The stored overrides and their history."""
        return OverrideStore(self.connection)

    @cached_property
    def heartbeats(self) -> HeartbeatStore:
        """The heartbeats of the instances."""
        return HeartbeatStore(self.connection)

    @cached_property
    def statistics(self) -> StatisticsStore:
        """The statistics per client and minute."""
        return StatisticsStore(self.connection)

    @cached_property
    def denials(self) -> DenialStore:
        """The recorded denials."""
        return DenialStore(self.connection)

    @cached_property
    def migrations(self) -> Migrations:
        """The migrations of the database."""
        return Migrations(self.connection, collection=self.settings.store.collection)

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        """The active overrides."""
        return active(self.override_store.read(), self.now_s)

    @cached_property
    def policies(self) -> PolicySet:
        """The limits and modes of the configuration with overrides applied."""
        return apply_overrides(self.settings.policies, self.overrides)

    @cached_property
    def origins(self) -> Origins:
        """The origin of each limit and mode."""
        return Origins(self.settings.policies, self.overrides)

    def refresh(self) -> None:
        """Read the clock and the overrides again."""
        self.now_s = self._clock()
        for name in ("overrides", "policies", "origins"):
            self.__dict__.pop(name, None)
