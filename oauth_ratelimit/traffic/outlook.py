"""Outlook: denials to be expected if a client goes on as lately, under its present limits or others."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oauth_ratelimit.core.key import Key
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.core.policy import LimitKind, Policy, PolicySet, full_grant_type
from oauth_ratelimit.core.statistics import HOUR_S, MINUTE_S, ClientMinute, full_minute
from oauth_ratelimit.core.tier import Tier, tiers_of
from oauth_ratelimit.operations.context import OperatorContext
from oauth_ratelimit.operations.explain import keys_of
from oauth_ratelimit.operations.format import rounded_up
from oauth_ratelimit.operations.marks import last_change_s
from oauth_ratelimit.store.base import Snapshot
from oauth_ratelimit.traffic.judge import Judged, Line, OpenWindow, judge
from oauth_ratelimit.traffic.minutes import OF_USERS, MinuteLoad

RECENT = 10  # minutes whose load is repeated
MAX_USERS = 4  # that are judged by name, the heaviest ones
OTHERS = "\0"  # name of the other users, who are judged as so many that each is as heavy as the last of these
SHORTEST, LONGEST = 60, 1440  # minutes of an outlook
MAX_SLOTS = 5000  # so that a preview takes about a second
HEADROOM = 1.25  # of a proposed limit over the highest load


class Sender(NamedTuple):
    """Sender of requests: a user or none, and the grant type. Users that are not known by name are one sender."""

    username: str | None
    grant_type: str | None
    user_count: int = 1


class Outlook(NamedTuple):
    """Denials to be expected if a client goes on as lately. All numbers are per minute."""

    length: int  # minutes that they are expected for
    offered: float
    judged: Judged  # over all these minutes
    begin_s: int  # start of the first of them, the next full minute
    is_trial: bool = False  # True if the denials are those of a dry run

    @property
    def verb(self) -> str:
        return "would be denied" if self.is_trial else "denied"

    @property
    def denied(self) -> float:
        return self.judged.denied / self.length

    @property
    def at_least(self) -> float:
        return max(0.0, self.judged.at_least / self.length - self._noise)

    @property
    def at_most(self) -> float:
        return min(self.offered, self.judged.at_most / self.length + self._noise) if self.judged.at_most else 0.0

    @property
    def _noise(self) -> float:
        """Error because requests come at random, and instances read each other's with a delay."""
        return self.offered / 100 + 2 * math.sqrt(self.offered / self.length)


