"""A token request to the demo's server, protected by one of the subjects or by nothing."""

import base64
import gc
import io
import operator
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from flask_limiter.util import get_remote_address
from werkzeug.test import EnvironBuilder

from benchmarks import bare_bones
from benchmarks.results import Result
from benchmarks.subjects import BASE, OURS
from benchmarks.timing import spread
from demo.database import BATCH_JOBS, DEMO_USERS, WEB_SHOP
from demo.server import create_app
from oauth_ratelimit.background import worker
from oauth_ratelimit.observe import otel
from oauth_ratelimit.observe.metrics import open_metrics

FLASK_LIMITER = {"Flask-Limiter moving": "moving-window", "Flask-Limiter sliding": "sliding-window-counter"}
METRICS, SHARED = f"{OURS} with metrics", f"{OURS} shared through MongoDB"
HEADERLESS = f"{OURS} without quota headers"
BARE = "bare bones"  # what no limiter with our headers can undercut
FIVE_HEADERS = "five headers"  # that are always the same, and nothing else
BURST_COUNT = 20  # requests in a row to one subject, so that what disturbs the machine disturbs all of them

BODIES = {
    "client_credentials": (BATCH_JOBS, {"grant_type": "client_credentials"}),
    "password": (
        WEB_SHOP,
        {"grant_type": "password", "username": DEMO_USERS[0].username, "password": DEMO_USERS[0].password},
    ),
}
CONFIG = {
    "mode": "enforce",
    "limits": {"client": ["1000000000/minute"], "user": ["1000000000/minute"]},
    "sync": {"interval": "1h"},  # does not end meanwhile: the cycle is measured elsewhere
}


def application(subject: str, database: Path, mongo_uri: str | None = None) -> Flask:
    """Return the demo server, protected by one of the subjects or by nothing."""
    denial = {"denial": {"headers": []}} if subject == HEADERLESS else {}
    config = {**CONFIG, **denial} if subject.startswith(OURS) else None
    app = create_app(database, ratelimit_config=config, mongo_uri=mongo_uri)
    if subject.startswith(OURS):
        otel.IS_AVAILABLE = False
        worker.open_metrics = open_metrics if subject == METRICS else lambda: None
        app.extensions["oauth_ratelimit"].limiter.peek("nobody")  # starts it, which is when metrics are looked for
    if subject == BARE:
        bare_bones.protect(app, app.extensions["authorization_server"])
    if subject == FIVE_HEADERS:
        bare_bones.add_headers(app)
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


def requests_to(app: Flask, grant: str) -> Callable[[], None]:
    """Return what sends a token request to an application, without a server."""
    oauth_client, form = BODIES[grant]
    builder = EnvironBuilder(path="/token", method="POST", data=form, headers=headers_of(oauth_client))
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


def headers_of(client: Any) -> dict[str, str]:
    """Return what proves a client."""
    credentials = base64.b64encode(f"{client.client_id}:{client.client_secret}".encode()).decode()
    return {"Authorization": f"Basic {credentials}"}


def bursts(
    runs: Mapping[str, Callable[[], None]], turn_count: int, *, cpu_ns: Callable[[], int] = time.thread_time_ns
) -> dict[str, list[float]]:
    """Return the CPU time per request, in us, of many short bursts that the subjects take in turn.

    CPU time, because what others do on the machine would hide differences of a few microseconds.

    Args:
        runs: Send a request.
        turn_count: How many bursts.
        cpu_ns: Tells the CPU time that was used; that of this thread by default.
    """
    times_us: dict[str, list[float]] = {name: [] for name in runs}
    order, draw = list(runs), random.Random(0)
    for turn in range(turn_count + 2):
        gc.collect()
        draw.shuffle(order)  # who comes after whom matters
        for name in order:
            request = runs[name]
            started_ns = cpu_ns()
            for _ in range(BURST_COUNT):
                request()
            if turn >= 2:  # until then everything is new
                times_us[name].append((cpu_ns() - started_ns) / BURST_COUNT / 1000)
    return times_us


def compared(name: str, by_process: Sequence[Mapping[str, list[float]]]) -> Iterator[Result]:
    """Yield what the subjects' requests take, medians of all bursts, and how the differences compare: each is the mean
    over the processes of the median of bursts at the same moment.

    Args:
        name: Of what is compared.
        by_process: What ``bursts`` returned in each of several processes.
    """
    for subject in by_process[0]:
        times = [time_us for times_us in by_process for time_us in times_us[subject]]
        yield Result(f"{name}/{subject}", statistics.median(times), "us of CPU per request", spread=spread(times))
    added_us = {
        subject: [added_us_of(times_us, subject) for times_us in by_process]
        for subject in by_process[0]
        if subject != BASE
    }
    yield from additions(name, added_us, "us of CPU per request")


def instruction_additions(name: str, counts: Mapping[str, list[float]]) -> Iterator[Result]:
    """
    Yield what the unprotected request takes in instructions, and what the other subjects add, from the counts of each
    by layout.
    """
    base = counts[BASE]
    yield Result(f"{name}/{BASE}", statistics.mean(base), "instructions", spread=spread(base))
    added = {subject: list(map(operator.sub, each, base)) for subject, each in counts.items() if subject != BASE}
    yield from additions(name, added, "instructions")


def additions(name: str, added: Mapping[str, list[float]], unit: str) -> Iterator[Result]:
    """Yield what the subjects add to a request, and how much that is of what Flask-Limiter adds: means over several
    processes, and how far these are from each other.
    """
    for subject, values in added.items():
        yield Result(f"{name}/added by {subject}", statistics.mean(values), unit, spread=spread(values))
    for other in FLASK_LIMITER:
        for subject in (OURS, HEADERLESS, BARE):
            if subject in added:
                goal = "<= 0.1" if subject == OURS else None
                ratio = statistics.mean(added[subject]) / statistics.mean(added[other])
                ratios = [ours / theirs for ours, theirs in zip(added[subject], added[other], strict=True)]
                yield Result(f"{name}/{subject}, of what {other} adds", ratio, "x", goal, spread(ratios))


def added_us_of(times_us: Mapping[str, list[float]], subject: str) -> float:
    """Return what a subject adds: the median over the turns, of which each compares bursts of the same moment."""
    pairs = zip(times_us[subject], times_us[BASE], strict=True)
    return statistics.median(with_it - without for with_it, without in pairs)
