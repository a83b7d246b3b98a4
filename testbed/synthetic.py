"""A synthetic OAuth service: clients with known token lifetimes, some of which do not keep their tokens."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from oauth_ratelimit import load_config
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, MINUTE_S, ClientMinute, Source, Tally, UserLoad, register_of
from oauth_ratelimit.traffic.suggest import Proposal, Traffic, configuration, suggest
from testbed.fleet import Fleet

BEGIN_S = 1_793_577_600  # Monday 2026-11-02
USERS_PER_MINUTE = 20  # that the statistics keep, the default
RATES_PER_HOUR = (40, 120, 300, 900, 2400)  # of clients that ask for a token with each call
LIFETIMES_S = (600, 3600, 43_200)


class Request(NamedTuple):
    """One token request.

    Attributes:
        at_s: Time, seconds since the epoch.
        client_id: The client.
        username: The user, None for a grant without one.
        lifetime_s: Lifetime of the token.
        is_culprit: True if the client does not keep its tokens.
        is_needless: True if the asking process or device had a token that was still valid.
    """

    at_s: float
    client_id: str
    username: str | None
    lifetime_s: int
    is_culprit: bool
    is_needless: bool


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the service."""

    days: int = 14
    machines: int = 60
    apps: int = 12
    users_per_app: int = 120
    culprit_apps: int = 3
    culprit_rates: tuple[int, ...] = RATES_PER_HOUR


