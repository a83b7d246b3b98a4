"""Metrics of several worker processes, over HTTP."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from testbed.clock import wait_until
from testbed.gunicorn import Gunicorn
from testbed.oauth_server.database import BATCH_JOBS
from tests.support.flows import TIMEOUT_S, post

APP = "tests.support.worker_app:app"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def gunicorn_config() -> str:
    [block] = re.findall(r"```python\n(# gunicorn\.conf\.py\n.*?)```", OPERATIONS.read_text(), re.DOTALL)
    return block


@pytest.fixture
def environment(database: Path, tmp_path: Path, mongo_uri: str) -> dict[str, str]:
    """Environment of the workers: a seeded database, MongoDB, and a shared directory."""
    directory = tmp_path / "metrics"
    directory.mkdir()
    return {
        "DEMO_DATABASE": str(database),
        "WORKER_MONGO_URI": mongo_uri,
        "WORKER_INTERVAL": "100ms",
        "PROMETHEUS_MULTIPROC_DIR": str(directory),
    }


def samples(server: Gunicorn, name: str) -> list[float]:
    return [
        sample.value
        for family in text_string_to_metric_families(requests.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text)
        for sample in family.samples
        if sample.name == f"oauth_ratelimit_{name}"
    ]


def ask_until_both_answer(server: Gunicorn) -> int:
    """Take tokens until two workers issued some, and return the number of tokens."""
    workers: list[str] = []

    def both_answered() -> bool:
        answer = post(f"{server.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"})
        assert 200 == answer.status_code, answer.text
        workers.append(answer.headers["X-Worker"])
        return len(set(workers)) == 2

    wait_until(both_answered, "both workers issue a token")
    return len(workers)


def test_worker_that_ends_without_shared_metrics_does_not_end_gunicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    config: dict[str, Any] = {}
    exec(gunicorn_config(), config)  # as gunicorn does

    assert config.get("child_exit", lambda server, worker: None)(None, SimpleNamespace(pid=1)) is None


@pytest.mark.parametrize("preload", [False, True], ids=["no preload", "preload"])
def test_scrape_of_one_worker_shows_all_workers(environment: dict[str, str], preload: bool) -> None:
    """Counters add up, and gauges are combined."""
    with Gunicorn(APP, workers=2, preload=preload, env=environment, config=gunicorn_config()) as server:
        count = ask_until_both_answer(server)
        # Requests are counted in the background, their durations last.
        wait_until(lambda: samples(server, "decision_seconds_count") == [count], "both workers count their requests")

        # A worker's first decisions are a dry run's, until it has read the overrides.
        assert [count] * 6 == [sum(samples(server, "decisions_total")) for _ in range(6)]
        assert samples(server, "decision_seconds_sum")[0] > 0
        assert [count] == samples(server, "client_decisions_total")
        assert [1000 / 600] == samples(server, "client_limit_per_second")
        wait_until(lambda: samples(server, "tracked_keys") == [1], "one worker reports the key for both")
        wait_until(lambda: samples(server, "flush_keys_sum")[0] >= 1, "it flushes")
        assert [0] == samples(server, "flush_failures_total")
        assert [0] == samples(server, "near_limit_total")
        assert 1 == len(samples(server, "flush_conflicts_total"))
        assert samples(server, "flush_seconds_count")[0] >= 1
        wait_until(lambda: samples(server, "in_flight_hits") == [0], "everything is flushed")
        [age_s] = samples(server, "snapshot_age_seconds")
        assert 0.0 <= age_s < 60.0
        assert "Traceback" not in server.log, server.log
