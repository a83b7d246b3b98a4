"""Forecast of denials: a client's recent load, sent to real limiters in simulated time from its present counters.

The statistics know the minute of a request, not its second. So the load is sent in several ways: evenly, and in bursts
as dense as the densest recorded second. The results are the bounds of the forecast.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from oauth_ratelimit.config import Settings
from oauth_ratelimit.core.grant_type import full_grant_type
from oauth_ratelimit.core.key import Key, storable_name
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet
from oauth_ratelimit.core.statistics import MINUTE_S, NO_REQUESTS, ClientMinute
from oauth_ratelimit.counters.rules import CLIENT_TOTAL
from oauth_ratelimit.limiter import Limiter
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.store.base import Change, Snapshot
from oauth_ratelimit.store.memory import MemoryStore
from oauth_ratelimit.traffic.replayed import quiet_limiter
from oauth_ratelimit.traffic.suggest import rounded_up

RECENT = 10  # minutes whose load is repeated
WRITTEN_S = 20  # after the end of a minute all instances have written it
MAX_USERS = 8  # that are sent by name; the others are sent as no more users than these
SHORTEST, LONGEST = 60, 1440  # minutes of a forecast
MAX_SENT = 4000  # times that a limiter is asked in one run, half a second
HEADROOM = 1.25  # of a proposed limit over the highest load


class Sender(NamedTuple):
    """Sender of requests: a user or none, and the grant type."""

    username: str | None
    grant_type: str | None


class Outlook(NamedTuple):
    """Denials to be expected per minute if a client goes on as lately."""

    length: int  # minutes that they are expected for
    denied: float
    at_least: float
    at_most: float
    ways: Sequence[float]  # those of each way to send the requests, in the order of ``WAYS``
    first_s: Mapping[str, float]  # time of the first one by each policy, that with most denials first


class Forecaster:
    """Forecasts for one client, from its recorded minutes and present counters, under several sets of policies.

    With ``counts_dry_run`` it counts what a dry run would deny as denied.
    """

    def __init__(
        self,
        client_id: str,
        minutes: Sequence[ClientMinute],
        documents: Iterable[tuple[Key, Snapshot]],
        *,
        policies: PolicySet,
        now_s: float,
        counts_dry_run: bool = False,
    ) -> None:
        self.recorded = sum((minute.tally() for minute in minutes), NO_REQUESTS)
        self._client_id = client_id
        self._load = [Counter(dict(_senders(minute))) for minute in minutes]
        self.minute_count = len(minutes)  # whose load is repeated
        self.offered = sum(map(Counter.total, self._load)) / max(1, len(minutes))  # requests per minute
        self._senders = sorted({sender for minute in self._load for sender in minute}, key=str)
        self._documents = list(documents)
        self._policies = policies
        self._now_s = now_s
        self.counts_dry_run = counts_dry_run
        self._most_per_second = max((minute.burst for minute in minutes), default=0) or math.inf

    def met(self, policies: PolicySet) -> dict[str, tuple[LimitKind, Policy]]:
        """Return the policies that the requests meet, by name."""
        found: dict[str, tuple[LimitKind, Policy]] = {}
        for sender in self._senders:
            limits = policies.matching(self._client_id, grant_type=sender.grant_type).limits
            for kind in (LimitKind.CLIENT if sender.username is None else LimitKind.USER, LimitKind.CLIENT_TOTAL):
                found |= {policy.name: (kind, policy) for policy in getattr(limits, kind)}
        return found

    def needed(self, kind: LimitKind, policy: Policy) -> int:
        """Return an amount that a limit should have to hardly deny, rounded up to two digits."""
        window_s, highest = policy.window.window_s, 1.0
        by_key: dict[tuple[str | None, str | None], list[Sender]] = {}
        for sender in self._senders:
            if kind is LimitKind.CLIENT_TOTAL or (sender.username is None) is (kind is LimitKind.CLIENT):
                scope = self._policies.scope_of(self._client_id, grant_type=sender.grant_type)
                username = sender.username if kind is LimitKind.USER else None
                by_key.setdefault((scope, username), []).append(sender)
        for senders in by_key.values():
            counts = [sum(minute[sender] for sender in senders) for minute in self._load]
            rounds, rest = divmod(math.ceil(window_s / MINUTE_S), len(counts))
            most = max(sum((counts * 2)[start : start + rest]) for start in range(len(counts)))
            per_second = min(max(counts), self._most_per_second * window_s)
            highest = max(highest, per_second if window_s < MINUTE_S else rounds * sum(counts) + most)
        return rounded_up(highest * HEADROOM)

    def outlook(self, policies: PolicySet) -> Outlook:
        """Return the denials to be expected if these policies apply from now on."""
        met = [*self.met(self._policies).values(), *self.met(policies).values()]
        longest = max((policy.window.window_s for _, policy in met), default=0) // MINUTE_S
        length = min(LONGEST, max(SHORTEST, longest + RECENT))
        steps = min(MINUTE_S, max(1, MAX_SENT // max(1, length * len(self._senders))))
        runs = [self._run(policies, length, steps, *way) for way in WAYS]
        ways = [by_policy.total() / length for by_policy, _ in runs]
        (evenly, first_s), offered = runs[0], self.offered
        # A limit admits one step less than it could, because all requests of a step come at once.
        rates = ((policy.limit * MINUTE_S, policy.window.window_s) for _, policy in met)
        coarse = max(
            (min(offered, hits / each) * min(1.0, MINUTE_S / each) / steps for hits, each in rates), default=0.0
        )
        noise = offered / 100 + 2 * math.sqrt(offered / length)  # requests come at random
        return Outlook(
            length,
            denied=ways[0],
            at_least=max(0.0, min(ways) - noise - coarse),
            at_most=min(offered, max(ways) + noise) if any(ways) else 0.0,
            ways=ways,
            first_s={name: first_s[name] for name, _ in evenly.most_common()},
        )

    def _run(
        self, policies: PolicySet, length: int, steps: int, is_burst: bool, alternates: bool
    ) -> tuple[Counter[str], dict[str, float]]:
        """Return the requests over a limit in one simulation by policy, and the time of the first of each policy."""
        now_s = self._now_s
        store = MemoryStore(lambda: now_s)
        changes = [
            Change(key, None, 1, 1, each.hits, math.inf, horizons=each.horizons) for key, each in self._documents
        ]
        store.compare_and_set("recorded", changes)
        limiter = quiet_limiter(Settings(policies=self._policies), store, lambda: now_s)
        for sender in self._senders:
            limiter.peek(self._client_id, sender.username, grant_type=sender.grant_type)
        limiter.sync()
        limiter.reconfigure(Settings(policies=policies))
        counts_denied = any(policy.count_denied for _, policy in self.met(policies).values())
        by_policy, first_s = Counter[str](), dict[str, float]()
        for number in range(length):
            load = self._load[number % len(self._load)]
            span_s = min(float(MINUTE_S), load.total() / self._most_per_second) if is_burst else float(MINUTE_S)
            begin_s = MINUTE_S - span_s if alternates and number % 2 == 0 else 0.0
            for step in range(steps):
                now_s = self._now_s + number * MINUTE_S + begin_s + span_s * (step + 0.5) / steps
                for sender, count in load.items():
                    part = count * (step + 1) // steps - count * step // steps
                    for policy, denied in self._send(limiter, sender, part, counts_denied=counts_denied):
                        by_policy[policy] += denied
                        first_s.setdefault(policy, now_s)
        return by_policy, first_s

    def _send(self, limiter: Limiter, sender: Sender, count: int, *, counts_denied: bool) -> Iterator[tuple[str, int]]:
        """Send requests at one moment, and yield the policies that deny with the number of their denials."""
        while count > 0:
            found = limiter.peek(self._client_id, sender.username, grant_type=sender.grant_type)
            sent = count if found.would_deny or found.policy is None else max(1, min(count, found.remaining))
            if found.allowed or counts_denied:
                limiter.check(self._client_id, sender.username, grant_type=sender.grant_type, cost=sent)
            if found.would_deny and (self.counts_dry_run or not found.allowed):
                yield found.policy or "", sent
            count -= sent


WAYS = ((False, False), (True, False), (True, True))
"""Ways to send the load of a minute: evenly; in one burst at its start; in bursts at its end and its start by turns."""


def _senders(minute: ClientMinute) -> Iterator[tuple[Sender, int]]:
    of_users: Counter[str] = Counter()
    for source, tally in minute.tallies.items():
        if source.is_token and source.kind == "user":
            of_users[source.grant] += tally.offered
        elif source.is_token and tally.offered:
            yield Sender(None, full_grant_type(source.grant)), tally.offered
    if not of_users.total():
        return
    grant_type, named = full_grant_type(of_users.most_common(1)[0][0]), minute.users[:MAX_USERS]
    for user in named:
        yield Sender(user.username, grant_type), user.offered
    rest = of_users.total() - sum(user.offered for user in named)
    # Each of the other users sent no more than those with a name.
    sender_count = min(MAX_USERS, math.ceil(rest / max(1, min((user.offered for user in named), default=1))))
    for number in range(sender_count):
        part = rest * (number + 1) // sender_count - rest * number // sender_count
        yield Sender(f"\0{number}", grant_type), part


def recent_minutes(found: Iterable[ClientMinute], client_id: str, now_s: float) -> list[ClientMinute]:
    """Return the last ten full minutes; if a storm began meanwhile, those since then."""
    until_s = int((now_s - WRITTEN_S) // MINUTE_S) * MINUTE_S
    by_start = {minute.minute_s: minute for minute in found}
    starts = range(until_s - RECENT * MINUTE_S, until_s, MINUTE_S)
    minutes = [by_start.get(at_s, ClientMinute(client_id, at_s)) for at_s in starts]
    quiet = [index for index, minute in enumerate(minutes) if not minute.tally().over]
    # A storm is over a limit in each of its minutes. What comes and goes needs all minutes.
    is_storm = quiet == list(range(len(quiet))) and len(quiet) < RECENT
    return minutes[len(quiet) :] if is_storm else minutes


def forecaster_of(context: OperatorContext, client_id: str, *, counts_dry_run: bool = False) -> Forecaster:
    """Return the forecaster for a client, with its recorded minutes and its counters in MongoDB."""
    stored = storable_name(client_id)
    since_s = context.now_s - WRITTEN_S - (RECENT + 1) * MINUTE_S
    read = context.minutes(since_s, client_id, parts=("by", "users", "seconds"))
    minutes = recent_minutes(read, client_id, context.now_s)
    senders = {sender for minute in minutes for sender, _ in _senders(minute)}
    keys = set()
    for sender in senders:
        scope = context.policies.scope_of(client_id, grant_type=sender.grant_type)
        total = CLIENT_TOTAL if scope is None else f"{scope}/{CLIENT_TOTAL}"
        keys |= {Key(stored, sender.username, scope), Key(stored, None, total)}
    return Forecaster(
        client_id,
        minutes,
        context.stores.documents.of_keys(keys),
        policies=context.policies,
        now_s=context.now_s,
        counts_dry_run=counts_dry_run,
    )
