"""The JSON Schema and the reference of the configuration file."""

import ast
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import oauth_ratelimit
from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.settings import FILE, Settings
from tests.config.test_bad_values import EXPRESSIBLE

SHIPPED = Path(oauth_ratelimit.__file__).parent / "config.schema.json"
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config" / "oauth_ratelimit.yaml"


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(SHIPPED.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_what_is_generated_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """``python docs/generate.py`` was run after the last change of a key."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from generate import CONFIGURATION, DESCRIPTIONS, SCHEMA, WRITTEN

    known = {(section.title, name) for section in FILE.sections for name in section.keys}
    assert set() == {(title, name) for title, texts in DESCRIPTIONS.items() for name in texts} - known
    assert SHIPPED.samefile(SCHEMA)
    assert [] == [path for path in (CONFIGURATION, SCHEMA) if path.read_text() != WRITTEN[path]()]


def test_each_setting_is_read_somewhere() -> None:
    def names_of(settings: Any) -> Iterator[str]:
        for each in fields(settings):
            yield each.name
            value = getattr(settings, each.name)
            if is_dataclass(value):
                yield from names_of(value)

    trees = (ast.parse(path.read_text()) for path in SHIPPED.parent.rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    assert set() == {*names_of(Settings())} - {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}


def test_shipped_example_fits_the_schema(validator: Any) -> None:
    text = EXAMPLE.read_text()
    assert (EXAMPLE.parent / text.partition("$schema=")[2].partition("\n")[0]).samefile(SHIPPED)
    assert [] == [error.message for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"limits": {"user": ["5 Per 10 Seconds, 1/hour"]}},
        {"limits": {"user": [{"limit": 2**53, "window": "1.5h", "frames": None}]}},
        {"limits": {"user": [{"limit": 1, "window": 60.0}]}},
        {"store": {"uri": None}, "canary": None},
        {"clients": {"https://app.example/": {"limits": None, "mode": None}}},
        {"sync": {"interval": 0.25}},
    ],
    ids=str,
)
def test_values_that_load_fit_the_schema(validator: Any, values: dict[str, Any]) -> None:
    load_config(values)
    assert [] == [error.message for error in validator.iter_errors(values)]


@pytest.mark.parametrize(("values", "line"), EXPRESSIBLE, ids=[line.partition(",")[0][:80] for _, line in EXPRESSIBLE])
def test_bad_value_does_not_fit_the_schema(validator: Any, values: dict[str, Any], line: str) -> None:
    assert not validator.is_valid(values), line
