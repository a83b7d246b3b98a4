"""The JSON Schema and the reference of the configuration file."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import oauth_ratelimit
from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.reference import schema_text
from oauth_ratelimit.config.settings import FILE
from tests.config.test_bad_values import BAD

SHIPPED = Path(oauth_ratelimit.__file__).parent / "config.schema.json"
EXAMPLE = Path(__file__).parents[2] / "config" / "oauth_ratelimit.yaml"

# Problems that a schema cannot express, because they need two values or arithmetic.
BEYOND_A_SCHEMA = (
    "give each a name of its own",
    "divides the window of",
    "needs either percent or instances",
    "because plans is empty",
    "because endpoints is empty",
    "silver, bronze",
    'got "userinfo", allowed: revocation',
    "are the same grant type",
    'window: got "500ms"',
    'window: got "367d"',
    'timeout: got "2m"',
    'interval: got "2h"',
    'deadline: got "11s"',
    'got "0/minute"',
    'got "1/0 second"',
    'got "1/2 years"',
    "limit: got 5.0",  # to a schema 5.0 is an integer
    "frames: got 2.0",
    'got "10.0.0.1/8"',
    'got "example.com"',
    "window: got inf",  # neither does JSON have them
    "got nan",
    "a huge number",
    'keep_denials: got "367d"',
    "grants.5: ",  # a key in JSON is always text
    "clients.12345: ",
    'got "a\\n"',  # to Python, $ matches before a line feed, too
    'got "x\\n"',
)


@pytest.fixture(scope="module")
def validator() -> Any:
    """A validator of the shipped schema."""
    schema = json.loads(SHIPPED.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_shipped_schema_is_up_to_date() -> None:
    """The shipped file is what ``schema_text()`` returns."""
    assert json.loads(schema_text()) == json.loads(SHIPPED.read_text())


def test_every_key_is_described() -> None:
    """Editors and the reference show the description of each key."""
    assert [] == [
        f"{section.title}.{key.name}" for section in FILE.sections for key in section.keys.values() if not key.doc
    ]


def test_shipped_example_fits_the_schema(validator: Any) -> None:
    """The example names its schema for editors."""
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
        {"sync": {"interval": 0.25, "deadline": "20ms"}},
    ],
    ids=str,
)
def test_values_that_load_fit_the_schema(validator: Any, values: dict[str, Any]) -> None:
    """An editor does not mark a good value."""
    load_config(values)
    assert [] == [error.message for error in validator.iter_errors(values)]


EXPRESSIBLE = [(values, line) for values, line in BAD if not any(reason in line for reason in BEYOND_A_SCHEMA)]


@pytest.mark.parametrize(("values", "line"), EXPRESSIBLE, ids=[line.partition(",")[0][:80] for _, line in EXPRESSIBLE])
def test_bad_value_does_not_fit_the_schema(validator: Any, values: dict[str, Any], line: str) -> None:
    """An editor marks what the loader would refuse."""
    written = {str(key) if not isinstance(key, str) else key: value for key, value in values.items()}
    assert not validator.is_valid(written), line
