"""How long requests wait while another thread is busy."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import subjects
from benchmarks.results import Result
from benchmarks.timing import percentile
from oauth_ratelimit import Limiter

STEP_S = 0.001  # between two requests
ROUND_COUNT = 2
Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stall:
    """What was measured.

    Args:
        works_s: How long each round of the work took.
        latencies_ms: Of the requests meanwhile.
    """

    works_s: list[float]
    latencies_ms: list[float]

    def results(self, label: str, *, key_count: int, goal: str | None = None) -> list[Result]:
        """Return the time of the work by key, and the percentiles.

        Args:
            label: What the work was.
            key_count: Keys that a round flushed.
            goal: That of the 99.9th percentile.
        """
        name = f"flush/stall, {label}"
        return [
            Result(f"{name}/flush", statistics.median(self.works_s) / key_count * 1e6, "us per key"),
            Result(f"{name}/p50", percentile(self.latencies_ms, 50), "ms"),
            Result(f"{name}/p99", percentile(self.latencies_ms, 99), "ms"),
            Result(f"{name}/p99.9", percentile(self.latencies_ms, 99.9), "ms", goal),
            Result(f"{name}/longest", max(self.latencies_ms), "ms"),
        ]


def stall_of(
    work: Callable[[], object], *, answer: Callable[[Environ], object], before: Callable[[], None] | None = None
) -> Stall:
    """Serve requests while this thread works, a few rounds; the first one does not count, because it inserts.

    Args:
        work: A flush.
        answer: Serves a request.
        before: Is done before each round.
    """
    works_s: list[float] = []
    latencies_ms: list[float] = []
    for index in range(ROUND_COUNT + 1):
        if before is not None:
            before()
        requests = _Requests(answer)
        requests.start()
        started_s = time.perf_counter()
        work()
        work_s = time.perf_counter() - started_s
        requests.stop()
        if index:
            works_s.append(work_s)
            latencies_ms += requests.latencies_ms
    return Stall(works_s, latencies_ms)


class _Requests(threading.Thread):
    """What a WSGI server's thread does, without the network: waits for a request, and answers it."""

    def __init__(self, answer: Callable[[Environ], object]) -> None:
        super().__init__(name="requests")
        self._answer = answer
        self._done = threading.Event()
        self.latencies_ms: list[float] = []

    def run(self) -> None:
        """
        Serve until told to stop. A latency counts from when the request was due, not from when the thread woke up.
        """
        count = 0
        while not self._done.is_set():
            due_s = time.perf_counter() + STEP_S
            time.sleep(STEP_S)
            count += 1
            self._answer({"PATH_INFO": "/token", "REQUEST_METHOD": "POST", "user": f"user.{count % 500}"})
            self.latencies_ms.append((time.perf_counter() - due_s) * 1000)

    def stop(self) -> None:
        """Serve no more."""
        self._done.set()
        self.join()


def decide_and_answer(limiter: Limiter, environ: Environ) -> list[bytes]:
    """Serve a request that is limited."""
    return answer(environ, remaining=limiter.check(subjects.CLIENT_ID, environ["user"]).remaining)


def answer(environ: Environ, *, remaining: int = 0) -> list[bytes]:
    """Serve a request, as dear as a small one is."""
    headers = [("Content-Type", "application/json"), ("X-RateLimit-Remaining", str(remaining))]
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers for _ in range(20)]
    return [b"".join(lines), b'{"access_token": "..."}']
