"""
One connection to MongoDB for what is beside the counters: overrides, signs of life, what the command line looks at.
"""

import re
import threading
from typing import Any

from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from oauth_ratelimit.store.mongo import connect, database_of

Document = dict[str, Any]

# At the last @, so that nothing of a password that is not escaped as it should be is taken for a host.
_SERVER = r"([\w.\-]+|\[[\w:.%]+\])(:\d+)?"
_SERVERS = re.compile(rf"mongodb(\+srv)?://([^@]*@)?(?P<servers>{_SERVER}(,{_SERVER})*)([/?][^@]*)?", re.ASCII)


def full_name(collection: str, *, namespace: str | None) -> str:
    """
    Return what a collection is called in the database: the namespace keeps issuers apart.
    """
    return f"{namespace}_{collection}" if namespace else collection


class Connection:
    """
    A client that connects on first use. Thread-safe.

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
        """
        The driver's client.

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
        """
        The database that the counters are in.
        """
        return database_of(self.client)

    def collection(self, name: str) -> Collection[Document]:
        """
        Return a collection that is read and written with a majority of the servers.
        """
        return self.database[full_name(name, namespace=self.namespace)].with_options(
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w="majority", j=True),
        )

    def close(self) -> None:
        """
        Release connections. Idempotent.
        """
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
