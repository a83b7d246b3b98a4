"""
What a token request costs with and without the limiter, and with Flask-Limiter on the same view.
"""

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks import gunicorn, instructions
from benchmarks.cases import Repeated
from benchmarks.results import Result
from benchmarks.token_request import (
    BARE,
    BASE,
    BODIES,
    FLASK_LIMITER,
    HEADERLESS,
    METRICS,
    OURS,
    application,
    bursts,
    compared,
    requests_to,
)
from oauth_ratelimit.demo.seeds import seed

OPERATIONS_PER_REQUEST = 40  # of the numbers of operations that instructions are counted of


def run(*, short: bool) -> Iterator[Result]:
    """
    Yield the price of a request in this process, and through gunicorn.
    """
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
        database = Path(directory, "accounts.sqlite3")
        seed(database)
        if instructions.is_available():
            yield from _instructions()
            yield from gunicorn.instructions_of(database, request_count=100 if short else 1000)
        yield from _in_process(database, turn_count=25 if short else 500)
        yield from gunicorn.cpu_time_of(database, turn_count=10 if short else 200)


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
            request = requests_to(app, "client_credentials")
            request()
            gc.collect()
            gc.freeze()  # or one collection more or less would count for as much as what is measured
            for _ in range(operation_count // OPERATIONS_PER_REQUEST):
                request()

    return run


def _in_process(database: Path, *, turn_count: int) -> Iterator[Result]:
    apps = {subject: application(subject, database) for subject in (BASE, OURS, BARE, METRICS, *FLASK_LIMITER)}
    for grant in BODIES:
        runs = {subject: requests_to(app, grant) for subject, app in apps.items()}
        yield from compared(f"endpoint/WSGI, {grant}", bursts(runs, turn_count))
    for app in apps.values():
        if "oauth_ratelimit" in app.extensions:
            app.extensions["oauth_ratelimit"].close()


CASES: Mapping[str, Callable[[], Repeated]] = {
    f"request, {subject}": partial(_repeated, subject) for subject in (BASE, OURS, HEADERLESS, BARE, *FLASK_LIMITER)
}
"""What instructions are counted of, by name."""
