"""
Tells the owners of clients once a day: one instance sends what all have counted.
"""

import threading
import traceback
from collections.abc import Callable
from contextlib import closing

import structlog

from oauth_ratelimit.config import DigestSettings, Settings
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.observe.delivery import LEASE_S, Delivery
from oauth_ratelimit.report.digest import due_day_s, name_of_day
from oauth_ratelimit.store.connection import Connection
from oauth_ratelimit.store.digests import DigestStore, Progress

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 60.0  # at a day that somebody else is at work on
JOIN_S = 2.0


class DigestSender:
    """
    A duty of the background thread: claims a day that is due, and has a thread of its own send it.

    The thread is nobody's request. A day that it does not finish is taken up by any instance, behind the last client
    that is done with; a client whose fate is unknown is sent again under the same key.

    Args:
        settings: Returns what applies now.

        connection: For the claims. The thread has another, because it may outlive this one.

        instance: The name of this process.

        clock: Tells the time, seconds since the epoch.

        agent: What we call ourselves at the webhook.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        connection: Connection,
        instance: str,
        clock: Callable[[], float],
        agent: str,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._store = DigestStore(connection, holder=instance)
        self._instance = instance
        self._clock = clock
        self._agent = agent
        self._done_day_s: int | None = None
        self._look_at_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def run(self, now_s: float) -> None:
        """
        Begin to send, if a day is due and nobody else is at it.
        """
        digest = self._settings().digest
        if digest is None or self.is_busy:
            return
        day_s = due_day_s(now_s, hour=digest.hour)
        if day_s == self._done_day_s or self._look_at_s - LOOK_EVERY_S <= now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        day = name_of_day(day_s)
        try:
            progress = self._store.claim(day, day_s=day_s, lease_s=LEASE_S)
            if progress is None and self._store.is_done(day):
                self._done_day_s = day_s
        except StoreError:
            return
        if progress is not None:
            self._thread = threading.Thread(
                target=self._send, args=(digest, day_s, progress), name="oauth_ratelimit digest", daemon=True
            )
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """
        Whether a day is being sent.
        """
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """
        Stop before the next client; another instance goes on from there.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _send(self, digest: DigestSettings, day_s: int, progress: Progress) -> None:
        day = name_of_day(day_s)
        try:
            with closing(self._connection.another()) as connection:
                Delivery(
                    digest,
                    connection,
                    settings=self._settings,
                    day_s=day_s,
                    progress=progress,
                    holder=self._instance,
                    clock=self._clock,
                    agent=self._agent,
                    stopping=self._stopping,
                ).run()
        # The day is free again when its lease has run out.
        except StoreError as exc:
            log.warning("digest_failed", day=day, error=str(exc), retry_in_s=LEASE_S)
        except Exception as exc:  # noqa: BLE001  # nobody would see what a thread of its own ends with
            log.warning("digest_failed", day=day, error=repr(exc), retry_in_s=LEASE_S, traceback=traceback.format_exc())
