"""Workers of gunicorn with a configuration file that is not valid: none fails to start, and no request is lost."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from tests.support.apps import CLIENT

pytestmark = pytest.mark.slow

APP = "tests.support.file_app:app"
VALID = "mode: enforce\nlimits: {client: [{limit: 3, window: 1h}]}\nsync: {interval: 100ms}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(VALID)
    return path


def statuses(server: Gunicorn, count: int) -> set[int]:
    form, auth = {"grant_type": "client_credentials"}, (CLIENT.client_id, CLIENT.client_secret)
    answers = (requests.post(f"{server.url}/token", form, auth=auth, timeout=30) for _ in range(count))
    return {answer.status_code for answer in answers}


def is_rejected(server: Gunicorn) -> bool:
    health = requests.get(f"{server.url}/health", timeout=30)
    assert 200 == health.status_code
    return not health.json()["config_valid"]


RECYCLED = {"extra": ["--max-requests=12"]}


@pytest.mark.parametrize(
    ("options", "content"),
    [
        (RECYCLED, "broken:\n"),
        (RECYCLED, None),
        ({**RECYCLED, "preload": True}, "broken:\n"),
        ({"worker_class": "gevent"}, "mode: ["),
    ],
    ids=["unknown key", "gone", "preloaded", "no YAML"],
)
def test_recycled_killed_and_reloaded_workers_start(path: Path, options: dict[str, Any], content: str | None) -> None:
    with Gunicorn(APP, workers=2, env={"WORKER_CONFIG": str(path)}, **options) as server:
        assert {200} == statuses(server, 3)
        path.write_text(content or "")
        if content is None:
            path.unlink()
        for pid in server.pids():
            os.kill(pid, signal.SIGKILL)
        server.wait_until_ready()
        server.signal(signal.SIGHUP)
        wait_until(lambda: is_rejected(server), "a worker reports the file")
        # With --preload the master has read a valid file, which goes on to apply.
        assert statuses(server, 20) <= ({200, 429} if "preload" in options else {200}), (
            "limits are off, none is missing"
        )

        path.write_text(VALID)
        wait_until(lambda: 429 in statuses(server, 10), "the repaired file applies")

    assert "config_rejected" in server.log
    assert "Worker failed to boot" not in server.log
