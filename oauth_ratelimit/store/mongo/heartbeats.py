"""Signs of life: each instance says every few seconds that it is there, and how its sync cycle fares."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.store.mongo.client import Connection, Document, translated_errors

log = structlog.get_logger(__name__)

STATISTICS = "ratelimit_stats"
MAX_SAID = 100  # characters of a name that nobody has checked
FORGOTTEN_AFTER_S = 600.0  # an instance that is gone is shown for so long, so that one that died is noticed


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What an instance says of itself.

    Args:
        instance: Its name in the configuration, and what tells processes of that name apart.
        beat_at_s: When it said so, by its clock.
        started_at_s: When it started.
        version: Of this package.
        mode: The global mode that it goes by.
        interval_s: Time between two sync cycles.
        lag_s: The longest time from one full sync cycle without an error to the next, since it said so last.
        override_count: Overrides that it knows of.
        flushed_count: Documents written since it started.
        conflict_count: Writes that lost a race since it started.
        failure_count: Cycles that failed since it started.
        clock_offset_s: How far MongoDB's clock is ahead of its own.
    """

    instance: str
    beat_at_s: float
    started_at_s: float
    version: str
    mode: str
    interval_s: float
    lag_s: float = 0.0
    override_count: int = 0
    flushed_count: int = 0
    conflict_count: int = 0
    failure_count: int = 0
    clock_offset_s: float = 0.0


class HeartbeatStore:
    """The heartbeats of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: To the database of the counters. Whoever made it closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, heartbeat: Heartbeat) -> None:
        """Leave a sign of life, instead of the instance's last."""
        document = {
            "beat": datetime.fromtimestamp(heartbeat.beat_at_s, UTC),
            "started": datetime.fromtimestamp(heartbeat.started_at_s, UTC),
            "expire": datetime.fromtimestamp(heartbeat.beat_at_s + FORGOTTEN_AFTER_S, UTC),
            "version": heartbeat.version,
            "mode": heartbeat.mode,
            "interval": heartbeat.interval_s,
            "lag": heartbeat.lag_s,
            "overrides": heartbeat.override_count,
            "flushed": heartbeat.flushed_count,
            "conflicts": heartbeat.conflict_count,
            "failures": heartbeat.failure_count,
            "clockOffset": heartbeat.clock_offset_s,
        }
        with translated_errors():
            statistics = self._connection.collection(STATISTICS)
            statistics.replace_one({"_id": {"instance": heartbeat.instance}}, document, upsert=True)

    def remove(self, instance: str) -> None:
        """Take the sign away: the instance ends in good order."""
        with translated_errors():
            self._connection.collection(STATISTICS).delete_one({"_id": {"instance": instance}})

    def read(self, now_s: float) -> list[Heartbeat]:
        """Return the last sign of each instance that is not long gone, by name. One that cannot be read is reported."""
        oldest = datetime.fromtimestamp(now_s - FORGOTTEN_AFTER_S, UTC)
        selected: Document = {"_id": {"$gte": {"instance": ""}, "$lt": {"instance": {}}}, "beat": {"$gte": oldest}}
        with translated_errors():
            found = list(self._connection.collection(STATISTICS).find(selected).sort("_id"))
        beats = []
        for document in found:
            try:
                beats.append(_parse(document))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
                instance = visible_name(str(document["_id"]["instance"])[:MAX_SAID])
                log.warning("sign_of_life_ignored", instance=instance, reason=type(exc).__name__)
        return beats


def _parse(document: Mapping[str, Any]) -> Heartbeat:
    return Heartbeat(
        instance=str(document["_id"]["instance"]),
        beat_at_s=document["beat"].timestamp(),
        started_at_s=document["started"].timestamp(),
        version=str(document["version"]),
        mode=str(document["mode"]),
        interval_s=float(document["interval"]),
        lag_s=float(document.get("lag", 0.0)),
        override_count=int(document["overrides"]),
        flushed_count=int(document["flushed"]),
        conflict_count=int(document["conflicts"]),
        failure_count=int(document["failures"]),
        clock_offset_s=float(document["clockOffset"]),
    )
