"""State of the whole: mode, overrides, database, instances, and the keys nearest to a limit."""

import heapq
from collections.abc import Iterable
from operator import attrgetter

from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.serialize import LATE_AFTER_S, Record, heartbeat_data, origin_data


class Status:
    """Mode, overrides, database and instances at one moment.

    Args:
        context: Configuration and stores.

    Attributes:
        policies: Limits and modes with overrides applied.
        mode_origin: Origin of the global mode.
        override_count: Number of active overrides.
        facts: Version, clock and size of the database; None without one.
        heartbeats: Last heartbeat of each instance.
    """

    def __init__(self, context: OperatorContext) -> None:
        self.policies = context.policies
        self.mode_origin = context.origins.of_mode("")
        self.override_count = len(context.overrides)
        self.facts = context.stores.documents.facts() if context.is_shared else None
        self.heartbeats = context.stores.heartbeats.read(self.facts.clock_s) if self.facts else []

    @property
    def late_count(self) -> int:
        """Number of instances that have missed heartbeats."""
        return sum(self.facts.clock_s - beat.beat_at_s > LATE_AFTER_S for beat in self.heartbeats) if self.facts else 0

    def data(self) -> Record:
        """Return the status as a record."""
        canary, facts = self.policies.canary, self.facts
        return {
            "mode": self.policies.mode.value,
            "mode_origin": origin_data(self.mode_origin),
            "canary": canary and {"percent": canary.percent, "instances": canary.instances},
            "override_count": self.override_count,
            "mongodb": facts and {"version": facts.version, "document_count": facts.document_count},
            "instances": [heartbeat_data(beat, facts.clock_s) for beat in self.heartbeats] if facts else [],
        }


def nearest_to_limit(usages: Iterable[LimitUsage], count: int) -> list[LimitUsage]:
    """Return the usages with the largest share of their limit, largest first."""
    return heapq.nlargest(count, usages, key=attrgetter("used_ratio"))
