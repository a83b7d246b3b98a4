"""Attackers of the threat model in ``docs/security.md`` that no other file plays, over real HTTP."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask
from pymongo import MongoClient
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP
from demo.models import GRANT_OWN_TOKEN, Client
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.admin import admin_blueprint
from tests.support.flows import TIMEOUT_S, password_of
from tests.support.guarded import ADDRESS_LIMIT, USER_LIMIT, Guarded
from tests.support.helpers import Clock
from tests.support.sites import Site, config, protect_after, protected

LIMIT = 5
JOB = {"grant_type": "client_credentials"}
UNREACHABLE = "mongodb://127.0.0.1:1/oauth?serverSelectionTimeoutMS=200&connectTimeoutMS=200"


def statuses(site: Site, count: int, form: dict[str, str], *, client: Client = WEB_SHOP, query: str = "") -> list[int]:
    """Send a token request several times, and return the statuses."""
    auth = (client.client_id, client.client_secret or "")
    url = f"{site.url}/token{query}"
    return [requests.post(url, data=form, auth=auth, timeout=TIMEOUT_S).status_code for _ in range(count)]


def login(username: str, grant_type: str = "password") -> dict[str, str]:
    """Return the form of a user's login."""
    return {"grant_type": grant_type, "username": username, "password": password_of(username)}


@pytest.fixture
def site(database: Path) -> Iterator[Site]:
    """A server with a limit per client and per user, and a trusted client."""
    with protected(database, config(limit=LIMIT, trusted_clients=["batch-*"])) as served:
        yield served


# Strangers.


def test_stranger_forges_no_line_of_the_log(server: Guarded) -> None:
    """Names with line breaks, terminal escapes and direction marks, until they are denied and logged."""
    name = 'alice\r\n{"event": "forged"}\x1b[2J\u202e\u2028\x85'
    with capture_logs() as logs:
        for _ in range(USER_LIMIT + 1):
            server.login(name, client=MOBILE_APP)
            server.send(JOB, auth=("web-shop\n\x1b[2Jforged", "x"))
        for _ in range(ADDRESS_LIMIT):
            server.send(JOB, auth=("web-shop\n\x1b[2Jforged", "x"))

    denied = [line for line in logs if line["event"] == "request_denied"]
    assert {"failures:user", "failures:client"} == {line["scope"] for line in denied}
    assert all(value.isprintable() for line in logs for value in line.values() if isinstance(value, str))


# Clients and tenants.


def test_client_that_names_a_trusted_one_is_denied_all_the_same(site: Site) -> None:
    """In the query and in the form, beside its own secret."""
    assert [200] * LIMIT + [429] == statuses(site, LIMIT + 1, JOB)
    assert [429] == statuses(site, 1, JOB, query="?client_id=batch-jobs")
    assert [429] == statuses(site, 1, {**JOB, "client_id": "batch-jobs"})
    assert [200] == statuses(site, 1, JOB, client=BATCH_JOBS)


def test_tenant_that_floods_takes_nothing_from_another(database: Path) -> None:
    """Neither from its quota nor from those of its users."""
    with protected(database, config(limit=LIMIT)) as site:
        flood = statuses(site, 10 * LIMIT, JOB)
        other = statuses(site, LIMIT, JOB, client=BATCH_JOBS)
        users = statuses(site, LIMIT, login("alice"), client=BATCH_JOBS)

    assert 9 * LIMIT == flood.count(429)
    assert [200] * LIMIT == other == users


# Users.


def test_user_gets_no_second_quota_by_another_grant_or_another_name_in_the_query(site: Site) -> None:
    """The user counts whom the server has authenticated."""
    assert [200] * 3 == statuses(site, 3, login("alice"))
    assert [200] * 2 + [429] == statuses(site, 3, login("alice", GRANT_OWN_TOKEN))
    assert [429] == statuses(site, 1, login("alice"), query="?username=bob&user=bob")


def test_user_who_asks_in_a_loop_leaves_the_quota_of_others(site: Site) -> None:
    """Of the same client."""
    assert [429] * LIMIT == statuses(site, 2 * LIMIT, login("alice"))[LIMIT:]
    assert [200] * LIMIT == statuses(site, LIMIT, login("bob"))


# Operators.


@contextmanager
def with_page(database: Path, mongo_uri: str, authorize: Callable[[], str | None]) -> Iterator[str]:
    """Serve the admin page, and yield its address."""

    def protect(path: Any, settings: Any, extension: OAuthRateLimit) -> Flask:
        app = protect_after(path, settings, extension)
        app.secret_key = "a secret"
        app.register_blueprint(admin_blueprint(authorize))
        return app

    settings = config(limit=LIMIT, store={"uri": mongo_uri})
    with protected(database, settings, protect=protect, clock=Clock(time.time())) as site:
        yield f"{site.url}/ratelimit"


