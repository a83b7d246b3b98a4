"""The connection to MongoDB of one process, and the translation of the driver's errors."""

import atexit
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

import pymongo
import structlog
from bson.errors import BSONError
from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from oauth_ratelimit.errors import StoreRejected, StoreUnavailable, StoreUnreachable
from oauth_ratelimit.process.fork import call_in_child

log = structlog.get_logger(__name__)

Document = dict[str, Any]

FAILURES = "ratelimit_failures"  # counters of failed authentications, in documents of the same form as those of tokens
STATISTICS = "ratelimit_stats"  # minutes of clients, records of denials and heartbeats
OVERRIDES = "ratelimit_overrides"
MIGRATIONS = "ratelimit_migrations"

EXPIRY_INDEX = "expire"
MINUTE_INDEX = "minute"

MAX_SCAN_MS = 2000  # for operators' queries: where an index is missing, MongoDB would scan the whole collection
DEFAULT_DATABASE = "oauth_ratelimit"
SHORTEST_LIMIT_S = 0.001  # the driver takes 0 for no limit
AUTHENTICATION_FAILED = 18
UNAUTHORIZED = frozenset({13, AUTHENTICATION_FAILED})
# One text that is not UTF-8 or one date after the year 9999 must not make a whole batch unreadable.
LENIENT_DECODING: dict[str, Any] = {
    "unicode_decode_error_handler": "replace",
    "datetime_conversion": "DATETIME_AUTO",
}

# The user and password end at the last @, so no part of an unescaped password is taken for a host.
_SERVER = r"([\w.\-]+|\[[\w:.%]+\])(:\d+)?"
_SERVERS = re.compile(rf"mongodb(\+srv)?://([^@]*@)?(?P<servers>{_SERVER}(,{_SERVER})*)(?P<rest>[/?][^@]*)?", re.ASCII)

_operation_s: ContextVar[float | None] = ContextVar("_operation_s", default=None)  # set inside a time limit
_parents_clients: list[MongoClient[Document]] = []  # never collected: that would close what the parent uses


class Connection:
    """A client that connects on first use. Thread-safe; a forked child connects anew.

    Args:
        uri: Connection string; its options win over the defaults given here.
        namespace: Prefix of the names of all collections; None for no prefix.
        timeout_s: Maximum time that each network operation may take.
    """

    def __init__(self, uri: str, *, namespace: str | None = None, timeout_s: float = 2.0) -> None:
        self._uri = uri
        self.namespace = namespace
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # guards _client
        self._client: MongoClient[Document] | None = None
        call_in_child(self._leave_client_to_parent)

    @property
    def client(self) -> "MongoClient[Document]":
        """The driver's client.

        Raises:
            StoreRejected: The connection string cannot be used.
        """
        with self._lock:
            if self._client is None:
                self._client = connect(self._uri, timeout_s=self._timeout_s)
            return self._client

    @property
    def servers(self) -> str | None:
        """The hosts and ports in the connection string, without credentials; None if they are not recognised."""
        found = _SERVERS.fullmatch(self._uri)
        return found and found["servers"]

    @property
    def database(self) -> Database[Document]:
        """The database of the connection string."""
        return database_of(self.client)

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
        token = _operation_s.set(self._timeout_s)
        try:
            with pymongo.timeout(max(seconds, SHORTEST_LIMIT_S)):
                yield
        finally:
            _operation_s.reset(token)

    def close(self) -> None:
        """Close the client. Idempotent; the next use connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with _operation_limit():  # it sends a command to end the sessions
                client.close()

    def _leave_client_to_parent(self) -> None:
        self._lock = threading.Lock()
        if self._client is not None:
            _parents_clients.append(self._client)
            self._client = None


def connect(uri: str, *, timeout_s: float) -> "MongoClient[Document]":
    """Return a client whose operations end within ``timeout_s``, unless the connection string says otherwise.

    Raises:
        StoreRejected: The connection string cannot be used, or a file that it names.
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
        reason = f"the connection string cannot be used: {_without_secrets(str(exc), uri)}"
        raise StoreRejected(reason) from None  # the driver's message may repeat the password


def skip_waiting_at_exit() -> None:
    """Let this process end without waiting for the driver's threads, which look twice a second whether they shall end.

    For a command, which would take half a second longer. The threads are daemons and hold nothing that is lost.
    """
    for name in ("pymongo.synchronous.monitor", "pymongo.monitor"):  # the latter before PyMongo 4.9
        handler = getattr(sys.modules.get(name), "_shutdown_resources", None)
        if handler is not None:
            atexit.unregister(handler)


@contextmanager
def _operation_limit() -> Iterator[None]:
    """Keep an operation to the connection's timeout inside a time limit, which overrides the driver's own timeouts."""
    operation_s = _operation_s.get()
    if operation_s is None:
        yield
    else:
        with pymongo.timeout(operation_s):
            yield


def database_of(client: "MongoClient[Document]") -> Database[Document]:
    """Return the connection string's database, else ``oauth_ratelimit``."""
    return client.get_default_database(DEFAULT_DATABASE)


