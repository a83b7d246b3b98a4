"""Metrics of several worker processes, over HTTP."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from demo.database import BATCH_JOBS, seed
from tests.support.flows import TIMEOUT_S, post
from tests.support.gunicorn import Gunicorn
from tests.support.helpers import wait_until

APP = "tests.observe.paged_app:app"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def gunicorn_config() -> str:
    """Return the configuration of gunicorn in the documentation."""
    [block] = re.findall(r"```python\n(# gunicorn\.conf\.py\n.*?)```", OPERATIONS.read_text(), re.DOTALL)
    return block


@pytest.fixture
def environment(tmp_path: Path, mongo_uri: str) -> dict[str, str]:
    """Environment of the workers: a seeded database, MongoDB, and a shared directory."""
    database, directory = tmp_path / "demo.sqlite3", tmp_path / "metrics"
    seed(database)
    directory.mkdir()
    return {
        "DEMO_DATABASE": str(database),
        "WORKER_MONGO_URI": mongo_uri,
        "PROMETHEUS_MULTIPROC_DIR": str(directory),
    }


def samples(server: Gunicorn, name: str) -> list[float]:
    """Return the values of a metric in one scrape."""
    return [
        sample.value
        for family in families(server)
        for sample in family.samples
        if sample.name == f"oauth_ratelimit_{name}"
    ]


def families(server: Gunicorn) -> list[Any]:
    """Return all metrics in one scrape."""
    text = requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text
    return list(text_string_to_metric_families(text))


def ask(server: Gunicorn) -> str:
    """Take a token, and return the worker that issued it."""
    answer = post(f"{server.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"})
    assert 200 == answer.status_code, answer.text
    return answer.headers["X-Worker"]


def ask_until_both_answer(server: Gunicorn) -> int:
    """Take tokens until two workers issued some, and return the number of tokens."""
    workers: list[str] = []

    def both_answered() -> bool:
        workers.append(ask(server))
        return len(set(workers)) == 2

    wait_until(both_answered, "both workers issue a token")
    return len(workers)


@pytest.mark.parametrize("preload", [False, True], ids=["no preload", "preload"])
def test_scrape_of_one_worker_shows_all_workers(environment: dict[str, str], preload: bool) -> None:
    """Counters add up, and gauges are combined."""
    with Gunicorn(APP, workers=2, preload=preload, env=environment, config=gunicorn_config()) as server:
        count = ask_until_both_answer(server)
        wait_until(lambda: samples(server, "decisions_total") == [count], "both workers count their requests")

        assert [[count]] * 6 == [samples(server, "decisions_total") for _ in range(6)]
        assert [count] == samples(server, "decision_seconds_count")
        assert [count] == samples(server, "client_decisions_total")
        assert [100.0] == samples(server, "client_limit_per_second")
        wait_until(lambda: samples(server, "tracked_keys") == [2], "both workers track the key")
        wait_until(lambda: samples(server, "flush_keys_sum")[0] >= 2, "both workers flush")
        assert [0] == samples(server, "flush_failures_total")
        assert [0] == samples(server, "near_limit_total")
        assert 1 == len(samples(server, "flush_conflicts_total"))
        assert samples(server, "flush_seconds_count")[0] >= 2
        wait_until(lambda: samples(server, "in_flight_hits") == [0], "everything is flushed")
        [age_s] = samples(server, "snapshot_age_seconds")
        assert 0.0 <= age_s < 60.0
        assert "Traceback" not in server.log, server.log


def test_decisions_of_a_killed_worker_stay_counted(environment: dict[str, str]) -> None:
    with Gunicorn(APP, workers=2, preload=True, env=environment, config=gunicorn_config()) as server:
        count = ask_until_both_answer(server)
        wait_until(lambda: samples(server, "tracked_keys") == [2], "both workers track the key")
        victim = server.pids()[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in server.pids() and len(server.pids()) == 2, "a new worker runs")

        assert [1] == samples(server, "tracked_keys")
        assert [count] == samples(server, "decisions_total")
