"""
Sending the digests of one day, client by client.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

import structlog

from oauth_ratelimit.config import DigestSettings, Settings
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.observe.webhook import Webhook, WebhookError
from oauth_ratelimit.report.digest import DAY_S, Digest, name_of_day
from oauth_ratelimit.report.findings import ClientFinding, find
from oauth_ratelimit.store.connection import Connection
from oauth_ratelimit.store.digests import DigestStore, Progress
from oauth_ratelimit.store.statistics import StatisticsStore

log = structlog.get_logger(__name__)

LEASE_S = 300.0  # longer than one client takes with the longest timeout
RENEW_EVERY_S = 60.0  # while reading
PAUSES_S = (1.0, 4.0)  # between the attempts for one client
FIRST_WAIT_S = 60.0  # after a failure, doubled with each
LONGEST_WAIT_S = 3600.0
MAX_FAILURES = 14  # without a client in between, about nine hours; then the day is given up
PARTS = ("by", "peaks", "registers")
READ_AT_ONCE = 200  # documents, between two pauses that are four times as long as these took
PAUSE_SHARE = 4

Item = TypeVar("Item")


class Lost(Exception):
    """
    The day is not ours to send any more, or the process ends.
    """


class Delivery:
    """
    One day, from the first client that is not done with.

    Raises from ``run``: ``StoreUnavailable``, ``StoreRejected``.

    Args:
        digest: Where to.

        connection: Nobody else's.

        settings: Returns what applies now.

        day_s: When the day began, seconds since the epoch.

        progress: How far it is.

        holder: Who has claimed it.

        clock: Tells the time, seconds since the epoch.

        agent: What we call ourselves at the webhook.

        stopping: Set when the process ends.

    Attributes:
        day: Its name.
    """

    def __init__(
        self,
        digest: DigestSettings,
        connection: Connection,
        *,
        settings: Callable[[], Settings],
        day_s: int,
        progress: Progress,
        holder: str,
        clock: Callable[[], float],
        agent: str,
        stopping: threading.Event,
    ) -> None:
        self.day = name_of_day(day_s)
        self._settings = settings
        self._minimum = digest.minimum
        self._webhook = Webhook(digest.url, secret=digest.secret, timeout_s=digest.timeout_s, agent=agent)
        self._statistics = StatisticsStore(connection)
        self._store = DigestStore(connection, holder=holder)
        self._day_s = day_s
        self._progress = progress
        self._clock = clock
        self._stopping = stopping

    def run(self) -> None:
        """
        Send what is left of the day, or as much of it as the webhook takes.

        Raises:
            StoreError: MongoDB does not answer.
        """
        try:
            for finding in self._findings():
                self._go_on()
                self._send(finding)
            self._go_on()
        except Lost:
            self._store.stop(self.day, self._progress, wait_s=0.0, is_done=False)
        except WebhookError as exc:
            self._postpone(str(exc))
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001  # a bug, or a minute that nobody has thought of
            self._postpone(repr(exc), traceback=traceback.format_exc())
        else:
            self._store.stop(self.day, self._progress, wait_s=0.0, is_done=True)
            log.info(
                "digest_sent",
                day=self.day,
                client_count=self._progress.sent_count,
                refused_count=self._progress.refused_count,
            )

    def _go_on(self) -> None:
        """
        Note how far the day is, and that somebody is at it.

        Raises:
            Lost: Nobody should be, here.
        """
        if self._stopping.is_set() or not self._store.keep(self.day, self._progress, lease_s=LEASE_S):
            raise Lost

    def _findings(self) -> Iterator[ClientFinding]:
        """
        Yield whose owners are to be told, in the order of ids, behind those that are done with.
        """
        minutes = self._statistics.minutes(self._day_s, self._day_s + DAY_S, parts=PARTS)
        found = find(self._unhurried(minutes), token_lifetime_s=self._settings().statistics.token_lifetime_s)
        for finding in sorted(found, key=attrgetter("client_id")):
            if finding.client_id > self._progress.after and finding.total.tally().over >= self._minimum:
                yield finding

    def _unhurried(self, items: Iterable[Item]) -> Iterator[Item]:
        """
        Yield items, and leave the interpreter to requests most of the time.
        """
        renewed_s = begun_s = time.monotonic()
        for number, item in enumerate(items, 1):
            yield item
            if number % READ_AT_ONCE == 0:
                now_s = time.monotonic()
                if self._stopping.wait(PAUSE_SHARE * (now_s - begun_s)):
                    raise Lost
                if now_s - renewed_s > RENEW_EVERY_S:
                    self._go_on()
                    renewed_s = now_s
                begun_s = time.monotonic()

    def _send(self, finding: ClientFinding) -> None:
        """
        Have one client done with.

        Raises:
            WebhookError: It is not, and the next one would fare no better.
        """
        settings = self._settings()
        digest = Digest(
            self._day_s,
            finding,
            mode=settings.policies.matching(finding.client_id).mode,
            token_lifetime_s=settings.statistics.token_lifetime_s,
            namespace=settings.store.namespace,
            error_uri=settings.denial.error_uri,
        )
        progress = replace(self._progress, after=finding.client_id, failure_count=0)
        try:
            self._post(digest)
        except WebhookError as exc:
            if not exc.is_final:
                raise
            self._progress = replace(progress, refused_count=progress.refused_count + 1)
        else:
            self._progress = replace(progress, sent_count=progress.sent_count + 1)

    def _post(self, digest: Digest) -> None:
        """
        Send one digest, a few times if need be.
        """
        for pause_s in (*PAUSES_S, None):
            try:
                self._webhook.post(digest.payload(), key=digest.key, now_s=self._clock())
            except WebhookError as exc:
                if exc.is_final or pause_s is None or self._stopping.wait(pause_s):
                    raise
            else:
                return

    def _postpone(self, error: str, **more: str) -> None:
        """
        Leave the rest of the day for later; after too many failures, for good.
        """
        count = self._progress.failure_count + 1
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (count - 1))
        self._store.stop(
            self.day, replace(self._progress, failure_count=count), wait_s=wait_s, is_done=count > MAX_FAILURES
        )
        if count > MAX_FAILURES:
            log.error("digest_given_up", day=self.day, error=error, client_count=self._progress.sent_count, **more)
        else:
            log.warning("digest_failed", day=self.day, error=error, retry_in_s=wait_s, **more)
