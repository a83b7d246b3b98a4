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
from pathlib import Path

from benchmarks.measuring import in_new_process, servers_of, spread
from benchmarks.peers import redis_server
from benchmarks.results import Result
from benchmarks.token_request import (
    BASE,
    BASE_AGAIN,
    DATABASE_VARIABLE,
    FLASK_LIMITER,
    FLASK_LIMITER_MEMORY,
    FLASK_LIMITER_MONGO,
    FLASK_LIMITER_REDIS,
    FORMS,
    OURS,
    REDIS_VARIABLE,
    SHARED,
    SUBJECT_VARIABLE,
    URI_VARIABLE,
    application,
    encoded,
    password_form,
    requests_to,
)
from demo.database import seed
from demo.models import User
from oauth_ratelimit.observe import otel, prometheus
from tests.support.gunicorn import Gunicorn
from tests.support.mongod import Mongod

UNIT = "us of CPU per request"
BURST_COUNT = 20  # requests in a row to one subject, so that a disturbance hits all subjects

USERS = tuple(User(f"user-{number:04}", "password") for number in range(2_000))
REQUESTS_PER_S = 500
SENDERS = 8
GOALS = {OURS: "<= 5", SHARED: "<= 12"}  # percent of the CPU time of an unprotected server


def run(*, short: bool) -> Iterator[Result]:
    """Yield the CPU time of a request, called directly and through gunicorn."""
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
        database = Path(directory, "demo.sqlite3")
        seed(database)
        yield from _called_directly(database, process_count=2 if short else 16, turn_count=10 if short else 60)
        seed(database, users=USERS)
        yield from _as_deployed(database, turn_s=2 if short else 3, turn_count=2 if short else 24)


def _called_directly(database: Path, *, process_count: int, turn_count: int) -> Iterator[Result]:
    """Run each subject in several processes and yield means, because processes differ by several percent."""
    by_process = [in_new_process(_bursts_of_each_grant, database, turn_count) for _ in range(process_count)]
    for grant in FORMS:
        yield from _compared(f"endpoint/WSGI, {grant}", [by_grant[grant] for by_grant in by_process])


def _bursts_of_each_grant(database: Path, turn_count: int) -> dict[str, dict[str, list[float]]]:
    prometheus.IS_AVAILABLE = otel.IS_AVAILABLE = False  # Flask-Limiter has no metrics either
    # The interval is longer than the run: flush.py measures the sync cycle.
    apps = {subject: application(subject, database, interval="1h") for subject in (BASE, OURS, *FLASK_LIMITER)}
    by_grant = {
        grant: _bursts({subject: requests_to(app, grant) for subject, app in apps.items()}, turn_count)
        for grant in FORMS
    }
    apps[OURS].extensions["oauth_ratelimit"].close()
    return by_grant


def _bursts(runs: Mapping[str, Callable[[], None]], turn_count: int) -> dict[str, list[float]]:
    """Return the CPU time per request in us, of many short bursts in random order."""
    times_us: dict[str, list[float]] = {name: [] for name in runs}
    order, draw = list(runs), random.Random(0)
    for turn in range(turn_count + 2):
        gc.collect()
        draw.shuffle(order)
        for name in order:
            request = runs[name]
            started_ns = time.thread_time_ns()
            for _ in range(BURST_COUNT):
                request()
            if turn >= 2:  # the first turns fill caches
                times_us[name].append((time.thread_time_ns() - started_ns) / BURST_COUNT / 1000)
    return times_us


def _compared(name: str, by_process: Sequence[Mapping[str, list[float]]]) -> Iterator[Result]:
    """Yield the time of each subject, and the means over the processes of what it adds."""
    for subject in by_process[0]:
        times = [time_us for times_us in by_process for time_us in times_us[subject]]
        yield Result(f"{name}/{subject}", statistics.median(times), UNIT, spread=spread(times))
    added = {
        subject: [_added_us(times_us, subject) for times_us in by_process]
        for subject in by_process[0]
        if subject != BASE
    }
    for subject, values in added.items():
        yield Result(f"{name}/added by {subject}", statistics.mean(values), UNIT, spread=spread(values))
    for other in FLASK_LIMITER:
        ratio = statistics.mean(added[OURS]) / statistics.mean(added[other])
        ratios = [ours / theirs for ours, theirs in zip(added[OURS], added[other], strict=True)]
        yield Result(f"{name}/{OURS}, of what {other} adds", ratio, "x", spread=spread(ratios))


def _added_us(times_us: Mapping[str, list[float]], subject: str) -> float:
    """Return the median difference between bursts of the same turn."""
    pairs = zip(times_us[subject], times_us[BASE], strict=True)
    return statistics.median(with_it - without for with_it, without in pairs)


def _as_deployed(database: Path, *, turn_s: float, turn_count: int) -> Iterator[Result]:
    """Servers take turns under a steady load of many users, with sync cycle, metrics and quota headers."""
    subjects = [BASE, OURS, SHARED, BASE_AGAIN, FLASK_LIMITER_MEMORY, FLASK_LIMITER_MONGO]
    with contextlib.ExitStack() as running:
        mongo_uri = running.enter_context(Mongod()).uri.replace("/?", "/limits?")
        env = {DATABASE_VARIABLE: str(database), URI_VARIABLE: mongo_uri}
        if shutil.which("redis-server"):
            subjects.append(FLASK_LIMITER_REDIS)
            env[REDIS_VARIABLE] = running.enter_context(redis_server())
        cpu_us: dict[str, list[float]] = {subject: [] for subject in subjects}
        application_import = "benchmarks.token_request:served()"
        servers = running.enter_context(
            servers_of(subjects, application_import, variable=SUBJECT_VARIABLE, threads=SENDERS, env=env)
        )
        draw = random.Random(0)
        for turn in range(turn_count + 1):
            for subject in draw.sample(subjects, len(subjects)):
                time_us = _cpu_us_per_request(servers[subject], turn_s)
                if turn:
                    cpu_us[subject].append(time_us)
    name = f"endpoint/as deployed, password, {len(USERS):,} users, {REQUESTS_PER_S} requests/s"
    for subject, times in cpu_us.items():
        yield Result(f"{name}/{subject}", statistics.median(times), UNIT, spread=spread(times))
    for subject in subjects[1:]:
        percents = [100 * (mine / base - 1) for mine, base in zip(cpu_us[subject], cpu_us[BASE], strict=True)]
        added = statistics.median(percents)
        yield Result(f"{name}/added by {subject}", added, "%", GOALS.get(subject), spread(percents))


def _cpu_us_per_request(server: Gunicorn, duration_s: float) -> float:
    """Load a server for some time, and return the CPU time of its worker per request."""
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
