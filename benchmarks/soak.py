"""A long load at saturation, beside the same server without the limiter: ``make soak``, ``SOAK=60 make soak``.

Gunicorn servers take turns under wrk, a real MongoDB holds the counters, and one client in fifty exceeds its limit.
Measured are the growth of memory, the lag of the synchronisation, and the slowest request in a hundred.

The servers hash their clients' secrets, as most do. ``SOAK_SECRETS=plain`` makes them as cheap as Authlib can be, so
that the limiter weighs most. A second server without the limiter shows how much two equal servers differ; with plain
secrets a server with the limiter but without MongoDB shows the share of the request itself.
"""

import base64
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import resident_bytes, servers_of, spread
from benchmarks.results import Result, save, table
from benchmarks.soak_server import BASE, BASE_AGAIN, IN_MEMORY, IS_PLAIN, OURS, ROLE_VARIABLE, URI_VARIABLE
from benchmarks.wrk import REPORT, Latencies, latencies_in, percentile_ms, ratio_of
from tests.support.gunicorn import Gunicorn
from tests.support.mongod import Mongod

DURATION_S = float(os.environ.get("SOAK", "600"))
TWIN_TURNS = 12
TOPIC = "soak, plain secrets" if IS_PLAIN else "soak"
TURN_S = 5 if IS_PLAIN else 30  # short, so that a disturbance hits all servers
CONNECTION_COUNT = 8  # as many as the server has threads: saturated, without a queue
WRK = ("wrk", "--threads=1", f"--connections={CONNECTION_COUNT}", f"--duration={TURN_S}")
CLIENT_COUNT = int(os.environ.get("SOAK_CLIENTS", "5000"))
SCRIPT = """
wrk.method = "POST"
wrk.body = "grant_type=client_credentials"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
local names = {}
for line in io.lines("%s") do names[#names + 1] = line end
function request()
  local number = math.random(50) == 1 and 1 or math.random(#names)
  wrk.headers["Authorization"] = names[number]
  return wrk.format()
end
"""
RESAMPLE_COUNT = 50


@dataclass
class Observations:
    """Measurements of one server, one per turn."""

    turns: list[Latencies] = field(default_factory=list)
    denied_count: int = 0
    resident_mb: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)


def main() -> int:
    """Run, print and keep the results, and return 1 if a goal is missed."""
    if shutil.which("wrk") is None:
        print("wrk is not installed, which generates the load (Debian, Ubuntu: apt-get install wrk)")
        return 2
    turn_count = max(2, round(DURATION_S / TURN_S))
    names = (BASE, OURS) if IS_PLAIN else (BASE, OURS, BASE_AGAIN)
    print(f"{turn_count} turns of {TURN_S} s on each of {len(names)} servers")
    results = list(results_of(load(turn_count, names), turn_count=turn_count))
    if IS_PLAIN:
        twins = (BASE, IN_MEMORY, BASE_AGAIN)
        print(f"{TWIN_TURNS} turns of {TURN_S} s on each of {len(twins)} servers")
        results += ratios_of(load(TWIN_TURNS, twins))
    print(table(results))
    if DURATION_S >= 180:
        save(results, command=f"SOAK={DURATION_S:g} {'SOAK_SECRETS=plain ' if IS_PLAIN else ''}make soak")
    return 1 if any(result.met is False for result in results) else 0


def load(turn_count: int, names: Sequence[str]) -> dict[str, Observations]:
    """Load the servers in turn. The first turn does not count."""
    seen = {name: Observations() for name in names}
    with contextlib.ExitStack() as running:
        script = write_script(Path(running.enter_context(tempfile.TemporaryDirectory(prefix="oauth_ratelimit-soak-"))))
        mongod = running.enter_context(Mongod())
        env = {"AUTHLIB_INSECURE_TRANSPORT": "1", URI_VARIABLE: mongod.uri}
        application_import = "benchmarks.soak_server:served()"
        servers = running.enter_context(
            servers_of(names, application_import, variable=ROLE_VARIABLE, threads=CONNECTION_COUNT, env=env)
        )
        for turn in range(turn_count + 1):
            for name in names if turn % 2 else reversed(names):
                take_turn(servers[name], script, seen[name] if turn else Observations(), is_protected=name == OURS)
            show_progress(turn, turn_count, seen)
    return seen


def write_script(directory: Path) -> Path:
    """Write the script of wrk, and return its path."""
    names = directory / "names"
    credentials = (base64.b64encode(f"client-{number}:secret".encode()).decode() for number in range(CLIENT_COUNT))
    names.write_text("".join(f"Basic {credential}\n" for credential in credentials))
    script = directory / "load.lua"
    script.write_text(SCRIPT % names + REPORT)
    return script


