"""Real processes whose wall clock is set while they serve: nothing that they do by themselves waits for it."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from click.testing import CliRunner

from oauth_ratelimit.cli import command
from oauth_ratelimit.store.mongo.client import Connection
from oauth_ratelimit.store.mongo.statistics import StatisticsStore
from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from tests.support.apps import CLIENT

pytestmark = [pytest.mark.cc, pytest.mark.slow]

MONTH_S = 30 * 86_400
WITHIN_S = 10.0  # each of these takes three seconds at most unless the machine is busy, and the steps are longer
CONFIG = """
mode: enforce
limits: {{client: [{{limit: 100000, window: 1h}}]}}
clients:
  near: {{limits: {{client: [{{limit: {near}, window: 1h}}]}}}}
  denied: {{limits: {{client: [{{limit: 1, window: 1h}}]}}}}
  reuser: {{limits: {{client: [{{limit: 1, window: 1h, on_limit: reuse}}]}}}}
  brief: {{limits: {{client: [{{limit: 1000, window: 1s}}]}}}}
sync: {{interval: 200ms, max_interval: 1s}}
store: {{uri: "{uri}"}}
"""


class Machine(NamedTuple):
    """A server with one worker, and the clock of its machine. That of MongoDB and of the command line is right."""

    server: Gunicorn
    connection: Connection
    config_path: Path
    clock_path: Path
    uri: str

    def set_clock(self, offset_s: int) -> None:
        _replace(self.clock_path, f"{offset_s}")

    def configure(self, *, near: int) -> None:
        _replace(self.config_path, CONFIG.format(uri=self.uri, near=near))

    def run(self, *arguments: str) -> Any:
        result = CliRunner().invoke(command, ["--config", str(self.config_path), *arguments, "--json"])
        assert 0 == result.exit_code, result.output
        return json.loads(result.stdout)

    def ask(self, client_id: str) -> requests.Response:
        auth, form = (client_id, CLIENT.client_secret or ""), {"grant_type": "client_credentials"}
        return requests.post(f"{self.server.url}/token", form, auth=auth, timeout=30)

    def statuses(self, client_id: str, count: int = 1) -> list[int]:
        return [self.ask(client_id).status_code for _ in range(count)]

    def token(self) -> str:
        return str(self.ask("reuser").json().get("access_token"))

    def health(self) -> Any:
        return requests.get(f"{self.server.url}/health", timeout=30).json()

    def stored_hits(self) -> Counter[str]:
        """Return the hits of each client in frames of the present hour."""
        found: Counter[str] = Counter()
        for document in self.connection.collection("ratelimits").find():
            for start_s, hits in document["requestCounters"].get("360", {}).items():
                found[document["_id"]["clientId"]] += hits if abs(time.time() - int(start_s)) < 3600 else 0
        return found

    def recorded(self, client_id: str) -> tuple[int, int]:
        """Return the requests that statistics of the present minutes have of a client, admitted and denied."""
        minutes = StatisticsStore(self.connection).minutes(time.time() - 300, time.time() + 60, client_id)
        tallies = [minute.tally() for minute in minutes]
        return sum(tally.allowed for tally in tallies), sum(tally.denied for tally in tallies)


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.fixture(scope="session")
def clock_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that moves the clock of a process: patching ``time.time`` would miss what C code plans by the clock."""
    source, built = Path(__file__).parents[1] / "support/clock_shim.c", tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


@pytest.fixture
def machine(tmp_path: Path, mongo_uri: str, connection: Connection, clock_shim: Path) -> Iterator[Machine]:
    config_path, clock_path = tmp_path / "ratelimit.yaml", tmp_path / "clock"
    env = {"WORKER_CONFIG": str(config_path), "SHIM_FILE": str(clock_path), "LD_PRELOAD": str(clock_shim)}
    server = Gunicorn("tests.support.clock_app:app", env=env)
    found = Machine(server, connection, config_path, clock_path, mongo_uri)
    found.set_clock(0)
    found.configure(near=3)
    with server:
        yield found


STEPS: dict[str, tuple[int, bool]] = {  # seconds, and if it is a glitch that is over after two seconds
    "20 s back": (-20, False),
    "1 h back": (-3600, False),
    "30 days back": (-MONTH_S, False),
    "30 days ahead": (MONTH_S, False),
    "5 min back for 2 s": (-300, True),
    "5 min ahead for 2 s": (300, True),
}


