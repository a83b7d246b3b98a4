"""Heartbeats of instances in MongoDB."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.store.mongo.client import STATISTICS, Connection, Document, translated_errors
from oauth_ratelimit.store.mongo.fields import MALFORMED, date_of

log = structlog.get_logger(__name__)

MAX_LOGGED = 100  # characters of a name that nobody has checked
FORGOTTEN_AFTER_S = 600.0  # long enough to notice an instance that died


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Report of one instance about itself.

    Args:
        instance: Its name in the configuration, process id and a random part.
        beat_at_s: Time of the report by its own clock.
        started_at_s: Time of its start.
        version: Version of this package.
        mode: The global mode that applies.
        interval_s: Seconds between two sync cycles.
        lag_s: The longest time between two successful full sync cycles since the last heartbeat.
        override_count: Active overrides.
        flushed_count: Documents written since the start.
        conflict_count: Lost races since the start.
        failure_count: Failed cycles since the start.
        over_admitted_count: Hits above a limit that it has written since the start.
        clock_offset_s: Seconds that MongoDB's clock is ahead of its own.
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
    over_admitted_count: int = 0


class HeartbeatStore:
    """The heartbeats of all instances.

    Raises from every method: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        connection: Connection to the database; its owner closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, heartbeat: Heartbeat) -> None:
        """Replace the instance's heartbeat."""
        with translated_errors():
            collection = self._connection.collection(STATISTICS)
            collection.replace_one({"_id": {"instance": heartbeat.instance}}, _compose(heartbeat), upsert=True)

    def remove(self, instance: str) -> None:
        """Remove an instance's heartbeat, because it ends normally."""
        with translated_errors():
            self._connection.collection(STATISTICS).delete_one({"_id": {"instance": instance}})

    def read(self, now_s: float) -> list[Heartbeat]:
        """Return the heartbeats of the last ten minutes, by instance. Logs those that cannot be read."""
        oldest = date_of(now_s - FORGOTTEN_AFTER_S)
        selected: Document = {"_id": {"$gte": {"instance": ""}, "$lt": {"instance": {}}}, "beat": {"$gte": oldest}}
        with translated_errors():
            found = list(self._connection.collection(STATISTICS).find(selected).sort("_id"))
        heartbeats = []
        for document in found:
            try:
                heartbeats.append(parse(document))
            except MALFORMED as exc:
                instance = visible_name(str(document["_id"].get("instance"))[:MAX_LOGGED])
                log.warning("sign_of_life_ignored", instance=instance, reason=type(exc).__name__)
        return heartbeats


def _compose(heartbeat: Heartbeat) -> Document:
    return {
        "beat": date_of(heartbeat.beat_at_s),
        "started": date_of(heartbeat.started_at_s),
        "expire": date_of(heartbeat.beat_at_s + FORGOTTEN_AFTER_S),
        "version": heartbeat.version,
        "mode": heartbeat.mode,
        "interval": heartbeat.interval_s,
        "lag": heartbeat.lag_s,
        "overrides": heartbeat.override_count,
        "flushed": heartbeat.flushed_count,
        "conflicts": heartbeat.conflict_count,
        "failures": heartbeat.failure_count,
        "clockOffset": heartbeat.clock_offset_s,
        "overAdmitted": heartbeat.over_admitted_count,
    }


def parse(document: Mapping[str, Any]) -> Heartbeat:
    """Return the heartbeat in a document, or raise one of ``MALFORMED``."""
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
        over_admitted_count=int(document.get("overAdmitted", 0)),
    )
