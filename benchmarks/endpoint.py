"""What a token request costs with and without the limiter, and with Flask-Limiter on the same view."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import gunicorn, instructions
from benchmarks.cases import Repeated
from benchmarks.processes import in_new_process
from benchmarks.results import Result
from benchmarks.subjects import BASE, OURS
from benchmarks.token_request import (
    BARE,
    BODIES,
    FLASK_LIMITER,
    HEADERLESS,
    METRICS,
    application,
    bursts,
    compared,
    instruction_additions,
    requests_to,
)
from demo.database import seed
from oauth_ratelimit.flask_authlib import app_limiter, hooks
from oauth_ratelimit.limiter import Limiter

SUBJECTS = (BASE, OURS, HEADERLESS, BARE, *FLASK_LIMITER)  # whose instructions are counted

PARTS: Mapping[str, tuple[Any, str]] = {
    "mark the request": (hooks, "open_state"),
    "ask the guard": (hooks, "check_guard"),
    "decide, all in all": (hooks, "decide"),
    "the decision": (Limiter, "check"),
    "work out the headers": (app_limiter, "quota_headers"),
    "look before saving": (hooks, "decide_before_saving"),
}
"""What of ours a request passes, and where to get hold of it."""
LOOPED = ("the decision", "work out the headers")  # what does the same each time, in a request or not


def run(*, short: bool) -> Iterator[Result]:
    """Yield the price of a request in this process, and through gunicorn."""
    with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
        database = Path(directory, "accounts.sqlite3")
        seed(database)
        if instructions.is_available():
            yield from _instructions(layout_count=2 if short else 8)
        process_count = 2 if short else 16  # over which times are averaged
        yield from _without_server(database, process_count=process_count, turn_count=10 if short else 60)
        yield from _parts(database, request_count=200 if short else 5000)
        yield from gunicorn.cpu_time_of(database, process_count=process_count, turn_count=5 if short else 50)


def left_out() -> tuple[str, ...]:
    """Return the beginnings of the results for which valgrind is not installed."""
    return () if instructions.is_available() else ("endpoint/instructions, ",)


def _instructions(*, layout_count: int) -> Iterator[Result]:
    """Yield what a request takes more, in instructions, which no other job on the machine disturbs."""
    counts = instructions.count_by_layout(dict.fromkeys(CASES, layout_count))
    taken = {
        subject: [instructions.OPERATIONS_PER_REQUEST * each for each in counts[f"{instructions.REQUEST}{subject}"]]
        for subject in SUBJECTS
    }
    yield from instruction_additions("endpoint/instructions, client_credentials", taken)


def _repeated(subject: str) -> Repeated:
    """Return what sends a request for every few operations asked for: one is worth hundreds of decisions."""

    def run(operation_count: int) -> None:
        with tempfile.TemporaryDirectory(prefix="oauth_ratelimit-endpoint-") as directory:
            database = Path(directory, "accounts.sqlite3")
            seed(database)
            app = application(subject, database)
            request = requests_to(app, "client_credentials")
            request()
            instructions.settle()
            for _ in range(operation_count // instructions.OPERATIONS_PER_REQUEST):
                request()

    return run


def _without_server(database: Path, *, process_count: int, turn_count: int) -> Iterator[Result]:
    by_process = [in_new_process(_bursts_of_each_grant, database, turn_count) for _ in range(process_count)]
    for grant in BODIES:
        yield from compared(f"endpoint/WSGI, {grant}", [by_grant[grant] for by_grant in by_process])


def _bursts_of_each_grant(database: Path, turn_count: int) -> dict[str, dict[str, list[float]]]:
    apps = {subject: application(subject, database) for subject in (BASE, OURS, BARE, METRICS, *FLASK_LIMITER)}
    by_grant = {
        grant: bursts({subject: requests_to(app, grant) for subject, app in apps.items()}, turn_count)
        for grant in BODIES
    }
    for app in apps.values():
        if "oauth_ratelimit" in app.extensions:
            app.extensions["oauth_ratelimit"].close()
    return by_grant


def _parts(database: Path, *, request_count: int) -> Iterator[Result]:
    """Yield how long parts of ours take within a request, and some of them again and again without a request between,
    which is when the caches hold all that they need. By the clock on the wall, which costs less than some of them; a
    median is not moved by the few that were interrupted.
    """
    app = application(OURS, database)
    request = requests_to(app, "client_credentials")
    for name, (owner, attribute) in PARTS.items():
        timed = _Timed(getattr(owner, attribute))
        with mock.patch.object(owner, attribute, lambda *args, timed=timed, **kwargs: timed(*args, **kwargs)):
            for _ in range(request_count):
                request()
        topic = f"endpoint/parts, client_credentials/{name}"
        yield Result(topic, timed.median_us(), "us")
        if name in LOOPED:
            for _ in range(request_count):
                timed.again()
            yield Result(f"{topic}, in a loop", timed.median_us(last=request_count), "us")
    app.extensions["oauth_ratelimit"].close()


class _Timed:
    """
    A part, and how long each call of it took. Each is timed in a run of its own, so that none pays for another's clock.
    """

    def __init__(self, part: Callable[..., Any]) -> None:
        self._part = part
        self._times_ns: list[int] = []
        self.again: Callable[[], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begun_ns = time.perf_counter_ns()
        result = self._part(*args, **kwargs)
        self._times_ns.append(time.perf_counter_ns() - begun_ns)
        self.again = partial(self, *args, **kwargs)
        return result

    def median_us(self, *, last: int | None = None) -> float:
        """Return the median of all calls, or of the last so many."""
        return statistics.median(self._times_ns[-(last or len(self._times_ns)) :]) / 1000


CASES: Mapping[str, Callable[[], Repeated]] = {
    f"{instructions.REQUEST}{subject}": partial(_repeated, subject) for subject in SUBJECTS
}
"""What instructions are counted of, by name."""
