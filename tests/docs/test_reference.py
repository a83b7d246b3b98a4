"""The reference is that of the code."""

import re

import oauth_ratelimit
from oauth_ratelimit.config.settings import FILE
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


def test_reference_says_which_text_is_allowed() -> None:
    """Of the keys that are text, only the salt of a canary may be any."""
    keys = [key for section in FILE.sections for key in section.keys.values()]
    assert {"salt"} == {key.name for key in keys if key.kind.words.removeprefix("list: ") == "text"}
    line = "| `namespace` | 1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit |"
    assert line in (DOCS / "configuration.md").read_text()
