"""Recorded traffic, and the OAuth clients and users that stand for its hosts. nasa19950801.md names the source."""

import csv
import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from testbed.oauth_server.models import Client, User

TRUSTED = "allegro-mobile"

SHIPPED = Path(__file__).with_name("nasa19950801.csv.gz")


@dataclass(frozen=True, slots=True)
class Hit:
    """One recorded request.

    Attributes:
        at_s: Seconds since the epoch.
        host: Number of the host that sent it.
    """

    at_s: float
    host: int


def hits() -> Iterator[Hit]:
    """Yield the trace in the order of time, with the hits of each recorded second spread over it."""
    with gzip.open(SHIPPED, "rt", encoding="ascii", newline="") as rows:
        for second, group in groupby(csv.reader(rows), key=itemgetter(0)):
            hosts = [int(host) for _, host in group]
            for position, host in enumerate(hosts):
                yield Hit(int(second) + (position + 0.5) / len(hosts), host)


def hits_from(first: int, count: int) -> Sequence[Hit]:
    """Return ``count`` hits, starting at index ``first``."""
    return list(islice(hits(), first, first + count))


@dataclass(frozen=True, slots=True)
class Caller:
    """A client, and the user that it requests tokens for.

    Attributes:
        client: The OAuth client.
        user: None for the client's own tokens (client_credentials).
    """

    client: Client
    user: User | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Client id and username, which share one limit."""
        return self.client_id, self.user.username if self.user else None

    @property
    def client_id(self) -> str:
        """Id of the client."""
        return self.client.client_id

    @property
    def grant_type(self) -> str:
        """Grant that the caller uses."""
        return "password" if self.user else "client_credentials"


def _client(client_id: str) -> Client:
    return Client(client_id, f"{client_id}-secret-of-the-demo-0123456789")


_MACHINES_BY_RANK = (TRUSTED, "batch-jobs", "batch-jobs", "report-export", "price-import", "partner-bank")
MACHINES = tuple(Caller(_client(client_id)) for client_id in _MACHINES_BY_RANK)
LATECOMER = Caller(_client("nightly-sync"))  # not in the trace, so its limit is unused
APPS = tuple(_client(client_id) for client_id in ("web-shop", "travel-portal", "news-reader"))


@dataclass(frozen=True, slots=True)
class Call:
    """One token request to send.

    Attributes:
        due_s: Seconds from the start of the replay.
        caller: Who sends it.
    """

    due_s: float
    caller: Caller


def assign(hits: Sequence[Hit]) -> dict[int, Caller]:
    """Return a caller for each host: machines for the busiest ones, the trusted client first, and users for the others.

    The trusted client is the busiest, the next one has two hosts: both exceed the limit even if servers are slow.
    """
    hosts = [host for host, _ in Counter(hit.host for hit in hits).most_common()]
    callers = dict(zip(hosts, MACHINES, strict=False))
    for rank, host in enumerate(hosts[len(MACHINES) :]):
        username = f"visitor-{host}"
        callers[host] = Caller(APPS[rank % len(APPS)], User(username, f"{username}-password"))
    return callers


def schedule(hits: Sequence[Hit], callers: dict[int, Caller], *, speed: float) -> list[Call]:
    """Return the requests to send, ``speed`` times faster than recorded."""
    return [Call((hit.at_s - hits[0].at_s) / speed, callers[hit.host]) for hit in hits]
