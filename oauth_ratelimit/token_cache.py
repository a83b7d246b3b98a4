"""Tokens that a process keeps in memory, to give them to the same client again while it is over a limit.

Above its limit a client gets at most one new token per process and ``max_age``, whatever it sends. So nothing that a
client can cause, such as an eviction, a revocation or a failed request, gives that one back.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from oauth_ratelimit.config.settings import ReuseSettings
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import OTHER_CLIENTS
from oauth_ratelimit.errors import StoreRejected
from oauth_ratelimit.process.deadline import Deadline, uptime_s
from oauth_ratelimit.process.log import get_logger
from oauth_ratelimit.process.yielding import Waiters
from oauth_ratelimit.store.mongo.heartbeats import RevocationNotices

log = get_logger(__name__)

WAIT_S = 5.0  # longest time that a request waits for a token that is being issued
ASK_WAIT_S = 0.1  # longest time that a request waits for its turn to ask the application about a token
MAX_ASKING = 2  # requests that ask at the same time: one that hangs holds no more threads
MAX_VARIANTS = 10  # tokens of one client
MAX_TOKEN_BYTES = 16_384
ENTRY_BYTES = 1000  # of a token without its text, or of a client without its name
LIFETIME_PARTS = 10  # a token with less than one of them left is not given out again
MAX_REVOKED = 10_000  # clients to announce; if there are more, the tokens of all are dropped


@dataclass(frozen=True, slots=True, eq=False)
class KeptToken:
    """A token that was issued to a client."""

    begun_s: float  # time before it was issued
    text: bytes = field(default=b"", repr=False)  # the token as JSON; empty in a dry run
    lifetime_s: float = float("inf")


@dataclass(slots=True, eq=False)
class Issue:
    """A token that is being issued."""

    client_id: str
    request: bytes
    begun_s: float
    is_void: bool = False  # not to be kept, because the client has revoked one since it began


@dataclass(slots=True, eq=False)
class _Client:
    size: int  # without its tokens
    tokens: dict[bytes, KeptToken] = field(default_factory=dict)  # by request
    issues: set[Issue] = field(default_factory=set)
    issued_s: float | None = None  # time of the last one that was issued above a limit
    noted_s: float | None = None  # the same in a dry run


class TokenCache:
    """Tokens of one application in one process, by client and by a digest of the request. Thread-safe.

    Args:
        settings: Returns the settings that apply now.
        may_reuse: Returns True if limits, as they are now, may have tokens of a client kept.
        notices: Of clients whose tokens all instances drop; None if there are no others.
        clock: Returns the time in seconds, of a clock that is never set.
    """

    def __init__(
        self,
        settings: Callable[[], ReuseSettings],
        *,
        may_reuse: Callable[[str], bool],
        notices: RevocationNotices | None = None,
        clock: Callable[[], float] = uptime_s,
    ) -> None:
        self._settings = settings
        self._may_reuse = may_reuse
        self._changed_s = clock()  # when limits last changed
        self._notices = notices
        self._clock = clock
        self._changed = Waiters()  # guards the attributes below
        self._clients: dict[str, _Client] = {}
        self._size = 0
        self._asking_count = 0
        self._revoked: dict[str, float] = {}  # time of the last revocation, by client to announce
        self._reads_s = (-math.inf, -math.inf)  # when the last two reads of notices began

    def find(self, client_id: str, request: bytes) -> KeptToken | Issue | None:
        """Return the token for a request over a limit, or the issue of a new one, or None to deny the request.

        Waits for a token that is being issued for the same request, unless a share of the threads waits already.
        """
        end_s = time.monotonic() + WAIT_S
        has_waited = False
        with self._changed:
            self._changed.note_thread()
            while (client := self._client(client_id)) is not None:
                token = self._fresh(client, request)
                if token is not None and token.text:
                    return token
                if not any(issue.request == request for issue in client.issues):
                    if not self._is_past(client.issued_s):
                        return None
                    client.issued_s = self._clock()
                    return self.begin(client_id, request)
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not (has_waited or self._changed.has_place_for(client_id)):
                    return None
                self._changed.wait_for_key(client_id, left_s)
                has_waited = True
        return None

    def begin(self, client_id: str, request: bytes) -> Issue | None:
        """Return the issue of a token within the limits, None if there is no room for it. ``end`` has to follow."""
        with self._changed:
            client = self._client(client_id)
            if client is None:
                return None
            issue = Issue(client_id, request, self._clock())
            client.issues.add(issue)
            return issue

    def end(self, issue: Issue, token: KeptToken | None = None) -> None:
        """Keep the token that was issued, None if there is none to keep. Only the first call has an effect."""
        with self._changed:
            client = self._clients.get(issue.client_id)
            if client is not None and issue in client.issues:
                if token is not None and not issue.is_void:
                    self._keep(client, issue.request, token)
                client.issues.remove(issue)
                self._changed.notify_all()

    def left_s(self, token: KeptToken) -> float:
        """Return the seconds until a token expires, 0.0 if it must not be given out any more."""
        age_s = self._clock() - token.begun_s
        left_s, least_s = token.lifetime_s - age_s, max(1.0, token.lifetime_s / LIFETIME_PARTS)
        return left_s if 0 <= age_s < self._settings().max_age_s and left_s >= least_s else 0.0

    @contextmanager
    def asking(self) -> Iterator[bool]:
        """Yield whether the application may be asked about a token now."""
        with self._changed:
            has_turn = self._changed.wait_for(lambda: self._asking_count < MAX_ASKING, ASK_WAIT_S)
            self._asking_count += has_turn
        try:
            yield has_turn
        finally:
            with self._changed:
                self._asking_count -= has_turn
                self._changed.notify_all()

    def holds(self, client_id: str, request: bytes, token: KeptToken) -> bool:
        """Return True if a token is still kept: it may have been revoked since it was found."""
        with self._changed:
            client = self._clients.get(client_id)
            return client is not None and client.tokens.get(request) is token

    def drop(self, client_id: str, request: bytes, token: KeptToken) -> None:
        """Drop a token, unless another one has taken its place."""
        with self._changed:
            client = self._clients.get(client_id)
            if client is not None and client.tokens.get(request) is token:
                self._remove(client, request)

    def note_request(self, client_id: str, request: bytes, *, is_over: bool) -> bool:
        """Do in a dry run what reuse would do, with no token, and return True if it would give one out again.

        A client is followed from its first request over a limit on.
        """
        with self._changed:
            client = self._client(client_id) if is_over else self._clients.get(client_id)
            if client is None:
                return False
            now_s, is_known = self._clock(), self._fresh(client, request) is not None
            if is_over and (is_known or not self._is_past(client.noted_s)):
                return is_known
            if is_over:
                client.noted_s = now_s
            self._keep(client, request, KeptToken(now_s))
            return False

    def follows(self, client_id: str) -> bool:
        """Return True if anything of a client is kept. Its id may be in any form."""
        return bool(self._clients) and storable_name(client_id) in self._clients

    def revoke(self, client_id: str) -> None:
        """Drop the tokens of a client here at once, and in all other processes within two sync cycles.

        It is announced only if tokens of it may be kept: by the limits of now, or by those before a recent change.
        """
        stored = storable_name(client_id)
        self.forget({stored: math.inf})
        if self._notices is not None and (not self._is_past(self._changed_s) or self._may_reuse(client_id)):
            with self._changed:
                is_full = len(self._revoked) == MAX_REVOKED
                self._revoked[OTHER_CLIENTS if len(self._revoked) >= MAX_REVOKED else stored] = self._clock()
            if is_full:  # and no longer after that
                log.error("revocations_left_out", client_count=MAX_REVOKED)

    def note_change(self) -> None:
        """Note that limits have changed: other processes may go by the former ones for a while."""
        self._changed_s = self._clock()

    def forget(self, revoked_s: Mapping[str, float]) -> None:
        """Drop the tokens of clients that began before a revocation, by its time. ``OTHER_CLIENTS`` means all."""
        with self._changed:
            names = tuple(self._clients) if OTHER_CLIENTS in revoked_s else revoked_s
            for name in names:
                if (client := self._clients.get(name)) is None:
                    continue
                until_s = max(revoked_s.get(each, -math.inf) for each in (name, OTHER_CLIENTS))
                for request, token in list(client.tokens.items()):
                    if token.begun_s <= until_s:
                        self._remove(client, request)
                for issue in client.issues:
                    issue.is_void |= issue.begun_s <= until_s
            self._changed.notify_all()

    def forget_parent(self) -> None:
        """In a forked child: release the parent's tokens. Its lock may be held by a thread that is not there."""
        self._clients = {}

    def purge(self) -> None:
        """Drop what has expired, client by client, because requests wait for the lock."""
        for client_id in tuple(self._clients):
            with self._changed:
                client = self._clients[client_id]
                for request in list(client.tokens):
                    self._fresh(client, request)
                is_used = client.tokens or client.issues or self._changed.waiting[client_id]
                if not is_used and self._is_past(client.issued_s) and self._is_past(client.noted_s):
                    del self._clients[client_id]
                    self._size -= client.size

    def run(self) -> None:
        """Drop what was revoked elsewhere, and announce what was revoked here. A background task."""
        try:
            if self._notices is not None:
                with self._changed:
                    begun_s, names = self._clock(), [OTHER_CLIENTS, *self._clients]
                ages_s = self._notices.read(names) if len(names) > 1 else {}
                # What began before the last two reads is dropped whatever MongoDB's clock says: it may have been set.
                now_s, surely_s = self._clock(), self._reads_s[0]
                self.forget({name: max(surely_s, now_s - age_s) for name, age_s in ages_s.items()})
                self._reads_s = (self._reads_s[1], begun_s)
        finally:
            self._announce()

    def close(self, _deadline: Deadline) -> None:
        """Announce the last clients."""
        self._announce()

    def _announce(self) -> None:
        with self._changed:
            left, self._revoked = self._revoked, {}
        if self._notices is None or not left:
            return
        try:
            now_s = self._clock()
            failed = self._notices.announce({client_id: now_s - at_s for client_id, at_s in left.items()})
            left = {client_id: left[client_id] for client_id in failed}
        finally:
            with self._changed:
                self._revoked = left | self._revoked
        if failed:
            client_id, reason = next(iter(failed.items()))
            raise StoreRejected(f"{len(failed)} revocations are not announced, such as that of {client_id!r}: {reason}")

    # The lock is held by the callers of all that follow.

    def _client(self, client_id: str) -> _Client | None:
        """Return a client, created if there is room for it."""
        client = self._clients.get(client_id)
        if client is None and self._has_room(2 * ENTRY_BYTES):
            client = self._clients[client_id] = _Client(ENTRY_BYTES + sys.getsizeof(client_id))
            self._size += client.size
        return client

    def _is_past(self, at_s: float | None) -> bool:
        """Return True if a time is none, or so long ago that no token of then is given out again."""
        return at_s is None or not 0 <= self._clock() - at_s < self._settings().max_age_s

    def _fresh(self, client: _Client, request: bytes) -> KeptToken | None:
        token = client.tokens.get(request)
        if token is not None and not self.left_s(token):
            self._remove(client, request)
            return None
        return token

    def _keep(self, client: _Client, request: bytes, token: KeptToken) -> None:
        """Keep a token in place of the one for the same request, or of the client's oldest if it has too many."""
        self._remove(client, request)
        if len(client.tokens) >= MAX_VARIANTS:
            self._remove(client, next(iter(client.tokens)))
        size = ENTRY_BYTES + len(token.text)
        if len(token.text) <= MAX_TOKEN_BYTES and self._has_room(size):
            client.tokens[request] = token
            self._size += size

    def _remove(self, client: _Client, request: bytes) -> None:
        token = client.tokens.pop(request, None)
        if token is not None:
            self._size -= ENTRY_BYTES + len(token.text)

    def _has_room(self, size: int) -> bool:
        return self._size + size <= self._settings().max_bytes
