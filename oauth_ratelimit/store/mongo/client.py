"""The connection to MongoDB of one process, and the translation of the driver's errors."""

import atexit
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pymongo
from bson.errors import BSONError
from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.synchronous import monitor
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from oauth_ratelimit.config.errors import without_parts_of
from oauth_ratelimit.config.settings import DEFAULT_DATABASE
from oauth_ratelimit.errors import StoreRejected, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.fork import call_in_child

Document = dict[str, Any]

COUNTERS = "ratelimits"  # unless store.collection has another name
FAILURES = "ratelimit_failures"  # counters of failed authentications, in documents of the same form as those of tokens
STATISTICS = "ratelimit_stats"  # minutes of clients, records of denials and heartbeats
OVERRIDES = "ratelimit_overrides"
MIGRATIONS = "ratelimit_migrations"

MAX_SCAN_MS = 2000  # for operators' queries: where an index is missing, MongoDB would scan the whole collection
REFUSED_S = 120.0  # for which an operation counts as refused: background work repeats it within a minute
SHORTEST_LIMIT_S = 1e-6  # 0 is no limit for the driver, and with a longer one the first call waits half a second
UNAUTHORIZED = frozenset({13, 18})  # for a command, and for the connection
LOGGED_OUT = "requires authentication"  # said on each connection of a user that was dropped, and without a user
LOGIN_INTERVAL_S = 5.0
# One text that is not UTF-8 or one date after the year 9999 must not make a whole batch unreadable.
LENIENT_DECODING: dict[str, Any] = {"unicode_decode_error_handler": "replace", "datetime_conversion": "DATETIME_AUTO"}

# No part of an unescaped password is taken for a host or a database.
_SERVER = r"([\w.\-]+|\[[\w:.%]+\])(:\d+)?"
_SERVERS = re.compile(rf"mongodb(\+srv)?://([^@/?]*@)?(?P<servers>{_SERVER}(,{_SERVER})*)([/?][^@]*)?", re.ASCII)

_COMMAND = re.compile(r'to execute command \{ (\w+): "([\w.-]{1,120})"')
_TIMEOUT = re.compile(r"(?:socketTimeoutMS|timeoutMS): ([0-9.]+)ms")  # what the driver had waited
_CODE_NAME = re.compile(r"[A-Za-z0-9_]{1,60}")

_limited: ContextVar["Connection | None"] = ContextVar("_limited", default=None)  # set inside its time limit
_parents_clients: list[MongoClient[Document]] = []  # never collected: that would close what the parent uses


