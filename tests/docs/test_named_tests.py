"""The pages about guarantees and security: each promise and each defence names tests, and they exist."""

import re

import pytest

from tests.docs.blocks import ROOT

TESTS = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
GUARANTEES, SECURITY = ((ROOT / "docs" / page).read_text() for page in ("guarantees.md", "security.md"))
MODEL = SECURITY.partition("## Threat model")[2].partition("\n## ")[0]
NAMED = r"`(test_\w+|tests/[\w./]+)`"


@pytest.mark.parametrize("page", [GUARANTEES, SECURITY], ids=["guarantees", "security"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    names = re.findall(NAMED, page)
    assert len(names) > 20
    assert [] == [name for name in names if not (ROOT / name).exists() and f"def {name}(" not in TESTS]


def test_each_promise_and_each_attacker_has_a_test() -> None:
    promises = re.findall(r"^### \d\. .+?(?=^##)", GUARANTEES, re.M | re.S)
    attackers = [line for line in MODEL.splitlines() if line.startswith("| ")][2:]
    assert (8, True) == (len(promises), len(attackers) > 7)
    assert [] == [text for text in (*promises, *attackers) if not re.search(NAMED, text)]