def take_turn(server: Gunicorn, script: Path, seen: Observations, *, is_protected: bool) -> None:
    """Load one server for one turn, and observe it halfway."""
    observing = threading.Timer(TURN_S / 2, observe, (server, seen, is_protected))
    observing.start()
    command = [*WRK, f"--script={script}", f"{server.url}/token"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    observing.join()
    if broken := re.search(r"Socket errors: .*", output):
        raise RuntimeError(f"{server.url}: {broken[0]}")
    seen.turns.append(latencies_in(output, connection_count=CONNECTION_COUNT))
    if denied := re.search(r"Non-2xx or 3xx responses: (\d+)", output):
        seen.denied_count += int(denied[1])


def observe(server: Gunicorn, seen: Observations, is_protected: bool) -> None:
    """Record a server's memory, and the state of its synchronisation."""
    (pid,) = server.pids()
    seen.resident_mb.append(resident_bytes(pid) / 1e6)
    if is_protected:
        with contextlib.closing(http.client.HTTPConnection(server.address, timeout=30)) as connection:
            connection.request("GET", "/health")
            health = json.loads(connection.getresponse().read())
        seen.lag_s.append(health["sync_lag_s"])
        seen.in_flight.append(float(health["in_flight_hits"]))


def show_progress(turn: int, turn_count: int, seen: Mapping[str, Observations]) -> None:
    """Print a line about once a minute."""
    if turn and turn % max(1, round(60 / (TURN_S * len(seen)))) == 0:
        p99_ms = " and ".join(f"{name} {percentile_ms(it.turns, 99):.2f} ms" for name, it in seen.items())
        print(f"{time.strftime('%X')} turn {turn} of {turn_count}: p99 {p99_ms}", flush=True)


def results_of(seen: Mapping[str, Observations], *, turn_count: int) -> Iterator[Result]:
    """Yield the results of a load."""
    ours = seen[OURS]
    yield Result(f"{TOPIC}/clients", CLIENT_COUNT, "clients")
    yield Result(f"{TOPIC}/load", turn_count * TURN_S, "s on each server")
    for name, it in seen.items():
        per_s = [turn.total() / TURN_S for turn in it.turns]
        yield Result(f"{TOPIC}/{name}, requests", statistics.median(per_s), "/s", spread=spread(per_s))
        for percent in (50, 99):
            of_turns = [percentile_ms([turn], percent) for turn in it.turns]
            yield Result(f"{TOPIC}/{name}, p{percent}", percentile_ms(it.turns, percent), "ms", spread=spread(of_turns))
    yield from ratios_of(seen)
    denied_ratio = ours.denied_count / sum(turn.total() for turn in ours.turns)
    yield Result(f"{TOPIC}/ours, denied", denied_ratio, "of the requests")
    quarter = max(1, len(ours.resident_mb) // 4)
    for name, it in seen.items():
        parts = (it.resident_mb[quarter : 2 * quarter], it.resident_mb[-quarter:])
        before, after = map(statistics.median, parts)
        yield Result(f"{TOPIC}/{name}, memory at the end", after, "MB")
        goal = "<= 2" if it is ours else None
        yield Result(f"{TOPIC}/{name}, memory since the second quarter", after - before, "MB", goal)
    yield Result(f"{TOPIC}/ours, longest lag", max(ours.lag_s), "s", "<= 5")
    half = len(ours.lag_s) // 2
    grown_s = statistics.median(ours.lag_s[half:]) - statistics.median(ours.lag_s[:half])
    yield Result(f"{TOPIC}/ours, lag in the second half more than in the first", grown_s, "s", "<= 0.5")
    yield Result(f"{TOPIC}/ours, most hits in flight after a cycle", max(ours.in_flight), "hits")


def ratios_of(seen: Mapping[str, Observations]) -> Iterator[Result]:
    """Yield latencies as multiples of the first server's. The spread is that of pairs of turns drawn again."""
    base, *others = seen.items()
    draw = random.Random(0)
    for name, it in others:
        pairs = list(zip(it.turns, base[1].turns, strict=True))
        for percent in (50, 99):
            chance = spread([ratio_of(draw.choices(pairs, k=len(pairs)), percent) for _ in range(RESAMPLE_COUNT)])
            goal = f"<= {1.25 if IS_PLAIN else 1.05}" if (percent, name) == (99, OURS) else None
            yield Result(f"{TOPIC}/p{percent}, {name} of {base[0]}", ratio_of(pairs, percent), "x", goal, chance)


if __name__ == "__main__":
    sys.exit(main())
