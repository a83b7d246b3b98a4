"""Attackers of the threat model in ``docs/security.md`` that no other file plays, over real HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from structlog.testing import capture_logs

from demo.database import BATCH_JOBS, MOBILE_APP, WEB_SHOP
from demo.models import GRANT_OWN_TOKEN, Client
from tests.support.flows import TIMEOUT_S, password_of
from tests.support.guarded import ADDRESS_LIMIT, USER_LIMIT, Guarded
from tests.support.sites import Site, config, protected

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


# Users.


def test_user_gets_no_second_quota_by_another_grant_or_another_name_in_the_query(site: Site) -> None:
    """The user counts whom the server has authenticated."""
    assert [200] * 3 == statuses(site, 3, login("alice"))
    assert [200] * 2 + [429] == statuses(site, 3, login("alice", GRANT_OWN_TOKEN))
    assert [429] == statuses(site, 1, login("alice"), query="?username=bob&user=bob")


# Neighbours in the database.


@pytest.mark.usefixtures("quick_ending")
def test_neighbour_who_takes_the_database_away_stops_neither_tokens_nor_limits(database: Path) -> None:
    """Each instance limits by what it has counted itself."""
    with protected(database, config(limit=LIMIT, store={"uri": UNREACHABLE})) as site:
        assert [200] * LIMIT + [429] == statuses(site, LIMIT + 1, JOB)
