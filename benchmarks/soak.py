"""A long load at saturation, beside the same server without the limiter.

``python -m benchmarks.soak`` takes ten minutes for each server, ``SOAK=60`` before it one.

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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.measuring import resident_bytes, servers_of, take_turns
from benchmarks.results import Result, line, median_of, save, spread
from benchmarks.soak_server import BASE, BASE_AGAIN, IN_MEMORY, IS_PLAIN, OURS, ROLE_VARIABLE, URI_VARIABLE
from testbed.gunicorn import Gunicorn
from testbed.mongod import Mongod

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
for line in io.lines("NAMES") do names[#names + 1] = line end
function request()
  local number = math.random(50) == 1 and 1 or math.random(#names)
  wrk.headers["Authorization"] = names[number]
  return wrk.format()
end
function done(summary, latency, requests)
  print(string.format("%d requests in %d us", summary.requests, summary.duration))
  for i = 1, #latency do print(string.format("latency %d us: %d", latency(i))) end
end
"""
RESAMPLE_COUNT = 50


Latencies = Counter[int]
"""Number of requests by their latency in microseconds."""


@dataclass
class Turn:
    """Measurements of one server in one turn."""

    latencies: Latencies = field(default_factory=Counter)
    denied_count: int = 0
    resident_mb: float = 0.0
    lag_s: float = 0.0


def main() -> int:
    """Run, print and keep the results, and return 1 if a goal is missed."""
    if shutil.which("wrk") is None:
        print("wrk is not installed, which generates the load (Debian, Ubuntu: apt-get install wrk)")
        return 2
    turn_count = max(2, round(DURATION_S / TURN_S))
    names = (BASE, OURS) if IS_PLAIN else (BASE, OURS, BASE_AGAIN)
    results = list(results_of(load(turn_count, names), turn_count=turn_count))
    if IS_PLAIN:
        results += ratios_of(load(TWIN_TURNS, (BASE, IN_MEMORY, BASE_AGAIN)))
    print(*map(line, results), sep="\n")
    if DURATION_S >= 100:
        variables = f"SOAK={DURATION_S:g}{' SOAK_SECRETS=plain' if IS_PLAIN else ''}"
        save(results, command=f"{variables} python -m benchmarks.soak")
    return 1 if any(result.met is False for result in results) else 0


def load(turn_count: int, names: Sequence[str]) -> dict[str, list[Turn]]:
    """Load the servers in turn."""
    print(f"{turn_count} turns of {TURN_S} s on each of {len(names)} servers", flush=True)
    with contextlib.ExitStack() as running:
        script = write_script(Path(running.enter_context(tempfile.TemporaryDirectory(prefix="oauth_ratelimit-soak-"))))
        mongod = running.enter_context(Mongod())
        env = {"AUTHLIB_INSECURE_TRANSPORT": "1", URI_VARIABLE: mongod.uri}
        application_import = "benchmarks.soak_server:served()"
        servers = running.enter_context(
            servers_of(names, application_import, variable=ROLE_VARIABLE, threads=CONNECTION_COUNT, env=env)
        )
        loads = {
            name: partial(take_turn, server, script, is_protected=name == OURS) for name, server in servers.items()
        }
        return take_turns(loads, turn_count=turn_count)


def write_script(directory: Path) -> Path:
    """Write the script of wrk, and return its path."""
    names = directory / "names"
    credentials = (base64.b64encode(f"client-{number}:secret".encode()).decode() for number in range(CLIENT_COUNT))
    names.write_text("".join(f"Basic {credential}\n" for credential in credentials))
    script = directory / "load.lua"
    script.write_text(SCRIPT.replace("NAMES", str(names)))
    return script