class Connection:
    """A client that connects on first use. Thread-safe; a forked child connects anew.

    Options of the connection string win over the defaults given here. ``servers`` are its hosts and ports, without
    credentials; None if they are not recognised.
    """

    def __init__(self, uri: str, *, namespace: str | None = None, timeout_s: float = 2.0) -> None:
        self._uri = uri
        self.servers = servers_of(uri)
        self.namespace = namespace
        self.timeout_s = timeout_s
        self.refusals: dict[str, float] = {}  # time of the last one, by the monotonic clock
        self._login_at_s = -math.inf  # earliest time of the next try, by the monotonic clock
        self._process_id = os.getpid()
        self._lock = threading.Lock()  # guards _client
        self._client: MongoClient[Document] | None = None
        call_in_child(self._leave_client_to_parent)

    @property
    def client(self) -> "MongoClient[Document]":
        """The driver's client. Raises ``StoreRejected`` if the connection string cannot be used."""
        if self._process_id != os.getpid():  # forked below Python: two processes must not share the driver's sessions
            self._leave_client_to_parent()
        with self._lock:
            if self._client is None:
                self._client = connect(self._uri, timeout_s=self.timeout_s)
            return self._client

    @property
    def database(self) -> Database[Document]:
        """The database of the connection string, else ``oauth_ratelimit``."""
        return self.client.get_default_database(DEFAULT_DATABASE)

    def collection(self, name: str) -> Collection[Document]:
        """Return a collection that is read and written with majority concern."""
        return self.database[f"{self.namespace}_{name}" if self.namespace else name].with_options(
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            # Without the journal a standalone server loses acknowledged writes when it is killed.
            write_concern=WriteConcern(w="majority", j=True),
        )

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """Let all operations of this thread in the block end within some seconds together, their retries included."""
        token = _limited.set(self)
        try:
            with pymongo.timeout(max(seconds, SHORTEST_LIMIT_S)):
                yield
        finally:
            _limited.reset(token)

    def refused(self) -> str | None:
        """Return what MongoDB has refused lately, such as ``find on ratelimit_overrides``; None if nothing."""
        earliest_s = time.monotonic() - REFUSED_S
        return ", ".join(sorted(name for name, at_s in [*self.refusals.items()] if at_s >= earliest_s)) or None

    def swap(self, other: "Connection") -> None:
        """Exchange client, address and timeout with another connection to the same database, which its caller closes.

        The caller alone uses the other one. Operations that have begun go on with their client.
        """
        with self._lock:
            self._client, other._client = other._client, self._client
            self._uri, other._uri = other._uri, self._uri
            self.servers, other.servers = other.servers, self.servers
            self.timeout_s, other.timeout_s = other.timeout_s, self.timeout_s

    def log_in_again(self) -> None:
        """Close the client if a try is due: a user that was dropped may have been created again."""
        now_s = time.monotonic()
        if now_s >= self._login_at_s:
            self._login_at_s = now_s + LOGIN_INTERVAL_S
            self.close()

    def close(self) -> None:
        """Close the client. Idempotent; the next use connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with _operation_limit():  # it sends a command to end the sessions
                client.close()

    def _leave_client_to_parent(self) -> None:
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        if self._client is not None:
            _parents_clients.append(self._client)
            self._client = None


def connect(uri: str, *, timeout_s: float) -> "MongoClient[Document]":
    """Return a client whose operations end within ``timeout_s``, unless the connection string says otherwise.

    Raises ``StoreRejected`` if the string cannot be used, or a file that it names.
    """
    timeout_ms = int(timeout_s * 1000)
    defaults: dict[str, Any] = {
        "appname": "oauth_ratelimit",
        "connectTimeoutMS": timeout_ms,
        "serverSelectionTimeoutMS": timeout_ms,
        "socketTimeoutMS": timeout_ms,
    }
    try:
        given = {name.lower() for name in parse_uri(uri)["options"]}
        options = {name: value for name, value in defaults.items() if name.lower() not in given}
        return MongoClient(uri, tz_aware=True, **LENIENT_DECODING, **options)
    except (ValueError, TypeError, OSError, PyMongoError) as exc:
        reason = f"the connection string cannot be used: {without_parts_of(uri, str(exc))}"
        raise StoreRejected(reason) from None  # the driver's message may repeat the password


@contextmanager
def _operation_limit() -> Iterator[None]:
    """Keep an operation to the connection's timeout inside a time limit, which overrides the driver's own timeouts."""
    connection = _limited.get()
    if connection is None:
        yield
    else:
        with pymongo.timeout(connection.timeout_s):
            yield


def end_without_waiting() -> None:
    """Let this process end at once. The driver would wait for its threads, each of which sleeps half a second."""
    wait = getattr(monitor, "_shutdown_resources", None)  # nothing public avoids it; the threads are daemons
    if wait is not None:
        atexit.unregister(wait)


def servers_of(uri: str) -> str | None:
    """Return the servers of a connection string, such as ``db.example:27017``; None if they are not recognised."""
    found = _SERVERS.fullmatch(uri)
    return found and found["servers"]


def server_time(database: Database[Document]) -> datetime:
    local_time: datetime = database.command("hello")["localTime"]
    return local_time.replace(tzinfo=UTC)  # the driver leaves the zone out of answers to commands


@contextmanager
def translated_errors(connection: Connection | None = None) -> Iterator[None]:
    """Turn the driver's errors into ``StoreError``. Their texts are left out: they repeat filters, and names in them.

    What MongoDB refuses is noted at the connection that is given, else at that of the time limit.

    For the same reason nothing is raised from them: a traceback would show their texts.
    """
    try:
        with _operation_limit():
            yield
    except OperationFailure as exc:
        details = exc.details or {}
        code = code_of(next(iter(details.get("writeErrors", ())), details))
        if exc.code not in UNAUTHORIZED:
            raise StoreUnavailable(f"MongoDB failed: {code}", code=code) from None
        text = str(details.get("errmsg"))
        command = _COMMAND.search(text)
        what = f"{command[1]} on {command[2]}" if command else "the connection" if exc.code == 18 else "a command"
        if noting := connection or _limited.get():
            noting.refusals[what] = time.monotonic()
            if LOGGED_OUT in text:
                noting.log_in_again()
        raise StoreRejected(f"MongoDB refused {what}: {code}", code=code) from None
    except PyMongoError as exc:
        code = type(exc).__name__
        advice = next((advice for part, advice in _ADVICE.items() if part in str(exc)), None)
        # The driver raises this one only if it has not sent anything: after a retry it raises the first error.
        kind = StoreUnreachable if isinstance(exc, ServerSelectionTimeoutError) else StoreUnavailable
        reasons = ", ".join(filter(None, (code, advice)))
        found = _TIMEOUT.search(str(exc)) if exc.timeout and kind is StoreUnavailable else None
        what = f"did not answer within {float(found[1]) / 1000:g} s" if found else "is unreachable"
        raise kind(f"MongoDB {what}: {reasons}", code=code) from None
    except BSONError as exc:
        code = type(exc).__name__
        raise StoreUnavailable(f"MongoDB's answer cannot be decoded: {code}", code=code) from None


def code_of(error: Mapping[str, Any]) -> str:
    """Return name and number of an error in an answer of MongoDB, such as ``Unauthorized (13)``."""
    name, code = error.get("codeName"), error.get("code")
    known = name if isinstance(name, str) and _CODE_NAME.fullmatch(name) else "error"
    return f"{known} ({code})" if isinstance(code, int) else known


_ADVICE = {
    "certificate is not valid for": (
        "the server's certificate is for another host; the connection string must name the one in the certificate"
    ),
    "certificate has expired": "the server's certificate has expired",
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not signed by an authority that is trusted here; "
        "name the authority's file as tlsCAFile in the connection string"
    ),
    "[SSL: ": (
        "the TLS handshake failed; check that the server speaks TLS, "
        "and whether it asks for a certificate (tlsCertificateKeyFile)"
    ),
    "connection closed": (
        "the server closes new connections; if it asks for TLS, the connection string needs tls=true, "
        "and tlsCertificateKeyFile if it asks for a certificate"
    ),
}
"""What to do, by a part of the driver's message. The first that fits counts."""
