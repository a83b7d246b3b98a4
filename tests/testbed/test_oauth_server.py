"""The demo's OAuth server: who may open its admin page."""

import pytest
from flask import Flask

from testbed.oauth_server.app import local_operator


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
)
def test_admin_page_is_open_to_this_machine_under_its_own_name(address: str, host: str, is_admitted: bool) -> None:
    with Flask("demo").test_request_context(
        "/ratelimit/", base_url=f"http://{host}", environ_base={"REMOTE_ADDR": address}
    ):
        assert is_admitted == (local_operator() == "demo operator")
