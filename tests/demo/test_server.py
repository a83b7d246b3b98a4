"""The demo's OAuth server without a rate limit: each grant over real HTTP, seeding, and its admin page's operator."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from demo.database import BATCH_JOBS, WEB_SHOP, seed
from demo.server import create_app, local_operator
from tests.support.flows import FLOWS, GrantRequest, post
from tests.support.gunicorn import Gunicorn
from tests.support.serving import serving

Flow = Callable[[str], GrantRequest]

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


@each_flow
def test_every_grant_issues_a_token_to_its_client_and_user(base_url: str, flow: Flow) -> None:
    attempt = flow(base_url)

    response = attempt()

    assert 200 == response.status_code, response.text
    token = introspect(base_url, response.json()["access_token"])
    assert (True, attempt.client_id, attempt.username) == (token["active"], token["client_id"], token.get("username"))
    assert attempt.grant_type in WEB_SHOP.grant_types


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
