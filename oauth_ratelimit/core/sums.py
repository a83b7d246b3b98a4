"""
What happened over some time, client by client: sums over minutes.
"""

from dataclasses import dataclass, field

from oauth_ratelimit.core.hyperloglog import merge_into
from oauth_ratelimit.core.statistics import NO_REQUESTS, ClientMinute, Load, Peak, Source, Tally, UserLoad


@dataclass(slots=True)
class ClientSum(Load):
    """
    One client over some time. Grows minute by minute.

    Args:
        client_id: The client, or ``OTHER_CLIENTS``.

    Attributes:
        minute_count: Minutes with requests, at whatever endpoint.

        tallies: Requests by where they come from.

        peaks: By name of the policy, the most that was used of it.

        users: By name, those that were among the heaviest in any minute; what they did in other minutes is not in it.

        registers: Who the users were, for a count of them.

        burst: The most requests for tokens that one process has seen within a second.

        busiest: Requests for tokens in the busiest minute, and when that began.
    """

    client_id: str
    minute_count: int = 0
    tallies: dict[Source, Tally] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    users: dict[str, UserLoad] = field(default_factory=dict)
    registers: dict[int, int] = field(default_factory=dict)
    burst: int = 0
    busiest: tuple[int, int] = (0, 0)

    def add(self, minute: ClientMinute) -> None:
        """
        Add a minute.
        """
        self.minute_count += 1
        for source, tally in minute.tallies.items():
            self.tallies[source] = self.tallies.get(source, NO_REQUESTS) + tally
        for policy, peak in minute.peaks.items():
            self.peaks[policy] = max(peak, self.peaks.get(policy, peak))
        for user in minute.users:
            known = self.users.get(user.username)
            self.users[user.username] = known.plus(user) if known else user
        merge_into(self.registers, minute.registers)
        self.burst = max(self.burst, minute.burst)
        self.busiest = max(self.busiest, (minute.tally().offered, minute.minute_s))

    def heaviest(self, count: int) -> list[UserLoad]:
        """
        Return the users with most requests, the heaviest first.
        """
        return sorted(self.users.values(), key=lambda user: -user.offered)[:count]
