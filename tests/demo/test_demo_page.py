"""Who may use the page of the demo's server."""

import pytest
from flask import Flask

from demo.operator import operator


@pytest.mark.parametrize(
    ("address", "host", "is_let_in"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost:8000", True),
        ("::1", "[::1]:8000", True),
        ("10.0.0.1", "127.0.0.1:8000", False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example:8000", False),
    ],
    ids=["address", "name", "IPv6", "another machine", "another name", "a name that begins like it"],
)
def test_demo_page_is_for_this_machine(address: str, host: str, is_let_in: bool) -> None:
    """Whoever sits at the machine is let in, under the machine's own name only: a page from elsewhere has another."""
    with Flask("demo").test_request_context(
        "/ratelimit/", base_url=f"http://{host}", environ_base={"REMOTE_ADDR": address}
    ):
        assert is_let_in == (operator() == "demo operator")
