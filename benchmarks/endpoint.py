"""The limiter's share of a token request: called directly beside Flask-Limiter, and as deployed through gunicorn."""

import contextlib
import gc
import http.client
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import instructions, token_request
from benchmarks.measuring import in_new_process, servers_of, take_turns, timed
from benchmarks.redis_server import redis_server
from benchmarks.results import Result, median_of, spread
from benchmarks.token_request import (
    BASE,
    BASE_AGAIN,
    FLASK_LIMITER,
    FLASK_LIMITER_MEMORY,
    FLASK_LIMITER_MONGO,
    FLASK_LIMITER_REDIS,
    FORMS,
    GUARDED,
    OURS,
    SHARED,
    application,
    encoded,
    password_form,
    requests_to,
)
from oauth_ratelimit.observe import metrics, spans
from testbed.gunicorn import Gunicorn
from testbed.mongod import Mongod
from testbed.oauth_server.database import seed
from testbed.oauth_server.models import User

UNIT = "us of CPU per request"
BURST_COUNT = 20  # requests in a row to one subject, so that a disturbance hits all subjects

USERS = tuple(User(f"user-{number:04}", "password") for number in range(2_000))
REQUESTS_PER_S = 500
SENDERS = 8
REST_S = 11  # until the last key is written, because its writing waits for up to ten seconds
GOALS = {OURS: "<= 5", SHARED: "<= 10"}  # percent of the CPU time of an unprotected server


def run(*, short: bool) -> Iterator[Result]:
    """Yield the CPU time of a request, called directly and through gunicorn."""
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
        database = Path(directory, "demo.sqlite3")
        seed(database)
        yield from _called_directly(database, process_count=2 if short else 16, turn_count=10 if short else 60)
        if shutil.which("valgrind"):
            base, ours = instructions.count([*instructions.REQUESTS]).values()
            yield Result("endpoint/instructions of client_credentials, added", 100 * (ours / base - 1), "%", "<= 6")
        seed(database, users=USERS)
        yield from _as_deployed(database, turn_s=2 if short else 6, turn_count=2 if short else 14)


def _called_directly(database: Path, *, process_count: int, turn_count: int) -> Iterator[Result]:
    """Run each subject in several processes and yield means, because processes differ by several percent."""
    by_process = [in_new_process(_bursts_of_each_grant, database, turn_count) for _ in range(process_count)]
    for grant in FORMS:
        yield from _compared(f"endpoint/WSGI, {grant}", [by_grant[grant] for by_grant in by_process])


def _bursts_of_each_grant(database: Path, turn_count: int) -> dict[str, dict[str, list[float]]]:
    """Return the CPU time per request in us, of many short bursts."""
    metrics.IS_AVAILABLE = spans.IS_AVAILABLE = False  # Flask-Limiter has no metrics either
    # The interval is longer than the run: flush.py measures the sync cycle.
    apps = {name: application(name, database, interval="1h") for name in (BASE, OURS, GUARDED, FLASK_LIMITER)}
    gc.freeze()
    by_grant = {}
    for grant in FORMS:
        bursts = {
            name: timed(_burst(requests_to(app, grant)), clock_ns=time.thread_time_ns) for name, app in apps.items()
        }
        times_ns = take_turns(bursts, turn_count=turn_count)
        by_grant[grant] = {name: [time_ns / 1000 for time_ns in values] for name, values in times_ns.items()}
    for name in (OURS, GUARDED):
        apps[name].extensions["oauth_ratelimit"].close()
    return by_grant


def _burst(request: Callable[[], None]) -> Callable[[], int]:
    def run() -> int:
        for _ in range(BURST_COUNT):
            request()
        return BURST_COUNT

    return run


