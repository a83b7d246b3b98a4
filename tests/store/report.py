"""Whether another MongoDB keeps what the guarantees need: ``python -m tests.store.report URI``.

It runs the contract of the store, the migrations and the faults on the server at the address, in databases of its own,
and prints a report. The exit code is that of pytest.
"""

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from pymongo import MongoClient

from testbed.mongod_program import MONGO_URI_VARIABLE
from tests.chaos.fleet import Instance, assert_exact, run
from tests.support.helpers import with_database

STORES = (
    "contract",
    "denials",
    "erasure",
    "heartbeats",
    "inspect",
    "migrations",
    "overrides",
    "rollups",
    "rollup_histories",
    "statistics",
)
FAULTS = ("fork_and_kill", "lost_reply", "statistics")
ELSEWHERE = "not (memory or replica)"  # other stores, and servers that a test starts itself


def main(uri: str, *options: str) -> int:
    """Run everything, print the report, and return the exit code. Further options are pytest's."""
    lines = [f"oauth_ratelimit {importlib.metadata.version('oauth_ratelimit')}", *server(uri), race(uri)]
    can_be_cut = uri.startswith("mongodb://") and not any(mark in uri.lower() for mark in ("@", ",", "tls=", "ssl="))
    files = [f"tests/store/test_{name}.py" for name in STORES]
    files += [f"tests/chaos/test_{name}.py" for name in FAULTS] if can_be_cut else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-k", ELSEWHERE, *files, *options, f"--junitxml={path}"]
        code = subprocess.run(command, env={**os.environ, MONGO_URI_VARIABLE: uri}).returncode
        tests = list(ElementTree.parse(path).iter("testcase")) if path.exists() else []
    failed = [f"{one.get('classname')}::{one.get('name')}" for one in tests if len(one) > 0]
    lines += [f"tests: {len(tests) - len(failed)} passed, {len(failed)} failed", *failed]
    if not can_be_cut:
        lines.append("left out: faults on the way, which need one server without TLS and password")
    sys.stdout.write("\n  ".join(("\nReport:", *lines)) + "\n")
    return code


def server(uri: str) -> Sequence[str]:
    """Return what is asked, and by which driver. The address is left out."""
    with _client(uri) as client:
        hello = client.admin.command("hello")
        kind = "replica set" if "setName" in hello else "standalone"
        if hello.get("msg") == "isdbgrid":
            kind = "sharded cluster"
        names = ("python", platform.python_version(), "pymongo", importlib.metadata.version("pymongo"))
        return [f"MongoDB {client.server_info()['version']}, {kind}", " ".join(names)]


def race(uri: str) -> str:
    """Let four instances race for 200 keys, on a sharded collection where there are shards."""
    name = f"report_{uuid.uuid4().hex[:12]}"
    with _client(uri) as client:
        if client.admin.command("hello").get("msg") == "isdbgrid":
            client.admin.command("shardCollection", f"{name}.ratelimits", key={"_id": "hashed"})
        instances = [Instance(with_database(uri, name)) for _ in range(4)]
        try:
            run(instances, cycles=20, seed=1, keys=200)
            assert_exact(instances, with_database(uri, name))
        except AssertionError as exc:
            return f"race of 4 instances: FAILED: {exc}"
        finally:
            client.drop_database(name)
    return "race of 4 instances for 200 keys: each hit once"


def _client(uri: str) -> "MongoClient[dict[str, Any]]":
    return MongoClient(uri, serverSelectionTimeoutMS=10_000)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not urlsplit(sys.argv[1]).scheme.startswith("mongodb"):
        sys.exit("usage: python -m tests.store.report mongodb://HOST/ [PYTEST OPTION...]")
    sys.exit(main(*sys.argv[1:]))
