"""
One connection to MongoDB for what is beside the counters: overrides, signs of life, what the command line looks at.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote_plus

import structlog
from bson.errors import BSONError
from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from oauth_ratelimit.errors import StoreRejected, StoreUnavailable

_CODE = re.compile(r"\[SSL: ([A-Z0-9_]{1,60})\]")

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
_CLOSED = (
    "the server closes new connections; if it asks for TLS, the connection string needs tls=true, "
    "and tlsCertificateKeyFile if it asks for a certificate"
)


def advice_on(message: str) -> str | None:
    """Return what to do about a failed connection, None if the driver's message does not tell."""
    for mark, advice in _ADVICE:
        if mark in message:
            return advice
    code = _CODE.search(message)
    if code is not None:
        return (
            f"the TLS handshake failed ({code[1]}); check that the server speaks TLS, "
            "and whether it asks for a certificate (tlsCertificateKeyFile)"
        )
    return _CLOSED if "connection closed" in message else None


log = structlog.get_logger(__name__)

DEFAULT_DATABASE = "oauth_ratelimit"
AUTHENTICATION_FAILED = 18
UNAUTHORIZED = frozenset({13, AUTHENTICATION_FAILED})
# One text that is not UTF-8 or one date after the year 9999 must not make a whole batch unreadable.
FORGIVING: dict[str, Any] = {"unicode_decode_error_handler": "replace", "datetime_conversion": "DATETIME_AUTO"}

Document = dict[str, Any]

# At the last @, so that nothing of a password that is not escaped as it should be is taken for a host.
_SERVER = r"([\w.\-]+|\[[\w:.%]+\])(:\d+)?"
_SERVERS = re.compile(rf"mongodb(\+srv)?://([^@]*@)?(?P<servers>{_SERVER}(,{_SERVER})*)([/?][^@]*)?", re.ASCII)


def full_name(collection: str, *, namespace: str | None) -> str:
    """Return what a collection is called in the database: the namespace keeps issuers apart."""
    return f"{namespace}_{collection}" if namespace else collection


class Connection:
    """A client that connects on first use. Thread-safe.

    Args:
        uri: Connection string.
        namespace: Stands before the names of all collections; None for nothing.
        timeout_s: How long the connection may hang in any one step.
    """

    def __init__(self, uri: str, *, namespace: str | None = None, timeout_s: float = 2.0) -> None:
        self._uri = uri
        self.namespace = namespace
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # guards the making of the client
        self._client: MongoClient[Document] | None = None

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
        """
        The hosts and ports in the connection string, without what may be secret there; None if they are not plain.
        """
        found = _SERVERS.fullmatch(self._uri)
        return found and found["servers"]

    @property
    def database(self) -> Database[Document]:
        """The database that the counters are in."""
        return database_of(self.client)

    def collection(self, name: str) -> Collection[Document]:
        """Return a collection that is read and written with a majority of the servers."""
        return self.database[full_name(name, namespace=self.namespace)].with_options(
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w="majority", j=True),
        )

    def close(self) -> None:
        """Release connections. Idempotent."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def connect(uri: str, *, timeout_s: float) -> "MongoClient[Document]":
    """Return a client whose every step ends within ``timeout_s``, unless the connection string says otherwise.

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
        return MongoClient(uri, tz_aware=True, **FORGIVING, **options)
    except (ValueError, TypeError, OSError, PyMongoError) as exc:
        reason = f"the connection string cannot be used: {_without_secrets(str(exc), uri)}"
        raise StoreRejected(reason) from None  # the driver's own words may repeat the password


def problem_of(uri: str) -> str | None:
    """
    Return what is wrong with a connection string, as far as that can be told without asking a server or reading a file
    that it names; None if nothing is.
    """
    if uri.startswith("mongodb+srv:"):
        return None  # what it stands for is in the DNS
    try:
        parse_uri(uri, validate=False)
    except (ValueError, PyMongoError) as exc:
        return _without_secrets(str(exc), uri)
    return None


def _without_secrets(text: str, uri: str) -> str:
    """
    Return a text without what it repeats of a connection string, where a misplaced sign may make a host of a password.
    """
    parts = {part for part in re.split(r"[:/@?&=,]+", uri) if len(part) > 2}
    for part in sorted(parts | set(map(unquote_plus, parts)), key=len, reverse=True):
        text = text.replace(part, "…")
    return text


def database_of(client: "MongoClient[Document]") -> Database[Document]:
    """Return the connection string's database, else ``oauth_ratelimit``."""
    return client.get_default_database(DEFAULT_DATABASE)


def ensure_expiry(collection: Collection[Document]) -> None:
    """Create the TTL index where rights allow. Without it documents stay; counting is not affected."""
    try:
        make_expiry(collection)
    except OperationFailure as exc:
        if exc.code == AUTHENTICATION_FAILED:
            raise
        log.warning("expiry_index_missing", collection=collection.name, reason=exc.details and exc.details["errmsg"])


def make_expiry(collection: Collection[Document]) -> None:
    """Create the TTL index, if it is not there.

    Raises:
        PyMongoError: It cannot be created.
    """
    collection.create_index("expire", name="expire", expireAfterSeconds=0)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Let no error of the driver pass this border, but for the one that tells which changes lost."""
    try:
        yield
    except BulkWriteError:
        raise
    except OperationFailure as exc:
        if exc.code in UNAUTHORIZED:
            raise StoreRejected(f"MongoDB refused: {exc.details and exc.details['errmsg']}") from exc
        raise StoreUnavailable(f"MongoDB failed: {exc.details and exc.details['errmsg']}") from exc
    except PyMongoError as exc:
        reasons = filter(None, (type(exc).__name__, advice_on(str(exc))))
        raise StoreUnavailable(f"MongoDB is out of reach: {': '.join(reasons)}") from exc
    except BSONError as exc:
        raise StoreUnavailable(f"MongoDB and its driver do not understand each other: {type(exc).__name__}") from exc