def _compared(name: str, by_process: Sequence[Mapping[str, list[float]]]) -> Iterator[Result]:
    """Yield the time of each subject, and the means over the processes of what it adds."""
    added: dict[str, list[float]] = {}
    for subject in by_process[0]:
        yield median_of(
            f"{name}/{subject}", [time_us for times_us in by_process for time_us in times_us[subject]], UNIT
        )
        # The median difference between bursts of the same turn.
        added[subject] = [
            statistics.median(with_it - without for with_it, without in zip(times[subject], times[BASE], strict=True))
            for times in by_process
        ]
    del added[BASE]
    for subject, values in added.items():
        yield Result(f"{name}/added by {subject}", statistics.mean(values), UNIT, spread=spread(values))
    ratio = statistics.mean(added[OURS]) / statistics.mean(added[FLASK_LIMITER])
    ratios = [ours / theirs for ours, theirs in zip(added[OURS], added[FLASK_LIMITER], strict=True)]
    yield Result(f"{name}/{OURS}, of what {FLASK_LIMITER} adds", ratio, "x", spread=spread(ratios))


def _as_deployed(database: Path, *, turn_s: float, turn_count: int) -> Iterator[Result]:
    """Servers take turns under a steady load of many users, with sync cycle, metrics and quota headers."""
    subjects = [BASE, OURS, SHARED, BASE_AGAIN, FLASK_LIMITER_MEMORY, FLASK_LIMITER_MONGO]
    with contextlib.ExitStack() as running:
        mongo_uri = running.enter_context(Mongod()).uri.replace("/?", "/limits?")
        env = {token_request.DATABASE_VARIABLE: str(database), token_request.URI_VARIABLE: mongo_uri}
        if shutil.which("redis-server"):
            subjects.append(FLASK_LIMITER_REDIS)
            env[token_request.REDIS_VARIABLE] = running.enter_context(redis_server())
        servers = running.enter_context(
            servers_of(
                subjects,
                "benchmarks.token_request:served()",
                variable=token_request.SUBJECT_VARIABLE,
                threads=SENDERS,
                env=env,
            )
        )
        cpu_us = take_turns(
            {name: partial(_cpu_us, servers[name], turn_s, REST_S if name == SHARED else 0) for name in subjects},
            turn_count=turn_count,
        )
    name = f"endpoint/as deployed, password, {len(USERS):,} users, {REQUESTS_PER_S} requests/s"
    for subject, times in cpu_us.items():
        yield median_of(f"{name}/{subject}", times, UNIT)
    for subject in subjects[1:]:
        percents = [100 * (mine / base - 1) for mine, base in zip(cpu_us[subject], cpu_us[BASE], strict=True)]
        yield median_of(f"{name}/added by {subject}", percents, "%", GOALS.get(subject))


def _cpu_us(server: Gunicorn, duration_s: float, rest_s: float) -> float:
    """Load a server for some time, let it rest, and return the CPU time of its worker per request."""
    (pid,) = server.pids()
    clock = (~pid << 3) | 2  # the result of clock_getcpuclockid(3). Linux only.
    started_ns = time.clock_gettime_ns(clock)
    count = round(duration_s * REQUESTS_PER_S)
    counts: list[int] = []
    senders = [
        threading.Thread(target=lambda first=first: counts.append(_send(server, range(first, count, SENDERS))))
        for first in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    if sum(counts) != count:
        raise RuntimeError(f"{sum(counts)} of {count} requests were answered")
    time.sleep(rest_s)
    return (time.clock_gettime_ns(clock) - started_ns) / count / 1000


def _send(server: Gunicorn, numbers: range) -> int:
    """Send requests at their times, and return how many got a token."""
    draw = random.Random(numbers.start)
    token_count = 0
    started_s = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection(server.address, timeout=30)) as connection:
        for number in numbers:
            time.sleep(max(0.0, started_s + number / REQUESTS_PER_S - time.monotonic()))
            body, headers = encoded(password_form(draw.choice(USERS)))
            connection.request("POST", "/token", body, headers)
            response = connection.getresponse()
            response.read()
            token_count += response.status == http.client.OK
    return token_count
