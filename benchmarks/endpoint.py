"""
What a token request costs with and without the limiter, and with Flask-Limiter on the same view.
"""

import base64
import contextlib
import gc
import http.client
import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import EnvironBuilder

from benchmarks import bare_bones, instructions, subjects
from benchmarks.cases import Repeated
from benchmarks.results import Result
from benchmarks.timing import spread
from oauth_ratelimit.demo.authserver import create_app
from oauth_ratelimit.demo.instance import HOST, Instance
from oauth_ratelimit.demo.mongod import Mongod
from oauth_ratelimit.demo.seeds import BATCH_JOBS, DEMO_USERS, WEB_SHOP, seed
from oauth_ratelimit.observe import metrics, otel

FLASK_LIMITER = {"Flask-Limiter moving": "moving-window", "Flask-Limiter sliding": "sliding-window-counter"}
BASE, OURS = "unprotected", "ours"
METRICS, SHARED = f"{OURS} with metrics", f"{OURS} shared through MongoDB"
HEADERLESS = f"{OURS} without quota headers"
BARE = "bare bones"  # what no limiter with our headers can undercut
SERVED = (BASE, OURS, HEADERLESS, BARE, METRICS, SHARED, *FLASK_LIMITER)
COPIES = range(4)  # of each that gunicorn serves: which addresses an application gets decides about 2 % of a request
BURST_COUNT = 20  # requests in a row to one subject, so that what disturbs the machine disturbs all of them

BODIES = {
    "client_credentials": (BATCH_JOBS, {"grant_type": "client_credentials"}),
    "password": (
        WEB_SHOP,
        {"grant_type": "password", "username": DEMO_USERS[0].username, "password": DEMO_USERS[0].password},
    ),
}
OPERATIONS_PER_REQUEST = 40  # of the numbers of operations that instructions are counted of
CONFIG = {"mode": "enforce", "limits": {"client": ["1000000000/minute"], "user": ["1000000000/minute"]}}


def run(*, short: bool) -> Iterator[Result]:
    """
    Yield the price of a request in this process, and through gunicorn.
    """
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
        database = Path(directory, "accounts.sqlite3")
        seed(database)
        if instructions.is_available():
            yield from _instructions()
        yield from _in_process(database, turn_count=25 if short else 500)
        yield from _through_gunicorn(database, turn_count=10 if short else 200)


def _instructions() -> Iterator[Result]:
    """
    Yield what a request takes more, in instructions, which no other job on the machine disturbs.
    """
    counts = instructions.count(list(CASES))
    base = counts[f"request, {BASE}"]
    added = {
        subject: OPERATIONS_PER_REQUEST * (counts[f"request, {subject}"] - base)
        for subject in (OURS, HEADERLESS, BARE, *FLASK_LIMITER)
    }
    for name in added:
        yield Result(f"endpoint/instructions, client_credentials/added by {name}", added[name], "instructions")
    for name in FLASK_LIMITER:
        for subject, goal in ((OURS, "<= 0.10"), (HEADERLESS, None), (BARE, None)):
            ratio = added[subject] / added[name]
            yield Result(f"endpoint/instructions, client_credentials/{subject}, of what {name} adds", ratio, "x", goal)


