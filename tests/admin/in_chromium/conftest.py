"""Chromium, and two real servers that share a MongoDB."""

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import pytest
import requests

from testbed.clock import wait_until
from testbed.deployment import Deployment, Instance, deploy
from testbed.mongod_program import MONGO_URI_VARIABLE
from testbed.oauth_server.database import BATCH_JOBS, DEMO_CLIENTS, DEMO_USERS, PARTNER_BANK, WEB_SHOP
from testbed.oauth_server.models import Client
from tests.admin.browser import DESKTOP, Browser, open_browser
from tests.support.helpers import patient, with_database

REQUESTS = {BATCH_JOBS: 100, PARTNER_BANK: 6, WEB_SHOP: 4}  # batch-jobs may have 40 in 5 s


class Clients:
    """Clients that request tokens."""

    def __init__(self, servers: Sequence[Instance]) -> None:
        self.servers = servers
        self.answers: Counter[tuple[str, int]] = Counter()  # responses by client and status
        self._session = requests.Session()

    def ask(self, client: Client, *, server: int = 0) -> int:
        """Request a token, for a user if the client is the web shop, and return the status."""
        form = {"grant_type": "client_credentials"}
        if client is WEB_SHOP:
            form = {"grant_type": "password", "username": DEMO_USERS[0].username, "password": DEMO_USERS[0].password}
        url, auth = f"http://{self.servers[server].address}/token", (client.client_id, client.client_secret)
        status = self._session.post(url, data=form, auth=auth, timeout=60).status_code
        self.answers[client.client_id, status] += 1
        return status

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="package")
def deployment(mongodb: str) -> Iterator[Deployment]:
    """Two servers of the demo that share a database of their own."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # no longer: other tests run before this deployment ends
            patch.setenv(MONGO_URI_VARIABLE, patient(with_database(mongodb, f"test_{uuid.uuid4().hex[:12]}")))
            patch.delenv("OAUTH_RATELIMIT_MODE", raising=False)
            deployment = stack.enter_context(deploy(instance_count=2, clients=DEMO_CLIENTS, users=DEMO_USERS))
        yield deployment
        deployment.counters.database.client.drop_database(deployment.counters.database.name)


@pytest.fixture(scope="package")
def clients(deployment: Deployment) -> Iterator[Clients]:
    """Clients that have sent requests to both servers, one of them above its limit."""
    with closing(Clients(deployment.instances)) as clients:
        for client, request_count in REQUESTS.items():
            for number in range(request_count):
                assert 200 == clients.ask(client, server=number % 2)

        def is_over() -> bool:
            assert 200 == clients.ask(BATCH_JOBS)
            return any("request_would_be_denied" in server.log for server in deployment.instances)

        wait_until(is_over, "batch-jobs exceeds its limit")  # the hundred may take a busy machine too long
        yield clients


@pytest.fixture(scope="package")
def window() -> Iterator[Browser]:
    """One window for all tests."""
    with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A desktop window in light colours. Its console must stay empty after each test."""
    window.open("about:blank")
    window.console()
    window.resize(DESKTOP)
    window.set_timezone("UTC")
    yield window
    assert [] == window.console()


@pytest.fixture
def url(clients: Clients) -> str:
    """The page of the first server."""
    return f"http://{clients.servers[0].address}/ratelimit/"
