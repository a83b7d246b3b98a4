"""Prepares a release: checks that everything names one version, and makes the links of the README absolute.

``python .ci/release.py v0.1.0 https://example.org/owner/oauth_ratelimit`` prints what is missing and
returns 1, or turns the relative links of README.md into links into the repository at that tag.
"""

import datetime
import re
import sys
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWNER_FIELDS = ("author_email", "url")
INSTALL_PAGES = ("README.md", "examples/app_factory/README.md")
NOT_RELEASED = "there is no release on"
RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Return the exit code: 1 if the release is not ready."""
    tag, repository = arguments
    problems = missing(tag.removeprefix("v"), root, today=datetime.datetime.now(datetime.UTC).date())
    if problems:
        print(*problems, sep="\n")
        return 1
    readme = root / "README.md"
    readme.write_text(with_absolute_links(readme.read_text(encoding="utf-8"), repository, tag), encoding="utf-8")
    print(f"ready to build {tag}")
    return 0


def missing(version: str, root: Path, *, today: datetime.date) -> list[str]:
    """Return what keeps this version from being released, one sentence each."""
    problems = []
    package = (root / "oauth_ratelimit" / "__init__.py").read_text(encoding="utf-8")
    if f'__version__ = "{version}"' not in package:
        problems.append(f'oauth_ratelimit/__init__.py: __version__ is not "{version}"')
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE)
    if dated is None:
        problems.append(f"CHANGELOG.md: no heading such as ## [{version}] - {today}")
    metadata = ConfigParser()
    metadata.read(root / "setup.cfg", encoding="utf-8")
    problems += [f"setup.cfg: {field} is not set" for field in OWNER_FIELDS if not metadata["metadata"].get(field)]
    pages = (page for page in INSTALL_PAGES if NOT_RELEASED in (root / page).read_text(encoding="utf-8"))
    problems += [f'{page}: says "{NOT_RELEASED} …": name the package index' for page in pages]
    return problems


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Return a page whose relative links lead into the repository at a tag, those of pictures to the file."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if Path(link[1]).suffix in {".png", ".svg"} else "blob"
        return f"]({repository}/{kind}/{tag}/{link[1]})"

    return RELATIVE_LINK.sub(absolute, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
