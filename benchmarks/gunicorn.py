"""What a token request costs through gunicorn, in instructions and in CPU time."""

import contextlib
import http.client
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from benchmarks.results import Result
from benchmarks.subjects import BASE, OURS, suppression
from benchmarks.timing import spread
from benchmarks.token_request import (
    BARE,
    BODIES,
    FIVE_HEADERS,
    FLASK_LIMITER,
    HEADERLESS,
    METRICS,
    SHARED,
    added_us_of,
    application,
    bursts,
    compared,
    headers_of,
)
from demo.deployment import Instance
from tests.support.mongod import Mongod

TOPIC = "endpoint/gunicorn gthread, client_credentials"
SUBJECT_VARIABLE, LAYOUT_VARIABLE = "BENCHMARK_SUBJECT", "BENCHMARK_LAYOUT"
DATABASE_VARIABLE, URI_VARIABLE = "DEMO_DATABASE", "BENCHMARK_MONGO_URI"
COUNTED = (OURS, HEADERLESS, BARE, FIVE_HEADERS, *FLASK_LIMITER)
TIMED = (BASE, OURS, HEADERLESS, BARE, METRICS, SHARED, *FLASK_LIMITER)
COPIES = range(2)  # of each that is timed in a process: which addresses one gets decides about 2 % of a request
WARM_UP_COUNT = 30  # requests that are not counted


def cpu_time_of(database: Path, *, process_count: int, turn_count: int) -> Iterator[Result]:
    """
    Yield what a request costs in CPU time, the kernel's included. In each of several processes all subjects are served,
    each under a path of its own: two processes that do the same differ by 2 % and more, and so does what we add there.
    Two subjects that do the same differ as well, which is why there are several copies of each, and their mean counts.
    """
    by_process = [_timed(database, turn_count) for _ in range(process_count)]
    yield from compared(TOPIC, by_process)
    base_us = [statistics.median(times_us[BASE]) for times_us in by_process]
    for subject in (OURS, HEADERLESS, BARE, METRICS, SHARED):
        yield _share_of_request(TOPIC, subject, [added_us_of(times_us, subject) for times_us in by_process], base_us)


def _share_of_request(name: str, subject: str, added: list[float], base: list[float]) -> Result:
    """
    Return what a subject adds, of what the unprotected request takes in the same process: the mean over the processes.
    """
    percents = [100 * more / all_in_all for more, all_in_all in zip(added, base, strict=True)]
    goal = "<= 2" if subject == OURS else None
    return Result(f"{name}/{subject}, of the request", statistics.mean(percents), "%", goal, spread(percents))


def _timed(database: Path, turn_count: int) -> dict[str, list[float]]:
    """Return the CPU time per request of each subject, in us, by turn, from a server of its own."""
    paths = [_path(name, copy) for name in TIMED for copy in COPIES]
    with contextlib.ExitStack() as running:
        mongod = running.enter_context(Mongod())
        env = {DATABASE_VARIABLE: str(database), URI_VARIABLE: mongod.uri}
        instance = running.enter_context(Instance("all", "benchmarks.gunicorn:served()", env=env))
        connection = running.enter_context(_Connection(instance))
        by_path = bursts(
            {path: partial(connection.request, path) for path in paths}, turn_count, cpu_ns=_cpu_of(connection.pid())
        )
    return {
        subject: [
            statistics.mean(turn) for turn in zip(*(by_path[_path(subject, copy)] for copy in COPIES), strict=True)
        ]
        for subject in TIMED
    }


def served() -> DispatcherMiddleware:
    """Return what gunicorn serves where time is measured: several copies of each subject."""
    suppression()
    database, mongo_uri = Path(os.environ[DATABASE_VARIABLE]), os.environ[URI_VARIABLE]
    apps = {
        _path(name, copy): application(name, database, mongo_uri if name == SHARED else None)
        for copy in COPIES
        for name in TIMED
    }
    return DispatcherMiddleware(_with_pid(application(BASE, database)), apps)


def _with_pid(app: Flask) -> Flask:
    app.add_url_rule("/pid", view_func=lambda: str(os.getpid()))
    return app


def _path(name: str, copy: int) -> str:
    return f"/{name.replace(' ', '-')}-{copy}"


class _Connection:
    """One client that sends its next request when the last was answered."""

    def __init__(self, instance: Instance) -> None:
        self._connection = http.client.HTTPConnection(instance.address, timeout=30)
        client, form = BODIES["client_credentials"]
        self._body = urlencode(form)
        self._headers = {
            **headers_of(client),
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(self, path: str = "") -> None:
        """Get a token from the application under a path."""
        self._connection.request("POST", f"{path}/token", body=self._body, headers=self._headers)
        self._answer()

    def pid(self) -> int:
        """Return the process that answers."""
        self._connection.request("GET", "/pid")
        return int(self._answer())

    def _answer(self) -> bytes:
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{response.status}: {body!r}")
        return body


def _cpu_of(pid: int) -> Callable[[], int]:
    """Return a clock of the CPU time of a process, all its threads together. Linux only."""
    clock = (~pid << 3) | 2  # what clock_getcpuclockid(3) returns
    return lambda: time.clock_gettime_ns(clock)
