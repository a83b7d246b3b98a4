"""Dependencies of operator commands: configuration, overrides and stores; and hints about unknown client ids."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, islice

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.key import Pseudonyms, storable_name, visible_name
from oauth_ratelimit.core.overrides import Origins, Override, active, apply_overrides
from oauth_ratelimit.core.policy import PolicySet
from oauth_ratelimit.core.statistics import HOUR_S, ClientMinute
from oauth_ratelimit.errors import StoreError
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

    def recorded_since(self, since_s: float) -> float:
        """Return a time, or the later one from which requests are recorded."""
        first_s = self.stores.rollups.first_minute_s()
        return since_s if first_s is None else max(since_s, min(first_s, self.now_s))

    @cached_property
    def pseudonyms(self) -> Pseudonyms:
        return self.settings.privacy.pseudonyms()

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        return active(self.stores.overrides.read(), self.now_s) if self.is_shared else ()

    @cached_property
    def policies(self) -> PolicySet:
        """The limits and modes of the configuration with overrides applied."""
        return apply_overrides(self.settings.policies._replace(instance=None), self.overrides)

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


MAX_COMPARED = 2000  # documents whose client ids are compared
MAX_LENGTH = 100  # characters; the time of a comparison grows with their square
SIMILARITY = 0.75  # one wrong letter in four
WILDCARDS = frozenset("*?[")


def unknown_client_hint(context: OperatorContext, client_id: str) -> str | None:
    """Return a sentence if a client id is unknown; None if it is known, or if the database does not let us find out."""
    similar = similar_client_ids(context, client_id, count=1)
    if similar is None:
        return None
    name = visible_name(client_id)
    suggestion = f"; did you mean '{visible_name(similar[0])}'?" if similar else "."
    if not WILDCARDS.isdisjoint(client_id):
        suggestion = ", taken literally: patterns are for trusted_clients in the configuration file."
    return f"No counters, statistics or configuration for '{name}'{suggestion}"


def similar_client_ids(context: OperatorContext, client_id: str, *, count: int = 3) -> list[str] | None:
    """Return known client ids like an unknown one, the most similar first. Reads some thousand documents.

    Returns None if the client is known, or if the database does not let us find out.
    """
    is_configured = client_id in context.settings.policies.clients or context.origins.of_trust(client_id)
    if not context.is_shared or is_configured or any(each.target.client_id == client_id for each in context.overrides):
        return None
    stored = storable_name(client_id)
    try:
        counters = context.stores.documents.of_client(stored, at_most=1)
        if any(True for _ in chain(counters, context.minutes(0.0, client_id, parts=()))):
            return None
        return _most_similar(client_id, _known_client_ids(context), count)
    except StoreError:
        return None  # a missing hint must not fail the command


def _known_client_ids(context: OperatorContext) -> set[str]:
    """Return the client ids that are configured or were active lately."""
    policies = context.policies
    minutes = context.minutes(context.now_s - HOUR_S, parts=())
    return {
        *policies.clients,
        *policies.trusted_ids,
        *(name for name in policies.trusted if WILDCARDS.isdisjoint(name)),
        *(key.client_id for key, _ in context.stores.documents.latest(context.now_s, MAX_COMPARED)),
        *(minute.client_id for minute in islice(minutes, MAX_COMPARED)),
    }


def _most_similar(client_id: str, known_ids: set[str], count: int) -> list[str]:
    if len(client_id) > MAX_LENGTH:
        return []
    by_folded = {name.casefold(): name for name in sorted(known_ids) if 0 < len(name) <= MAX_LENGTH}
    matches = get_close_matches(client_id.casefold(), by_folded, n=count, cutoff=SIMILARITY)
    return [by_folded[match] for match in matches]
