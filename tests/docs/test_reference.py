"""The reference is that of the code."""

import importlib.util
import re
import types

import oauth_ratelimit
from oauth_ratelimit.observe.metric_catalog import CATALOG, NAMESPACE
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"


def generate() -> types.ModuleType:
    """Return the program that writes the pages."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generate()


def test_every_command_is_in_the_reference() -> None:
    """Every command has its heading, and its options stand below it."""
    page = GENERATE.cli_page()
    for names in ("check-config", "limit set", "mode unset", "db upgrade", "explain"):
        assert f"\n## {names}\n" in page
    assert "--reason" in page


def test_table_of_metrics_has_every_metric_with_its_labels() -> None:
    """The table of the operations page is the only one."""
    rows = re.findall(
        r"^\| `(oauth_ratelimit_\w+)(?:\{(.*?)\})?` \| (\w+) \|", (DOCS / "operations.md").read_text(), re.MULTILINE
    )
    named = {name: (kind, set(re.findall(r"\w+", labels))) for name, labels, kind in rows}
    suffix = {"counter": "_total"}
    assert named == {
        f"{NAMESPACE}_{metric.name}{suffix.get(metric.kind, '')}": (metric.kind, set(metric.labels))
        for metric in CATALOG
    }


def test_every_public_name_has_its_place() -> None:
    """No public name is left out of the reference of Python."""
    page = (DOCS / "reference-python.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE))
    assert set(oauth_ratelimit.__all__) <= named