def take_turn(server: Gunicorn, script: Path, *, is_protected: bool) -> Turn:
    """Load one server for one turn, and observe it halfway."""
    turn = Turn()
    observing = threading.Timer(TURN_S / 2, observe, (server, turn, is_protected))
    observing.start()
    command = [*WRK, f"--script={script}", f"{server.url}/token"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    observing.join()
    if broken := re.search(r"Socket errors: .*", output):
        raise RuntimeError(f"{server.url}: {broken[0]}")
    turn.latencies = latencies_in(output)
    if denied := re.search(r"Non-2xx or 3xx responses: (\d+)", output):
        turn.denied_count = int(denied[1])
    return turn


def observe(server: Gunicorn, turn: Turn, is_protected: bool) -> None:
    """Record a server's memory, and the lag of its synchronisation."""
    (pid,) = server.pids()
    turn.resident_mb = resident_bytes(pid) / 1e6
    if is_protected:
        with contextlib.closing(http.client.HTTPConnection(server.address, timeout=30)) as connection:
            connection.request("GET", "/health")
            turn.lag_s = json.loads(connection.getresponse().read())["sync_lag_s"]


def latencies_in(output: str) -> Latencies:
    """Return the latencies in the output of wrk, of real requests only.

    For each request that took twice the mean or more, wrk adds those that could have been sent meanwhile
    (``stats_correct`` in its wrk.c and stats.c). They are removed again, from the slowest request down.
    """
    summary = re.search(r"^(\d+) requests in (\d+) us$", output, re.MULTILINE)
    if summary is None:
        raise RuntimeError(f"wrk printed no summary: {output}")
    request_count, duration_us = int(summary[1]), int(summary[2])
    lines = re.findall(r"^latency (\d+) us: (\d+)$", output, re.MULTILINE)
    latencies = Counter({int(latency_us): int(count) for latency_us, count in lines})
    expected_us = duration_us // (request_count // CONNECTION_COUNT)
    for latency_us in sorted(latencies, reverse=True):
        for added_us in range(latency_us - expected_us, expected_us, -expected_us):
            latencies[added_us] -= latencies[latency_us]
    if latencies.total() != request_count or min(latencies.values()) < 0:
        raise RuntimeError(f"{latencies.total()} latencies of {request_count} requests: {output}")
    return +latencies


def percentile_ms(turns: Sequence[Turn], percent: float) -> float:
    """Return the time that this share of the requests of all turns did not exceed."""
    latencies: Latencies = Counter()
    for turn in turns:
        latencies.update(turn.latencies)
    rest = latencies.total() * percent / 100
    for latency_us in sorted(latencies):
        rest -= latencies[latency_us]
        if rest <= 0:
            return latency_us / 1000
    raise ValueError("no requests")


def results_of(seen: Mapping[str, Sequence[Turn]], *, turn_count: int) -> Iterator[Result]:
    """Yield the results of a load."""
    yield Result(f"{TOPIC}/clients", CLIENT_COUNT, "clients")
    yield Result(f"{TOPIC}/load", turn_count * TURN_S, "s on each server")
    for name, turns in seen.items():
        yield median_of(f"{TOPIC}/{name}, requests", [turn.latencies.total() / TURN_S for turn in turns], "/s")
        for percent in (50, 99):
            of_turns = [percentile_ms([turn], percent) for turn in turns]
            yield Result(f"{TOPIC}/{name}, p{percent}", percentile_ms(turns, percent), "ms", spread=spread(of_turns))
    yield from ratios_of(seen)
    ours = seen[OURS]
    denied_ratio = sum(turn.denied_count for turn in ours) / sum(turn.latencies.total() for turn in ours)
    yield Result(f"{TOPIC}/ours, denied", denied_ratio, "of the requests")
    for name, turns in seen.items():
        resident_mb = [turn.resident_mb for turn in turns]
        quarter = max(1, len(turns) // 4)
        before, after = map(statistics.median, (resident_mb[quarter : 2 * quarter], resident_mb[-quarter:]))
        yield Result(f"{TOPIC}/{name}, memory at the end", after, "MB")
        goal = "<= 2" if name == OURS else None
        yield Result(f"{TOPIC}/{name}, memory since the second quarter", after - before, "MB", goal)
    lag_s = [turn.lag_s for turn in ours]
    yield Result(f"{TOPIC}/ours, longest lag", max(lag_s), "s", "<= 5")
    half = len(lag_s) // 2
    grown_s = statistics.median(lag_s[half:]) - statistics.median(lag_s[:half])
    yield Result(f"{TOPIC}/ours, lag in the second half more than in the first", grown_s, "s", "<= 0.5")


def ratios_of(seen: Mapping[str, Sequence[Turn]]) -> Iterator[Result]:
    """Yield latencies as multiples of the first server's. The spread is that of pairs of turns drawn again."""
    draw = random.Random(0)
    for name, turns in seen.items():
        if name == BASE:
            continue
        pairs = list(zip(turns, seen[BASE], strict=True))
        for percent in (50, 99):
            chance = spread([ratio_of(draw.choices(pairs, k=len(pairs)), percent) for _ in range(RESAMPLE_COUNT)])
            goal = f"<= {1.25 if IS_PLAIN else 1.05}" if (percent, name) == (99, OURS) else None
            yield Result(f"{TOPIC}/p{percent}, {name} of {BASE}", ratio_of(pairs, percent), "x", goal, chance)


def ratio_of(pairs: Sequence[tuple[Turn, Turn]], percent: float) -> float:
    """Return the percentile of the first of each pair, divided by that of the second."""
    one, other = zip(*pairs, strict=True)
    return percentile_ms(one, percent) / percentile_ms(other, percent)


if __name__ == "__main__":
    sys.exit(main())
