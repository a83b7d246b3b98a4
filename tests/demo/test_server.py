"""The demo's OAuth server without a rate limit: each grant over real HTTP, seeding, and its admin page's operator."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import requests
from flask import Flask
from joserfc import jwk, jwt

from demo.database import BATCH_JOBS, WEB_SHOP, seed
from demo.models import Client, User
from demo.server import create_app, local_operator
from tests.support.flows import FLOWS, GrantRequest, issue, password_of, post
from tests.support.gunicorn import Gunicorn
from tests.support.serving import serving

Flow = Callable[[str], GrantRequest]

RACERS = 6

each_flow = pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("demo") / "demo.sqlite3"
    seed(path)
    with serving(create_app(path)) as url:
        yield url


def introspect(base_url: str, token: str) -> dict[str, Any]:
    response = post(f"{base_url}/introspect", BATCH_JOBS, {"token": token})
    assert 200 == response.status_code
    body: dict[str, Any] = response.json()
    return body


def claims_of(base_url: str, id_token: str) -> dict[str, Any]:
    """Verify an ID token with the published keys."""
    keys = jwk.KeySet.import_key_set(requests.get(f"{base_url}/jwks", timeout=30).json())
    return jwt.decode(id_token, keys, algorithms=["ES256"]).claims


def password_form(username: str) -> dict[str, str]:
    return {"grant_type": "password", "username": username, "password": password_of(username), "scope": "profile"}


@each_flow
def test_every_grant_issues_a_token_to_its_client_and_user(base_url: str, flow: Flow) -> None:
    attempt = flow(base_url)

    response = attempt()

    assert 200 == response.status_code, response.text
    token = introspect(base_url, response.json()["access_token"])
    assert (True, attempt.client_id, attempt.username) == (token["active"], token["client_id"], token.get("username"))
    assert attempt.grant_type in WEB_SHOP.grant_types


@pytest.mark.parametrize("name", ["authorization_code", "refresh_token", "device_code"])
def test_one_of_several_simultaneous_requests_redeems_a_code(base_url: str, name: str) -> None:
    attempt = FLOWS[name](base_url)
    start = Barrier(RACERS)

    def race() -> int:
        start.wait(timeout=30)
        return attempt().status_code

    with ThreadPoolExecutor(RACERS) as pool:
        status_codes = [racer.result() for racer in [pool.submit(race) for _ in range(RACERS)]]

    assert [200] + [400] * (RACERS - 1) == sorted(status_codes)


def test_several_processes_can_seed_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "demo.sqlite3"
    program = f"from demo.database import seed; seed({str(path)!r})"

    seeding = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]

    assert [0] * 3 == [process.wait(timeout=60) for process in seeding]
    with serving(create_app(path)) as url:
        assert "id_token" in FLOWS["authorization_code_openid"](url)().json()


def test_second_seed_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "demo.sqlite3"
    seed(path)
    with serving(create_app(path)) as url:
        id_token = FLOWS["authorization_code_openid"](url)().json()["id_token"]
        seed(path, clients=[Client(WEB_SHOP.client_id, "another")], users=[User("alice", "changed")])

        form = {"grant_type": "password", "username": "alice", "password": "changed"}
        issue(url, Client(WEB_SHOP.client_id, "another"), form)
        issue(url, BATCH_JOBS, password_form("bob"))
        assert "dave" == claims_of(url, id_token)["sub"]


@pytest.mark.slow
def test_wsgi_entry_point_seeds_a_new_file_and_serves_every_grant(tmp_path: Path) -> None:
    env = {"DEMO_DATABASE": str(tmp_path / "demo.sqlite3"), "OAUTH_RATELIMIT_CONFIG": ""}
    with Gunicorn("demo.wsgi:app", worker_class="gthread", workers=2, threads=2, env=env) as server:
        assert {200} == {flow(server.url)().status_code for flow in FLOWS.values()}


@pytest.mark.parametrize(
    ("address", "host", "is_admitted"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost:8000", True),
        ("::1", "[::1]:8000", True),
        ("10.0.0.1", "127.0.0.1:8000", False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example:8000", False),
    ],
    ids=["address", "name", "IPv6", "another machine", "another name", "a similar name"],
)
def test_admin_page_is_open_to_this_machine_under_its_own_name(address: str, host: str, is_admitted: bool) -> None:
    with Flask("demo").test_request_context(
        "/ratelimit/", base_url=f"http://{host}", environ_base={"REMOTE_ADDR": address}
    ):
        assert is_admitted == (local_operator() == "demo operator")
