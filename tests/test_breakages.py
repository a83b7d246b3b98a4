"""The deliberate breakages fit the code. ``make breakages`` makes them."""

from tests.breakages import BREAKAGES, ROOT


def test_each_breakage_changes_one_place_and_has_tests() -> None:
    """When code moves, change the texts in ``breakages.txt``."""
    texts = {each.file: (ROOT / each.file).read_text(encoding="utf-8") for each in BREAKAGES}
    assert [] == [each.name for each in BREAKAGES if texts[each.file].count(each.old) != 1 or each.old == each.new]
    assert [] == [each.name for each in BREAKAGES if not all((ROOT / test).exists() for test in each.tests.split())]


def test_each_breakage_of_a_module_is_python() -> None:
    """A module that cannot be imported fails every test, and shows nothing."""
    for each in BREAKAGES:
        if each.file.endswith(".py"):
            broken = (ROOT / each.file).read_text(encoding="utf-8").replace(each.old, each.new)
            compile(broken, f"{each.file}: {each.name}", "exec")