def _repeated(subject: str) -> Repeated:
    """
    Return what sends a request for every few operations asked for: one is worth hundreds of decisions.
    """

    def run(operation_count: int) -> None:
        with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
            database = Path(directory, "accounts.sqlite3")
            seed(database)
            # An interval that does not end meanwhile: the cycle is measured elsewhere.
            app = application(subject, database, sync={"interval": "1h"})
            request = _requests(app, "client_credentials")
            request()
            gc.collect()
            gc.freeze()  # or one collection more or less would count for as much as what is measured
            for _ in range(operation_count // OPERATIONS_PER_REQUEST):
                request()

    return run


def application(subject: str, database: Path, mongo_uri: str | None = None, **settings: Any) -> Flask:
    """
    Return the demo server, protected by one of the subjects or by nothing.
    """
    denial = {"denial": {"headers": []}} if subject == HEADERLESS else {}
    config = {**CONFIG, **denial, **settings} if subject.startswith(OURS) else None
    app = create_app(database, ratelimit_config=config, mongo_uri=mongo_uri)
    if subject.startswith(OURS):
        metrics.IS_AVAILABLE, otel.IS_AVAILABLE = subject == METRICS, False
        app.extensions["oauth_ratelimit"].limiter.peek("nobody")  # starts it, which is when metrics are looked for
    if subject == BARE:
        bare_bones.protect(app, app.extensions["authorization_server"])
    if subject in FLASK_LIMITER:
        limiter = FlaskLimiter(
            get_remote_address,
            app=app,
            storage_uri="memory://",
            strategy=FLASK_LIMITER[subject],
            headers_enabled=True,
        )
        app.view_functions["token"] = limiter.limit("1000000000/minute")(app.view_functions["token"])
    return app


def served() -> DispatcherMiddleware:
    """
    Return what gunicorn serves.
    """
    subjects.silence()
    database, mongo_uri = Path(os.environ["DEMO_DATABASE"]), os.environ["BENCHMARK_MONGO_URI"]
    apps = {
        _path(name, copy): application(name, database, mongo_uri if name == SHARED else None)
        for copy in COPIES
        for name in SERVED
    }
    root = application(BASE, database)
    root.add_url_rule("/pid", view_func=lambda: str(os.getpid()))
    return DispatcherMiddleware(root, apps)


def _in_process(database: Path, *, turn_count: int) -> Iterator[Result]:
    apps = {subject: application(subject, database) for subject in (BASE, OURS, BARE, METRICS, *FLASK_LIMITER)}
    for grant in BODIES:
        runs = {subject: _requests(app, grant) for subject, app in apps.items()}
        yield from _compared(f"endpoint/WSGI, {grant}", _bursts(runs, turn_count))
    for app in apps.values():
        if "oauth_ratelimit" in app.extensions:
            app.extensions["oauth_ratelimit"].close()


def _requests(app: Flask, grant: str) -> Callable[[], None]:
    oauth_client, form = BODIES[grant]
    headers = _headers(oauth_client.client_id, oauth_client.client_secret)
    builder = EnvironBuilder(path="/token", method="POST", data=form, headers=headers)
    environ = builder.get_environ()
    body = environ["wsgi.input"].read()
    statuses = []

    def request() -> None:
        answer = app({**environ, "wsgi.input": io.BytesIO(body)}, lambda status, *_: statuses.append(status))
        content = b"".join(answer)
        answer.close()  # type: ignore[attr-defined]  # Werkzeug's answers have it
        if not statuses.pop().startswith("200"):
            raise RuntimeError(content.decode())

    return request


def _through_gunicorn(database: Path, *, turn_count: int) -> Iterator[Result]:
    """
    Yield what a request costs through gunicorn. All subjects are served by one process, each under a path of its own:
    two processes that do the same differ by 2 % and more. So do two subjects that do the same, which is why there are
    several copies of each, and their mean counts.
    """
    paths = [_path(name, copy) for name in SERVED for copy in COPIES]
    with contextlib.ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="oauth_ratelimit-gunicorn-")))
        mongod = running.enter_context(Mongod())
        env = {"DEMO_DATABASE": str(database), "BENCHMARK_MONGO_URI": mongod.uri}
        instance = running.enter_context(Instance("all", "benchmarks.endpoint:served()", directory=directory, env=env))
        instance.wait_until_ready()
        connection = running.enter_context(_Connection(instance))
        clock = _cpu_of(connection.pid())
        by_path = _bursts(
            {path: partial(connection.request, path) for path in paths}, turn_count, cpu_ns=dict.fromkeys(paths, clock)
        )
    name = "endpoint/gunicorn gthread, client_credentials"
    times_us = {
        subject: [
            statistics.mean(turn) for turn in zip(*(by_path[_path(subject, copy)] for copy in COPIES), strict=True)
        ]
        for subject in SERVED
    }
    yield from _compared(name, times_us)
    base_us = statistics.median(times_us[BASE])
    for subject in (OURS, HEADERLESS, BARE, METRICS, SHARED):
        percent = 100 * _added_us(times_us, subject) / base_us
        yield Result(f"{name}/{subject}, of the request", percent, "%", "<= 2" if subject == OURS else None)
    for subject in (BASE, OURS):
        medians_us = [statistics.median(by_path[_path(subject, copy)]) for copy in COPIES]
        percent = 100 * (max(medians_us) - min(medians_us)) / base_us
        yield Result(f"{name}/{subject}, largest difference of two copies", percent, "%")


