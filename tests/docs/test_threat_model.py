"""The page about security: the threat model has a test for each attacker, and each test that it names exists."""

import re

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
MODEL = PAGE.partition("## Threat model")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in MODEL.splitlines() if line.startswith("|")][
    2:
]
ATTACKERS = {"stranger", "client", "tenant", "user", "operator", "another site", "neighbour in the database"}


def test_each_attacker_has_an_aim_a_defence_and_a_test() -> None:
    """A defence without a test is a hope."""
    assert ATTACKERS == {row[0] for row in ROWS}
    for who, aim, defence, test in ROWS:
        assert aim, who
        assert defence, aim
        assert re.search(r"`(test_\w+|tests/[\w/]+\.py)`", test), aim


def test_tests_on_the_page_exist() -> None:
    paths = re.findall(r"`(tests/[\w./]+)`", PAGE)
    assert [] == [path for path in paths if not (ROOT / path).exists()]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(names) > 25
    assert [] == sorted(name for name in names if f"def {name}(" not in tests)


def test_every_attack_of_the_threat_file_is_in_the_model() -> None:
    attacks = re.findall(r"^def (test_\w+)", (ROOT / "tests/flask_authlib/test_threats.py").read_text(), re.M)
    assert [] == [attack for attack in attacks if f"`{attack}`" not in MODEL]