def requests(size: Size, *, seed: int) -> list[Request]:
    """Return all requests in the order of time."""
    rng = random.Random(seed)
    found: list[Request] = []
    for number in range(size.machines):
        processes = min(25, 1 + int(rng.expovariate(1 / 5)))
        found += _machine(rng, f"machine-{number}", size.days, processes=processes, lifetime_s=rng.choice(LIFETIMES_S))
    for number, rate in enumerate(size.culprit_rates):
        found += _machine_without_cache(rng, f"wasteful-machine-{number}", size.days, per_hour=rate)
    for number in range(size.apps):
        lifetime_s = rng.choice(LIFETIMES_S[:2])
        for user in range(rng.randint(size.users_per_app // 4, size.users_per_app)):
            found += _user(rng, f"app-{number}", f"user-{user}", size.days, lifetime_s=lifetime_s)
    for number in range(size.culprit_apps):
        every_s = rng.uniform(10, 40)
        for user in range(size.users_per_app // 2):
            found += _user(rng, f"wasteful-app-{number}", f"user-{user}", size.days, lifetime_s=3600, every_s=every_s)
    return sorted(found, key=lambda request: request.at_s)


def activity(at_s: float) -> float:
    """Return how busy the service is, 0 to 1: by the hour, and less at weekends."""
    day, second = divmod(at_s - BEGIN_S, DAY_S)
    by_hour = 0.1 + 0.9 * max(0.0, math.sin(math.pi * (second / 3600 - 6) / 15))
    return by_hour * (0.4 if day % 7 >= 5 else 1.0)


def _machine(rng: random.Random, client_id: str, days: int, *, processes: int, lifetime_s: int) -> Iterator[Request]:
    """Yield requests of a client whose processes keep their tokens. It is deployed anew on some days."""
    end_s = BEGIN_S + days * DAY_S
    deployed = [BEGIN_S + (day + rng.random()) * DAY_S for day in range(days) if rng.random() < 0.15]
    for _ in range(processes):
        for begin_s, until_s in zip([BEGIN_S, *deployed], [*deployed, end_s], strict=True):
            at_s = begin_s + rng.uniform(0, 120)
            while at_s < until_s:
                yield Request(at_s, client_id, None, lifetime_s, is_culprit=False, is_needless=False)
                if rng.random() < 0.005:  # the answer was lost
                    yield Request(at_s + 2, client_id, None, lifetime_s, is_culprit=False, is_needless=True)
                at_s += lifetime_s + rng.expovariate(activity(at_s) / 300)


def _machine_without_cache(rng: random.Random, client_id: str, days: int, *, per_hour: float) -> Iterator[Request]:
    """Yield requests of a client that asks for a token with each call."""
    last_s = -math.inf
    at_s = float(BEGIN_S)
    while at_s < BEGIN_S + days * DAY_S:
        yield Request(at_s, client_id, None, 3600, is_culprit=True, is_needless=at_s < last_s + 3600)
        last_s = at_s
        at_s += rng.expovariate(per_hour * activity(at_s) / 3600)


def _user(
    rng: random.Random, client_id: str, username: str, days: int, *, lifetime_s: int, every_s: float | None = None
) -> Iterator[Request]:
    """Yield requests of a user in sessions: at the expiry of tokens, or at random times this far apart on average."""
    expiry_s = dict.fromkeys(range(rng.choice((1, 1, 2))), 0.0)  # by device
    for day in range(days):
        at_s = BEGIN_S + day * DAY_S
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            begin_s = at_s + rng.gauss(14, 3) * 3600
            if rng.random() > activity(begin_s):
                continue
            end_s = begin_s + rng.expovariate(1 / 1800)
            device = rng.choice(list(expiry_s))
            now_s = begin_s if every_s else max(begin_s, expiry_s[device])
            while now_s < end_s:
                is_needless = now_s < expiry_s[device]
                yield Request(now_s, client_id, username, lifetime_s, every_s is not None, is_needless)
                expiry_s[device] = now_s + lifetime_s
                now_s += rng.expovariate(1 / every_s) if every_s else lifetime_s + rng.uniform(0, 30)


def statistics(found: Iterable[Request]) -> Iterator[ClientMinute]:
    """Yield what the statistics keep of requests: minutes, with the heaviest users only."""
    for minute_s, in_minute in groupby(found, key=lambda request: int(request.at_s) // MINUTE_S * MINUTE_S):
        by_client: dict[str, list[Request]] = {}
        for request in in_minute:
            by_client.setdefault(request.client_id, []).append(request)
        for client_id, group in by_client.items():
            users = Counter(request.username for request in group if request.username is not None)
            own = len(group) - users.total()
            tallies = {
                source: Tally(count)
                for source, count in (
                    (Source("client", "client_credentials"), own),
                    (Source("user", "password"), users.total()),
                )
                if count
            }
            yield ClientMinute(
                client_id,
                minute_s,
                tallies,
                users=tuple(UserLoad(name, count) for name, count in users.most_common(USERS_PER_MINUTE)),
                registers=dict(map(register_of, users)),
                lifetimes={group[0].lifetime_s: len(group)},
            )


@dataclass(slots=True)
class Verdict:
    """Decisions about the requests after the fit."""

    well_behaved: int = 0
    harmed: int = 0
    needless: int = 0
    stopped: int = 0

    @property
    def harmed_percent(self) -> float:
        """Denied requests of well-behaved clients, in percent of theirs."""
        return 100 * self.harmed / max(1, self.well_behaved)

    @property
    def stopped_percent(self) -> float:
        """Denied needless requests of wasteful clients, in percent of those."""
        return 100 * self.stopped / max(1, self.needless)


def judge(found: Sequence[Request], *, fit_days: int = 7, fit_hours: tuple[float, float] | None = None) -> Verdict:
    """Propose limits from the first days, or from some hours of them, and decide the rest under them."""
    middle_s = BEGIN_S + fit_days * DAY_S
    first_h, last_h = fit_hours or (0, 24 * fit_days)
    traffic = Traffic()
    for minute in statistics(one for one in found if first_h * HOUR_S <= one.at_s - BEGIN_S < last_h * HOUR_S):
        traffic.add_minute(minute)
    rest = [request for request in found if request.at_s >= middle_s]
    denied = decide(suggest(traffic), ((one.at_s, one.client_id, one.username) for one in rest))
    verdict = Verdict()
    for request, is_denied in zip(rest, denied, strict=True):
        if not request.is_culprit:
            verdict.well_behaved += 1
            verdict.harmed += is_denied
        elif request.is_needless:
            verdict.needless += 1
            verdict.stopped += is_denied
    return verdict


def decide(proposal: Proposal, asked: Iterable[tuple[float, str, str | None]]) -> list[bool]:
    """Return for each request whether the limiter denies it under the proposed limits."""
    fleet = Fleet(load_config({"mode": "enforce", **configuration(proposal)}), 1, shares=False)
    denied = [not fleet.check(client_id, username, at_s=at_s).allowed for at_s, client_id, username in asked]
    fleet.close()
    return denied
