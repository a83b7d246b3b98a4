"""Requests of clients and users by minute."""

import pytest

from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally, UserLoad
from oauth_ratelimit.traffic.minutes import MinuteLoad, Subject, excluded_count, loads

BATCH, PASSWORD = Source("client", "client_credentials"), Source("user", "password")
REVOCATION = Source("client", "endpoint:revocation")


def test_limit_counts_the_requests_of_its_kind() -> None:
    """Requests at other endpoints and of trusted clients are never counted."""
    users = (UserLoad("alice", 4, denied=3), UserLoad("bob", 1))
    seconds = [8, *[0] * 59]
    minutes = [
        ClientMinute(
            "shop", 60, {BATCH: Tally(2, denied=1), PASSWORD: Tally(5), REVOCATION: Tally(9)}, {}, users, {}, seconds
        ),
        ClientMinute("shop", 120, {PASSWORD: Tally(5)}, users=users[:1]),
        ClientMinute("mobile", 60, {BATCH: Tally(trusted=7), PASSWORD: Tally(trusted=7)}, users=users),
    ]
    shop = Subject("shop", None)

    assert {shop: {60: MinuteLoad(3, seconds)}} == loads(minutes, LimitKind.CLIENT)
    assert {shop: {60: MinuteLoad(8, seconds), 120: MinuteLoad(5)}} == loads(minutes, LimitKind.CLIENT_TOTAL)
    assert {
        Subject("shop", "alice"): {60: MinuteLoad(4, seconds), 120: MinuteLoad(4)},
        Subject("shop", "bob"): {60: MinuteLoad(1, seconds)},
    } == loads(minutes, LimitKind.USER)


@pytest.mark.parametrize(
    ("kind", "expected"), ((LimitKind.CLIENT, 40), (LimitKind.USER, 60), (LimitKind.CLIENT_TOTAL, 100))
)
def test_clients_that_were_counted_together_are_excluded(kind: LimitKind, expected: int) -> None:
    tallies = {BATCH: Tally(40, trusted=90), PASSWORD: Tally(60)}
    minutes = [
        ClientMinute(OTHER_CLIENTS, start_s, tallies, users=(UserLoad("alice", 50), UserLoad("bob", 10)))
        for start_s in (60, 120)
    ]
    found = loads(minutes, kind)

    assert (2 * expected, expected) == (excluded_count(found), excluded_count(found, since_s=120))


def test_user_of_a_client_is_spread_as_its_client() -> None:
    """Only the minute is known of a user whose client has other requests, too."""
    seconds = [0] * 30 + [6, 3] + [0] * 28
    own, shared, unknown = MinuteLoad(9, seconds), MinuteLoad(3, seconds), MinuteLoad(6)

    assert (1, 60, 60) == (own.resolution_s, shared.resolution_s, unknown.resolution_s)
    assert [0, 2, 3] == shared.by_second()[30:33]
    assert [0, 3, 6] == unknown.by_second()[::30]
    assert {3, 6, 9} == {load.by_second()[-1] for load in (own, shared, unknown)}
