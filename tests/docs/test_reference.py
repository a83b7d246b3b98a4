"""The reference is that of the code."""

import importlib.util
import re
import types

import oauth_ratelimit
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


def test_command_line() -> None:
    """Every command has its heading, and its options stand below it."""
    page = GENERATE.cli_page()
    for names in ("check-config", "limit set", "mode unset", "db upgrade", "explain"):
        assert f"\n## {names}\n" in page
    assert "--reason" in page


def test_signals() -> None:
    """Metrics and events have their rows."""
    page = GENERATE.signals_page()
    assert "| `oauth_ratelimit_decisions_total` | counter | `decision`, `mode`, `grant_type`, `policy` |" in page
    assert "| `flush_failed` | warning | `error`, `failing_for_s` | `sync/cycle.py` |" in page


def test_every_public_name_has_its_place() -> None:
    """No public name is left out of the reference of Python."""
    page = (DOCS / "reference-python.md").read_text()
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)", page, re.MULTILINE))
    assert set(oauth_ratelimit.__all__) <= named
