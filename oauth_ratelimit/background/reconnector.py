"""Change of the connection to MongoDB while a process runs, such as to a user with another password."""

import math
import threading
import time
from collections.abc import Callable

from oauth_ratelimit.config import StoreSettings
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.process.deadline import Deadline
from oauth_ratelimit.process.log import ThrottledLog, get_logger
from oauth_ratelimit.store.factory import Stores

log = get_logger(__name__)

RETRY_S = 5.0
REPEAT_S = 60.0  # between two log entries about the same address
FORMER_KEPT_S = 10.0  # or its timeout, so that operations that have begun can end: cut off, a write may be applied
NOT_TRIED = "not tried yet"
ELSEWHERE = "store.uri leads to another database: every limit begins anew, without the former overrides and statistics"
FAILED = "the new store.uri or store.timeout is not used yet, the former one is; it is tried again every five seconds"


class Reconnector:
    """Takes over another address of the same collections in a thread of its own, once a new connection works.

    ``problem`` is why the address that is wanted is not used: the code of an error; None while it is used.
    """

    def __init__(self, stores: Stores, settings: StoreSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.problem: str | None = None
        self._stores = stores
        self._used = settings
        self._wanted: StoreSettings | None = None  # what the file names, unless it is used
        self._clock = clock
        self._retry_at_s = -math.inf
        self._log = ThrottledLog(log, REPEAT_S)
        self._trying = threading.Lock()  # held by the thread that connects
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []  # those that may still run

    def follow(self, wanted: StoreSettings) -> None:
        """Start to take over an address if it is another one and a try is due. Never waits, so call it often."""
        if wanted == self._used or not wanted.has_same_collections(self._used):
            self._wanted = self.problem = None
            return
        if wanted != self._wanted:
            self._wanted, self._retry_at_s, self._log = wanted, -math.inf, ThrottledLog(log, REPEAT_S)
            self.problem = NOT_TRIED
        now_s = self._clock()
        if now_s < self._retry_at_s or not self._trying.acquire(blocking=False):
            return
        self._retry_at_s = now_s + RETRY_S
        thread = threading.Thread(target=self._connect, args=(wanted,), name="oauth_ratelimit-connect", daemon=True)
        try:
            thread.start()
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        except RuntimeError:  # the process has none left
            self._trying.release()

    def _connect(self, wanted: StoreSettings) -> None:
        try:
            former, is_elsewhere = self._stores.reconnect(wanted)
            kept_s = max(FORMER_KEPT_S, self._used.timeout_s)
            self._used = wanted
            if wanted == self._wanted:  # the file may name another one by now
                self.problem = None
        except Exception as exc:  # noqa: BLE001  # after a bug, too, it is tried again
            code = error = type(exc).__name__  # its text may have the password
            if isinstance(exc, StoreError):
                code, error = exc.code, str(exc)
            if wanted == self._wanted:
                self.problem = code
                self._log.warning("connection_change_failed", error=error, hint=FAILED)
            return
        finally:
            self._trying.release()
        log.info("connection_changed", servers=self._stores.servers)
        if is_elsewhere:
            log.warning("database_changed", servers=self._stores.servers, hint=ELSEWHERE)
        self._ending.wait(kept_s)
        former.close()
        if self._ending.is_set():  # the stores may have been closed before they got the new one
            self._stores.close()

    def stop(self, deadline: Deadline) -> None:
        """Close what is not used any more. Call it after the last use of the stores."""
        self._ending.set()
        for thread in self._threads:
            thread.join(deadline.remaining_s)
