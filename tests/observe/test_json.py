"""Events as JSON, with what the documentation tells applications to configure."""

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.docs.blocks import ROOT, the_block

PAGE = ROOT / "docs" / "events.md"

SCRIPT = """
import logging
import os
import structlog

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
exec({configuration!r}, {{"structlog": structlog}})

from oauth_ratelimit import OAuthRateLimit
from tests.support.apps import app_limiter_of, make_app, make_server, token_status, protected_app

def fail(decision, **ids):
    raise LookupError("no such table")

structlog.contextvars.bind_contextvars(tenant="a", trace_id="from the application")
limits = {{"client": ["1/minute"]}}
app = make_app(OAUTH_RATELIMIT_CONFIG={{"mode": "enforce", "limits": limits}})
OAuthRateLimit(app, make_server(app), on_denied=fail)
assert [200, 429, 429] == [token_status(app), token_status(app), token_status(app)]
app_limiter_of(app).close()
with protected_app() as app:
    assert 200 == token_status(app)
logging.getLogger("another.package").warning("hello %s", "there")
"""


def lines_of(containing: str) -> list[dict[str, Any]]:
    """Return what a process with a configuration from the page writes, which must be JSON and nothing else."""
    configuration = the_block(PAGE, "python", containing)
    script = textwrap.dedent(SCRIPT).format(configuration=configuration)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "containing",
    ["basicConfig", "add_log_level,\n        structlog.processors"],
    ids=["standard library", "structlog alone"],
)
def test_configuration_on_the_page(containing: str) -> None:
    """
    Each event is a line of JSON with its level and time, and with what the application has bound; so are the lines of
    others that go through the standard library.
    """
    lines = lines_of(containing)
    events = {line["event"]: line for line in lines}

    assert {"request_denied", "observer_failed", "running_unconfigured"} <= events.keys()
    assert all({"level", "timestamp"} <= line.keys() for line in lines)
    denied = events["request_denied"]
    assert ("warning", "client_credentials", 1, 60, "a", "from the application") == tuple(
        denied[name] for name in ("level", "grant_type", "limit", "window_s", "tenant", "trace_id")
    )
    assert "LookupError('no such table')" == events["observer_failed"]["error"]

    if containing == "basicConfig":
        other = events["hello there"]
        assert ("warning", "another.package", "a") == (other["level"], other["logger"], other["tenant"])
