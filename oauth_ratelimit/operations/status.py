"""State of the whole: mode, overrides, database, instances, and the keys nearest to a limit."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from oauth_ratelimit.config import Settings
from oauth_ratelimit.config.diff import changes_between, fixed_values
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.counters.usage import LimitUsage
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.format import counted, mode_text
from oauth_ratelimit.operations.serialize import Record, origin_data
from oauth_ratelimit.store.mongo.heartbeats import MAX_INSTANCES, Heartbeat

LATE_AFTER_S = 30.0  # three heartbeats
MAX_LAG_INTERVALS = 3
MAX_CHANGES = 20
MAX_HOSTS = 5
LOST = {
    "store.": "Every limit begins anew then: counts, overrides and statistics stay in the former place. ",
    "privacy.": "If user_names or the first key changes, limits of users begin anew then. ",
}
LEFT_OUT = f"there are more than {MAX_INSTANCES:,} heartbeats, so instances may be missing here; some may be planted"
NOTHING_LOST = "A process that ends still sends what it has counted, to the former place"


def is_late(beat: Heartbeat, now_s: float) -> bool:
    return now_s - beat.beat_at_s > LATE_AFTER_S


def is_lagging(lag_s: float, interval_s: float) -> bool:
    """Return True if sync cycles are so far apart that limits are less accurate."""
    return lag_s > MAX_LAG_INTERVALS * interval_s


def heartbeat_data(beat: Heartbeat, now_s: float) -> Record:
    return {
        **beat._asdict(),
        "seen_s": max(0.0, now_s - beat.beat_at_s),
        "is_late": is_late(beat, now_s),
        "is_lagging": is_lagging(beat.lag_s, beat.interval_s),
        "up_s": beat.beat_at_s - beat.started_at_s,
        "host_text": f"{beat.host}{', synchronises' if beat.synchronises else ''}" if beat.host else "alone",
    }


def restart_text(settings: Settings, heartbeats: Sequence[Heartbeat]) -> str | None:
    """Return what of a configuration instances apply with a restart only, and what that loses; None if nothing is.

    With ``mode: off`` nothing is: it applies at once, whatever else the file says.
    """
    wanted = fixed_values(settings)
    found = [
        changes_between(dict(pair.partition("=")[::2] for pair in beat.fixed_values.split()), wanted)
        for beat in heartbeats
        if beat.fixed_values is not None and settings.policies.mode is not Mode.OFF
    ]
    needed = list(filter(None, found))
    if not needed:
        return None
    changes = ", ".join(list(dict.fromkeys(chain.from_iterable(needed)))[:MAX_CHANGES])
    lost = "".join(text for section, text in LOST.items() if section in changes)
    return f"restart needed on {len(needed)} of {counted(len(heartbeats), 'instance')}: {changes}. {lost}{NOTHING_LOST}"


class Status:
    """Mode, overrides, database and instances at one moment; without a database no facts and no heartbeats."""

    def __init__(self, context: OperatorContext) -> None:
        self.policies = context.policies
        self.mode_origin = context.origins.of_mode("")
        self.file_policies = context.settings.policies
        self.override_count = len(context.overrides)
        self.facts = context.stores.documents.facts() if context.is_shared else None
        self.heartbeats = context.stores.heartbeats.read(self.facts.clock_s) if self.facts else []
        self.is_complete = not context.is_shared or context.stores.heartbeats.is_complete

    @property
    def rejecting(self) -> list[Heartbeat]:
        """Instances whose configuration file is not valid."""
        return [beat for beat in self.heartbeats if beat.config_rejected_at_s is not None]

    @property
    def reconnecting(self) -> Counter[str]:
        """Number of instances that do not use the new ``store.uri`` yet, by the reason."""
        return Counter(beat.connection_problem for beat in self.heartbeats if beat.connection_problem is not None)

    @property
    def refused(self) -> Counter[str]:
        """Number of instances to which MongoDB refuses something, by what it is."""
        return Counter(beat.refused for beat in self.heartbeats if beat.refused is not None)

    @property
    def files(self) -> Counter[str]:
        """Number of instances by the digest of their configuration file, the most common one first."""
        digests = Counter(beat.config_digest for beat in self.heartbeats if beat.config_digest is not None)
        return Counter(dict(digests.most_common()))

    @property
    def hosts_text(self) -> str:
        """Number of hosts whose instances count as one, and of instances that count alone."""
        sizes = sorted(Counter(beat.host for beat in self.heartbeats if beat.host).values(), reverse=True)
        alone_count = len(self.heartbeats) - sum(sizes)
        largest = ", ".join(map(str, sizes[:MAX_HOSTS])) + (", …" if len(sizes) > MAX_HOSTS else "")
        noun = "instance" if sizes == [1] else "instances"
        hosts = [f"{counted(len(sizes), 'host')} with {largest} {noun}"] if sizes else []
        return ", ".join([*hosts, *([f"{alone_count} alone"] if alone_count or not sizes else [])])

    @property
    def late_count(self) -> int:
        return sum(is_late(beat, self.facts.clock_s) for beat in self.heartbeats) if self.facts else 0

    def data(self) -> Record:
        canary, facts = self.policies.canary, self.facts
        return {
            "mode": self.policies.mode.value,
            "mode_origin": origin_data(self.mode_origin),
            "file_mode": mode_text(self.file_policies),
            "canary": canary and {"percent": canary.percent, "instances": canary.instances},
            "override_count": self.override_count,
            "mongodb": facts and {"version": facts.version, "document_count": facts.document_count},
            "instances": [heartbeat_data(beat, facts.clock_s) for beat in self.heartbeats] if facts else [],
        }


def nearest_to_limit(usages: Iterable[LimitUsage], count: int) -> list[LimitUsage]:
    """Return the usages with the largest share of their limit, largest first."""
    return heapq.nlargest(count, usages, key=attrgetter("used_ratio"))
