"""The page about events: its table, and the configurations of structlog on it."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from oauth_ratelimit.store.mongo.indexes import DENIAL, EXPIRY, MINUTE
from tests.docs.blocks import ROOT, the_block

PAGE = ROOT / "docs" / "events.md"
PACKAGE = ROOT / "oauth_ratelimit"
ROWS = re.findall(r"^\| `([a-z_]+)` \| (info|warning|error) \| (.*) \|$", PAGE.read_text(), re.M)
KEYS = {event: set(re.findall(r"`(\w+)`", keys)) for event, _, keys in ROWS}
LOGS = ("log", "_log")
LOGGING = ("info", "warning", "error")
YIELDING = ("start_report.py", "format.py")  # events, with a mapping of their keys or the hint alone
LEVELS = {event: level for event, level, _ in ROWS}


def events() -> Iterator[tuple[str, str, set[str]]]:
    """Yield the name, the method and the keys of every log call in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            call = [node.func, *node.args] if isinstance(node, ast.Call) else [ast.Constant(None)]
            if ast.unparse(call[0]) == "partial":
                call = call[1:]
            if isinstance(node, ast.Call) and isinstance(call[0], ast.Attribute) and len(call) > 1:
                owner, method = ast.unparse(call[0].value).rpartition(".")[2], call[0].attr
                if method in ("fail_open", "log_failure") or (owner in LOGS and method in LOGGING):
                    names = [str(part.value) for part in ast.walk(call[1]) if isinstance(part, ast.Constant)]
                    keys = {keyword.arg for keyword in node.keywords if keyword.arg not in (None, "key")}
                    yield from ((name, method, keys) for name in names)
            match node:
                case ast.Yield(ast.Tuple([ast.Constant(str(name)), facts])) if path.name in YIELDING:
                    yield name, "warning", {ast.literal_eval(key) for key in getattr(facts, "keys", ())} or {"hint"}
    yield from ((index.missing, "warning", {"collection", "reason"}) for index in (EXPIRY, MINUTE, DENIAL))
    yield from ((f"{kind}_ignored", "error", {"id", "reason", "count"}) for kind in ("heartbeat", "override"))
    yield from ((f"{records}_unrecorded", "warning", {"count", "reason"}) for records in ("denials", "statistics"))


EVENTS = list(events())


def test_table_has_every_event_and_no_other() -> None:
    """An event that is logged somewhere has a row."""
    assert len(EVENTS) > 20
    assert {name for name, _, _ in EVENTS} == KEYS.keys()


@pytest.mark.parametrize(("name", "method", "keys"), EVENTS, ids=[name for name, _, _ in EVENTS])
def test_keys_and_level_of_an_event_are_in_the_table(name: str, method: str, keys: set[str]) -> None:
    """A key that is logged is documented."""
    assert keys <= (KEYS["request_denied"] if name == "request_would_be_denied" else KEYS[name])
    if method in ("info", "warning", "error"):
        assert method == LEVELS[name]


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


def lines_of_json() -> list[dict[str, Any]]:
    """Return the lines of JSON that a process writes with the configuration from the page."""
    configuration = the_block(PAGE, "python", "structlog.configure")
    script = textwrap.dedent(SCRIPT).format(configuration=configuration)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_structlog_configuration_writes_json() -> None:
    """Each event is a line of JSON with level, time and the bound context; so are lines of the standard library."""
    lines = lines_of_json()
    events = {line["event"]: line for line in lines}

    assert {"request_denied", "observer_failed", "running_unconfigured"} <= events.keys()
    assert all({"level", "timestamp"} <= line.keys() for line in lines)
    denied = events["request_denied"]
    assert ("warning", "client_credentials", 1, 60, "a", "from the application") == tuple(
        denied[name] for name in ("level", "grant_type", "limit", "window_s", "tenant", "trace_id")
    )
    assert "LookupError('no such table')" == events["observer_failed"]["error"]

    other = events["hello there"]
    assert ("warning", "another.package", "a") == (other["level"], other["logger"], other["tenant"])