def _path(name: str, copy: int) -> str:
    return f"/{name.replace(' ', '-')}-{copy}"


class _Connection:
    """
    One client that sends its next request when the last was answered.
    """

    def __init__(self, instance: Instance) -> None:
        self._connection = http.client.HTTPConnection(HOST, instance.port, timeout=30)
        client, form = BODIES["client_credentials"]
        self._body = urlencode(form)
        self._headers = {
            **_headers(client.client_id, client.client_secret),
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(self, path: str) -> None:
        """
        Get a token from the application under a path.
        """
        self._connection.request("POST", f"{path}/token", body=self._body, headers=self._headers)
        self._answer()

    def pid(self) -> int:
        """
        Return the process that answers.
        """
        self._connection.request("GET", "/pid")
        return int(self._answer())

    def _answer(self) -> bytes:
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{response.status}: {body!r}")
        return body


def _headers(client_id: str, secret: str | None) -> dict[str, str]:
    credentials = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    return {"Authorization": f"Basic {credentials}"}


def _bursts(
    runs: Mapping[str, Callable[[], None]], turn_count: int, *, cpu_ns: Mapping[str, Callable[[], int]] | None = None
) -> dict[str, list[float]]:
    """
    Return the CPU time per request, in us, of many short bursts that the subjects take in turn.

    CPU time, because what others do on the machine would hide differences of a few microseconds.

    Args:
        runs: Send a request.

        turn_count: How many bursts.

        cpu_ns: Tell the CPU time that a subject has used; that of this thread by default.
    """
    clocks = cpu_ns or dict.fromkeys(runs, time.thread_time_ns)
    times_us: dict[str, list[float]] = {name: [] for name in runs}
    order, draw = list(runs), random.Random(0)
    for turn in range(turn_count + 2):
        gc.collect()
        draw.shuffle(order)  # who comes after whom matters
        for name in order:
            request, clock = runs[name], clocks[name]
            started_ns = clock()
            for _ in range(BURST_COUNT):
                request()
            if turn >= 2:  # until then everything is new
                times_us[name].append((clock() - started_ns) / BURST_COUNT / 1000)
    return times_us


def _cpu_of(pid: int) -> Callable[[], int]:
    """
    Return a clock of the CPU time of a process, all its threads together. Linux only.
    """
    clock = (~pid << 3) | 2  # what clock_getcpuclockid(3) returns
    return lambda: time.clock_gettime_ns(clock)


def _compared(name: str, times_us: Mapping[str, list[float]]) -> Iterator[Result]:
    for subject, times in times_us.items():
        yield Result(f"{name}/{subject}", statistics.median(times), "us of CPU per request", spread=spread(times))
    added_us = {subject: _added_us(times_us, subject) for subject in times_us if subject != BASE}
    for subject, value in added_us.items():
        yield Result(f"{name}/added by {subject}", value, "us of CPU per request")
    for subject in FLASK_LIMITER:
        for it, goal in ((OURS, "<= 0.1"), (BARE, None)):
            ratio = added_us[it] / added_us[subject]
            yield Result(f"{name}/added by {it}, of what {subject} adds", ratio, "x", goal)


def _added_us(times_us: Mapping[str, list[float]], subject: str) -> float:
    """
    Return what a subject adds: the median over the turns, of which each compares bursts of the same moment.
    """
    pairs = zip(times_us[subject], times_us[BASE], strict=True)
    return statistics.median(with_it - without for with_it, without in pairs)


CASES: Mapping[str, Callable[[], Repeated]] = {
    f"request, {subject}": partial(_repeated, subject) for subject in (BASE, OURS, HEADERLESS, BARE, *FLASK_LIMITER)
}
"""What instructions are counted of, by name."""
