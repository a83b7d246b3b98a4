"""The dashboard on a Prometheus that scrapes a server."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.database import BATCH_JOBS, WEB_SHOP, seed
from oauth_ratelimit import Limiter, load_config
from oauth_ratelimit.blueprints import metrics_blueprint
from tests.observe.test_dashboard import ALERTS, PANELS, RULES, as_prometheus
from tests.support.child import Child
from tests.support.flows import post
from tests.support.helpers import wait_until
from tests.support.mongod import free_port
from tests.support.sites import Site, config, protected

pytestmark = [pytest.mark.promtool, pytest.mark.usefixtures("own_metrics")]


class Prometheus:
    """A Prometheus server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer, None if there is no answer."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=5.0) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def values(self, expression: str) -> list[float]:
        """Return the present values of an expression, except NaN."""
        found = self.get("/api/v1/query", query=expression) or {"result": []}
        values = [float(series["value"][1]) for series in found["result"]]
        return [value for value in values if value == value]


@contextmanager
def scraping(target: str, directory: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes an address four times a second."""
    settings = {
        "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "auth", "static_configs": [{"targets": [target.removeprefix("http://")]}]}],
    }
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    child = Child(["prometheus", *words, "--log.level=warn"], log_path=directory / "log")
    try:
        prometheus = Prometheus(f"http://{address}")
        wait_until(lambda: prometheus.values("up == 1"), "Prometheus scrapes", 90.0)
        yield prometheus
    finally:
        child.kill()


def keep_busy(site: Site) -> None:
    """Have requests allowed and denied, and passwords guessed."""
    for _ in range(3):
        post(f"{site.url}/token", BATCH_JOBS, {"grant_type": "client_credentials"})
        post(f"{site.url}/token", WEB_SHOP, {"grant_type": "password", "username": "alice", "password": "wrong"})


def test_each_chart_of_the_dashboard_has_values(tmp_path: Path, mongo_uri: str) -> None:
    """The alerts are evaluated without an error."""
    database = tmp_path / "demo.sqlite3"
    seed(database)
    guard = {"mode": "enforce", "limits": {"passed_on": ["1/minute"]}}
    settings = config(limit=2, store={"uri": mongo_uri}, sync={"interval": "100ms"}, guard=guard)
    with protected(database, settings) as site, closing(Limiter(load_config(settings), clock=site.clock)) as other:
        site.app.register_blueprint(metrics_blueprint())
        keep_busy(site)
        with scraping(site.url, tmp_path) as prometheus:

            def values(expression: str) -> list[float]:
                site.wait_for_quota()
                for _ in range(2):
                    other.check("batch-jobs")
                other.sync()  # the site admits one more before it learns of these
                keep_busy(site)  # a rate needs requests between two scrapes
                return prometheus.values(expression)

            for text in (as_prometheus(target["expr"]) for panel in PANELS for target in panel["targets"]):
                wait_until(lambda text=text: values(text), f"a value of {text}", 90.0)
            series = 'oauth_ratelimit_client_decisions_total{client_id="batch-jobs", decision="denied"}'
            wait_until(lambda: values(f"increase({series}[1m]) > 0"), "denials grow", 90.0)
            rules = wait_until(
                lambda: [
                    rule
                    for group in (prometheus.get("/api/v1/rules") or {"groups": []})["groups"]
                    for rule in group["rules"]
                    if rule["health"] != "unknown"
                ],
                "the rules are evaluated",
                90.0,
            )

    assert [(rule["alert"], "ok") for rule in RULES] == [(rule["name"], rule["health"]) for rule in rules]
