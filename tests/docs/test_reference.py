"""The reference is that of the code."""

import re

import oauth_ratelimit
from tests.docs.blocks import ROOT
from tests.support.recorded_metrics import RecordedMetrics

DOCS = ROOT / "docs"


def test_table_of_metrics_has_every_metric_with_its_labels() -> None:
    rows = re.findall(
        r"^\| `(oauth_ratelimit_\w+)(?:\{(.*?)\})?` \| (\w+) \|", (DOCS / "operations.md").read_text(), re.MULTILINE
    )
    named = {name: (kind, set(re.findall(r"\w+", labels))) for name, labels, kind in rows}
    metrics = RecordedMetrics()
    metrics.use_all()
    assert named == {name: (kind, labels) for name, kind, labels in metrics.families()}


def test_every_public_name_has_its_place() -> None:
    page = (DOCS / "reference-python.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE))
    assert set(oauth_ratelimit.__all__) <= named