@pytest.mark.parametrize(("step_s", "is_glitch"), STEPS.values(), ids=STEPS)
def test_clock_that_is_set_delays_nothing(
    machine: Machine, step_s: int, is_glitch: bool, record_property: Callable[[str, object], None]
) -> None:
    def within(what: str, is_done: Callable[[], object]) -> None:
        begun_s = time.monotonic()
        wait_until(is_done, f"{what}\n{machine.server.log[-2000:]}", WITHIN_S)
        record_property(what, f"{time.monotonic() - begun_s:.1f}")

    def memory_mb() -> int:
        status = Path(f"/proc/{machine.server.pids()[0]}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) // 1024

    kept = [machine.token() for _ in range(3)][-1]
    wait_until(lambda: machine.run("status")["instances"], "a heartbeat")
    before_mb = memory_mb()
    assert [200, 429] == machine.statuses("denied", 2)

    machine.set_clock(step_s)
    end_s, far_count = time.monotonic() + 2.0, 0
    while far_count < 5 or (is_glitch and time.monotonic() < end_s):
        assert [200] == machine.statuses("far")
        far_count += 1
    assert [200, 200, 200, 429] == machine.statuses("near", 4)
    machine.statuses("brief", 3)
    if is_glitch:
        machine.set_clock(0)
    begun_s = time.time()

    expected = {"near": 3, "far": far_count}
    within("hits stored", lambda: expected.items() <= machine.stored_hits().items())
    machine.configure(near=1000)
    within("file applied", lambda: [200] == machine.statuses("near"))
    machine.run("forget-tokens", "reuser")
    within("token dropped", lambda: kept != machine.token())
    machine.run("mode", "set", "dry-run", "--reason", "test", "--operator", "ann")
    within("mode set", lambda: [200] == machine.statuses("denied"))
    within("heartbeat", lambda: _is_seen_since(machine, begun_s))
    within("statistics", lambda: machine.recorded("near") >= (4, 1))
    within("memory pruned", lambda: machine.health()["tracked_keys"] == 4)  # without the one of a second
    assert memory_mb() < before_mb + 30

    machine.statuses("far", 3)
    begun_s = time.monotonic()
    assert 0 == machine.server.stop()
    assert time.monotonic() - begun_s < WITHIN_S
    assert far_count + 3 == machine.stored_hits()["far"]
    assert "Traceback" not in machine.server.log


@pytest.mark.parametrize("offset_s", [-7200, 7200], ids=["2 h behind", "2 h ahead"])
def test_worker_with_a_wrong_clock_obeys_overrides_for_their_time(machine: Machine, offset_s: int) -> None:
    """And shows in ``status`` with its right age."""
    machine.set_clock(offset_s)
    former = machine.server.pids()
    machine.server.signal(signal.SIGHUP)
    wait_until(lambda: machine.server.pids() and machine.server.pids() != former, "a new worker")
    by = ("--reason", "test", "--operator", "ann")
    wait_until(lambda: [429] == machine.statuses("denied"), "the limit is enforced")
    begun_s = time.time()
    wait_until(lambda: _is_seen_since(machine, begun_s), "a heartbeat", WITHIN_S)

    machine.run("trust", "add", "denied", "--for", "1h", *by)
    wait_until(lambda: [200] == machine.statuses("denied"), "it is trusted", WITHIN_S)
    machine.run("trust", "remove", "denied", *by)
    wait_until(lambda: [429] == machine.statuses("denied"), "it is trusted no more", WITHIN_S)
    machine.run("mode", "set", "dry-run", "--for", "3s", *by)
    wait_until(lambda: [200] == machine.statuses("denied"), "the override applies", WITHIN_S)
    wait_until(lambda: [429] == machine.statuses("denied"), "the override has ended", WITHIN_S)


def _is_seen_since(machine: Machine, begun_s: float) -> bool:
    """Return True if a heartbeat was sent since. None is of the future, or says that its worker has run for hours."""
    found = machine.run("status")["instances"]
    assert all(0 <= each["up_s"] < 60 and each["beat_at_s"] < time.time() + 1 for each in found)
    return any(each["beat_at_s"] > begun_s for each in found)
