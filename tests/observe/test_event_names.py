"""Events have the names and keys that the documentation promises."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "oauth_ratelimit"
ROWS = re.findall(r"^\| `([a-z_]+)` \| (info|warning|error) \| (.*) \|$", (ROOT / "docs/events.md").read_text(), re.M)
KEYS = {event: set(re.findall(r"`(\w+)`", keys)) for event, _, keys in ROWS}
LOGS = ("log", "_log")
LOGGING = ("info", "warning", "error")
LEVELS = {event: level for event, level, _ in ROWS}


def events() -> Iterator[tuple[str, str, set[str]]]:
    """Yield every event that the package logs: its name, the method that logs it, the keys given there."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "demo" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner, method = ast.unparse(node.func.value).rpartition(".")[2], node.func.attr
                if method == "fail_open" or (owner in LOGS and method in LOGGING):
                    names = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                    keys = {keyword.arg for keyword in node.keywords if keyword.arg not in (None, "key")}
                    yield from ((name, method, keys) for name in names)


EVENTS = list(events())


def test_every_event_is_documented() -> None:
    """The documentation has each event that the package logs, and no other."""
    assert len(EVENTS) > 20
    assert {name for name, _, _ in EVENTS} == KEYS.keys()


@pytest.mark.parametrize(("name", "method", "keys"), EVENTS, ids=[name for name, _, _ in EVENTS])
def test_keys_of_an_event(name: str, method: str, keys: set[str]) -> None:
    """What is logged with an event is documented, and so is its level."""
    assert keys <= (KEYS["request_denied"] if name == "request_would_be_denied" else KEYS[name])
    if method in ("info", "warning", "error"):
        assert method == LEVELS[name]
