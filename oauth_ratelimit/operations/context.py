"""Dependencies of operator commands: configuration, overrides and stores."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from functools import cached_property

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.key import Pseudonyms, storable_name
from oauth_ratelimit.core.overrides import Origins, Override, active, apply_overrides
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.statistics import ClientMinute
from oauth_ratelimit.store.factory import Stores


class OperatorContext:
    """Configuration, overrides and stores at one moment, ``now_s``. Each is loaded at first use and kept."""

    def __init__(
        self, load_settings: Callable[[], Settings], open_stores: Callable[[], Stores], *, clock: Callable[[], float]
    ) -> None:
        self._load_settings = load_settings
        self._open_stores = open_stores
        self._clock = clock

    @cached_property
    def now_s(self) -> float:
        return self._clock()

    @cached_property
    def settings(self) -> Settings:
        return self._load_settings()

    @property
    def is_shared(self) -> bool:
        """True if there are stores. Without them there are neither overrides nor counters to look at."""
        return True

    @cached_property
    def stores(self) -> Stores:
        return self._open_stores()

    def minutes(self, since_s: float, client_id: str | None = None, **parts: Collection[str]) -> Iterator[ClientMinute]:
        """Yield recorded minutes up to now as ``StatisticsStore.minutes`` does, of all clients or of one."""
        stored = None if client_id is None else storable_name(client_id)
        return self.stores.statistics.minutes(since_s, self.now_s, stored, **parts)

    @cached_property
    def pseudonyms(self) -> Pseudonyms:
        return self.settings.privacy.names()

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        return active(self.stores.overrides.read(), self.now_s) if self.is_shared else ()

    @cached_property
    def policies(self) -> PolicySet:
        """The limits and modes of the configuration with overrides applied."""
        return apply_overrides(self.settings.policies, self.overrides)

    def after(self, overrides: Sequence[Override]) -> "OperatorContext":
        """Return the same moment with overrides, which replace those of their targets."""
        targets, changed = {override.target for override in overrides}, copy(self)
        changed.overrides = (*(each for each in self.overrides if each.target not in targets), *overrides)
        for name in ("policies", "origins"):
            vars(changed).pop(name, None)
        return changed

    @cached_property
    def origins(self) -> Origins:
        return Origins(self.settings.policies, self.overrides)
