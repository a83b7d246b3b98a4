"""Who plays whom: the hosts of the trace take the parts of OAuth clients and their users."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from demo.records import Client, User
from demo.trace import Hit

TRUSTED = "allegro-mobile"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a token.

    Attributes:
        client: The OAuth client.
        user: On whose behalf; None for the client's own (client_credentials).
    """

    client: Client
    user: User | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """What is limited: the client and the user together."""
        return self.client_id, self.user.username if self.user else None

    @property
    def client_id(self) -> str:
        """The client's id."""
        return self.client.client_id

    @property
    def grant_type(self) -> str:
        """The grant that it uses."""
        return "password" if self.user else "client_credentials"


def _client(client_id: str) -> Client:
    return Client(client_id, f"{client_id}-secret-of-the-demo-0123456789")


MACHINES = tuple(
    Caller(_client(client_id)) for client_id in (TRUSTED, "batch-jobs", "report-export", "price-import", "partner-bank")
)
LATECOMER = Caller(_client("nightly-sync"))  # has no part in the trace, so that its limit is untouched
APPS = tuple(_client(client_id) for client_id in ("web-shop", "travel-portal", "news-reader"))


@dataclass(frozen=True, slots=True)
class Call:
    """One token request to be sent.

    Attributes:
        due_s: Seconds from the start of the replay.
        caller: Who asks.
    """

    due_s: float
    caller: Caller


def assign(hits: Sequence[Hit]) -> dict[int, Caller]:
    """Return each host's part. The busiest hosts become machines, the busiest of all the trusted client: one that goes
    over the limit again and again. All others become users of the apps.
    """
    hosts = [host for host, _ in Counter(hit.host for hit in hits).most_common()]
    cast = dict(zip(hosts, MACHINES, strict=False))
    for rank, host in enumerate(hosts[len(MACHINES) :]):
        username = f"visitor-{host}"
        cast[host] = Caller(APPS[rank % len(APPS)], User(username, f"{username}-password"))
    return cast


def schedule(hits: Sequence[Hit], cast: dict[int, Caller], *, speed: float) -> list[Call]:
    """Return what is to be sent, ``speed`` times faster than it was recorded."""
    return [Call((hit.at_s - hits[0].at_s) / speed, cast[hit.host]) for hit in hits]
