"""Events of a limiter with a canary."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit import Limiter, load_config
from tests.support.helpers import Clock

LIMITS = {"limits": {"client": ["1/minute"]}, "clients": {"own": {"mode": "enforce"}}}


@pytest.mark.parametrize(
    ("config", "client_id", "expected"),
    [
        ({"mode": "enforce"}, "app", ("request_denied", "enforce", False)),
        ({"mode": "enforce", "canary": {"percent": 100}}, "app", ("request_denied", "enforce", True)),
        ({"mode": "enforce", "canary": {"percent": 100}}, "own", ("request_denied", "enforce", False)),
        ({"mode": "enforce", "canary": {"percent": 0}}, "app", ("request_would_be_denied", "dry-run", False)),
        ({"mode": "dry-run"}, "app", ("request_would_be_denied", "dry-run", False)),
        (
            {"mode": "enforce", "instance": "node-7", "canary": {"instances": ["node-*"]}},
            "app",
            ("request_denied", "enforce", True),
        ),
    ],
    ids=["no canary", "in the share", "with a mode of its own", "outside the share", "dry run", "canary instance"],
)
def test_event_of_a_canary(config: dict[str, Any], client_id: str, expected: tuple[str, str, bool]) -> None:
    """An event tells the mode, and whether it came from the canary."""
    limiter = Limiter(load_config({**LIMITS, **config}), clock=Clock())
    with capture_logs() as logs:
        limiter.check(client_id)
        limiter.check(client_id)
    limiter.close()

    assert [expected] == [(entry["event"], entry["mode"], entry["canary"]) for entry in logs]
