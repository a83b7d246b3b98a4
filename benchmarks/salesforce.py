"""
The load of Salesforce's published test: 1,000 calls a second of 25 tenants on 3 instances that synchronise each second.

They aim at 1 ms added per call and 75 round trips a second. Here each instance is a process with all that runs in the
background of a protected application: sync cycles, overrides, signs of life.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from authlib.integrations.flask_oauth2 import AuthorizationServer
from flask import Flask

from benchmarks import subjects
from benchmarks.commands import Commands
from benchmarks.results import Result
from benchmarks.timing import percentile
from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION
from tests.support.mongod import Mongod

INSTANCE_COUNT = 3
TENANT_COUNT = 25
CALLS_PER_S = 1000
START_S = 4.0  # for the processes to come up
WINDOW_S = 10
WARM_UP_S = 12.0  # longer than the window: what is denied later is denied all the time
LOADS = {"within the limits": 1000, "at twice the limits": 200}  # per tenant and window; each makes 400 calls


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one instance has seen."""

    latencies_ms: list[float]
    commands: Counter[str]
    denied_count: int


def run(*, short: bool) -> Iterator[Result]:
    """Yield the time added to a call, and the load on MongoDB."""
    duration_s = 4.0 if short else 30.0
    for load, limit in LOADS.items():
        with Mongod() as mongod:
            seen = _run_instances(mongod.uri, limit, duration_s)
        latencies_ms = [latency for one in seen for latency in one.latencies_ms]
        commands: Counter[str] = sum((one.commands for one in seen), Counter())
        name = f"salesforce/{load}"
        yield Result(f"{name}/added per call, p50", percentile(latencies_ms, 50), "ms")
        yield Result(f"{name}/added per call, p95", percentile(latencies_ms, 95), "ms", "<= 0.05")
        yield Result(f"{name}/added per call, p99.9", percentile(latencies_ms, 99.9), "ms")
        denied_percent = 100 * sum(one.denied_count for one in seen) / len(latencies_ms)
        yield Result(f"{name}/denied", denied_percent, "%")
        yield Result(f"{name}/round trips", commands.total() / duration_s, "per second", "<= 12")
        for command, count in commands.most_common():
            yield Result(f"{name}/round trips, {command}", count / duration_s, "per second")


def _run_instances(uri: str, limit: int, duration_s: float) -> list[_Seen]:
    starting_at_s = time.time() + START_S
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(INSTANCE_COUNT, mp_context=context, initializer=subjects.suppression) as pool:
        instances = [
            pool.submit(_serve, number, uri, limit, starting_at_s=starting_at_s, duration_s=duration_s)
            for number in range(INSTANCE_COUNT)
        ]
        return [instance.result() for instance in instances]


def _serve(number: int, uri: str, limit: int, *, starting_at_s: float, duration_s: float) -> _Seen:
    """Be one instance: calls for each tenant in turn, at their times, whatever the last one took."""
    commands = Commands()
    gate = _protected(uri, limit).extensions[EXTENSION]
    check, timer = gate.limiter.check, time.perf_counter
    pause_s = INSTANCE_COUNT / CALLS_PER_S
    latencies_ms, denied_count, before = [], 0, Counter[str]()
    warm_up_count = int(WARM_UP_S / pause_s)
    started_s = timer() + max(0.0, starting_at_s - time.time())
    for index in range(warm_up_count + int(duration_s / pause_s)):
        if index == warm_up_count:
            before, denied_count = Counter(commands.by_name), 0
            latencies_ms.clear()
        time.sleep(max(0.0, started_s + index * pause_s - timer()))
        asked_s = timer()
        decision = check(f"tenant-{(index * INSTANCE_COUNT + number) % TENANT_COUNT}")
        latencies_ms.append((timer() - asked_s) * 1000)
        denied_count += decision.would_deny
    counted = Counter(commands.by_name) - before
    gate.close()
    return _Seen(latencies_ms, counted, denied_count)


def _protected(uri: str, limit: int) -> Flask:
    app = Flask(__name__)
    app.config["OAUTH_RATELIMIT_CONFIG"] = {
        "mode": "enforce",
        "store": {"uri": uri},
        "sync": {"interval": "1s"},
        "limits": {"client": [{"limit": limit, "window": WINDOW_S}]},
    }
    OAuthRateLimit(app, AuthorizationServer(app, query_client=lambda _: None, save_token=lambda *_: None))
    return app
