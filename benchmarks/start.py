"""Start of a worker, its first token request, and a command, beside what they take without the package."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import Distribution, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.measuring import take_turns, timed
from benchmarks.results import Result, median_of
from benchmarks.soak_server import BASE, OURS, ROLE_VARIABLE, URI_VARIABLE
from testbed.mongod import running_mongodb

REQUEST_COUNT = 50
# Seconds: CPU time of the imports and of building the application, then the time of each request.
WORKER = f"""
import json, time
begun_s = time.process_time()
from benchmarks.soak_server import served
client = served().test_client()
took_s = [time.process_time() - begun_s]
for _ in range({REQUEST_COUNT}):
    begun_s = time.perf_counter()
    answer = client.post("/token", data={{"grant_type": "client_credentials"}}, auth=("client-1", "secret"))
    took_s.append(time.perf_counter() - begun_s)
    assert answer.status_code == 200, answer.text
print(json.dumps(took_s))
"""
COMMANDS = {"routes": ["routes"], "status": ["oauth-ratelimit", "status"]}


def run(*, short: bool) -> Iterator[Result]:
    """Yield the times of starts that take turns, each in a new process."""
    turn_count = 3 if short else 15
    with running_mongodb() as uri, TemporaryDirectory() as folder:
        environment = os.environ | {
            "AUTHLIB_INSECURE_TRANSPORT": "1",
            "SOAK_SECRETS": "plain",
            "PYTHONDONTWRITEBYTECODE": "",  # bytecode is cached, as with an installed package
            URI_VARIABLE: uri,
        }
        link_requirements(Path(folder))
        yield from _worker({**environment, "PYTHONPATH": os.pathsep.join((folder, str(Path.cwd())))}, turn_count)
        yield from _command({**environment, ROLE_VARIABLE: OURS}, turn_count)


def link_requirements(folder: Path) -> None:
    """Fill a folder with links to what a user of the package has installed, and not to the tools of the tests.

    Some of those are imported if they are there (rich by structlog), and APScheduler reads the metadata of all.
    """
    found: dict[str, Distribution] = {}
    names = ["oauth_ratelimit"]
    while names:
        name = canonicalize_name(names.pop())
        if name not in found:
            found[name] = distribution(name)
            wanted = map(Requirement, found[name].requires or ())
            names += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    for each in found.values():
        for part in {path.parts[0] for path in each.files or () if path.suffix != ".pth"} - {"..", "__pycache__"}:
            (folder / part).symlink_to(str(each.locate_file(part)))


def _worker(environment: dict[str, str], turn_count: int) -> Iterator[Result]:
    def start(role: str) -> list[float]:
        output = _output_of(["-S", "-c", WORKER], {**environment, ROLE_VARIABLE: role})
        return [1000 * float(took_s) for took_s in json.loads(output.splitlines()[-1])]

    times_ms = take_turns({role: partial(start, role) for role in (BASE, OURS)}, turn_count=turn_count)
    for role, of_starts in times_ms.items():
        yield median_of(f"start/worker, {role}", [of_start[0] for of_start in of_starts], "ms of CPU")
        more = [of_start[1] - statistics.median(of_start[2:]) for of_start in of_starts]
        goal = "<= 20" if role == OURS else None
        yield median_of(f"start/first request of {role}, more than the others", more, "ms", goal)
    more = [ours[0] - base[0] for ours, base in zip(times_ms[OURS], times_ms[BASE], strict=True)]
    yield median_of("start/worker, more", more, "ms of CPU", "<= 150")


def _command(environment: dict[str, str], turn_count: int) -> Iterator[Result]:
    def called(words: list[str]) -> Callable[[], int]:
        def run_once() -> int:
            _output_of(["-m", "flask", "--app", "benchmarks.soak_server:served", *words], environment)
            return 1

        return run_once

    measures = {name: timed(called(words)) for name, words in COMMANDS.items()}
    times_ns = take_turns(measures, turn_count=turn_count)
    for name, words in COMMANDS.items():
        yield median_of(f"start/flask {' '.join(words)}", [time_ns / 1e6 for time_ns in times_ns[name]], "ms")
    more = [(status - routes) / 1e6 for status, routes in zip(times_ns["status"], times_ns["routes"], strict=True)]
    yield median_of("start/flask oauth-ratelimit status, more", more, "ms", "<= 250")


def _output_of(arguments: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True
    ).stdout
