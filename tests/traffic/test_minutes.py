"""Minutes of recorded requests, and the requests of clients and users in them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally, UserLoad
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from oauth_ratelimit.traffic.formats import Row
from oauth_ratelimit.traffic.minutes import MinuteLoad, Replayed, Subject, excluded_count, loads, minutes_of_rows

BATCH, PASSWORD = Source("client", "client_credentials"), Source("user", "password")
REVOCATION = Source("client", "endpoint:revocation")
SECOND = 1_000_000
BEGIN_S = 2_000_000_040  # a minute that MongoDB does not remove yet


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


def replay(config: Mapping[str, Any], rows: Sequence[Row]) -> list[ClientMinute]:
    with closing(Replayed(load_config(config))) as replayed:
        return list(replayed.minutes(rows))


def burst(client: str, user: str | None = None, *, count: int = 10, grant: str | None = None) -> list[Row]:
    return [Row(BEGIN_S * SECOND + n, client, user, grant) for n in range(count)]


def test_own_limits_plans_grants_and_trust_of_the_configuration_apply() -> None:
    config = {
        "mode": "enforce",
        "limits": {"client": ["2/minute"], "user": ["3/minute"], "client_total": ["6/minute"]},
        "plans": {"gold": {"limits": {"client": ["5/minute"]}}},
        "clients": {"own": {"limits": {"client": ["4/minute"]}}, "partner": {"plan": "gold"}},
        "grants": {"refresh_token": {"limits": {"user": ["8/minute"], "client_total": []}}},
        "trusted_clients": ["mobile-*"],
    }
    rows = [
        *burst("plain"), *burst("own"), *burst("partner"), *burst("mobile-1"),
        *burst("shop", "ann", count=5), *burst("shop", "bob", count=5), *burst("shop", "ann", grant="refresh_token"),
    ]  # fmt: skip
    found = {minute.client_id: minute for minute in replay(config, rows)}

    over = {client_id: minute.tally().denied for client_id, minute in found.items()}
    assert {"plain": 8, "own": 6, "partner": 5, "shop": 2 + 2 + 2, "mobile-1": 0} == over
    assert {"ann": 4, "bob": 2} == {user.username: user.over for user in found["shop"].users}
    assert Tally(trusted=10) == found["mobile-1"].tally()


def test_dry_run_and_canary_are_told_from_what_is_denied() -> None:
    config = {"mode": "dry-run", "limits": {"client": ["2/minute"]}, "clients": {"first": {"mode": "enforce"}}}
    first, other = replay(config, [*burst("first"), *burst("other")])

    assert (Tally(2, denied=8), Tally(2, would_deny=8)) == (first.tally()._replace(retries=0), other.tally())


def test_requests_that_no_limit_applies_to_are_counted() -> None:
    settings = load_config({"limits": {"client": ["2/minute"], "user": []}, "trusted_clients": ["mobile"]})
    with closing(Replayed(settings)) as replayed:
        minutes = list(replayed.minutes([*burst("app"), *burst("shop", "ann", count=3), *burst("mobile", count=4)]))

    assert (3, 3) == (replayed.unlimited_count, len(minutes))


def test_pseudonyms_replace_user_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 64)
    privacy = {"user_names": "hashed", "keys": [{"file": str(tmp_path / "key")}]}
    (minute,) = replay({"limits": {"user": ["2/minute"]}, "privacy": privacy}, burst("shop", "ann"))

    assert [("ann" != user.username, user.offered) for user in minute.users] == [(True, 10)]


def test_minutes_hold_all_users_and_the_seconds_of_their_requests() -> None:
    """As many users as a file has, and without a limiter nobody is over a limit."""
    rows = [Row((BEGIN_S + number % 2) * SECOND, "shop", f"user-{number}") for number in (*range(0, 500, 2), 1)]
    first, second = minutes_of_rows([*rows, Row((BEGIN_S + 65) * SECOND, "shop", None, "client_credentials")])

    assert Counter({1: 251}) == Counter(user.offered for user in first.users)
    assert ([250, 1], {Source("user", "none"): Tally(251)}) == (list(first.seconds[:2]), first.tallies)
    assert (BEGIN_S, BEGIN_S + 60) == (first.minute_s, second.minute_s)
    assert {Source("client", "client_credentials"): Tally(1)} == second.tallies


def test_minutes_of_a_file_are_what_mongodb_returns_of_the_same_requests(connection: Connection) -> None:
    users = [None, "ann", "bob", "bob", "bob", "bob"]
    rows = [Row((BEGIN_S + number) * SECOND, f"app-{number % 2}", users[number % 6]) for number in range(200)]
    settings = {"mode": "enforce", "limits": {"client": ["5/minute"], "user": ["9/minute"]}}
    minutes = sorted(replay(settings, rows), key=lambda minute: (minute.minute_s, minute.client_id))
    statistics = StatisticsStore(connection)
    statistics.put("one-0", minutes, keep_s=1e7)

    found = sorted(statistics.minutes(0, 4e9), key=lambda minute: (minute.minute_s, minute.client_id))
    assert 8 == len(minutes)
    assert minutes == found
