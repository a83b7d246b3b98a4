"""Recorded traffic under a configuration: requests that it would deny, by client, user, limit and minute."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.decision import Decision
from oauth_ratelimit.core.statistics import MINUTE_S
from oauth_ratelimit.traffic.fleet import Fleet
from oauth_ratelimit.traffic.formats import SECOND_US, ClientUser, Row


@dataclass(slots=True)
class Outcomes:
    """Requests of one replay. Over a limit are those that are denied if everything is enforced."""

    instance_count: int
    requests: int = 0
    trusted: int = 0  # decided requests of trusted clients
    unlimited: int = 0  # decided requests that no limit applies to
    denied: int = 0  # under the modes of the configuration
    over_clients: Counter[str] = field(default_factory=Counter)
    over_users: Counter[ClientUser] = field(default_factory=Counter)  # by client and pseudonym
    by_limit: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # over one; name, limit, window in seconds
    by_minute: Counter[int] = field(default_factory=Counter)  # over a limit, by the start in seconds since the epoch
    by_client: Counter[str] = field(default_factory=Counter)  # decided requests

    def add(self, row: Row, decision: Decision, pseudonym: str | None) -> None:
        self.by_client[row.client] += 1
        if decision.would_deny:
            self.denied += not decision.allowed
            self.over_clients[row.client] += 1
            if pseudonym is not None:
                self.over_users[row.client, pseudonym] += 1
            self.by_limit[decision.policy or "", decision.limit or 0, decision.window_s or 0] += 1
            self.by_minute[row.at_us // SECOND_US // MINUTE_S * MINUTE_S] += 1
        elif decision.trusted:
            self.trusted += 1
        elif decision.limit is None:
            self.unlimited += 1

    @property
    def over_count(self) -> int:
        return self.over_clients.total()

    @property
    def busiest(self) -> tuple[int, int] | None:
        """Minute with most requests over a limit, and their number; the first of several. None without any."""
        return min(self.by_minute.items(), key=lambda item: (-item[1], item[0]), default=None)


def replay(
    settings: Settings, batches: Iterable[Sequence[Row]], *, instance_count: int, clients: Collection[str] | None = None
) -> Outcomes:
    """Decide all rows, in the order of time, each on an instance at random.

    If ``clients`` are named, the requests of others are counted and no more: clients that a single instance never
    denies are never denied by several, which see the same requests or fewer.
    """
    outcomes = Outcomes(instance_count)
    fleet = Fleet(settings, instance_count, shares=instance_count > 1)
    for row in chain.from_iterable(batches):
        outcomes.requests += 1
        if clients is None or row.client in clients:
            decision = fleet.check(row.client, row.user, at_s=row.at_us / SECOND_US, grant_type=row.grant)
            outcomes.add(row, decision, fleet.pseudonym_of(row.user))
    fleet.close()
    return outcomes
