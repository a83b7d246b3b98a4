"""The file of a real process: it applies whatever a cycle waits for, and however long the rest of the file takes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from testbed.mongod import Mongod
from tests.support.apps import CLIENT
from tests.support.faults import FaultyProxy

pytestmark = pytest.mark.slow

APPLIED_S = 3.0  # as README and docs promise
PHASES = (3, 9)  # requests to MongoDB until it fails, of about a dozen in a cycle
CONFIG = """
mode: {mode}
limits: {{client: [{{limit: 1, window: 1h}}]}}
guard: {{mode: dry-run}}
sync: {{interval: 300ms}}
store: {{uri: "{uri}"}}
"""


def stop(server: Mongod, _: FaultyProxy) -> None:
    if server.pid is not None:
        os.kill(server.pid, signal.SIGSTOP)  # it takes connections and never answers


def go_on(server: Mongod, proxy: FaultyProxy) -> None:
    if server.pid is not None:
        os.kill(server.pid, signal.SIGCONT)
    proxy.swallow(False)
    proxy.delay_replies(0.0)


def status_at(server: Gunicorn) -> int:
    auth, form = (CLIENT.client_id, CLIENT.client_secret or ""), {"grant_type": "client_credentials"}
    return requests.post(f"{server.url}/token", form, auth=auth, timeout=30).status_code


FAULTS: dict[str, Callable[[Mongod, FaultyProxy], object]] = {
    "killed": lambda server, _: server.kill(),
    "stopped": stop,
    "unreachable": lambda _, proxy: proxy.swallow(True),
    "slow": lambda _, proxy: proxy.delay_replies(1.5),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_mode_off_in_the_file_applies_at_any_phase_of_a_cycle_in_which_mongodb_fails(
    tmp_path: Path, fault: Callable[[Mongod, FaultyProxy], object], record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "ratelimit.yaml"
    edited_s: list[float] = []

    def edit(mode: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(CONFIG.format(mode=mode, uri=proxy.uri))
        new.replace(path)

    def fail() -> None:
        fault(mongod, proxy)
        edit("off")
        edited_s.append(time.monotonic())

    with Mongod() as mongod, FaultyProxy(mongod.uri) as proxy:
        edit("enforce")
        with Gunicorn("tests.support.clock_app:app", env={"WORKER_CONFIG": str(path)}) as server:
            for phase in PHASES:
                wait_until(lambda: 429 == status_at(server), "the limit is enforced")
                edited_s.clear()
                proxy.after(phase, fail)
                wait_until(lambda: status_at(server) and edited_s, "MongoDB fails")
                wait_until(lambda: 200 == status_at(server), f"nobody is denied\n{server.log[-2000:]}", APPLIED_S)
                record_property(f"{phase}", f"{time.monotonic() - edited_s[0]:.1f}")
                mongod.start()
                go_on(mongod, proxy)
                edit("enforce")
            assert "Traceback" not in server.log


ALONE = b"mode: enforce\nlimits: {client: [{limit: 1, window: 1h}]}\n"
CLIENTS = b"clients:\n" + b"".join(b"  job-%d: {limits: {user: [7/minute]}}\n" % number for number in range(25_000))
EDITS = {
    "a megabyte": ALONE.replace(b"enforce", b"off") + CLIENTS,
    "over a megabyte": ALONE + CLIENTS * 2 + b"mode: off\n",
    "appended to UTF-16": ALONE.decode().encode("utf-16")[:-2] + b"mode: off\n",
    "appended to a line": ALONE.rstrip() + b"mode: off\n",
}


def test_mode_off_in_the_file_applies_whatever_else_is_in_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_bytes(ALONE)
    with Gunicorn("tests.support.clock_app:app", workers=2, env={"WORKER_CONFIG": str(path)}) as server:
        for name, content in EDITS.items():
            wait_until(lambda: {429} == {status_at(server) for _ in range(20)}, "the limit is enforced")
            path.write_bytes(content)
            edited_s = time.monotonic()
            wait_until(lambda: {200} == {status_at(server) for _ in range(20)}, f"nobody is denied: {name}", APPLIED_S)
            record_property(name, f"{time.monotonic() - edited_s:.1f}")
            path.write_bytes(ALONE)


def test_file_that_changes_all_the_time_applies(tmp_path: Path) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_bytes(ALONE)
    with Gunicorn("tests.support.clock_app:app", env={"WORKER_CONFIG": str(path)}) as server:
        wait_until(lambda: 429 == status_at(server), "the limit is enforced")
        changed = ALONE.replace(b"enforce", b"dry-run")
        wait_until(lambda: path.write_bytes(changed) and 200 == status_at(server), "nobody is denied")
