"""Counter documents as operators look at them, on the real server."""

from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.core.key import Key
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.counters import CounterDocuments
from testbed.clock import Clock

LONG_GONE_S = 1_000_000_000.0
ODD_NAMES = ("a.b", "$where", "a\x00b", "\N{SNOWMAN}", "")


@pytest.fixture
def documents(connection: Connection) -> CounterDocuments:
    return CounterDocuments(connection, collection="ratelimits")


@pytest.fixture
def limiters(mongo_uri: str) -> Iterator[list[Limiter]]:
    """Three instances that share counters. Their clock is far ahead, so that MongoDB removes nothing."""
    config = {
        "store": {"uri": mongo_uri},
        "mode": "enforce",
        "limits": {"client": ["5/hour"], "user": ["5/hour"], "client_total": ["50/hour"]},
        "grants": {"refresh_token": {"limits": {"user": ["5/hour"]}}},
    }
    clock = Clock(4_000_000_000.0)
    instances = [Limiter(load_config(config), clock=clock, monotonic=clock) for _ in range(3)]
    yield instances
    for instance in instances:
        instance.close()


def spend(limiters: list[Limiter], *key: Any, **place: Any) -> None:
    """Use up a quota of five on all instances together."""
    for limiter in (*limiters, *limiters[:2]):
        limiter.check(*key, **place)
    settle(limiters)


def settle(limiters: list[Limiter]) -> None:
    """Synchronise until everybody knows everything."""
    for limiter in (*limiters, *limiters):
        limiter.sync()


def test_documents_of_a_client_are_its_own_its_users_and_the_total(
    limiters: list[Limiter], documents: CounterDocuments
) -> None:
    for client_id in ("app", "app2", "ap", "APP", *ODD_NAMES):
        spend(limiters, client_id, "alice")
    spend(limiters, "app")

    assert {Key("app", None), Key("app", "alice"), Key("app", None, "client_total")} == {
        key for key, _ in documents.of_client("app")
    }
    assert 9 + 2 * len(ODD_NAMES) == len(list(documents.every(LONG_GONE_S)))
    assert [] == list(documents.every(5_000_000_000.0))
    for client_id in ODD_NAMES:
        assert {client_id} == {key.client_id for key, _ in documents.of_client(client_id)}
        assert 1 == documents.reset(client_id, "alice")


def test_reset_user_is_admitted_by_all_instances(limiters: list[Limiter], documents: CounterDocuments) -> None:
    """At every grant type; other users stay as they are."""
    for username in ("alice", "bob"):
        spend(limiters, "app", username)
    spend(limiters, "app", "alice", grant_type="refresh_token")

    assert 2 == documents.reset("app", "alice")
    for limiter in limiters:
        limiter.check("app", "alice")  # denied on what is known: makes the next cycle look
        limiter.check("app", "alice", grant_type="refresh_token")
    settle(limiters)
    for limiter in limiters:
        assert limiter.peek("app", "alice").allowed
        assert limiter.peek("app", "alice", grant_type="refresh_token").allowed
        assert not limiter.peek("app", "bob").allowed


def test_reset_client_starts_at_zero(limiters: list[Limiter], documents: CounterDocuments) -> None:
    spend(limiters, "app", "alice")
    spend(limiters, "app")
    spend(limiters, "other")

    assert 3 == documents.reset("app")
    assert 0 == documents.reset("app")
    for limiter in limiters:
        limiter.check("app")
    settle(limiters)
    assert [False] * 3 == [limiter.peek("other").allowed for limiter in limiters]
    assert [True] * 3 == [limiter.peek("app").allowed for limiter in limiters]


def test_hits_in_flight_at_a_reset_are_counted_once(limiters: list[Limiter], documents: CounterDocuments) -> None:
    spend(limiters[:1], "app")
    limiters[0].check("app")
    limiters[0].check("app")
    documents.reset("app")
    limiters[0].sync()
    assert 3 == limiters[0].peek("app").remaining  # its next write has lost the race
    settle(limiters)
    for limiter in limiters:
        limiter.peek("app")
    settle(limiters)

    assert [3] * 3 == [limiter.peek("app").remaining for limiter in limiters]
