"""The dashboard and the alerts fit the metrics."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.support.recorded_metrics import RecordedMetrics

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "config" / "prometheus-alerts.yaml"
DASHBOARD = json.loads((ROOT / "config" / "grafana-dashboard.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

SELECTOR = re.compile(r"(oauth_ratelimit_\w+)(?:\{([^}]*)\})?")
FROM_SCRAPING = {"job", "instance", "le"}


def exposed() -> Mapping[str, set[str]]:
    """Return every series' name with its labels, as a scrape finds them."""
    metrics = RecordedMetrics()
    metrics.use_all()
    return metrics.labels_by_series()


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if "definition" in variable:
            yield variable["name"], variable["definition"]


@pytest.mark.parametrize("expression", [pytest.param(text, id=place) for place, text in expressions()])
def test_expression_is_promql_about_metrics_and_labels_that_exist(expression: str) -> None:
    """Of the dashboard and of the alerts."""
    known = exposed()
    selectors = SELECTOR.findall(expression)
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}
    assert selectors
    for name, matchers in selectors:
        assert name in known
        selected = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers))
        assert selected <= known[name] | FROM_SCRAPING
    assert grouped <= FROM_SCRAPING.union(*(known[name] for name, _ in selectors))
    if not expression.startswith("label_values("):  # which only Grafana understands
        filled = expression.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$client", ".*")
        promql_parser.parse(filled)


def test_dashboard_shows_every_metric_and_defines_its_variables() -> None:
    shown = {name for panel in PANELS for target in panel["targets"] for name, _ in SELECTOR.findall(target["expr"])}
    part = re.compile(r"_(sum|count|bucket)$")

    assert {part.sub("", name) for name in shown} == {
        part.sub("", name) for name in exposed() if not name.endswith("_created")
    }
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used <= {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_has_a_severity_texts_and_documentation(rule: Mapping[str, Any]) -> None:
    """So that somebody who is woken up knows what to do."""
    assert {"alert", "expr", "for", "labels", "annotations"} == rule.keys()
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    assert {"summary", "description", "page"} == rule["annotations"].keys()
    assert f"`{rule['alert']}`" in OPERATIONS


@pytest.mark.promtool
def test_each_alert_fires_only_in_its_case() -> None:
    """The cases are in ``alerts.yaml``."""
    cases = Path(__file__).with_name("alerts.yaml")
    promtool("test", "rules", str(cases))
    tested = {
        case["alertname"] for test in yaml.safe_load(cases.read_text())["tests"] for case in test["alert_rule_test"]
    }
    assert {rule["alert"] for rule in RULES} == tested


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stdout + done.stderr