CHANGE = {"kind": "mode", "client_id": None, "mode": "off", "reason": "ticket 4711"}
OWN_SITE = {"Sec-Fetch-Site": "same-origin"}


def send_change(page: str, token: str, headers: dict[str, str]) -> requests.Response:
    """Send a change to the admin page."""
    return requests.post(
        f"{page}/api/apply", json=CHANGE, headers={"X-Ratelimit-Token": token, **headers}, timeout=TIMEOUT_S
    )


def token_of(page: str) -> str:
    """Return the token that the page gives its operator."""
    found = re.search(r'data-token="([^"]*)"', requests.get(f"{page}/overrides", timeout=TIMEOUT_S).text)
    assert found
    return found[1]


def history_of(page: str) -> list[dict[str, Any]]:
    """Return the changes that are on record."""
    history: list[dict[str, Any]] = requests.get(f"{page}/api/overrides", timeout=TIMEOUT_S).json()["history"]
    return history


def test_stranger_neither_reads_nor_changes_on_the_admin_page(database: Path, mongo_uri: str) -> None:
    """Visitors that the application does not authorize."""
    with with_page(database, mongo_uri, lambda: None) as page:
        read = [requests.get(f"{page}/{path}", timeout=TIMEOUT_S) for path in ("overrides", "api/overrides")]
        changed = send_change(page, "1.0", OWN_SITE)

    assert {403} == {answer.status_code for answer in (*read, changed)}


def test_other_site_changes_nothing_through_the_browser_of_an_operator(database: Path, mongo_uri: str) -> None:
    """Even with the token of the page. The operator's own change is on record, with name and reason."""
    with with_page(database, mongo_uri, lambda: "ann") as page:
        token = token_of(page)
        forged = [
            send_change(page, token, headers)
            for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"})
        ]
        forged.append(send_change(page, "", OWN_SITE))
        before = history_of(page)
        own = send_change(page, token, OWN_SITE)
        after = history_of(page)

    assert [403] * 3 == [answer.status_code for answer in forged]
    assert [] == before
    assert 200 == own.status_code
    assert [("ann", "ticket 4711")] == [(entry["by"], entry["reason"]) for entry in after]


# Neighbours in the database.

DAMAGE = (
    {"$set": {"version": "x"}},
    {"$set": {"requestCounters": ["x"]}},
    {"$set": {"requestCounters": {"x": {"y": -1}}, "writers": None}},
    {"$unset": {"version": 1, "requestCounters": 1, "expire": 1}},
    {"$set": {"padding": "x" * 1_000_000}},
)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: str(damage)[:40])
def test_neighbour_who_damages_a_document_costs_its_key_alone(
    database: Path, mongo_uri: str, damage: dict[str, Any]
) -> None:
    """Every request is answered, and the limit of another client holds over two instances."""
    settings = config(limit=LIMIT, window=600, store={"uri": mongo_uri})
    clock = Clock(time.time() // 600 * 600)
    mongo: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with (
        protected(database, settings, clock=clock) as first,
        protected(database, settings, clock=clock) as second,
        mongo,
    ):
        assert [200] * 2 == statuses(first, 1, JOB) + statuses(first, 1, JOB, client=BATCH_JOBS)
        first.app_limiter.limiter.sync()
        collection = mongo.get_default_database()["ratelimits"]
        assert 1 == collection.update_one({"_id.clientId": "web-shop"}, damage).modified_count
        damaged, other = [], []
        for site in (first, second) * (LIMIT + 1):
            damaged += statuses(site, 1, JOB)
            other += statuses(site, 1, JOB, client=BATCH_JOBS)
            for each in (first, second):
                each.app_limiter.limiter.sync()

    assert {200, 429} == set(damaged)
    assert [200] * (LIMIT - 1) == other[: LIMIT - 1]
    assert {429} == set(other[LIMIT:])  # an instance may admit one request before it knows the key


@pytest.mark.usefixtures("quick_ending")
def test_neighbour_who_takes_the_database_away_stops_neither_tokens_nor_limits(database: Path) -> None:
    """Each instance limits by what it has counted itself."""
    with protected(database, config(limit=LIMIT, store={"uri": UNREACHABLE})) as site:
        assert [200] * LIMIT + [429] == statuses(site, LIMIT + 1, JOB)
