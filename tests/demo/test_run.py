"""The whole demo, shortened, and its checks."""

import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from demo.deployment import Deployment
from demo.display import Display
from demo.run import Demo
from demo.tally import Outcome
from demo.trace import MACHINES, TRUSTED, hits
from oauth_ratelimit import load_config
from tests.support.helpers import wait_until, with_database
from tests.support.mongod_program import MONGO_URI_VARIABLE

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 120


def _environment(tmp_path: Path, **changes: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", **changes}


@contextmanager
def _running(module: str, env: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=_ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _run_demo(env: dict[str, str], *options: str) -> tuple[int, str]:
    with _running("demo", env, *options) as process:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
        return process.returncode, output


def test_demo_denies_under_enforce_only_passes_its_checks_and_cleans_up(tmp_path: Path, mongodb: str) -> None:
    uri = with_database(mongodb, "somebodys_own")
    env = _environment(tmp_path, **{MONGO_URI_VARIABLE: uri})
    status, output = _run_demo(env, "--requests=1000", "--speed=500")
    assert 0 == status, output
    dry_run, enforced = output.partition("2  Enforce")[::2]
    assert "1,000 requests got 1,000 tokens" in dry_run
    assert "%" in dry_run, "the share of requests that would be denied"
    assert "1,000 requests got 1,000 tokens" not in enforced
    assert "HTTP/1.1 429" in output
    assert "MongoDB holds what was counted, for every client and user" in output
    (trusted,) = re.findall(r"allegro-mobile is trusted: (\d+) requests in both replays, 0 denied", output)
    assert int(trusted) == sum(map(int, re.findall(r"allegro-mobile +client_credentials +(\d+) +0", output)))
    assert re.search(r"The client waits \d+ s, as server \d asked it to", output)
    assert "WRONG" not in output
    assert [] == list(tmp_path.iterdir())
    with MongoClient(uri) as client:
        assert [] == client.get_default_database().list_collection_names()


def test_demo_without_mongodb_prints_advice(tmp_path: Path) -> None:
    broken = tmp_path / "mongod"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    env = _environment(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    env.pop(MONGO_URI_VARIABLE, None)
    status, output = _run_demo(env)
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
    status, output = _run_demo(_environment(tmp_path, **{MONGO_URI_VARIABLE: uri}))
    assert 2 == status, output
    assert reason in output
    assert "What helps" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    ("module", "awaited", "number", "status"),
    [
        ("demo", "1  Dry run", signal.SIGINT, 130),
        ("demo", "1  Dry run", signal.SIGTERM, 143),
        ("demo.serve", "The log follows", signal.SIGINT, 0),
        ("demo.serve", "The log follows", signal.SIGTERM, 143),
    ],
    ids=["demo interrupted", "demo terminated", "server interrupted", "server terminated"],
)
def test_stopping_the_demo_or_its_server_removes_everything(
    tmp_path: Path, mongodb: str, *, module: str, awaited: str, number: signal.Signals, status: int
) -> None:
    with _running(module, _environment(tmp_path, **{MONGO_URI_VARIABLE: mongodb})) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(awaited in line for line in lines)
        process.send_signal(number)
        rest = "".join(lines)
        assert status == process.wait(_TIMEOUT_S), rest
        assert "Traceback" not in rest
    wait_until(lambda: not list(tmp_path.iterdir()), "servers and files are gone")


@pytest.fixture
def counters(mongo_uri: str) -> Iterator["Collection[dict[str, Any]]"]:
    """A collection with three requests of one client, in two tiers."""
    client: MongoClient[dict[str, Any]] = MongoClient(mongo_uri)
    with client:
        collection = client.get_default_database()["counters"]
        collection.insert_one(
            {
                "_id": {"clientId": MACHINES[1].client_id, "username": None},
                "requestCounters": {"1": {"100": 1}, "360": {"0": 1, "360": 2}},
            }
        )
        yield collection


@pytest.mark.parametrize(
    ("allowed", "over", "trusted", "is_admitted_again", "is_right"),
    [
        (3, Outcome.DENIED, Outcome.TRUSTED, True, True),
        (3, Outcome.WOULD_DENY, Outcome.TRUSTED, True, True),
        (2, Outcome.DENIED, Outcome.TRUSTED, True, False),
        (4, Outcome.DENIED, Outcome.TRUSTED, True, False),
        (3, Outcome.DENIED, Outcome.DENIED, True, False),
        (3, Outcome.DENIED, Outcome.WOULD_DENY, True, False),
        (3, Outcome.DENIED, Outcome.ALLOWED, True, False),
        (3, Outcome.DENIED, Outcome.TRUSTED, False, False),
    ],
    ids=[
        "all right",
        "all right in dry run",
        "one counted twice",
        "one not counted",
        "trusted client denied",
        "trusted client would be denied",
        "trusted client counted",
        "denied for longer than Retry-After",
    ],
)
def test_checks_fail_if_a_promise_is_broken(
    counters: "Collection[dict[str, Any]]",
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    allowed: int,
    over: Outcome,
    trusted: Outcome,
    is_admitted_again: bool,
    is_right: bool,
) -> None:
    demo = Demo(Display(), request_count=1, speed=1)
    tally = demo._open_tally()
    for _ in range(allowed):
        tally.add(MACHINES[1], Outcome.ALLOWED)
    tally.add(MACHINES[1], over)
    tally.add(MACHINES[0], trusted)
    deployment = Deployment("", "", [], tmp_path, counters)
    assert is_right == demo._check(deployment, is_admitted_again=is_admitted_again)
    assert is_right == ("WRONG" not in capsys.readouterr().out)


def test_trace_is_complete_and_in_order() -> None:
    packed = files("demo").joinpath("nasa19950801.csv.gz").read_bytes()
    times = [hit.at_s for hit in hits()]
    assert 30_969 == len(times) == gzip.decompress(packed).count(b"\n")
    assert times == sorted(times)
    assert [807256800.5, 807256804.5] == times[:2]
    assert len(times) == len(set(times))


def test_configuration_starts_as_a_dry_run_and_trusts_the_trusted_client() -> None:
    settings = load_config(Path(str(files("demo").joinpath("demo.yaml"))))
    assert "dry-run" == settings.policies.mode
    assert settings.policies.matching(TRUSTED).trusted