@dataclass
class ClientLoad:
    """Recent minutes of a client with its present counters, for outlooks under several sets of policies."""

    client_id: str
    minutes: Sequence[ClientMinute]
    documents: Mapping[Key, Snapshot]
    policies: PolicySet
    now_s: float
    is_trial: bool = False  # True if what a dry run would deny counts as denied
    changed_s: float = 0.0  # time from which on all instances obey the last change that concerns it
    is_first: bool = False  # True if one is the first recorded minute
    begun: Sequence[ClientMinute] = ()  # later minutes, which are not full yet

    def __post_init__(self) -> None:
        self._load = list(_loads(self.minutes))
        self._senders = sorted({sender for minute in self._load for sender in minute}, key=str)
        self.offered = sum(map(Counter.total, self._load)) / max(1, len(self.minutes))  # requests per minute

    def over(self, minutes: Sequence[ClientMinute]) -> int:
        """Return the number of requests in some minutes that were denied, or that count as denied."""
        tallies = [minute.tally() for minute in minutes]
        return sum(each.over if self.is_trial else each.denied + each.reused for each in tallies)

    def met(self, policies: PolicySet) -> dict[str, tuple[LimitKind, Policy]]:
        """Return the policies that the requests meet, by name."""
        found: dict[str, tuple[LimitKind, Policy]] = {}
        for sender in self._senders:
            limits = policies.matching(self.client_id, grant_type=sender.grant_type).limits
            for kind in _keys(policies, self.client_id, sender):
                found |= {policy.name: (kind, policy) for policy in getattr(limits, kind)}
        return found

    def needed(self, kind: LimitKind, policy: Policy) -> int:
        """Return an amount that a limit should have to hardly deny, rounded up to two digits."""
        by_key: dict[Key, list[Sender]] = {}
        for sender in self._senders:
            if key := _keys(self.policies, self.client_id, sender).get(kind):
                by_key.setdefault(key, []).append(sender)
        highest = max((self._most_used(policy, kind, senders) for senders in by_key.values()), default=1.0)
        return rounded_up(highest * HEADROOM)

    def _most_used(self, policy: Policy, kind: LimitKind, senders: Sequence[Sender]) -> float:
        """Return the highest content of a window if nothing is denied."""
        window = OpenWindow(Tier(policy, Mode.ENFORCE))
        user_count = senders[0].user_count if kind in OF_USERS else 1
        step_s = MINUTE_S if window.tier.frame_s >= HOUR_S // 10 else 1
        highest = 1.0
        for number in range(math.ceil(window.tier.horizon_s / MINUTE_S) + SHORTEST):
            index = number % len(self._load)
            offered = math.ceil(sum(self._load[index][sender] for sender in senders) / user_count)
            before = MinuteLoad(offered, self.minutes[index].seconds).by_second()
            for start in range(0, MINUTE_S, step_s):
                at_s = number * MINUTE_S + start
                window.add(before[start + step_s] - before[start], at_s)
                highest = max(highest, window.estimate(at_s + step_s))
        return highest

    def outlook(self, policies: PolicySet) -> Outlook:
        """Return the denials to be expected if these policies apply from the next minute on."""
        met = [*self.met(self.policies).values(), *self.met(policies).values()]
        longest = max((policy.window.window_s for _, policy in met), default=0) // MINUTE_S
        length = min(LONGEST, max(SHORTEST, longest + RECENT))
        begin_s = (int(self.now_s) // MINUTE_S + 1) * MINUTE_S
        shared: dict[tuple[Key, Tier], OpenWindow] = {}
        lines = []
        for sender in self._senders:
            tiers = self._tiers(policies, sender)
            for key, tier in tiers:
                hits = self.documents[key].hits.get(tier.series) if key in self.documents else None
                shared.setdefault((key, tier), OpenWindow(tier, hits))
            load = [
                MinuteLoad(counts[sender], minute.seconds)
                for counts, minute in zip(self._load, self.minutes, strict=True)
            ]
            repeated = {begin_s + number * MINUTE_S: load[number % len(load)] for number in range(length)}
            lines.append(Line([shared[pair] for pair in tiers], repeated))
        return Outlook(length, self.offered, judge(lines, max_slots=MAX_SLOTS), begin_s, self.is_trial)

    def _tiers(self, policies: PolicySet, sender: Sender) -> list[tuple[Key, Tier]]:
        """Return the tiers that a sender's requests meet, with the key that each counts for."""
        matched = policies.matching(self.client_id, grant_type=sender.grant_type)
        mode = Mode.ENFORCE if self.is_trial else matched.mode
        found = []
        for kind, key in () if matched.trusted else _keys(policies, self.client_id, sender).items():
            limits = getattr(matched.limits, kind)
            if kind in OF_USERS and sender.user_count > 1:  # what all of them may send together
                limits = tuple(each._replace(limit=each.limit * sender.user_count) for each in limits)
            found += [(key, tier) for tier in tiers_of(limits, mode, is_total=kind is LimitKind.CLIENT_TOTAL)]
        return found


def _keys(policies: PolicySet, client_id: str, sender: Sender) -> dict[LimitKind, Key]:
    return keys_of(client_id, sender.username, policies.scope_of(client_id, grant_type=sender.grant_type))


def _loads(minutes: Sequence[ClientMinute]) -> Iterator[Counter[Sender]]:
    by_user, total = Counter[str](), 0
    for minute in minutes:
        by_user.update({user.username: user.offered for user in minute.users})
        total += minute.tally("user").offered
    named = dict((+by_user).most_common(MAX_USERS))
    rest = total - sum(named.values())
    other_count = max(1, math.ceil(rest / min(named.values()))) if named else MAX_USERS
    for minute in minutes:
        load, of_users = Counter[Sender](), Counter[str]()
        for source, tally in minute.tallies.items():
            if source.is_token and source.kind == "user":
                of_users[source.grant] += tally.offered
            elif source.is_token:
                load[Sender(None, full_grant_type(source.grant))] += tally.offered
        for grant, _ in of_users.most_common(1):  # most users have one grant type
            grant_type = full_grant_type(grant)
            of_named = {user.username: user.offered for user in minute.users if user.username in named}
            load.update({Sender(name, grant_type): offered for name, offered in of_named.items()})
            load[Sender(OTHERS, grant_type, other_count)] += of_users.total() - sum(of_named.values())
        yield +load


def recent_minutes(
    found: Iterable[ClientMinute], client_id: str, now_s: float, first_s: float = 0.0
) -> list[ClientMinute]:
    """Return the last ten full minutes, of those from a first one on; if a storm began meanwhile, those since then."""
    until_s = full_minute(now_s) + MINUTE_S
    by_start = {minute.minute_s: minute for minute in found}
    starts = range(max(until_s - RECENT * MINUTE_S, int(first_s)), until_s, MINUTE_S)
    minutes = [by_start.get(at_s, ClientMinute(client_id, at_s)) for at_s in starts]
    quiet = [index for index, minute in enumerate(minutes) if not minute.tally().over]
    # A storm is over a limit in each of its minutes. What comes and goes needs all minutes.
    is_storm = quiet == list(range(len(quiet))) and len(quiet) < len(minutes)
    return minutes[len(quiet) :] if is_storm else minutes


def read_load(context: OperatorContext, client_id: str, *, is_trial: bool) -> ClientLoad:
    """Return the load of a client, from its recorded minutes and its counters in MongoDB."""
    last_s, first_s = full_minute(context.now_s), context.recorded_since(0.0)
    read = list(context.minutes(last_s - RECENT * MINUTE_S, client_id, parts=("by", "users", "seconds")))
    # The first recorded minute may lack its beginning: it is left out if there are requests in later ones.
    is_later = any(minute.tally().offered for minute in read if first_s < minute.minute_s <= last_s)
    minutes = recent_minutes(read, client_id, context.now_s, first_s + MINUTE_S * is_later)
    senders = {sender for load in _loads(minutes) for sender in load}
    keys = {key for sender in senders for key in _keys(context.policies, client_id, sender).values()}
    documents = dict(context.stores.documents.of_keys(keys))
    changed_s = last_change_s(context, client_id) + 2 * context.settings.sync.interval_s
    is_first = any(minute.minute_s == first_s for minute in minutes)
    begun = [minute for minute in read if minute.minute_s > last_s]
    now = (context.policies, context.now_s, is_trial)
    return ClientLoad(client_id, minutes, documents, *now, changed_s, is_first, begun)
