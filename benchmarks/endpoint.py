"""The limiter's share of a token request: called directly beside Flask-Limiter, and as deployed through gunicorn."""

import contextlib
import gc
import http.client
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from oauth_ratelimit.observe import metrics, observer
from testbed.gunicorn import Gunicorn
from testbed.mongod import Mongod
from testbed.oauth_server.database import seed
from testbed.oauth_server.models import User

UNIT = "us of CPU per request"
SERVED = "benchmarks.token_request:served()"
BURST_COUNT = 20  # requests in a row to one subject, so that a disturbance hits all subjects

USERS = tuple(User(f"user-{number:04}", "password") for number in range(2_000))
REQUESTS_PER_S = 200  # more would fill two cores, where waiting for the interpreter costs more than what runs
SENDERS = 8  # to each server
PHASES_S = (12, 10)  # to warm up, because a key may be written ten seconds later, and to be measured
GOALS = {OURS: "<= 8", SHARED: "<= 9"}  # percent of the CPU time of an unprotected server


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
        yield from _as_deployed(database, phases_s=(1, 2) if short else PHASES_S, turn_count=1 if short else 5)


def _called_directly(database: Path, *, process_count: int, turn_count: int) -> Iterator[Result]:
    """Run each subject in several processes and yield means, because processes differ by several percent."""
    by_process = [in_new_process(_bursts_of_each_grant, database, turn_count) for _ in range(process_count)]
    for grant in FORMS:
        yield from _compared(f"endpoint/WSGI, {grant}", [by_grant[grant] for by_grant in by_process])


def _bursts_of_each_grant(database: Path, turn_count: int) -> dict[str, dict[str, list[float]]]:
    """Return the CPU time per request in us, of many short bursts."""
    metrics.IS_AVAILABLE = observer.HAS_SPANS = False  # Flask-Limiter has no metrics either
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


def _as_deployed(database: Path, *, phases_s: tuple[int, int], turn_count: int) -> Iterator[Result]:
    """Servers get a steady load of many users, with sync cycle, metrics and quota headers."""
    subjects = [OURS, SHARED, BASE_AGAIN, FLASK_LIMITER_MEMORY, FLASK_LIMITER_MONGO]
    with contextlib.ExitStack() as running:
        mongo_uri = running.enter_context(Mongod()).uri.replace("/?", "/limits?")
        env = {token_request.DATABASE_VARIABLE: str(database), token_request.URI_VARIABLE: mongo_uri}
        if shutil.which("redis-server"):
            subjects.append(FLASK_LIMITER_REDIS)
            env[token_request.REDIS_VARIABLE] = running.enter_context(redis_server())
        pairs_us = take_turns(
            {name: partial(_pair_us, name, env, phases_s) for name in subjects}, turn_count=turn_count
        )
    name = f"endpoint/as deployed, password, {len(USERS):,} users, {REQUESTS_PER_S} requests/s"
    yield median_of(f"{name}/{BASE}", [base for pairs in pairs_us.values() for base, _ in pairs], UNIT)
    for subject, pairs in pairs_us.items():
        yield median_of(f"{name}/{subject}", [mine for _, mine in pairs], UNIT)
    for subject, pairs in pairs_us.items():
        percents = [100 * (mine / base - 1) for base, mine in pairs]
        yield median_of(f"{name}/added by {subject}", percents, "%", GOALS.get(subject))


def _pair_us(name: str, env: Mapping[str, str], phases_s: tuple[int, int]) -> tuple[float, float]:
    """Return the CPU time per request of an unprotected server and of a subject that serve at the same time.

    A disturbance of the machine hits both. They are started anew, in both orders, because two processes of one program
    differ by several percent, and the second is the faster one.
    """
    base_first, mine_second = _cpu_us((BASE, name), env, phases_s)
    mine_first, base_second = _cpu_us((name, BASE), env, phases_s)
    return (base_first + base_second) / 2, (mine_first + mine_second) / 2


def _cpu_us(names: Sequence[str], env: Mapping[str, str], phases_s: tuple[int, int]) -> list[float]:
    """Return the CPU time per request of servers that serve at the same time, once they are warm."""
    with servers_of(names, SERVED, variable=token_request.SUBJECT_VARIABLE, threads=SENDERS, env=env) as servers:
        pids = [pid for server in servers.values() for pid in server.pids()]
        clocks = [(~pid << 3) | 2 for pid in pids]  # the result of clock_getcpuclockid(3). Linux only.
        _load([*servers.values()], phases_s[0])
        started_ns = [time.clock_gettime_ns(clock) for clock in clocks]
        count = _load([*servers.values()], phases_s[1])
        ended_ns = [time.clock_gettime_ns(clock) for clock in clocks]
    return [(end - start) / count / 1000 for start, end in zip(started_ns, ended_ns, strict=True)]


def _load(servers: Sequence[Gunicorn], duration_s: int) -> int:
    """Send requests to servers in turn for some time, and return how many to each."""
    count, step = duration_s * REQUESTS_PER_S, SENDERS * len(servers)
    per_s = REQUESTS_PER_S * len(servers)
    with ThreadPoolExecutor(step) as senders:
        sent = [
            senders.submit(_send, servers[first % len(servers)], range(first, count * len(servers), step), per_s)
            for first in range(step)
        ]
    if sum(each.result() for each in sent) != count * len(servers):
        raise RuntimeError(f"not all of {count * len(servers)} requests got a token")
    return count


def _send(server: Gunicorn, numbers: range, per_s: int) -> int:
    """Send requests at their times, and return how many got a token."""
    draw = random.Random(numbers.start)
    token_count = 0
    started_s = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection(server.address, timeout=30)) as connection:
        for number in numbers:
            time.sleep(max(0.0, started_s + number / per_s - time.monotonic()))
            body, headers = encoded(password_form(draw.choice(USERS)))
            connection.request("POST", "/token", body, headers)
            response = connection.getresponse()
            response.read()
            token_count += response.status == http.client.OK
    return token_count