def location_of(uri: str) -> str:
    """Return the servers and the database of a connection string, such as ``db.example:27017/oauth``, and no more."""
    found = _SERVERS.fullmatch(uri)
    if found is None:
        return "an address that is not shown"
    database = (found["rest"] or "").partition("?")[0].strip("/")
    return f"{found['servers']}/{database or DEFAULT_DATABASE}"


def server_time(database: Database[Document]) -> datetime:
    """Return the time of the server's clock."""
    local_time: datetime = database.command("hello")["localTime"]
    return local_time.replace(tzinfo=UTC)  # the driver leaves the zone out of answers to commands


def problem_of(uri: str) -> str | None:
    """Return the error in a connection string, None if there is none. Asks no server and reads no file."""
    if uri.startswith("mongodb+srv:"):
        return None  # only the DNS knows
    try:
        parse_uri(uri, validate=False)
    except (ValueError, PyMongoError) as exc:
        return _without_secrets(str(exc), uri)
    return None


def _without_secrets(text: str, uri: str) -> str:
    """Return a text without any part of a connection string: a misplaced sign can make a host of a password."""
    parts = {part for part in re.split(r"[:/@?&=,]+", uri) if len(part) > 2}
    for part in sorted(parts | set(map(unquote_plus, parts)), key=len, reverse=True):
        text = text.replace(part, "…")
    return text


def ensure_expiry(collection: Collection[Document]) -> None:
    """Create the TTL index where rights allow. Without it documents stay, which does not affect the counts."""
    try:
        create_expiry_index(collection)
    except OperationFailure as exc:
        if not _is_made_by_others(collection, EXPIRY_INDEX, exc):
            reason = exc.details and exc.details["errmsg"]
            log.warning("expiry_index_missing", collection=collection.name, reason=reason)


def ensure_minutes(collection: Collection[Document]) -> None:
    """Create the index of the statistics on the minute where rights allow. Without it reading is slower."""
    try:
        collection.create_index("_id.minute", name=MINUTE_INDEX, sparse=True)
    except OperationFailure as exc:
        if not _is_made_by_others(collection, MINUTE_INDEX, exc):
            reason = exc.details and exc.details["errmsg"]
            log.warning("minute_index_missing", collection=collection.name, reason=reason)


def _is_made_by_others(collection: Collection[Document], name: str, error: OperationFailure) -> bool:
    """Return whether an index exists that this process has no right to create.

    Raises:
        OperationFailure: The authentication failed.
    """
    if error.code == AUTHENTICATION_FAILED:
        raise error
    if error.code not in UNAUTHORIZED:
        return False
    query = {"find": collection.name, "hint": name}
    try:  # unlike a list of indexes, a query plan needs no right but to read
        plan = collection.database.command("explain", query, verbosity="queryPlanner")
    except OperationFailure:  # the collection has no index of that name
        return False
    return "IXSCAN" in str(plan["queryPlanner"]["winningPlan"])  # not in the plan for a missing collection


def create_expiry_index(collection: Collection[Document]) -> None:
    """Create the TTL index, if it does not exist.

    Raises:
        PyMongoError: It cannot be created.
    """
    collection.create_index("expire", name=EXPIRY_INDEX, expireAfterSeconds=0)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the driver's errors into ``StoreError``, except ``BulkWriteError``, which names the changes that failed."""
    try:
        with _operation_limit():
            yield
    except BulkWriteError:
        raise
    except OperationFailure as exc:
        if exc.code in UNAUTHORIZED:
            raise StoreRejected(f"MongoDB refused: {exc.details and exc.details['errmsg']}") from exc
        raise StoreUnavailable(f"MongoDB failed: {exc.details and exc.details['errmsg']}") from exc
    except PyMongoError as exc:
        reasons = filter(None, (type(exc).__name__, _advice_on(str(exc))))
        # The driver raises this one only if it has not sent anything: after a retry it raises the first error.
        kind = StoreUnreachable if isinstance(exc, ServerSelectionTimeoutError) else StoreUnavailable
        raise kind(f"MongoDB is unreachable: {': '.join(reasons)}") from exc
    except BSONError as exc:
        raise StoreUnavailable(f"MongoDB's answer cannot be decoded: {type(exc).__name__}") from exc


_ADVICE = (
    (
        "certificate is not valid for",
        "the server's certificate is for another host; the connection string must name the one in the certificate",
    ),
    ("certificate has expired", "the server's certificate has expired"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by an authority that is trusted here; "
        "name the authority's file as tlsCAFile in the connection string",
    ),
)
_TLS_ERROR = re.compile(r"\[SSL: ([A-Z0-9_]{1,60})\]")
_CLOSED = (
    "the server closes new connections; if it asks for TLS, the connection string needs tls=true, "
    "and tlsCertificateKeyFile if it asks for a certificate"
)


def _advice_on(message: str) -> str | None:
    """Return advice on a failed connection, None if the driver's message gives no hint."""
    for text, advice in _ADVICE:
        if text in message:
            return advice
    tls_error = _TLS_ERROR.search(message)
    if tls_error is not None:
        return (
            f"the TLS handshake failed ({tls_error[1]}); check that the server speaks TLS, "
            "and whether it asks for a certificate (tlsCertificateKeyFile)"
        )
    return _CLOSED if "connection closed" in message else None
