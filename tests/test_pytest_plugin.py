"""The pytest plugin and ``oauth_ratelimit.testing``: frozen clock, counters in memory, nothing left behind."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from demo.database import BATCH_JOBS, seed
from demo.server import create_app
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.testing import MIDNIGHT_S, FrozenClock, FrozenRateLimit

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs" / "testing.md"
LIMITED = {"mode": "enforce", "limits": {"client": ["2/minute"]}, "store": {"uri": "mongodb://127.0.0.1:1/nowhere"}}
HEAVY = ("oauth_ratelimit", "flask", "authlib", "pymongo", "apscheduler", "structlog")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The demo's accounts."""
    path = tmp_path / "demo.sqlite3"
    seed(path)
    return path


def status_of(app: object) -> int:
    """Ask for a token and return the status of the answer."""
    response = app.test_client().post(  # type: ignore[attr-defined]
        "/token",
        base_url="https://localhost",
        auth=(BATCH_JOBS.client_id, BATCH_JOBS.client_secret),
        data={"grant_type": "client_credentials"},
    )
    return int(response.status_code)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_documented_example_passes(tmp_path: Path) -> None:
    """pytest finds the plugin without any configuration."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        (tmp_path / name).write_text(text)
    assert ["myserver.py", "ratelimit.yaml", "test_limits.py"] == sorted(path.name for path in tmp_path.iterdir())
    done = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_documented_example_fails_with_another_limit(tmp_path: Path) -> None:
    """The example tests the configuration, not itself."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        (tmp_path / name).write_text(text.replace("limit: 5", "limit: 6"))
    done = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider")
    assert 1 == done.returncode, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout


def test_plugin_imports_nothing_until_a_fixture_is_used(tmp_path: Path) -> None:
    """A test run without our fixtures does not pay for the package."""
    (tmp_path / "test_something.py").write_text(
        "import sys\n"
        "def test_modules():\n"
        "    assert 'pytest_oauth_ratelimit' in sys.modules\n"
        f"    assert [name for name in {HEAVY} if name in sys.modules] == []\n"
    )
    done = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider")
    assert 0 == done.returncode, done.stdout + done.stderr


def test_protected_application_is_frozen_for_a_test_and_restored(database: Path) -> None:
    """During the test it uses neither its database nor a thread."""
    app = create_app(database)
    server = app.extensions["authorization_server"]
    app.config["OAUTH_RATELIMIT_CONFIG"] = LIMITED
    OAuthRateLimit(app, server)
    own = app.extensions["oauth_ratelimit"]
    threads = set(threading.enumerate())
    clock = FrozenClock()
    with FrozenRateLimit(clock) as ratelimit:
        ratelimit.init_app(app, server)
        assert [200, 200, 429] == [status_of(app) for _ in range(3)]
        clock.advance(120)
        assert 200 == status_of(app)
        assert threads == set(threading.enumerate())
    assert own is app.extensions["oauth_ratelimit"]


def test_unprotected_application_is_unprotected_after_the_test(database: Path) -> None:
    """Protecting it twice starts with nothing counted."""
    app = create_app(database)
    app.config["OAUTH_RATELIMIT_CONFIG"] = LIMITED
    with FrozenRateLimit(FrozenClock()) as ratelimit:
        for _ in range(2):
            ratelimit.init_app(app, app.extensions["authorization_server"])
            assert [200, 200, 429] == [status_of(app) for _ in range(3)]
    assert "oauth_ratelimit" not in app.extensions
    assert [200] * 3 == [status_of(app) for _ in range(3)]


def test_frozen_clock_starts_at_midnight_and_never_goes_back() -> None:
    """Frames of all lengths begin at midnight."""
    clock = FrozenClock()
    assert 0 == MIDNIGHT_S % 86_400
    clock.advance(1.5)
    assert MIDNIGHT_S + 1.5 == clock()
    with pytest.raises(ValueError, match="time does not go back: expected 0 seconds or more, got -1"):
        clock.advance(-1)
