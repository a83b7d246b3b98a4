"""The check before a release, and the README for readers outside the repository."""

import datetime
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
HOME = "https://example.org/owner/oauth_ratelimit"
release = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "release.py")))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "oauth_ratelimit").mkdir()
    (tmp_path / "oauth_ratelimit" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.0] - 2026-11-22\n")
    (tmp_path / "setup.cfg").write_text("[metadata]\nauthor_email = a@example.org\nurl = https://example.org\n")
    (tmp_path / "examples" / "app_factory").mkdir(parents=True)
    (tmp_path / "examples" / "app_factory" / "README.md").write_text("pip install oauth_ratelimit")
    (tmp_path / "README.md").write_text("[docs](docs/a.md#b), ![](docs/c.png), [site](https://example.org), [up](#top)")
    return tmp_path


def test_ready_tree_gets_links_into_the_repository(tree: Path) -> None:
    """Links that are absolute, or stay on the page, do not change."""
    assert 0 == release.main(["v1.2.0", HOME], tree)
    links = [f"[docs]({HOME}/blob/v1.2.0/docs/a.md#b)", f"![]({HOME}/raw/v1.2.0/docs/c.png)"]
    assert ", ".join([*links, "[site](https://example.org)", "[up](#top)"]) == (tree / "README.md").read_text()


def test_pages_that_say_how_to_install_know_whether_anything_is_released() -> None:
    """In the words that the check looks for: else the first release would go out with them."""
    is_awaited = "## [0.1.0] - unreleased" in (ROOT / "CHANGELOG.md").read_text()
    assert {is_awaited} == {release.NOT_RELEASED in (ROOT / name).read_text() for name in release.INSTALL_PAGES}


def test_everything_that_is_missing_is_named_at_once(tree: Path) -> None:
    (tree / "setup.cfg").write_text("[metadata]\n")
    (tree / "README.md").write_text("`pip install .` in a clone; there is no release on a package index yet.")
    assert [
        'oauth_ratelimit/__init__.py: __version__ is not "1.3.0"',
        "CHANGELOG.md: no heading such as ## [1.3.0] - 2026-12-01",
        "setup.cfg: author_email is not set",
        "setup.cfg: url is not set",
        'README.md: says "there is no release on …": name the package index',
    ] == release.missing("1.3.0", tree, today=datetime.date(2026, 12, 1))


def test_readme_has_no_link_that_breaks_elsewhere() -> None:
    text = release.with_absolute_links((ROOT / "README.md").read_text(), HOME, "v1")
    assert f"({HOME}/raw/v1/docs/flow.svg)" in text
    assert [] == release.RELATIVE_LINK.findall(text)


def test_workflows_name_actions_by_commit() -> None:
    """A tag can be moved to other code, a commit cannot."""
    lines = [line for path in WORKFLOWS.glob("*.yml") for line in path.read_text().splitlines() if " uses: " in line]
    assert lines
    assert [] == [line for line in lines if not re.search(r" uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)]
