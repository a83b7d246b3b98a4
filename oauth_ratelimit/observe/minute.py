"""Counts of one client in one minute of one process."""

from array import array
from collections import Counter, defaultdict
from heapq import nlargest

from oauth_ratelimit.core.decision import Answer, Decision, outcome_of
from oauth_ratelimit.core.hyperloglog import register_of
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.core.statistics import MINUTE_S, OVER, ClientMinute, Denials, Kind, Peak, Source, Tally, UserLoad

MAX_LIFETIMES = 8  # different ones in a minute; a server that computes each from the time of day would have thousands
MAX_LIFETIME_S = 100 * 366 * 86_400  # more is a mistake
TRACKED_RATIO = 10  # tracked users per reported one, so that the heaviest are among them


class OpenMinute:
    """Counts of a client that still grow. Not thread-safe.

    ``max_users`` are reported by name. When there are too many in ``users``, the lighter half is dropped.
    """

    def __init__(self, client_id: str, max_users: int) -> None:
        self.client_id = client_id
        self.request_count = 0
        self.written_count = 0  # of the requests in the counts that were written last
        self.is_newly_denied = False  # for the first time in the minute with this outcome, and not written since
        self.users: dict[str, list[int]] = {}  # all, denied and would-be denied requests
        self._max_users = max_users
        self._tallies: defaultdict[tuple[Kind, str], Counter[str]] = defaultdict(Counter)  # by kind and grant
        self._peaks: dict[str, Peak] = {}
        self._denials: dict[tuple[str, str, str], Denials] = {}
        self._registers: dict[int, int] = {}  # of users that were dropped
        self._seconds = array("L", [0]) * MINUTE_S
        self._lifetimes: Counter[int] = Counter()

    def count(
        self,
        decision: Decision,
        kind: Kind,
        grant: str,
        now_s: float,
        policy_prefix: str = "",
        *,
        has_peak: bool = True,
    ) -> None:
        """Count a request at any endpoint; without ``has_peak`` the use of its limits is left out."""
        self.request_count += 1
        tally = self._tallies[kind, grant]
        outcome: str = outcome_of(decision)
        if decision.answer is Answer.REUSABLE:
            outcome = "would_deny" if decision.allowed else "denied"
            tally["would_reuse"] += 1
        tally[outcome] += 1
        if decision.is_repeat and outcome == "denied":
            tally["retries"] += 1
        if outcome in OVER:
            self.is_newly_denied |= all(other != outcome for _, _, other in self._denials)
            key, second = (f"{policy_prefix}{decision.policy}", grant, outcome), int(now_s)
            new = Denials(0, second, second, decision.limit or 0, decision.window_s or 0)
            known = self._denials.get(key, new)
            self._denials[key] = known._replace(total=known.total + 1, last_s=max(known.last_s, second))
        for tier, content in zip(decision.tiers, decision.counted, strict=True) if has_peak else ():
            used, name = content.estimate, policy_prefix + tier.policy.name
            peak, share = self._peaks.get(name), used / tier.limit
            if peak is None or share > peak.share:
                self._peaks[name] = Peak(share, used, tier.limit, tier.window_s)

    def count_token_request(self, decision: Decision, username: str | None, now_s: float) -> None:
        """Count the user and the second of a request at the token endpoint."""
        if username is not None:
            user = self.users.get(username) or self._track(storable_name(username))
            user[0] += 1
            if decision.denial is not None:
                user[2 if decision.allowed else 1] += 1
        self._seconds[int(now_s) % MINUTE_S] += 1

    def count_lifetime(self, lifetime_s: object) -> None:
        """Count the lifetime of the request's token, if it is whole seconds."""
        if type(lifetime_s) is not int or not 0 < lifetime_s <= MAX_LIFETIME_S:
            return
        if lifetime_s in self._lifetimes or len(self._lifetimes) < MAX_LIFETIMES:
            self._lifetimes[lifetime_s] += 1

    def _track(self, name: str) -> list[int]:
        """Return the counts of a user, who may be new."""
        if name not in self.users and len(self.users) >= self._max_users * TRACKED_RATIO:
            self._registers = self._all_registers()
            self.users = dict(self._heaviest_users(len(self.users) // 2))
        return self.users.setdefault(name, [0, 0, 0])

    def snapshot(self, minute_s: int, *, is_complete: bool) -> ClientMinute:
        """Return the present counts; users only if the minute is over."""
        heaviest = self._heaviest_users(self._max_users) if is_complete else ()
        return ClientMinute(
            client_id=self.client_id,
            minute_s=minute_s,
            tallies={Source(*source): Tally(**tally) for source, tally in self._tallies.items()},
            peaks=dict(self._peaks),
            denials=dict(self._denials),
            users=tuple(UserLoad(name, *counts) for name, counts in heaviest),
            registers=self._all_registers() if is_complete else {},
            seconds=tuple(self._seconds) if any(self._seconds) else (),
            lifetimes=dict(self._lifetimes),
        )

    def _heaviest_users(self, max_count: int) -> list[tuple[str, list[int]]]:
        return nlargest(max_count, self.users.items(), key=lambda user: user[1][0])

    def _all_registers(self) -> dict[int, int]:
        registers = dict(self._registers)
        for register, rank in map(register_of, self.users):
            registers[register] = max(rank, registers.get(register, 0))
        return registers
