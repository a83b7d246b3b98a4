"""Tokens that clients and users need."""

import pytest

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import ClientMinute, Tally, UserLoad, register_of
from oauth_ratelimit.traffic import need
from oauth_ratelimit.traffic.need import ClientNeed, Need, NeedCounter
from oauth_ratelimit.traffic.report import Verdict, find
from oauth_ratelimit.traffic.suggest import Traffic
from tests.traffic.reporting import LOGIN, OWN, START_S, minutes


def needed(kind: LimitKind, *requests: tuple[int, int], period_s: float = 600.0) -> Need:
    counter = NeedCounter(kind)
    for at_s, offered in requests:
        counter.add(at_s, offered, period_s)
    return counter.result()


def test_period_begins_with_a_request_and_lasts_as_long_as_a_token() -> None:
    once = needed(LimitKind.USER, (0, 1), (540, 5))
    again = needed(LimitKind.USER, (0, 1), (600, 5), (1140, 4), (1200, 1))

    assert (6, 1.0, 6.0) == (once.offered, once.needed, once.per_period)
    assert (11, 3.0, 3.0) == (again.offered, again.needed, again.least)


def test_client_has_ten_processes_and_needs_no_more_than_it_asks_for() -> None:
    many, few = needed(LimitKind.CLIENT, (0, 50)), needed(LimitKind.CLIENT, (0, 50), (600, 4))

    assert (10.0, 1.0, True) == (many.needed, many.least, many.is_wasteful)
    assert (14.0, 2.0, True) == (few.needed, few.least, few.is_wasteful)
    assert not needed(LimitKind.CLIENT, (0, 30)).is_wasteful


def test_tokens_that_are_valid_for_less_than_a_minute_are_needed_several_times_in_it() -> None:
    assert (3.0, 3.0) == needed(LimitKind.USER, (0, 9), period_s=20.0)[1:3]


def test_users_together_need_a_token_each() -> None:
    """Users of whom nothing is recorded may all be different ones."""
    found, unknown = ClientNeed(), ClientNeed()
    for minute in minutes({LOGIN: Tally(20), OWN: Tally(1)}, users=5, count=120):
        found.add(minute)
    for minute in minutes({LOGIN: Tally(20)}, count=120):
        unknown.add(minute)
    own, users, total = (found.of(kind) for kind in (LimitKind.CLIENT, LimitKind.USER, LimitKind.CLIENT_TOTAL))

    assert (20.0, 10.0) == (own.needed, pytest.approx(users.needed, rel=0.02))
    assert (own.offered + users.offered, own.needed + users.needed) == total[:2]
    assert (2400.0, False) == (unknown.of(LimitKind.USER).needed, unknown.of(LimitKind.USER).is_wasteful)


@pytest.mark.parametrize(
    ("given_s", "assumed_s", "issued", "expected"),
    [
        (60.0, 1.0, {600: 1}, 60.0),
        (None, 1.0, {600: 10, 300: 9, 7: 1}, 300.0),
        (None, 900.0, {}, 900.0),
        (None, None, {}, 3600.0),
    ],
    ids=["given", "issued", "assumed", "unknown"],
)
def test_lifetime_of_a_token_is_given_or_that_of_those_issued_or_assumed(
    given_s: float | None, assumed_s: float | None, issued: dict[int, int], expected: float
) -> None:
    """A single odd token is left out."""
    found = ClientNeed(given_s, assumed_s)
    for minute in minutes({OWN: Tally(20)}, count=1, lifetimes=issued):
        found.add(minute)

    assert expected == found.period_s
    assert 10 * 3600 / expected == found.most_in(3600, LimitKind.CLIENT)


@pytest.mark.parametrize(("ratio", "expected"), [(3.0, {"31 own", "4 of a user"}), (3.2, {"4 of a user"})])
def test_report_and_proposed_limits_call_the_same_clients_wasteful(
    monkeypatch: pytest.MonkeyPatch, ratio: float, expected: set[str]
) -> None:
    monkeypatch.setattr(need, "WASTEFUL_RATIO", ratio)
    each_hour = {"29 own": {OWN: Tally(29)}, "31 own": {OWN: Tally(31)}, "3 of a user": {LOGIN: Tally(3)}}
    clients = {**each_hour, "4 of a user": {LOGIN: Tally(4)}}
    found = [
        ClientMinute(
            client_id,
            START_S + 3600 * hour,
            tallies,
            users=tuple(UserLoad("ann", tally.offered) for source, tally in tallies.items() if source == LOGIN),
            registers=dict([register_of("ann")]) if LOGIN in tallies else {},
        )
        for hour in range(12)
        for client_id, tallies in clients.items()
    ]
    traffic = Traffic()
    for minute in found:
        traffic.add_minute(minute)

    assert expected == {each.client_id for each in find(found) if each.verdict is Verdict.WASTEFUL}
    for kind in (LimitKind.CLIENT, LimitKind.USER):
        for profile in traffic.profiles(kind):
            assert (profile.subject.client_id in expected) is profile.is_wasteful
