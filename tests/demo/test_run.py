"""The whole demo, shortened, and its checks."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pymongo import MongoClient

from testbed.clock import wait_until
from testbed.mongod_program import MONGO_URI_VARIABLE
from tests.support.helpers import with_database

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 120


@contextmanager
def _running(module: str, tmp_path: Path, *options: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _run_demo(tmp_path: Path, *options: str, **env: str) -> tuple[int, str]:
    with _running("demo", tmp_path, *options, **env) as process:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
        return process.returncode, output


def test_demo_reuses_then_denies_passes_its_checks_and_cleans_up(tmp_path: Path, mongodb: str) -> None:
    uri = with_database(mongodb, "somebodys_own")
    status, output = _run_demo(tmp_path, "--requests=500", "--speed=500", **{MONGO_URI_VARIABLE: uri})
    assert 0 == status, output
    _, dry_run, reuse, enforced, *_ = re.split(r"\n\d  ", output)
    assert "500 requests got 500 new tokens" in dry_run
    assert "500 requests got 500 new tokens" not in reuse + enforced
    assert re.search(r"batch-jobs +client_credentials +\d+ +\d+ +[1-9]\d* +\d+ ", reuse)
    assert re.search(r"batch-jobs +client_credentials +\d+ +\d+ +0 +[1-9]\d* ", enforced)
    assert "HTTP/1.1 429" in output
    assert "MongoDB holds what was counted, for every client and user" in output
    (trusted,) = re.findall(r"allegro-mobile is trusted: (\d+) requests in all replays, 0 denied", output)
    assert int(trusted) == sum(map(int, re.findall(r"allegro-mobile +client_credentials +(\d+) +\d+ +0 +0", output)))
    assert re.search(r"The client waits \d+ s, as server \d asked it to", output)
    assert "WRONG" not in output
    assert [] == list(tmp_path.iterdir())
    with MongoClient(uri) as client:
        assert [] == client.get_default_database().list_collection_names()


def test_demo_without_mongodb_prints_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "mongod"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.delenv(MONGO_URI_VARIABLE, raising=False)
    status, output = _run_demo(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert 2 == status, output
    assert "What helps" in output
    assert "docker run" in output


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        (
            "mongodb://user:secret@127.0.0.1:1/?serverSelectionTimeoutMS=100",
            f"the server in {MONGO_URI_VARIABLE} does not answer",
        ),
        ("user:secret@localhost", f"in {MONGO_URI_VARIABLE}, the connection string cannot be used"),
    ],
    ids=["no answer", "malformed"],
)
def test_unusable_uri_is_reported_without_its_password(tmp_path: Path, uri: str, reason: str) -> None:
    status, output = _run_demo(tmp_path, **{MONGO_URI_VARIABLE: uri})
    assert 2 == status, output
    assert reason in output
    assert "What helps" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    ("module", "awaited", "number", "status"),
    [
        ("demo", "1  Dry run", signal.SIGINT, 130),
        ("demo.serve", "The log follows", signal.SIGINT, 0),
        ("demo.serve", "The log follows", signal.SIGTERM, 143),
    ],
    ids=["demo interrupted", "server interrupted", "server terminated"],
)
def test_stopping_the_demo_or_its_server_removes_everything(
    tmp_path: Path, mongodb: str, *, module: str, awaited: str, number: signal.Signals, status: int
) -> None:
    with _running(module, tmp_path, **{MONGO_URI_VARIABLE: mongodb}) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(awaited in line for line in lines)
        process.send_signal(number)
        rest = "".join(lines)
        assert status == process.wait(_TIMEOUT_S), rest
        assert "Traceback" not in rest
    wait_until(lambda: not list(tmp_path.iterdir()), "servers and files are gone")
