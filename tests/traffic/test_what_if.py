"""Estimated denials under another limit."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally, UserLoad
from oauth_ratelimit.traffic.minutes import Subject, excluded_count, loads
from oauth_ratelimit.traffic.what_if import effect_of, effects
from testbed.clock import Clock
from testbed.trace import hits

SHOP = Subject("shop", None)
BATCH, PASSWORD = Source("client", "client_credentials"), Source("user", "password")
REVOCATION = Source("client", "endpoint:revocation")


def bounds(load: Mapping[int, int], limit: int, window_minutes: int = 1, since_s: float = 0.0) -> tuple[int, int, int]:
    effect = effect_of(SHOP, load, limit=limit, window_minutes=window_minutes, since_s=since_s)
    return effect.at_least, effect.denied, effect.at_most


SIX_MINUTES = {60 * minute: 10 for minute in range(1, 7)}
WINDOWS: dict[str, tuple[Any, ...]] = {
    "minutes apart": ({60: 150, 300: 80}, 100, 1, (50, 50, 50)),
    "minutes apart that fit": ({60: 100, 300: 100}, 100, 1, (0, 0, 0)),
    "side by side": ({60: 80, 120: 80}, 100, 1, (0, 7, 60)),
    "wide window": (SIX_MINUTES, 40, 5, (10, 15, 20)),
    "wide window that may fit": (SIX_MINUTES, 50, 5, (0, 5, 10)),
    "wide window that fits": (SIX_MINUTES, 60, 5, (0, 0, 0)),
    "denied requests do not count": ({60: 1000, 180: 100}, 100, 1, (900, 900, 900)),
}


@pytest.mark.parametrize(("load", "limit", "window_minutes", "expected"), WINDOWS.values(), ids=WINDOWS)
def test_window_holds_some_of_the_minute_that_it_begins_in(
    load: dict[int, int], limit: int, window_minutes: int, expected: tuple[int, int, int]
) -> None:
    assert expected == bounds(load, limit, window_minutes)


def test_requests_before_the_time_only_fill_its_first_windows() -> None:
    load = {60: 40, 120: 40}

    assert (30, 30, 30) == bounds(load, 50, 60, since_s=120)
    assert 40 == effect_of(SHOP, load, limit=50, window_minutes=60, since_s=120).offered


def test_limit_counts_the_requests_of_its_kind() -> None:
    """Requests at other endpoints and of trusted clients are never counted."""
    users = (UserLoad("alice", 4, denied=3), UserLoad("bob", 1))
    minutes = [
        ClientMinute("shop", 60, {BATCH: Tally(2, denied=1), PASSWORD: Tally(5), REVOCATION: Tally(9)}, users=users),
        ClientMinute("shop", 120, {PASSWORD: Tally(5)}, users=users[:1]),
        ClientMinute("mobile", 60, {BATCH: Tally(trusted=7), PASSWORD: Tally(trusted=7)}, users=users),
    ]

    assert {SHOP: {60: 3}} == loads(minutes, LimitKind.CLIENT)
    assert {SHOP: {60: 8, 120: 5}} == loads(minutes, LimitKind.CLIENT_TOTAL)
    assert {Subject("shop", "alice"): {60: 4, 120: 4}, Subject("shop", "bob"): {60: 1}} == loads(
        minutes, LimitKind.USER
    )


@pytest.mark.parametrize(
    ("kind", "expected"), ((LimitKind.CLIENT, 40), (LimitKind.USER, 60), (LimitKind.CLIENT_TOTAL, 100))
)
def test_clients_that_were_counted_together_get_no_effect(kind: LimitKind, expected: int) -> None:
    tallies = {BATCH: Tally(40, trusted=90), PASSWORD: Tally(60)}
    minutes = [
        ClientMinute(OTHER_CLIENTS, start_s, tallies, users=(UserLoad("alice", 50), UserLoad("bob", 10)))
        for start_s in (60, 120)
    ]
    found = loads(minutes, kind)

    assert [] == effects(found, limit=1, window_minutes=1)
    assert (2 * expected, expected) == (excluded_count(found), excluded_count(found, since_s=120))


def test_effects_begin_with_the_most_denied() -> None:
    """Subjects without a request in the time are left out."""
    found = {
        Subject(name, None): {60 * start: count} for name, start, count in (("a", 5, 9), ("b", 5, 20), ("c", 1, 99))
    }
    found[Subject("d", None)] = {300: 10}

    listed = effects(found, limit=9, window_minutes=1, since_s=300)
    assert [("b", 11), ("d", 1), ("a", 0)] == [(effect.subject.client_id, effect.denied) for effect in listed]


@given(
    st.dictionaries(st.integers(0, 50).map(lambda minute: minute * 60), st.integers(1, 50)),
    st.integers(1, 100),
    st.integers(1, 10),
)
def test_estimate_is_between_the_bounds(load: dict[int, int], limit: int, window_minutes: int) -> None:
    at_least, denied, at_most = bounds(load, limit, window_minutes)

    assert 0 <= at_least <= denied <= at_most <= sum(load.values())
    assert (0, 0, 0) == bounds(load, sum(load.values()), window_minutes)


@pytest.mark.slow
@pytest.mark.parametrize(("window_minutes", "limit", "error_ratio"), ((1, 10, 0.02), (5, 20, 0.003), (10, 20, 0.002)))
def test_errors_on_recorded_traffic_are_as_documented(window_minutes: int, limit: int, error_ratio: float) -> None:
    clock = Clock()
    limits = {"client": [{"limit": limit, "window": 60 * window_minutes}]}
    limiter = Limiter(load_config({"mode": "dry-run", "limits": limits}), clock=clock)
    load: defaultdict[Subject, Counter[int]] = defaultdict(Counter)
    denied: Counter[Subject] = Counter()
    for hit in hits():
        clock.now_s = hit.at_s
        subject = Subject(str(hit.host), None)
        denied[subject] += limiter.check(subject.client_id).would_deny
        load[subject][int(hit.at_s // 60) * 60] += 1

    listed = effects(load, limit=limit, window_minutes=window_minutes)
    total = sum(effect.offered for effect in listed)
    assert 0.005 < denied.total() / total
    assert sum(abs(effect.denied - denied[effect.subject]) for effect in listed) < error_ratio * total
    outside = [effect for effect in listed if not effect.at_least <= denied[effect.subject] <= effect.at_most]
    assert len(outside) < 0.02 * len(listed)
