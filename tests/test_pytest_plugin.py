"""The pytest plugin and ``oauth_ratelimit.testing``: frozen clock, counters in memory, nothing left behind."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.testing import MIDNIGHT_S, FrozenClock, FrozenRateLimit
from tests.docs.blocks import ROOT, blocks_of
from tests.support.apps import app_limiter_of, make_app, make_server, token_status

pytestmark = pytest.mark.slow

LIMITED = {"mode": "enforce", "limits": {"client": ["2/minute"]}, "store": {"uri": "mongodb://127.0.0.1:1/nowhere"}}
HEAVY = ("oauth_ratelimit", "flask", "authlib", "pymongo", "apscheduler", "structlog")


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("limit", "status", "summary"), [(5, 0, "2 passed"), (6, 1, "1 failed, 1 passed")])
def test_documented_example_passes_and_fails_with_another_limit(
    tmp_path: Path, limit: int, status: int, summary: str
) -> None:
    """pytest finds the plugin without any configuration, and the example tests the configuration, not itself."""
    for block in blocks_of(ROOT / "docs" / "testing.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.text.replace("limit: 5", f"limit: {limit}"))
    assert ["myserver.py", "ratelimit.yaml", "test_limits.py"] == sorted(path.name for path in tmp_path.iterdir())
    returned, output = run_pytest(tmp_path, "-W", "error")
    assert (status, True) == (returned, summary in output), output


def test_plugin_imports_nothing_until_a_fixture_is_used(tmp_path: Path) -> None:
    """A test run without our fixtures does not pay for the package."""
    (tmp_path / "test_something.py").write_text(
        "import sys\n"
        "def test_modules():\n"
        "    assert 'pytest_oauth_ratelimit' in sys.modules\n"
        f"    assert [name for name in {HEAVY} if name in sys.modules] == []\n"
    )
    status, output = run_pytest(tmp_path)
    assert 0 == status, output


def test_protected_application_is_frozen_for_a_test_and_restored() -> None:
    """During the test it uses neither its database nor a thread."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=LIMITED)
    server = make_server(app)
    OAuthRateLimit(app, server)
    own = app_limiter_of(app)
    threads = set(threading.enumerate())
    clock = FrozenClock()
    with FrozenRateLimit(clock) as ratelimit:
        ratelimit.init_app(app, server)
        assert [200, 200, 429] == [token_status(app) for _ in range(3)]
        clock.advance(120)
        assert 200 == token_status(app)
        assert threads == set(threading.enumerate())
    assert own is app_limiter_of(app)
    own.close()


def test_unprotected_application_is_unprotected_after_the_test() -> None:
    """Protecting it twice starts with nothing counted."""
    app = make_app(OAUTH_RATELIMIT_CONFIG=LIMITED)
    server = make_server(app)
    with FrozenRateLimit(FrozenClock()) as ratelimit:
        for _ in range(2):
            ratelimit.init_app(app, server)
            assert [200, 200, 429] == [token_status(app) for _ in range(3)]
    assert "oauth_ratelimit" not in app.extensions
    assert [200] * 3 == [token_status(app) for _ in range(3)]


def test_frozen_clock_starts_at_midnight_and_never_goes_back() -> None:
    """Frames of all lengths begin at midnight."""
    clock = FrozenClock()
    assert 0 == MIDNIGHT_S % 86_400
    clock.advance(1.5)
    assert MIDNIGHT_S + 1.5 == clock()
    with pytest.raises(ValueError, match="time does not go back: expected 0 seconds or more, got -1"):
        clock.advance(-1)
